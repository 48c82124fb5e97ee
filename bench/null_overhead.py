"""What serving costs by itself: `simulated:null`, JSON with one float, beside the same null work on Mosec.

(b) and (c) of the benchmark set. One run, rounds interleaved, both with one worker; wrk shares the two cores. `live` is
a health probe on the same server: what a round trip through the client, the kernel and the HTTP parser costs by itself.
`sources` is hybrid without its compiled modules.
"""

import json

from bench.drive import Load, Measured, ask, drive
from bench.report import Spread, machine_facts, refuse_when_busy, show, spread, write
from bench.servers import environment, free_port, hybrid, peer

_ROUNDS = 5
_SECONDS = 4
_CONNECTIONS = (64, 1)
_BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()
_PEER_BODY = json.dumps({"data": [1.0]}).encode()


def main(rounds: int = _ROUNDS) -> None:
    """Run, print and write bench/results/null_overhead.json."""
    python = environment("mosec", "mosec==0.9.8")
    refuse_when_busy()
    facts = machine_facts()
    port = free_port()
    url = f"http://127.0.0.1:{port}/inference"
    command = [str(python), "-m", "bench.peers.mosec_null", "--port", str(port), "--log-level", "error"]
    measured: dict[tuple[str, int], list[Measured]] = {}
    sources = hybrid("simulated:null", compiled=False)
    with hybrid("simulated:null") as (base, ours), sources as (other, plain), peer(command, url, _PEER_BODY) as theirs:
        loads = {
            "hybrid": (Load(f"{base}/v2/models/simulated:null/infer", _BODY), ours),
            "sources": (Load(f"{other}/v2/models/simulated:null/infer", _BODY), plain),
            "live": (Load(f"{base}/v2/health/live", b""), ours),
            "mosec": (Load(url, _PEER_BODY), theirs),
        }
        for load, _ in loads.values():
            ask(load)
        for _ in range(rounds):
            for connections in _CONNECTIONS:
                for name in loads:
                    load, pid = loads[name]
                    measured.setdefault((name, connections), []).append(drive(load, connections, _SECONDS, pid))
    _report(facts, measured)


def _report(facts: dict[str, object], measured: dict[tuple[str, int], list[Measured]]) -> None:
    rows = []
    figures = {}
    for (name, connections), rounds in measured.items():
        rate = spread([one.rate for one in rounds])
        cpu = spread([one.cpu_us_per_request for one in rounds])
        p50 = spread([one.p50_us for one in rounds])
        p99 = spread([one.p99_us for one in rounds])
        errors = sum(one.errors for one in rounds)
        rows.append((name, connections, rate, p50, p99, cpu, errors))
        figures[f"{name}_{connections}"] = {
            "rate": rate, "p50_us": p50, "p99_us": p99, "cpu_us_per_request": cpu, "errors": errors,
        }  # fmt: skip
    added_us = spread([a.p50_us - b.p50_us for a, b in zip(measured["hybrid", 1], measured["live", 1], strict=True)])
    ratios = {
        f"rate_over_{them}_{c}": _ratio(measured["hybrid", c], measured[them, c])
        for them in ("mosec", "sources")
        for c in _CONNECTIONS
    }
    show(
        "null work, JSON, one float, 2 cores shared with wrk",
        ("server", "connections", "requests/s", "p50 us", "p99 us", "CPU us/request", "errors"),
        rows,
    )
    show("hybrid, compiled, over others, round by round", ("", "ratio of requests/s"), list(ratios.items()))
    print(f"added p50 at 1 connection, over GET /v2/health/live on the same server: {added_us} us")
    print(write("null_overhead", facts, {"figures": figures, "ratios": ratios, "added_p50_us": added_us}))


def _ratio(ours: list[Measured], theirs: list[Measured]) -> Spread:
    return spread([a.rate / b.rate for a, b in zip(ours, theirs, strict=True)])
