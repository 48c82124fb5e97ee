"""One trial on a real server: the setting is put in force, the load is run, what came of it is returned.

Owns the payloads and the change of settings, which needs no restart: the server plans anew. Must never know why
something is measured.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hybrid.errors import ConfigError, StartupError
from hybrid.load.arrivals import Closed, Poisson
from hybrid.load.many import run
from hybrid.load.observed import window
from hybrid.load.payloads import Payload, PayloadSettings, for_model
from hybrid.load.report import LoadResult
from hybrid.load.spec import LoadSpec
from hybrid.load.target import Refused, Target
from hybrid.planner.measures import Setting
from hybrid.tune.values import Ask, Load, Seen

#: Keys of a plan that a setting fixes. A trigger that the model's author has fixed would be above small batches.
KEYS: Final = ("engine", "instances", "threads_per_instance", "max_batch", "max_wait_ms", "early_trigger")
_PLAN_PATH: Final = "/hybrid/v1/plan"
_REPLAN_S: Final = 180.0
_WARM_S: Final = 0.25
_FIRST_WARM_S: Final = 0.6  # on workers that are new
_TIMES_SLO: Final = 4.0
_TIMEOUT_S: Final = 30.0
_LAG_SHARE: Final = 0.05
_LAG_S: Final = 0.002
_REPEAT_AFTER_S: Final = (0.3, 1.5)
_PAYLOADS: Final = 1024
_SAMPLES: Final = 4
_SAMPLE_NUMBERS: Final = 4096  # of each output and request
_FLOATS: Final = ("FP16", "FP32", "FP64")
_HOLDS_S: Final = 0.2


class Served(Struct, frozen=True):
    """A model as a server shows it: its exact name, its plan, and the largest batch that is really made."""

    name: str
    plan: dict[str, Any]
    largest: int
    usable_cpus: int


class Lab:
    """Measures one model on one server; `admin_token` allows to change its plan.

    Raises:
        ConfigError: the server does not serve the model.
        StartupError: it does not answer.
    """

    def __init__(self, target: Target, model: str, payloads: PayloadSettings, admin_token: str = "") -> None:
        self._target = target
        self._headers = {"Content-Type": "application/json"}
        if admin_token:
            self._headers["X-Admin-Token"] = admin_token
        self.served = _served(target, model)
        self._metadata = target.metadata(self.served.name)
        self._settings = replace(payloads, count=_PAYLOADS)
        self._payloads: dict[int, tuple[Payload, ...]] = {}
        self._in_force: Setting | None = None
        self._touched = False

    def sample(self, engine: str) -> dict[str, list[float]]:
        """Return what an engine answers to a few requests: numbers by output. Other outputs than of floats say nothing.

        Raises:
            StartupError: it cannot run the model, or does not answer.
        """
        why = self._put_in_force(Setting(engine, 1, 1, 1, 0.0, str(self.served.plan["device"])))
        if why:
            raise StartupError(why)
        found: dict[str, list[float]] = {}
        for payload in self._rows(1)[:_SAMPLES]:
            for output in self._target.infer(self.served.name, payload, _TIMEOUT_S).outputs:
                if output.datatype in _FLOATS:
                    numbers = output.array.ravel()[:_SAMPLE_NUMBERS].astype(float).tolist()
                    found.setdefault(output.name, []).extend(numbers)
        return found

    def largest(self, wanted: int) -> int:
        """Return the largest batch up to `wanted` that one worker really makes, by asking for it.

        A server takes back what the model does not allow. What the memory of a device does not hold fails when new
        workers warm up, or with a simulated one, which is not warmed again, when it is run; then half of it is tried,
        down to what the server was found with, which it holds.

        Raises:
            StartupError: the server is gone, or refuses to change its plan at all.
        """
        plan = self.served.plan
        own_device = plan["device"] != "cpu"
        instances, threads = (1, 1) if own_device else (int(plan["instances"]), int(plan["threads_per_instance"]))
        rows = wanted
        while rows > self.served.largest:
            setting = Setting(str(plan["engine"]), instances, threads, rows, 0.0, str(plan["device"]))
            made = 0 if self._put_in_force(setting) else _served(self._target, self.served.name).largest
            if made < rows:
                if made:
                    return made
            elif plan["device"] != "simulated" or self._runs(rows):
                return rows
            rows //= 2
        return min(wanted, self.served.largest)

    def measure(self, ask: Ask) -> Seen:
        """Run a load on a setting. A setting that cannot run is an answer, too.

        Raises:
            StartupError: the server is gone, or refuses to change its plan at all.
        """
        fresh = ask.setting != self._in_force
        if fresh:
            why = self._put_in_force(ask.setting)
            if why:
                return Seen(failure=why)
        seen = self._run(ask.load, fresh)
        for pause_s in _REPEAT_AFTER_S:
            if not seen.void:
                break
            time.sleep(pause_s)  # what else used the CPUs may be over then
            seen = self._run(ask.load, False)
        return seen

    def plan(self, setting: Setting) -> dict[str, Any]:
        """Put a setting in force and return the whole plan that it makes.

        Raises:
            StartupError: it cannot be put in force any more.
        """
        if setting != self._in_force:
            why = self._put_in_force(setting)
            if why:
                raise StartupError(f"the best setting cannot be put in force again: {why}")
        return _served(self._target, self.served.name).plan

    def restore(self) -> None:
        """Put the plan in force that was found at the beginning.

        What was fixed is taken back first, so that the server goes on planning by itself; only where that makes another
        plan than before, because somebody had fixed numbers, those are fixed again.

        Raises:
            StartupError: the server is gone, or cannot go back.
        """
        if not self._touched:
            return
        self._replan(dict.fromkeys(KEYS))
        now = _served(self._target, self.served.name).plan
        other = {key: self.served.plan[key] for key in KEYS if now[key] != self.served.plan[key]}
        if other:
            self._replan(other)

    def _runs(self, rows: int) -> bool:
        """Whether batches of `rows` are run whole: a server runs the halves of what was too large."""
        seen = self._run(Load(_HOLDS_S, clients=1, rows=rows), False)
        return not seen.errors_n and (seen.mean_batch or 0.0) >= rows

    def _put_in_force(self, setting: Setting) -> str:
        plan: dict[str, Any] = {
            "instances": setting.instances,
            "threads_per_instance": setting.threads,
            "max_batch": setting.max_batch,
            "max_wait_ms": setting.max_wait_ms,
            "early_trigger": setting.max_batch,
        }
        if setting.engine != self.served.plan["engine"] or self._touched:
            plan["engine"] = setting.engine if setting.engine != "simulated" else None
        self._in_force, self._touched = None, True  # before, for whoever is interrupted inside
        try:
            self._replan(plan)
        except Refused as error:
            if error.answer_status in (401, 403, 404, 405):
                raise StartupError(f"{self._target.base} does not let its plan be changed: {error.words}") from error
            return error.words
        self._in_force = setting
        return ""

    def _replan(self, plan: Mapping[str, Any]) -> None:
        body = msgspec.json.encode({"model": self.served.name, "plan": plan})
        self._target.call(_PLAN_PATH, body, self._headers, _REPLAN_S)

    def _run(self, load: Load, fresh: bool) -> Seen:
        before = self._target.snapshot()
        result = run(self._spec(load, _FIRST_WARM_S if fresh else _WARM_S))
        after = self._target.snapshot()
        seen = None
        if before is not None and after is not None:
            seen = window(before, after, self.served.name, None)
        return _seen(result, load, seen.mean_batch if seen is not None else None)

    def _spec(self, load: Load, warm_s: float) -> LoadSpec:
        slo_s = load.slo_s
        # Late sends are late answers, too: a lag of a twentieth of the objective moves no verdict by more than that,
        # and to the safe side. Where server and generator share two CPUs, a tighter limit would void good runs.
        lag_s = _LAG_S if slo_s is None else max(_LAG_S, _LAG_SHARE * slo_s)
        soon_s = _TIMES_SLO * slo_s + 1.0 if slo_s is not None and load.rate_rps else _TIMEOUT_S
        # Never within the objective: what would come in time would be given up.
        timeout_s = max(min(_TIMEOUT_S, soon_s), (slo_s or 0.0) + 1.0)
        return LoadSpec(
            url=self._target.infer_url(self.served.name),
            payloads=self._rows(load.rows),
            arrivals=Poisson(load.rate_rps, load.seed) if load.rate_rps else Closed(load.clients),
            seconds=load.seconds,
            warmup_s=warm_s,
            timeout_s=timeout_s,
            drain_s=timeout_s,
            slo_s=slo_s,
            late_limit=load.late_limit if slo_s is not None else None,
            lag_limit_s=lag_s,
        )

    def _rows(self, rows: int) -> tuple[Payload, ...]:
        if rows not in self._payloads:
            self._payloads[rows] = for_model(self._metadata, replace(self._settings, rows=rows))
        return self._payloads[rows]


def _seen(result: LoadResult, load: Load, mean_batch: float | None) -> Seen:
    return Seen(
        rps=result.rps,
        offered_n=result.offered_n,
        late_n=result.offered_n - result.good_n if load.slo_s is not None else 0,
        errors_n=result.errors_n,
        p50_s=result.latency_at(0.5),
        p95_s=result.latency_at(0.95),
        p99_s=result.latency_at(0.99),
        lag_p99_s=result.lag_p99_s,
        mean_batch=mean_batch,
        stopped=result.stopped,
        void=result.void,
        first_error=result.first_error,
    )


def _served(target: Target, model: str) -> Served:
    """Find a model among the plans of a server, by its name with or without `simulated:`."""
    try:
        plans = msgspec.json.decode(target.call(_PLAN_PATH), type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{target.base} is no server of hybrid: {error}") from error
    bare = model.removeprefix("simulated:")
    found = [plan for plan in plans if str(plan["model"]).removeprefix("simulated:") == bare]
    if not found:
        names = ", ".join(str(plan["model"]) for plan in plans) or "none"
        raise ConfigError(f"{target.base} does not serve `{model}`; it serves: {names}")
    plan = found[-1]
    snapshot = target.snapshot()
    if snapshot is None:
        raise StartupError(f"{target.base} shows no snapshot of itself")
    entry = next((m for m in snapshot.models if m.name == plan["model"] and m.in_force is not None), None)
    largest = entry.in_force.max_batch if entry is not None and entry.in_force is not None else plan["max_batch"]
    return Served(str(plan["model"]), plan, int(largest), snapshot.host.usable_cpus)
