"""Re-plan under load: what clients notice while workers are replaced. `python -m bench replan`.

One open loop at 60 % of what the weaker of two plans can do goes on all the time; now and then the server is told to
go from one plan to the other and back. Requests that were meant to be sent while a switch was under way, and for half a
second after it, are held against those of the quiet times between the switches of the same run.
"""

import argparse
import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import uvloop
from msgspec import Struct

from bench.report import machine_facts, refuse_when_busy, show, spread, write
from hybrid.load.arrivals import Closed, Poisson
from hybrid.load.carriers import Shot
from hybrid.load.driver import Generator
from hybrid.load.many import run
from hybrid.load.payloads import Payload, PayloadSettings, for_model
from hybrid.load.spec import LoadSpec
from hybrid.load.target import local

_PLANS: Final[tuple[dict[str, int], ...]] = (
    {"instances": 1, "threads_per_instance": 2, "max_batch": 16},
    {"instances": 2, "threads_per_instance": 1, "max_batch": 8},
)
_SHARE: Final = 0.6
_LEAD_S: Final = 2.0
_AFTER_S: Final = 0.5  # what a switch has delayed may still be late when it is over
_SETTLED_S: Final = 1.0
_QUIET_S: Final = 4.0
_CLIENTS: Final = 32
_CAPACITY_ROUNDS: Final = 3


class Sent(Struct, frozen=True):
    """One request: when it was meant to be sent, and how long its answer took; infinite when it failed."""

    at_s: float
    took_s: float


class Switch(Struct, frozen=True):
    """One re-plan: from when to when, by the clock of the load."""

    began_s: float
    ended_s: float
    answer: tuple[bool, ...]


class Recorder(Generator):
    """A generator that keeps every request, not only histograms."""

    def __init__(self, spec: LoadSpec) -> None:
        super().__init__(spec)
        self.sent: list[Sent] = []
        self.failures: list[str] = []

    def answered(self, shot: Shot, status: int, error: str) -> None:
        """Keep an answer."""
        took_s = time.monotonic() - shot.intended_s
        if status != 200:
            self.failures.append(f"{status} {error}")
        self.sent.append(Sent(shot.intended_s, took_s if status == 200 else np.inf))
        super().answered(shot, status, error)

    def broken(self, shot: Shot, why: str) -> None:
        """Keep a lost request."""
        self.failures.append(why)
        self.sent.append(Sent(shot.intended_s, np.inf))
        super().broken(shot, why)

    def timed_out(self, shot: Shot) -> None:
        """Keep a request that was given up."""
        self.failures.append("timeout")
        self.sent.append(Sent(shot.intended_s, np.inf))
        super().timed_out(shot)


def replan(base: str, model: str, plan: dict[str, int]) -> tuple[bool, ...]:
    """Ask for a plan and return, per served model, whether it got other workers."""
    body = json.dumps({"model": model, "plan": plan}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"{base}/hybrid/v1/plan", body), timeout=120) as answer:
        return tuple(entry["restarted"] for entry in json.load(answer))


def capacity_rps(url: str, payloads: tuple[Payload, ...]) -> float:
    """Return the rate of a closed loop of many clients."""
    return run(LoadSpec(url=url, payloads=payloads, arrivals=Closed(_CLIENTS), seconds=1.5, warmup_s=0.5)).rps


