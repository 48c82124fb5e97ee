"""A served model whose workers are no processes: they say and do what a test tells them to."""

import asyncio
import time

import numpy as np

from hybrid.config import BatchingSettings, ModelSettings
from hybrid.engines.base import MemoryFacts
from hybrid.errors import HybridError
from hybrid.messages import InferRequest, Signature, Tensor, TensorSpec
from hybrid.planner.types import Plan
from hybrid.serving.inference import Inference
from hybrid.serving.model import ServedModel
from hybrid.workers import pool as pool_module
from hybrid.workers import wire
from hybrid.workers.process import End

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))


class FakeChild:
    """Stands for `ChildProcess`; `sent` has every message after the first, `start` the first."""

    suspended = False

    def __init__(self, role, on_event, on_gone, loop):
        self.role, self._on_event, self._on_gone = role, on_event, on_gone
        self.pid, self.heard_at, self.rss_bytes, self.memory = 1, time.monotonic(), 0, MemoryFacts()
        self.on_deaf = None
        self.start = None
        self.sent = []

    def spawn(self, module, start, descriptors, environment, hub):
        self.start = start

    def send(self, message):
        self.sent.append(message)

    def stop(self):
        self.sent.append(wire.Stop())

    def kill(self, why, *, own=False):
        self.gone(why, own=own)

    # What a test has it do ------------------------------------------------------------------------------------------

    def ready(self, unbatchable=None, max_rows=None):
        self._on_event(wire.Ready(SIGNATURE, max_rows=max_rows, unbatchable=unbatchable, rss_bytes=1 << 20))

    def run(self, command):
        """Answer a batch, without any outputs."""
        self._on_event(wire.Ran(command.batch_id, 0, (), 0.0, 0.0, 0.0))

    def gone(self, cause="killed by SIGKILL", *, own=False):
        self._on_gone(End(cause, own))


class ModelWorld:
    """One model and the workers that were started for it, in order."""

    def __init__(self, monkeypatch, **plan):
        self.children: list[FakeChild] = []
        monkeypatch.setattr(pool_module, "ChildProcess", self._child)
        self.settings = ModelSettings(name="m", batching=BatchingSettings())
        self.plan = Plan("m", "cpu", "onnxruntime", 1, 1, 8, 0.0, 8, "dynamic", 512, 1 << 20, 0, (), **plan)
        self.answers: list[object] = []

    def make(self, plan=None):
        loop = asyncio.get_running_loop()
        return ServedModel(self.settings, plan or self.plan, None, loop, time.monotonic)

    def request(self, model, rows=1, deadline=float("inf")):
        """Send a request; what comes of it, also a refusal at once, is added to `answers`."""
        inference = self.inference(model, rows)
        try:
            inference.start(deadline, self.answers.append)
        except HybridError as error:
            self.answers.append(error)
        return inference

    def inference(self, model, rows=1):
        return Inference(model, InferRequest((self.tensor(rows),)), time.monotonic(), 0.0)

    def tensor(self, rows=1):
        return Tensor("x", "FP32", np.zeros((rows, 1), np.float32))

    async def stop(self, model):
        """End a model whose one worker leaves when it is asked to."""
        stopping = asyncio.create_task(model.stop(1.0))
        for _ in range(2):
            await asyncio.sleep(0)
        self.children[-1].gone("stopped")
        await stopping

    def _child(self, *arguments):
        self.children.append(FakeChild(*arguments))
        return self.children[-1]
