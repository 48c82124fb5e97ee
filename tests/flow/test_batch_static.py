"""Static batching in `hybrid batch` and in the server: every batch has one shape, and results are those of dynamic."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_runs import errors, results, simulated, summary, x_lines
from onnx_models import graphs
from server import Server

pytestmark = pytest.mark.slow

SHAPE = [4, 6]  # rows and columns of every batch


def shaped(folder: Path, kind: str) -> str:
    """A model that says with which shape it was run, as a folder of that name."""
    folder = folder / kind
    folder.mkdir()
    graphs.shape_seen(folder / "model.onnx")
    lines = [
        f'name = "{kind}"\n[workers]\ninstances = 1\n[batching]\nkind = "{kind}"\nmax_batch = {SHAPE[0]}',
        f"static_length = {SHAPE[1]}\nmax_wait_s = 0.3\npad_inputs = {{ x = 0 }}\n",
    ]
    (folder / "model.toml").write_text("\n".join(lines))
    return str(folder)


def row(length: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, length], "data": [1.0] * length}]}


def test_the_last_batch_is_filled_up_and_counted_as_padding(tmp_path):
    (tmp_path / "in.jsonl").write_text(x_lines(range(45)))
    dynamic = simulated(tmp_path, "dynamic", "max_batch = 10")
    static = simulated(tmp_path, "static", 'max_batch = 10\nkind = "static"')
    first = summary(dynamic, tmp_path / "in.jsonl", tmp_path / "a.jsonl")
    second = summary(static, tmp_path / "in.jsonl", tmp_path / "b.jsonl")
    assert (first["batches"], first["padding"]) == (5, 0.0)
    assert (second["batches"], second["padding"]) == (5, 0.1)
    assert second["released"] == {"full": 4, "drain": 1}
    assert results(tmp_path / "a.jsonl") == results(tmp_path / "b.jsonl")
    option = summary(dynamic, tmp_path / "in.jsonl", tmp_path / "c.jsonl", "--batching", "static")
    assert (option["batches"], option["padding"]) == (5, 0.1)


def test_rows_of_any_length_run_in_one_shape(tmp_path):
    lengths = [1, 6, 3, 7, 2, 5, 4]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row(length)) + "\n" for length in lengths))
    said = summary(shaped(tmp_path, "static"), tmp_path / "in.jsonl", tmp_path / "a.jsonl")
    summary(shaped(tmp_path, "dynamic"), tmp_path / "in.jsonl", tmp_path / "b.jsonl")
    found = {r["index"]: r["outputs"] for r in results(tmp_path / "a.jsonl")}
    assert {index: outputs["sum"] for index, outputs in found.items()} == {
        index: float(length) for index, length in enumerate(lengths) if length <= SHAPE[1]
    }
    assert all(outputs["shape"] == SHAPE for outputs in found.values())
    ((too_long,),) = [errors(tmp_path / "a.jsonl")]
    assert too_long["index"] == 3
    assert "a row has length 7; static batching runs rows of 6" in too_long["error"]
    assert said["padding"] == pytest.approx(1 - sum(found[i]["sum"] for i in found) / (said["batches"] * 24), abs=1e-4)
    dynamic = {r["index"]: r["outputs"] for r in results(tmp_path / "b.jsonl")}
    assert all(dynamic[index]["sum"] == outputs["sum"] for index, outputs in found.items())
    assert any(outputs["shape"] != SHAPE for outputs in dynamic.values())


def test_the_server_fills_up_too_and_waits_for_company_only_so_long(tmp_path):
    with Server(shaped(tmp_path, "static")) as server:

        def infer(length: int) -> Any:
            return server.post("/v2/models/static/infer", row(length))

        status, alone = infer(3)
        assert status == 200
        outputs = {output["name"]: output["data"] for output in alone["outputs"]}
        assert outputs == {"sum": [3.0], "shape": SHAPE}
        assert alone["parameters"]["timings_us"]["queue"] > 250_000
        with ThreadPoolExecutor(4) as threads:
            four = list(threads.map(infer, (1, 2, 5, 6)))
        sums = [answer["outputs"][0]["data"][0] for _, answer in four]
        assert sums == [1.0, 2.0, 5.0, 6.0]
        assert all(answer["parameters"]["batch_rows"] == 4 for _, answer in four)
        assert all(answer["parameters"]["timings_us"]["queue"] < 250_000 for _, answer in four)
        status, refused = infer(7)
        assert status == 400
        assert "static batching runs rows of 6" in refused["error"]
        (model,) = server.snapshot()["models"]
        assert (model["real_n"], model["pad_n"]) == (17, 2 * 24 - 17)
        released = np.sum([list(c["released"].values()) for c in model["classes"]])
        assert released == 2
        ((plan,),) = [server.get("/hybrid/v1/plan")[1]]
        assert (plan["batching"], plan["max_batch"], plan["static_length"]) == ("static", 4, 6)