async def under_load(spec: LoadSpec, base: str, model: str, times: int) -> tuple[Recorder, list[Switch]]:
    """Send the load and switch `times` times meanwhile."""
    recorder = Recorder(spec)
    try:
        await recorder.connect()
        load = asyncio.ensure_future(recorder.run(time.monotonic()))
        switches: list[Switch] = []
        await asyncio.sleep(_LEAD_S)
        for number in range(times):
            began_s = time.monotonic()
            answer = await asyncio.to_thread(replan, base, model, _PLANS[number % len(_PLANS)])
            switches.append(Switch(began_s, time.monotonic(), answer))
            await asyncio.sleep(_SETTLED_S + _QUIET_S)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    finally:
        recorder.close()
    return recorder, switches


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench replan")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--slo-ms", type=float, default=300.0)
    parser.add_argument("--dry", action="store_true", help="write no result")
    arguments, _ = parser.parse_known_args()
    if not arguments.dry:
        refuse_when_busy()
    facts = machine_facts()
    with local(arguments.model) as target:
        url = target.infer_url(arguments.model)
        payloads = for_model(target.metadata(arguments.model), PayloadSettings())
        rounds = []
        for plan in _PLANS * _CAPACITY_ROUNDS:
            replan(target.base, arguments.model, plan)
            rounds.append(capacity_rps(url, payloads))
        # The best of several: whatever disturbs a round makes it slower.
        capacities = [max(rounds[number :: len(_PLANS)]) for number in range(len(_PLANS))]
        rate = _SHARE * min(capacities)
        longest_s = arguments.times * 60.0
        spec = LoadSpec(url=url, payloads=payloads, arrivals=Poisson(rate, seed=1), seconds=longest_s, warmup_s=0.0)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            recorder, switches = runner.run(under_load(spec, target.base, arguments.model, arguments.times))
    found = summary(recorder.sent, switches, arguments.slo_ms / 1e3)
    found |= {
        "model": arguments.model,
        "slo_ms": arguments.slo_ms,
        "capacity_rps": [round(value, 1) for value in capacities],
        "rate_rps": round(rate, 1),
        "switches": len(switches),
        "switches_with_other_workers": sum(all(switch.answer) for switch in switches),
        "requests": len(recorder.sent),
        "failed": len(recorder.failures),
        "first_failure": recorder.failures[0] if recorder.failures else "",
    }
    _show(found)
    if not arguments.dry:
        print(write("replan", facts, found))


def summary(sent: Sequence[Sent], switches: Sequence[Switch], slo_s: float) -> dict[str, Any]:
    """Hold the requests around switches against those of quiet times."""
    at = np.array([one.at_s for one in sent])
    took = np.array([one.took_s for one in sent])
    around = [(at >= s.began_s) & (at < s.ended_s + _AFTER_S) for s in switches]
    starts = [s.ended_s + _SETTLED_S for s in switches]
    quiet = [(at >= start) & (at < start + _QUIET_S - 0.3) for start in starts]
    all_around, all_quiet = np.any(around, axis=0), np.any(quiet, axis=0)
    steady = float(np.mean(took[all_quiet] <= slo_s))
    each = [float(np.mean(took[mask] <= slo_s)) for mask in around]
    return {
        "goodput_share_quiet": round(steady, 4),
        "goodput_share_switch": round(float(np.mean(took[all_around] <= slo_s)), 4),
        "dip": round(1.0 - float(np.mean(took[all_around] <= slo_s)) / steady, 4),
        "dip_of_each_switch": spread([round(1.0 - share / steady, 4) for share in each]),
        "dips": [round(1.0 - share / steady, 4) for share in each],
        "switch_s": spread([round(s.ended_s - s.began_s, 3) for s in switches]),
        "quiet_ms": _quantiles(took[all_quiet]),
        "switch_ms": _quantiles(took[all_around]),
    }


def _quantiles(took: "np.ndarray[Any, Any]") -> dict[str, float]:
    finite = took[np.isfinite(took)]
    return {f"p{q:g}": round(float(np.percentile(finite, q)) * 1e3, 1) for q in (50, 95, 99, 100)}


def _show(found: dict[str, Any]) -> None:
    quiet, switch = found["quiet_ms"], found["switch_ms"]
    rows = [
        ("goodput share", found["goodput_share_quiet"], found["goodput_share_switch"]),
        *((f"{name} ms", quiet[name], switch[name]) for name in quiet),
    ]
    title = (
        f"{found['model']}: {found['switches']} re-plans at {found['rate_rps']:g} of {found['capacity_rps']} rps, "
        f"SLO {found['slo_ms']:g} ms"
    )
    show(title, ("", "quiet", "switch"), rows)
    print(f"failed {found['failed']} of {found['requests']} {found['first_failure']}")
    print(f"dip {found['dip']:.1%}, of each {found['dip_of_each_switch']}; a switch takes {found['switch_s']} s")


if __name__ == "__main__":
    main()
