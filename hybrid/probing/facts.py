"""What one engine is like with one model, before any time is taken: whether rows may share a batch, and its memory.

Three processes load the model side by side and run 1, 2 and 4 rows; the first one then compares rows alone with rows
together, the last one climbs to larger batches. Owns these processes. What it all means for a plan is for the planner.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.measures import EngineProfile, MemoryLine, MemoryPoint
from hybrid.probing.agreement import Sample
from hybrid.probing.budget import Budget
from hybrid.probing.climbing import is_roomy, line_of, next_rows, without
from hybrid.probing.crew import Crew, ProbeFailed
from hybrid.probing.fingerprint import engine_version
from hybrid.probing.messages import Check, Checked, Peak, Peaked
from hybrid.probing.runner import start_crew

SMALL: Final = (1, 2, 4)
_RUN_LIMIT_S: Final = 60.0
_START_LIMIT_S: Final = 120.0
_WORTH_S: Final = 0.7  # a longer run to confirm what is beyond doubt is not worth its time
_BUDGET_SHARE: Final = 0.15


class Facts(Struct, frozen=True):
    """The profile without timings, the first numbers of each output, and the length of variable dimensions."""

    profile: EngineProfile
    sample: Sample
    length: int


class FactsProbe:
    """Finds out about engines for one model.

    `usable_bytes` is the memory that one instance may fill, `most_rows` the largest batch that is of interest.
    """

    def __init__(
        self,
        model: ModelSettings,
        machine: MachineFacts,
        length: int,
        usable_bytes: float,
        most_rows: int,
        budget: Budget,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._length = length
        self._usable_bytes = usable_bytes
        self._most_rows = most_rows
        self._budget = budget
        self._on_step = on_step

    def find(self, engine: str) -> Facts:
        """Find out about one engine on the model's device.

        Raises:
            ProbeFailed: it cannot load the model, or not run a single row of it.
            OSError: no process or descriptor to be had.
        """
        device = self._model.workers.device
        self._on_step(f"{engine}: loading")
        crews: list[Crew] = []
        try:
            while len(crews) < len(SMALL):  # one after the other would find the same and take three times as long
                crews.append(start_crew(self._model, self._machine, engine, 1, 1, self._length, device))
            loaded = crews[0].loaded(_START_LIMIT_S)[0]
            small = SMALL if loaded.fixed_rows is None else (loaded.fixed_rows,)
            points = self._small(crews, small)
            checked = crews[0].ask(Check(), Checked, _RUN_LIMIT_S)[0]
            fixed = loaded.fixed_rows is not None or bool(checked.fault)
            memory = self._memory(crews[-1], engine, points, 1 if fixed else self._most_rows, small)
        finally:
            for crew in crews:
                crew.close()
        profile = EngineProfile(
            engine,
            engine_version=engine_version(engine),
            device=device,
            memory=memory,
            batching_fault=checked.fault,
            fixed_rows=loaded.fixed_rows,
            variable=loaded.variable,
            load_s=round(loaded.load_s, 3),
        )
        return Facts(profile, checked.sample, loaded.length)

    def _small(self, crews: Sequence[Crew], small: Sequence[int]) -> list[MemoryPoint]:
        """Peaks of the small batches, up to the first that fails; the first of all must not."""
        points: list[MemoryPoint] = []
        crews[0].tell(Peak(small[0]))
        try:
            for crew, rows in list(zip(crews, small, strict=False))[1:]:
                crew.loaded(_START_LIMIT_S)
                crew.tell(Peak(rows))
            for crew, rows in zip(crews, small, strict=False):
                points.append(MemoryPoint(rows, crew.collect(Peaked, _RUN_LIMIT_S)[0].peak_bytes))
        except ProbeFailed:
            if not points:
                raise
        return points

    def _memory(
        self, crew: Crew, engine: str, points: list[MemoryPoint], most_rows: int, small: Sequence[int]
    ) -> MemoryLine:
        if len(points) < len(small):
            return without(line_of(points), self._usable_bytes, small[len(points)])
        if most_rows == 1:
            return line_of(points)
        return self._climb(crew, engine, points, most_rows)

    def _climb(self, crew: Crew, engine: str, points: list[MemoryPoint], most_rows: int) -> MemoryLine:
        row_s = 0.0
        while (rows := next_rows(points, self._usable_bytes, most_rows)) is not None:
            roomy = is_roomy(line_of(points), self._usable_bytes, most_rows)
            worth_s = min(_WORTH_S, _BUDGET_SHARE * self._budget.left_s)
            if roomy and (points[-1].rows >= most_rows // 2 or row_s * rows > worth_s):
                break
            self._on_step(f"{engine}: memory of {rows} rows")
            began = time.monotonic()
            try:
                peak = crew.ask(Peak(rows), Peaked, _RUN_LIMIT_S)[0].peak_bytes
            except ProbeFailed:
                return without(line_of(points), self._usable_bytes, rows)
            row_s = (time.monotonic() - began) / rows
            points.append(MemoryPoint(rows, peak))
        return line_of(points)
