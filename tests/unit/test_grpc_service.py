"""Calls of gRPC that are cancelled: each is counted once, by whose doing it was."""

import asyncio
import time

import pytest
from model_world import ModelWorld

from hybrid.config import ServerSettings
from hybrid.frontend.admission import Admission
from hybrid.frontend.grpc_service import Call, Service
from hybrid.messages import InferRequest
from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb
from hybrid.serving.inference import Inference
from hybrid.serving.repository import Repository


@pytest.mark.parametrize(("remaining_s", "counted"), [(0.01, "late_n"), (60.0, "left_n")])
async def test_a_call_that_is_cancelled_counts_once_even_if_its_batch_ends_before_the_deadline(
    monkeypatch, remaining_s, counted
):
    world = ModelWorld(monkeypatch)
    model = world.make()
    model.start()
    (child,) = world.children
    child.ready()
    service = Service(Repository([model]), None, Admission(ServerSettings()), 1 << 20)
    inference = Inference(model, InferRequest((world.tensor(),)), time.monotonic(), 0.0)
    call = asyncio.create_task(service._answer(inference, model, time.monotonic() + remaining_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    child.run(child.sent[0])
    outcomes = model.tally.outcomes()
    assert (getattr(outcomes, counted), outcomes.late_n + outcomes.left_n + outcomes.ok_n) == (1, 1)
    assert model.open_n == 0
    await world.stop(model)


@pytest.mark.parametrize(("remaining_s", "counted"), [(0.01, "late_n"), (60.0, "left_n")])
async def test_so_does_one_that_is_cancelled_while_its_large_message_is_read(monkeypatch, remaining_s, counted):
    world = ModelWorld(monkeypatch)
    model = world.make()
    model.start()
    world.children[0].ready()
    service = Service(Repository([model]), None, Admission(ServerSettings()), 1 << 20)
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(2 << 20)])
    now = time.monotonic()
    call = asyncio.create_task(service._model_infer(message.SerializeToString(), Call({}, now, now + remaining_s)))
    await asyncio.sleep(0)
    assert model.open_n == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    outcomes = model.tally.outcomes()
    assert (getattr(outcomes, counted), outcomes.late_n + outcomes.left_n + outcomes.bad_input_n) == (1, 1)
    assert model.open_n == 0
    service.close()
    await world.stop(model)
