"""(d) Texts of mixed length on `minilm`: batches of neighbours beside one FIFO queue that is padded to the longest.

The same server four times, differing in `batching.formation` only (and `alone`, without batching); rounds in turn. Each
request has a deadline, and only answers in time count. The last table is simulated: what other servers' policies would
do on the cost line that was measured here.
"""

import asyncio
import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from msgspec import Struct

from bench import length_load as load
from bench.length_policies import Line, Simulated, baselines, ragged_bound, simulate, simulate_ours
from bench.report import Spread, machine_facts, refuse_when_busy, show, spread, write
from bench.servers import hybrid
from hybrid.batching.cost import SizeCost
from hybrid.models.builtin import minilm
from hybrid.models.catalog import resolve

_CLIENTS = 64
_BATCH = 8
_ROUNDS = 3
_SECONDS = 6.0
_OPEN_ROUNDS = 2
_OPEN_SECONDS = 10.0
_DEADLINE_S = 3.0
_LOAD = 0.9  # of the closed loop's rate, in the open loop
_POLICIES = {
    "sorted": 'formation = "sorted"',
    "fifo": 'formation = "fifo"',
    "classes": 'formation = "classes"\nsize_edges = [16, 32, 64, 128, 256]',
    "alone": "enabled = false",
}


class Seen(Struct, frozen=True):
    """One round of one policy: the clients' side, and the share of padding in what was computed."""

    clients: load.Round
    padding: float


class Served:
    """One running server."""

    def __init__(self, base: str) -> None:
        self._base = base
        self.target = load.Target(urlsplit(base).port or 0, "/v2/models/text/infer", _DEADLINE_S)

    def closed(self, seed: int, seconds: float = _SECONDS) -> Seen:
        """One round in a closed loop."""
        with self._padding() as padding:
            clients = asyncio.run(load.closed_loop(self.target, _CLIENTS, seconds, seed))
        return Seen(clients, padding[0])

    def open(self, rate: float, seed: int) -> Seen:
        """One round in an open loop."""
        with self._padding() as padding:
            clients = asyncio.run(load.open_loop(self.target, rate, _OPEN_SECONDS, seed))
        return Seen(clients, padding[0])

    @contextmanager
    def _padding(self) -> Iterator[list[float]]:
        share: list[float] = []
        pad, real = self._tokens()
        yield share
        pad, real = self._tokens()[0] - pad, self._tokens()[1] - real
        share.append(pad / max(1, pad + real))

    def _tokens(self) -> tuple[int, int]:
        with urllib.request.urlopen(f"{self._base}/hybrid/v1/snapshot", timeout=10) as answer:
            (model,) = json.load(answer)["models"]
        return model["pad_n"], model["real_n"]


def main() -> None:
    """Run, print and write bench/results/mixed_lengths.json."""
    refuse_when_busy()
    facts = machine_facts()
    line = _cost_line()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        served = {name: Served(stack.enter_context(hybrid(_model(Path(folder), name)))[0]) for name in _POLICIES}
        for server in served.values():
            server.closed(seed=99, seconds=1.5)
        closed = _closed_rounds(served)
        rates = {
            name: _LOAD * spread([seen.clients.rate for seen in closed[name]]).median for name in ("sorted", "fifo")
        }
        opened = {
            name: [served[name].open(rates[name], seed) for seed in range(_OPEN_ROUNDS)] for name in ("sorted", "fifo")
        }
    _report(facts, closed, opened, rates, line)


def _closed_rounds(served: dict[str, Served]) -> dict[str, list[Seen]]:
    closed: dict[str, list[Seen]] = {name: [] for name in served}
    for number in range(_ROUNDS):
        names = list(served)
        for name in names if number % 2 == 0 else reversed(names):
            closed[name].append(served[name].closed(seed=number))
    return closed


def _model(root: Path, name: str) -> str:
    """A model folder with the files of `minilm` and one policy."""
    folder = root / name
    folder.mkdir()
    settings = minilm()
    assert settings.preprocess.text is not None
    shutil.copy(settings.file, folder / "model.onnx")
    shutil.copy(settings.preprocess.text.tokenizer, folder / "tokenizer.json")
    (folder / "model.toml").write_text(
        f'name = "text"\nfile = "model.onnx"\npostprocess = "mean_pool_l2"\n'
        f"[preprocess.text]\nmax_tokens = {load.LONGEST}\n"
        f"[batching]\nmax_batch = {_BATCH}\n{_POLICIES[name]}\n"
        "pad_inputs = { input_ids = 0, attention_mask = 0, token_type_ids = 0 }\n"
    )
    return str(folder)


