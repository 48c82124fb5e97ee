"""What one engine is like with one model, before any time is taken: whether rows may share a batch, and its memory.

A process of its own runs 1 row and compares rows alone with rows together, another one runs 2, a third one 4; larger
batches follow step by step, in the third one where memory is plentiful, else each in a fresh one. Owns these processes.
What it all means for a plan is for the planner.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.guess import worker_bytes
from hybrid.planner.measures import EngineProfile, MemoryLine, MemoryPoint
from hybrid.planner.prepare import file_bytes
from hybrid.planner.space import usable_bytes
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
_TOGETHER_SHARE: Final = 0.4


class Facts(Struct, frozen=True):
    """The profile without timings, the first numbers of each output, and the length of variable dimensions."""

    profile: EngineProfile
    sample: dict[str, tuple[float, ...]]
    length: int


class FactsProbe:
    """Finds out about engines for one model.

    `memory_bytes` is the memory that one instance has, `most_rows` the largest batch that is of interest.
    """

    def __init__(
        self,
        model: ModelSettings,
        machine: MachineFacts,
        length: int,
        memory_bytes: float,
        most_rows: int,
        budget: Budget,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._length = length
        self._memory_bytes = memory_bytes
        self._most_rows = most_rows
        self._budget = budget
        self._on_step = on_step

    def find(self, engine: str) -> Facts:
        """Find out about one engine on the model's device.

        Raises:
            ProbeFailed: it cannot load the model, or not run a single row of it, or not within the budget.
            OSError: no process or descriptor to be had.
        """
        self._on_step(f"{engine}: loading")
        with closing(self._crews(engine)) as crews:
            crew = next(crews)
            loaded = crew.loaded(self._patience_s(_START_LIMIT_S))[0]
            small = SMALL if loaded.fixed_rows is None else (loaded.fixed_rows,)
            points = [self._peak(crew, small[0])]
            checked = crew.ask(Check(), Checked, self._patience_s(_RUN_LIMIT_S))[0]
            if checked.fault:
                small = small[:1]
            memory = self._memory(crews, crew, engine, points, small)
        profile = EngineProfile(
            engine,
            engine_version=engine_version(engine),
            device=self._model.workers.device,
            memory=memory,
            batching_fault=checked.fault,
            fixed_rows=loaded.fixed_rows,
            variable=loaded.variable,
            load_s=round(loaded.load_s, 3),
            beside=checked.beside,
        )
        return Facts(profile, checked.sample, loaded.length)

    def _crews(self, engine: str) -> Generator[Crew, None, None]:
        """A fresh process per small batch. They load side by side, unless that might take more memory than there is."""
        each = worker_bytes(file_bytes(Path(self._model.file)) if self._model.file else 0)
        together = len(SMALL) * each < _TOGETHER_SHARE * self._memory_bytes
        started: list[Crew] = []
        try:
            for index in range(len(SMALL)):
                while len(started) < (len(SMALL) if together else index + 1):
                    started.append(self._start(engine))
                yield started[index]
                started[index].close()
        finally:
            for crew in started:
                crew.close()

    def _memory(
        self, crews: Iterator[Crew], crew: Crew, engine: str, points: list[MemoryPoint], small: Sequence[int]
    ) -> MemoryLine:
        for rows in small[1:]:
            try:
                crew = next(crews)
                crew.loaded(self._patience_s(_START_LIMIT_S))
                points.append(self._peak(crew, rows))
            except ProbeFailed as error:
                return self._ended(points, rows, error)
        return line_of(points) if len(small) == 1 else self._climb(crew, engine, points)

    def _climb(self, crew: Crew, engine: str, points: list[MemoryPoint]) -> MemoryLine:
        row_s = 0.0
        most = self._most_rows
        while (rows := next_rows(points, self._usable_bytes(points), most)) is not None:
            roomy = is_roomy(line_of(points), self._usable_bytes(points), most)
            worth_s = min(_WORTH_S, _BUDGET_SHARE * self._budget.left_s)
            roomy = roomy and not crew.closed
            if roomy and (points[-1].rows >= most // 2 or row_s * rows > worth_s):
                break
            self._on_step(f"{engine}: memory of {rows} rows")
            began = time.monotonic()
            try:
                if not roomy:
                    crew.close()  # two processes would need the memory that one is to find the end of
                points.append(self._peak(crew, rows) if roomy else self._peak_alone(engine, rows))
            except ProbeFailed as error:
                return self._ended(points, rows, error)
            row_s = (time.monotonic() - began) / rows
        return line_of(points)

    def _peak_alone(self, engine: str, rows: int) -> MemoryPoint:
        """As `_peak`, in a fresh process: where memory is short it counts that allocators keep what smaller ones left.

        A worker warms one row, then its largest batch; what comes later finds room in what that took.
        """
        with self._start(engine) as crew:
            crew.loaded(self._patience_s(_START_LIMIT_S))
            return self._peak(crew, rows)

    def _ended(self, points: Sequence[MemoryPoint], rows: int, error: ProbeFailed) -> MemoryLine:
        """What is known when `rows` failed. Only a lack of memory says anything about memory."""
        return without(line_of(points), self._usable_bytes(points), rows) if error.memory else line_of(points)

    def _usable_bytes(self, points: Sequence[MemoryPoint]) -> int:
        return usable_bytes(self._memory_bytes, line_of(points).base_bytes)

    def _peak(self, crew: Crew, rows: int) -> MemoryPoint:
        return MemoryPoint(rows, crew.ask(Peak(rows), Peaked, self._patience_s(_RUN_LIMIT_S))[0].peak_bytes)

    def _patience_s(self, limit_s: float) -> float:
        """Nobody waits longer than there is time: what takes all of it is no subject for measuring."""
        return min(limit_s, self._budget.left_s)

    def _start(self, engine: str) -> Crew:
        return start_crew(self._model, self._machine, engine, 1, 1, self._length, self._model.workers.device)
