"""Models with awkward shapes and types behind a real server; rows of `field-reports.md` are named."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from clients import Answer, Counters, fp32, post, post_all
from onnx_models import TYPES, write_all
from server import Server

from hybrid.messages import DTYPES, InferResponse, Tensor, WantedOutput
from hybrid.protocol.oip import decode_response, encode_request

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(*write_all(tmp_path_factory.mktemp("models"))) as running:
        yield running


def plan_of(server: Server, model: str) -> dict[str, Any]:
    return next(plan for plan in server.get("/hybrid/v1/plan")[1] if plan["model"] == model)


async def send(server: Server, model: str, *tensors: Tensor, binary: bool = True, **more: Any) -> Answer:
    body, length = encode_request(tensors, binary=binary, **more)
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    return await post(server.port, f"/v2/models/{model}/infer", body, headers)


def decoded(answer: Answer) -> InferResponse:
    assert answer.status == 200, answer
    length = answer.headers.get("inference-header-content-length")
    return decode_response(answer.raw, None if length is None else int(length))


async def four_rows(server: Server, model: str) -> list[list[float]]:
    bodies = [fp32([k + 0.5, 1.0, 2.0, 3.0], (1, 4)) for k in range(4)]
    return [answer.data for answer in await post_all(server.port, f"/v2/models/{model}/infer", bodies)]


@pytest.mark.parametrize(
    ("model", "why"),
    [("mean", "differs from the row alone"), ("constant", "rows, expected 3"), ("one", "exactly 1 row")],
)
async def test_batching_is_refused_at_load_and_results_are_right(server: Server, model: str, why: str):
    """MIX-01, MIX-05, SHP-04."""
    before = Counters(server, model)
    alone = [0.0] * 4 if model == "mean" else None
    assert await four_rows(server, model) == [alone or [k + 0.5, 1.0, 2.0, 3.0] for k in range(4)]
    assert before.since() == {"ok": 4, "rows": 4, "batches": 4, "size_1": 4}
    plan = plan_of(server, model)
    assert (plan["max_batch"], plan["batching"]) == (1, "off")
    assert why in plan["reasons"]["max_batch"]
    assert f"{model}: batching is off" in server.err


async def test_a_model_of_exactly_4_rows_takes_any_number(server: Server):
    """SHP-04: short batches are filled up, long requests are split."""
    before = Counters(server, "four")
    assert await four_rows(server, "four") == [[k + 0.5, 1.0, 2.0, 3.0] for k in range(4)]
    assert before.since()["batches"] <= 4
    for rows in (1, 3, 4, 5, 9):
        mine = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        answer = decoded(await send(server, "four", Tensor("x", "FP32", mine)))
        np.testing.assert_array_equal(answer.outputs[0].array, mine)
    plan = plan_of(server, "four")
    assert plan["max_batch"] == 4
    assert "exactly that many rows" in plan["reasons"]["max_batch"]
    assert max(int(name[5:]) for name in before.since() if name.startswith("size_")) <= 4


async def test_everybody_gets_the_outputs_asked_for(server: Server):
    """MIX-09, and SHP-06: `total` has rank 1."""
    before = Counters(server, "two")

    async def one(k: int) -> None:
        wanted = [["double"], ["total"], ["total", "double"], None][k % 4]
        asked = None if wanted is None else [WantedOutput(name, binary=k % 8 >= 4) for name in wanted]
        x = np.full((1, 4), k, np.float32)
        answer = decoded(await send(server, "two", Tensor("x", "FP32", x), binary=k % 3 == 0, outputs=asked))
        assert [output.name for output in answer.outputs] == (wanted or ["double", "total"])
        for output in answer.outputs:
            assert output.array.tolist() == ([[2.0 * k] * 4] if output.name == "double" else [4.0 * k])

    await asyncio.gather(*(one(k) for k in range(24)))
    since = before.since()
    assert since["ok"] == 24
    assert since["batches"] < 24


async def test_text_stays_text(server: Server):
    """BYTES in and out, ragged lengths, in one batch; and DTY-10: none at all."""
    rows = [[["a", "äöü"]], [["", "x" * 5000]], [["日本", "\n"]]]
    bodies = [{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "BYTES", "data": row}]} for row in rows]
    answers = await post_all(server.port, "/v2/models/words/infer", bodies)
    assert [answer.data for answer in answers] == [row[0] for row in rows]
    empty = np.empty((1, 0), object)
    answer = await send(server, "words", Tensor("x", "BYTES", empty))
    assert answer.status == 200, answer
    assert decoded(answer).outputs[0].array.shape == (1, 0)
    none = await send(server, "words", Tensor("x", "BYTES", np.empty((0, 2), object)))
    assert none.status == 400
    assert "dimension 0 is 0" in none.body["error"]
    broken = await send(server, "words", Tensor("x", "BYTES", np.array([[b"\xff\xfe", b"a"]], object)))
    assert broken.status == 400
    assert "not UTF-8" in broken.body["error"]


@pytest.mark.parametrize("binary", [True, False])
async def test_every_datatype_comes_back_exactly(server: Server, binary: bool):
    """DTY-03: extremes of all types, raw and in JSON, several at once."""

    async def one(seed: int) -> None:
        tensors = [Tensor(name, name, extremes(name, seed)) for name in TYPES]
        answer = decoded(await send(server, "types", *tensors, binary=binary))
        for tensor, output in zip(tensors, answer.outputs, strict=True):
            assert output.datatype == tensor.datatype
            np.testing.assert_array_equal(output.array, tensor.array)

    await asyncio.gather(*(one(seed) for seed in range(6)))


def extremes(datatype: str, seed: int) -> np.ndarray[Any, Any]:
    dtype = DTYPES[datatype]
    if datatype == "BOOL":
        return np.array([[True, False, bool(seed % 2)]])
    info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array([[info.min, info.max, seed]], dtype)


async def test_zero_size_tensors_harm_nobody(server: Server):
    """DTY-06."""
    bodies = [fp32([], (2, 0)), fp32([1.0], (1, 1)), fp32([], (1, 0)), fp32([], (0, 3)), fp32([1.0], (1, 1))]
    answers = await post_all(server.port, "/v2/models/log/infer", bodies)
    assert [answer.status for answer in answers] == [200, 200, 200, 400, 200]
    assert answers[0].body["outputs"][0] == {"name": "y", "datatype": "FP32", "shape": [2, 0], "data": []}
    flat = await post(server.port, "/v2/models/log/infer", fp32([], (0,)))
    assert flat.status == 400


async def test_numbers_that_json_cannot_hold(server: Server):
    """DTY-01: JSON refuses and names the output, binary carries them; neighbours in the batch are not touched."""
    bodies = [fp32([-1.0, 0.0], (1, 2)), fp32([1.0, 1.0], (1, 2))]
    bad, good = await post_all(server.port, "/v2/models/log/infer", bodies)
    assert good.data == [0.0, 0.0]
    assert bad.status == 500
    assert bad.body["code"] == "output_invalid"
    assert "output 'y'" in bad.body["error"]
    assert "binary_data" in bad.body["error"]
    x = np.array([[-1.0, 0.0, np.inf]], np.float32)
    exact = decoded(await send(server, "log", Tensor("x", "FP32", x))).outputs[0].array
    np.testing.assert_array_equal(exact, [[np.nan, -np.inf, np.inf]])


async def test_small_and_extreme_floats_survive_json(server: Server):
    """DTY-14."""
    x = np.array([[1.0000006, 1.0, 3.4e38, 1e-45]], np.float32)
    answer = await send(server, "log", Tensor("x", "FP32", x), binary=False)
    np.testing.assert_allclose(np.array(answer.data, np.float32), np.log(x[0]), rtol=1e-5, atol=1e-9)


async def test_one_bad_row_fails_alone(server: Server):
    """BAD-01: an index out of range among good ones."""
    before = Counters(server, "gather")
    bodies = [{"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [k]}]} for k in (0, 99, 1, 2)]
    answers = await post_all(server.port, "/v2/models/gather/infer", bodies)
    assert [answer.status for answer in answers] == [200, 400, 200, 200]
    assert [answer.data for answer in answers if answer.status == 200] == [[10.0], [20.0], [30.0]]
    assert "out of" in answers[1].body["error"]
    since = before.since()
    assert (since["ok"], since["bad_input"], since.get("failed", 0)) == (3, 1, 0)