def _cost_line() -> Line:
    """Measure what a batch costs beside its tokens: random batches on one core, the engine alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(resolve("minilm").file, options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(7)
    cost = SizeCost()
    for _ in range(60):
        rows, length = int(draw.integers(1, _BATCH + 1)), int(draw.integers(4, 65))
        ids = draw.integers(1000, 20000, (rows, length), np.int64)
        ones = np.ones_like(ids)
        began = time.perf_counter()
        session.run(None, {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ids)})
        cost.observe(rows * length, time.perf_counter() - began)
    fixed_s, per_token_s = cost.line() or (0.002, 0.00025)
    return Line(fixed_s, per_token_s, _BATCH, len(os.sched_getaffinity(0)))


def _report(
    facts: dict[str, Any],
    closed: dict[str, list[Seen]],
    opened: dict[str, list[Seen]],
    rates: dict[str, float],
    line: Line,
) -> None:
    columns = ("policy", "texts/s", "padding", "p50 ms", "p99 ms", "missed")
    figures = {name: _summary(rounds) for name, rounds in closed.items()}
    show(f"closed loop, {_CLIENTS} clients, deadline {_DEADLINE_S:g} s", columns, _rows(figures))
    open_figures = {name: _summary(rounds) | {"offered_rate": round(rates[name], 1)} for name, rounds in opened.items()}
    show(f"open loop at {_LOAD:.0%} of its own closed rate", (*columns, "offered"), _rows(open_figures))
    ratios = {f"sorted_over_{name}": _ratio(closed["sorted"], closed[name]) for name in closed if name != "sorted"} | {
        "open_sorted_over_fifo": _ratio(opened["sorted"], opened["fifo"])
    }
    show("ratios of answers in time per second, round by round", ("", "ratio"), list(ratios.items()))
    simulated = _simulated(line)
    fifo = simulated["fifo"].rate
    rows = [(name, f"{s.rate:.1f}", f"{s.padding:.1%}", f"{s.rate / fifo:.2f}") for name, s in simulated.items()]
    title = f"simulated: a batch costs {line.fixed_s * 1e3:.2f} ms + {line.per_token_s * 1e3:.3f} ms a token"
    show(title, ("policy", "texts/s", "padding", "over fifo"), rows)
    content = {
        "lengths": {"mu": load.MU, "sigma": load.SIGMA, "clipped_to": [load.SHORTEST, load.LONGEST]},
        "clients": _CLIENTS, "max_batch": _BATCH, "deadline_s": _DEADLINE_S,
        "closed": figures, "open": open_figures, "ratios": ratios,
        "simulated": {
            "fixed_ms": round(line.fixed_s * 1e3, 3), "per_token_ms": round(line.per_token_s * 1e3, 4),
            "policies": {name: {"rate": s.rate, "padding": s.padding} for name, s in simulated.items()},
        },
    }  # fmt: skip
    print(write("mixed_lengths", facts, content))


def _simulated(line: Line) -> dict[str, Simulated]:
    simulated = {name: simulate(choose, line, _CLIENTS) for name, choose in baselines(line).items()}
    simulated["ours: sorted"] = simulate_ours("sorted", line, _CLIENTS)
    simulated["bound: full batches without padding"] = ragged_bound(line)
    return simulated


def _summary(rounds: list[Seen]) -> dict[str, Any]:
    return {
        "rate": spread([seen.clients.rate for seen in rounds]),
        "padding": spread([seen.padding for seen in rounds]),
        "p50_ms": spread([seen.clients.p50_ms for seen in rounds]),
        "p99_ms": spread([seen.clients.p99_ms for seen in rounds]),
        "missed": sum(seen.clients.missed for seen in rounds),
    }


def _rows(figures: dict[str, dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(name, *values.values()) for name, values in figures.items()]


def _ratio(ours: list[Seen], theirs: list[Seen]) -> Spread:
    return spread([a.clients.rate / b.clients.rate for a, b in zip(ours, theirs, strict=True)])
