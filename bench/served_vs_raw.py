"""(a) Served against the raw engine: same processes x threads, same batch, one run, rounds in turn (A B B A).

`minilm` gets text that is 16 tokens long, so tokenising, pooling, HTTP and JSON are all in the served figure and not in
the raw one. `nsfw` gets its tensor in binary form.
"""

import json
import time
import urllib.request

import numpy as np

from bench.drive import Load, Measured, ask, drive
from bench.raw_engine import RawRound, run_raw
from bench.report import machine_facts, refuse_when_busy, show, spread, write
from bench.servers import hybrid
from hybrid.messages import Tensor
from hybrid.protocol.oip_client import encode_request

_CONNECTIONS = 32
_PAIRS = 6
_SECONDS = 6
_CORES = [0, 1]
_BATCH = 8
_TEXT = "a small boat sails over the quiet lake while two birds follow it home"  # 14 words + 2 marks


def main(pairs: int = _PAIRS) -> None:
    """Run, print and write bench/results/served_vs_raw.json."""
    refuse_when_busy()
    facts = machine_facts()
    figures = {}
    rows = []
    for model in ("minilm", "nsfw"):
        served, raw, mean_batch = _measure(model, pairs)
        summary = {
            "served_rate": spread([one.rate for one in served]),
            "raw_rate": spread([one.rate for one in raw]),
            "rate_ratio": spread([a.rate / b.rate for a, b in zip(served, raw, strict=True)]),
            "served_cpu_us": spread([one.cpu_us_per_request for one in served]),
            "raw_cpu_us": spread([one.cpu_us_per_item for one in raw]),
            "cpu_ratio": spread([a.cpu_us_per_request / b.cpu_us_per_item for a, b in zip(served, raw, strict=True)]),
            "p50_ms": spread([one.p50_us / 1e3 for one in served]),
            "p99_ms": spread([one.p99_us / 1e3 for one in served]),
        }
        errors = sum(one.errors for one in served)
        figures[model] = summary | {"errors": errors, "mean_batch": mean_batch}
        rows += [(f"{model} {name}", value) for name, value in figures[model].items()]
    show(f"served ({_CONNECTIONS} connections) and raw, 2 processes x 1 thread, batch {_BATCH}", ("", "value"), rows)
    print(write("served_vs_raw", facts, {"connections": _CONNECTIONS, "batch": _BATCH, "figures": figures}))


def _measure(model: str, pairs: int) -> tuple[list[Measured], list[RawRound], float]:
    served: list[Measured] = []
    raw: list[RawRound] = []
    arguments = (model, "--workers", "2", "--threads", "1", "--max-batch", str(_BATCH))
    with hybrid(*arguments) as (base, pid):
        load = _load(base, model)
        ask(load)
        drive(load, _CONNECTIONS, 2, pid)

        def executed() -> int:
            return _settled_rows(base, model)

        for pair in range(pairs):
            steps = ["served", "raw"] if pair % 2 == 0 else ["raw", "served"]
            for step in steps:
                if step == "served":
                    served.append(drive(load, _CONNECTIONS, _SECONDS, pid, executed))
                else:
                    raw.append(run_raw(model, _BATCH, _CORES, _SECONDS))
        return served, raw, _mean_batch(base, model)


def _load(base: str, model: str) -> Load:
    url = f"{base}/v2/models/{model}/infer"
    if model == "minilm":
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [_TEXT]}]}
        return Load(url, json.dumps(body).encode())
    pixels = np.random.default_rng(7).random((1, 224, 224, 3), np.float32)
    content, length = encode_request([Tensor("input:0", "FP32", pixels)], binary=True)
    return Load(url, content, {"Inference-Header-Content-Length": str(length)})


def _mean_batch(base: str, model: str) -> float:
    stats = _stats(base, model)
    return round(stats["inference_count"] / stats["execution_count"], 2)


def _settled_rows(base: str, model: str) -> int:
    """Wait until the count of executed rows stands still, and return it."""
    before = -1
    while (now := _stats(base, model)["inference_count"]) != before:
        before = now
        time.sleep(0.6)
    return now


def _stats(base: str, model: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{base}/v2/models/{model}/stats", timeout=10) as answer:
        stats: dict[str, int] = json.load(answer)["model_stats"][0]
        return stats
