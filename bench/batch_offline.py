"""`hybrid batch minilm` against the raw engine on the same rows: 2 workers x 1 thread, batch 32, rounds A B B A.

Reading, tokenising, pooling, JSON and syncing are all in the figure of `hybrid batch` and none in the raw one, which
gets its rows tokenised, sorted and padded before the clock starts. Both clocks start with the model loaded and warm;
`wall` and `cpu` are of the whole command, start of processes, loading and warming included. CPU per row tells the cost
also where somebody else's load or the host's slows both sides down. The large file runs once, with a raw round before
and after it.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from bench.raw_rows import RawRows, run_rows, save_rows
from bench.report import machine_facts, refuse_when_busy, show, spread, write
from hybrid.config import TextSettings
from hybrid.messages import Signature, TensorSpec
from hybrid.models.catalog import resolve
from hybrid.preprocess.text import TextPreprocessor

_BATCH = 32
_CORES = [0, 1]
_PAIRS = 3
_WHOLE = 20_000
#: Words of one token each.
_WORDS = ("a", "small", "boat", "sails", "over", "the", "quiet", "lake", "while", "two", "birds", "follow", "home")


class Round(Struct, frozen=True):
    """One run of `hybrid batch`: its own summary, and the seconds and CPU of the whole command."""

    summary: dict[str, Any]
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Rows per second, from the loaded model to the synced file."""
        return float(self.summary["rows_per_s"])


def main(pairs: int = _PAIRS) -> None:
    """Run, print and write bench/results/batch_offline.json."""
    refuse_when_busy()
    facts = machine_facts()
    chance = random.Random(5)
    figures: dict[str, Any] = {}
    table: list[tuple[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "fixed": [_text(chance, 14) for _ in range(2_400)],
            "mixed": [_text(chance, _mixed(chance)) for _ in range(1_000)],
        }
        for name, texts in files.items():
            figures[name] = _compare(Path(folder), name, texts, pairs)
            table += [(f"{name} {key}", value) for key, value in figures[name].items()]
        figures["whole"] = _whole(Path(folder), [_text(chance, 14) for _ in range(_WHOLE)])
        table += [(f"whole {key}", value) for key, value in figures["whole"].items()]
    show(f"hybrid batch and raw, 2 processes x 1 thread, batch {_BATCH}", ("", "value"), table)
    print(write("batch_offline", facts, {"batch": _BATCH, "pairs": pairs, "figures": figures}))


def _compare(folder: Path, name: str, texts: list[str], pairs: int) -> dict[str, Any]:
    source = _written(folder, name, texts)
    tokens = folder / f"{name}.npz"
    save_rows(tokens, _tokenised(texts))
    ours: list[Round] = []
    raw: list[RawRows] = []
    for pair in range(pairs):
        for step in ("ours", "raw") if pair % 2 == 0 else ("raw", "ours"):
            if step == "ours":
                ours.append(_batch(source))
            else:
                raw.append(run_rows("minilm", tokens, _BATCH, _CORES))
    return {
        "rows": len(texts),
        "rate": spread([one.rate for one in ours]),
        "raw_rate": spread([one.rate for one in raw]),
        "rate_ratio": spread([a.rate / b.rate for a, b in zip(ours, raw, strict=True)]),
        "padding": ours[0].summary["padding"],
        "raw_padding": round(raw[0].padding, 4),
        "wall_s": spread([one.wall_s for one in ours]),
        "cpu_ms_per_row": spread([1e3 * one.cpu_s / len(texts) for one in ours]),
        "raw_cpu_ms_per_row": spread([1e3 * one.cpu_s / one.rows for one in raw]),
    }


def _whole(folder: Path, texts: list[str]) -> dict[str, Any]:
    source = _written(folder, "whole", texts)
    tokens = folder / "fixed.npz"
    before = run_rows("minilm", tokens, _BATCH, _CORES)
    ours = _batch(source)
    after = run_rows("minilm", tokens, _BATCH, _CORES)
    raw = (before.rate + after.rate) / 2
    raw_cpu_ms = 1e3 * (before.cpu_s + after.cpu_s) / (before.rows + after.rows)
    return {
        "rows": ours.summary["rows"],
        "rate": ours.rate,
        "raw_rate": round(raw, 2),
        "rate_ratio": round(ours.rate / raw, 4),
        "wall_s": round(ours.wall_s, 1),
        "wall_rate_ratio": round(len(texts) / ours.wall_s / raw, 4),
        "cpu_ms_per_row": round(1e3 * ours.cpu_s / len(texts), 4),
        "raw_cpu_ms_per_row": round(raw_cpu_ms, 4),
    }


def _batch(source: Path) -> Round:
    output = source.with_suffix(".out.jsonl")
    command = [sys.executable, "-m", "hybrid", "batch", "minilm", str(source), "--output", str(output)]
    options = ["--workers", "2", "--threads", "1", "--max-batch", str(_BATCH), "--fresh", "--quiet", "--json"]
    began, cpu = time.perf_counter(), _children_cpu_s()
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True)
    wall_s, cpu_s = time.perf_counter() - began, _children_cpu_s() - cpu
    summary = json.loads(done.stdout)
    if summary["errors"] or not summary["complete"]:
        raise RuntimeError(f"not all rows came through: {summary}")
    return Round(summary, wall_s, cpu_s)


def _children_cpu_s() -> float:
    """CPU of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _written(folder: Path, name: str, texts: list[str]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"id": index, "text": text}) + "\n" for index, text in enumerate(texts)))
    return path


def _tokenised(texts: list[str]) -> list[np.ndarray]:
    settings = resolve("minilm").preprocess.text
    assert isinstance(settings, TextSettings)
    names = ("input_ids", "attention_mask", "token_type_ids")
    signature = Signature(tuple(TensorSpec(name, "INT64", (-1, -1)) for name in names), ())
    step = TextPreprocessor(settings, signature)
    return [step.row(text.encode())[0] for text in texts]


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def _mixed(chance: random.Random) -> int:
    """Words of a text of log-normal length, 4 to 256 tokens with the two marks, median 24."""
    return min(254, max(2, round(chance.lognormvariate(3.1, 0.9))))
