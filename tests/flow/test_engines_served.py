"""OpenVINO and PyTorch behind a real server, and what they do to their processes."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models  # noqa: F401  # puts tests/unit on the path, for torch_models
import pytest
import torch
import torch_models as models
from clients import Answer, Counters, folder, post
from server import Server

from hybrid.messages import Tensor
from hybrid.protocol.oip import decode_response, encode_request

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5

DECLARED = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 3, -1, -1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 12]
"""
BATCHING = "max_batch = 8\nmax_wait_s = 0.02"
#: Model -> its engine and the platform that metadata shows.
SERVED = {
    "ov": ("openvino", "openvino_f32"),
    "script": ("torch", "pytorch_torchscript"),
    "program": ("torch", "pytorch_export"),
}


def write_all(root: Path) -> list[str]:
    paths = [
        folder(root, "ov", batching=BATCHING, extra="threads = 1", head='engine = "openvino"'),
        folder(root, "script", batching=BATCHING, extra="threads = 1", head=f'file = "m.pt"\n{DECLARED}'),
        folder(root, "program", batching=BATCHING, extra="threads = 1", head='engine = "torch"'),
        folder(root, "gather", batching=BATCHING, extra="threads = 1", head=GATHER),
    ]
    models.conv_onnx(root / "ov" / "m.onnx")
    models.script(root / "script" / "m.pt", models.ConvNet())
    models.conv_program(root / "program" / "m.pt2")
    models.script(root / "gather" / "m.pt", models.Gather())
    return paths


GATHER = """
[[inputs]]
name = "x"
datatype = "INT64"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(*write_all(tmp_path_factory.mktemp("models"))) as running:
        yield running


async def send(server: Server, model: str, tensor: Tensor) -> Answer:
    body, length = encode_request([tensor], binary=True)
    headers = {"Inference-Header-Content-Length": str(length)}
    return await post(server.port, f"/v2/models/{model}/infer", body, headers)


@pytest.mark.parametrize("model", SERVED)
async def test_everybody_gets_the_own_rows(server: Server, model: str) -> None:
    """Two shapes, several row counts, all at once; what comes back is what the model gives for those rows alone."""
    rng = np.random.default_rng(5)
    net, before = models.ConvNet(), Counters(server, model)

    async def one(number: int) -> None:
        size = (16, 24) if number % 2 else (40, 9)
        x = rng.standard_normal((1 + number % 3, 3, *size), np.float32)
        answer = await send(server, model, Tensor("x", "FP32", x))
        assert answer.status == 200, answer
        (output,) = decode_response(answer.raw, int(answer.headers["inference-header-content-length"])).outputs
        with torch.inference_mode():
            expected = net(torch.from_numpy(x)).numpy()
        assert np.abs(output.array - expected).max() <= TOLERANCE

    await asyncio.gather(*(one(number) for number in range(24)))
    since = before.since()
    assert (since["ok"], since["rows"]) == (24, 48)
    assert since["batches"] < 24


@pytest.mark.parametrize("model", SERVED)
def test_plan_and_metadata_name_the_engine(server: Server, model: str) -> None:
    engine, platform = SERVED[model]
    plan = next(plan for plan in server.get("/hybrid/v1/plan")[1] if plan["model"] == model)
    assert (plan["engine"], plan["device"], plan["batching"]) == (engine, "cpu", "dynamic")
    metadata = server.get(f"/v2/models/{model}")[1]
    assert metadata["platform"] == platform
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3, -1, -1]}]


async def test_one_bad_row_fails_alone(server: Server) -> None:
    """BAD-01 on PyTorch: an index out of range among good ones."""
    sent = [send(server, "gather", Tensor("x", "INT64", np.array([k]))) for k in (0, 99, 1, 2)]
    answers = await asyncio.gather(*sent)
    assert [answer.status for answer in answers] == [200, 400, 200, 200]
    assert "out of" in answers[1].body["error"]


def test_workers_keep_to_their_threads(server: Server) -> None:
    """CPU-03: the engine's one thread, the sign of life, and what the libraries start but do not compute with."""
    workers = server.workers()
    assert workers
    for worker in workers:
        tasks = Path(f"/proc/{worker['pid']}/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
        assert len(names) <= 6, names


COMPILED = """
import sys
import numpy as np, psutil
from hybrid.config import ModelSettings, TorchSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.torch_engine import load
x = np.random.default_rng(0).standard_normal((5, 24, 4), np.float32)
runs = []
for compiled in (False, True):
    settings = ModelSettings(name="p", file=sys.argv[1], torch=TorchSettings(compile=compiled))
    engine = load(settings, EngineSettings(threads=1))
    runs.append([engine.run({"x": x[:rows]}, rows)["mean"] for rows in (1, 2, 5)])
print(max(float(np.abs(a - b).max()) for a, b in zip(*runs)), len(psutil.Process().children(recursive=True)))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_program_agrees_and_leaves_no_process(tmp_path: Path) -> None:
    file = models.small_program(tmp_path / "m.pt2")
    environment: dict[str, Any] = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, file], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    distance, children = done.stdout.split()
    assert float(distance) <= TOLERANCE
    assert children == "0"
