"""Times batches on real processes that run side by side: a `Measurer`.

Owns the crew of the setting that was asked for last. Must never decide what is worth measuring.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.facts import MachineFacts
from hybrid.planner.measures import Probe, Timing
from hybrid.planner.placement import placement_order
from hybrid.probing.budget import Budget
from hybrid.probing.crew import Crew, ProbeFailed
from hybrid.probing.messages import Time, Timed, Warm, Warmed
from hybrid.probing.timing import summarise

#: Failure of a probe that was not run because the time was over; says nothing about the setting.
NO_TIME: Final = "not measured: the time for measuring was over"
POINT_S: Final = 0.4
_POINT_BATCHES: Final = 5
_POINT_MOST_S: Final = 1.2
_START_S: Final = 0.002  # for the command to reach everybody
_GRACE_S: Final = 5.0  # what a process may take longer than it should, the budget included, before it is given up
_START_LIMIT_S: Final = 120.0
_TRIES: Final = 2

Key = tuple[str, str, int, int]


class ProcessMeasurer:
    """Runs probes of one model. Use as a context manager, or call `close`: processes are kept between calls."""

    def __init__(
        self,
        model: ModelSettings,
        machine: MachineFacts,
        length: int,
        budget: Budget,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._length = length
        self._budget = budget
        self._on_step = on_step
        self._key: Key | None = None
        self._crew: Crew | None = None

    def __enter__(self) -> "ProcessMeasurer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def time(self, probes: Sequence[Probe]) -> tuple[Timing, ...]:
        """Return one answer per probe, in order; those of one setting are run one after the other, smallest first."""
        answers: dict[Probe, Timing] = {}
        keys = sorted(
            dict.fromkeys(map(_key, probes)), key=lambda key: key != self._key
        )  # who runs already comes first
        for key in keys:
            self._time_setting(sorted(probe for probe in set(probes) if _key(probe) == key), answers)
        return tuple(answers[probe] for probe in probes)

    def close(self) -> None:
        """End the processes."""
        if self._crew is not None:
            self._crew.close()
        self._crew, self._key = None, None

    def _time_setting(self, probes: Sequence[Probe], answers: dict[Probe, Timing]) -> None:
        failure = ""
        for probe in probes:
            if failure or not self._budget.left_s:
                answers[probe] = _failed(probe, failure or NO_TIME)
                continue
            self._on_step(f"{probe.engine}: {probe.instances} x {probe.threads}, batch {probe.rows}")
            try:
                answers[probe] = self._time_one(self._crew_for(probe), probe)
            except (ProbeFailed, OSError) as error:
                self.close()
                # What does not fit with few rows does not fit with more of them.
                failure = NO_TIME if isinstance(error, ProbeFailed) and error.late else str(error)
                answers[probe] = _failed(probe, failure)

    def _crew_for(self, probe: Probe) -> Crew:
        key = _key(probe)
        if self._crew is None or self._key != key:
            self.close()
            self._crew = start_crew(
                self._model, self._machine, probe.engine, probe.instances, probe.threads, self._length, probe.device
            )
            self._key = key
            self._crew.loaded(min(_START_LIMIT_S, self._budget.left_s + _GRACE_S))
        return self._crew

    def _time_one(self, crew: Crew, probe: Probe) -> Timing:
        patience_s = self._budget.left_s + _GRACE_S
        warm_s = max(answer.seconds for answer in crew.ask(Warm(probe.rows), Warmed, patience_s))
        run_s = min(max(POINT_S, _POINT_BATCHES * warm_s), _POINT_MOST_S, max(self._budget.left_s, POINT_S))
        for _ in range(_TRIES):
            begin = time.monotonic() + _START_S
            command = Time(probe.rows, begin, begin + run_s)
            answers = crew.ask(command, Timed, run_s + 10 * warm_s + _GRACE_S)
            if all(answer.batches for answer in answers):  # else one got no CPU until all was over
                found = summarise(answers, probe.threads)
                # The kernel counts the pauses of a quota as waiting, and these are no others' doing.
                waited = 0.0 if self._machine.cpu.quota_cpus else round(found.waited, 4)
                return Timing(probe, found.seconds, round(found.spread, 4), found.runs, waited=waited)
        raise ProbeFailed("a process did not get to run a batch in time", late=True)


def start_crew(
    model: ModelSettings,
    machine: MachineFacts,
    engine: str,
    instances: int,
    threads: int,
    length: int,
    device: str = "cpu",
) -> Crew:
    """Start processes as the server would start its workers for this setting.

    Raises:
        OSError: no process or descriptor to be had.
    """
    cores = cores_for(model, machine, instances, threads, device)
    # Threads never spin while others share the cores, and the server's workers do not either.
    settings = EngineSettings(threads=threads, device=device)
    return Crew(replace(model, engine=cast(Any, engine)), settings, cores, length)


def cores_for(
    model: ModelSettings, machine: MachineFacts, instances: int, threads: int, device: str = "cpu"
) -> list[tuple[int, ...]]:
    """CPUs for each instance, disjoint, in the order in which a plan hands them out; empty where a plan pins nobody."""
    order = placement_order(machine)
    quota = machine.cpu.usable < len(order)
    if device != "cpu" or quota or not model.workers.pin or instances * threads > len(order):
        return [()] * instances
    return [order[index * threads : (index + 1) * threads] for index in range(instances)]


def _key(probe: Probe) -> Key:
    return probe.engine, probe.device, probe.instances, probe.threads


def _failed(probe: Probe, text: str) -> Timing:
    return Timing(probe, float("inf"), runs=0, failure=text)
