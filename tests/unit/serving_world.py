"""Models without processes, for tests of who is served."""

import asyncio
from pathlib import Path

from msgspec import structs

from hybrid.config import ModelSettings
from hybrid.errors import ConfigError, StartupError
from hybrid.planner.types import Plan, PlanOverrides
from hybrid.serving.counters import Counters
from hybrid.serving.lives import Tools
from hybrid.serving.manager import Manager
from hybrid.serving.replan import Standing
from hybrid.serving.repository import Repository
from hybrid.serving.sources import ModelSources


class FakeModel:
    """Warms and stops when it is told to; `log` has what was done to all models, in order."""

    preprocess = None
    owns_preprocess = True
    why = ""

    def __init__(self, world, settings, plan, counters=None):
        self.world, self.settings, self.plan = world, settings, plan
        self.planned = self.started_by = plan
        self.counters = counters or Counters()
        self.name, self.version = settings.name, settings.version
        self.label = f"{settings.name}/{settings.version}#{world.made_n}"
        self.open_n = 0
        self.signature = None
        self.ready = False
        self.why_not_ready = "still starting"
        self.warm = asyncio.Event()
        self.error = ""

    def __repr__(self):
        return self.label

    def start(self, gently=False):
        self.world.log.append(f"start {self.label}")
        if self.world.automatic:
            self.become_ready()
        if self.version in self.world.broken:
            self.fail("it is broken")

    def become_ready(self):
        self.ready, self.signature, self.why_not_ready = True, object(), ""
        self.warm.set()

    def fail(self, error):
        self.ready, self.error = False, error
        self.warm.set()

    async def wait_ready(self):
        await self.warm.wait()
        if self.error:
            raise StartupError(f"model {self.name} cannot start: {self.error}")

    def inherit(self, other):
        self.world.log.append(f"{self.label} heir of {other.label}")

    def take_over(self, other):
        self.world.log.append(f"{self.label} takes over from {other.label}")

    def adopt(self, plan, why):
        self.plan = self.planned = plan
        self.why = why

    def drain(self):
        self.world.log.append(f"drain {self.label}")

    async def stop(self, timeout_s):
        await asyncio.sleep(0)
        self.ready = False
        self.world.log.append(f"stop {self.label}")


class World:
    """A manager over a folder of simulated models."""

    def __init__(self, root: Path, named=(), drain_timeout_s=5.0, max_timeout_s=5.0):
        self.root = root
        self.automatic = True  # models are warm at once
        self.broken: set[str] = set()  # versions that cannot start
        self.unforeseen: Exception | None = None  # what making a plan ends with
        self.log: list[str] = []
        self.made_n = 0
        self.settled_n = 0
        self.sources = ModelSources(named, root)
        self.repository = Repository()
        clock = asyncio.get_running_loop().time
        tools = Tools(self._plan, self._make, clock, self._settled, drain_timeout_s, max_timeout_s)
        self.manager = Manager(self.sources, self.repository, tools)

    def write(self, name, toml="", versions=()):
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        (folder / "model.toml").write_text(f"{toml}\n[simulated]\n")
        for version in versions:
            (folder / version).mkdir(exist_ok=True)

    def model(self, name, version=None):
        return self.repository.get(name, version)

    def served(self):
        return sorted(model.label for model in self.repository)

    def _plan(self, models, standing=None):
        """As the planner would, with the last word for what was fixed at run time. Profile "bad" does not exist."""
        if self.unforeseen is not None:
            raise self.unforeseen
        if standing is None:
            return tuple(plan_of(model) for model in models)
        if standing.profile == "bad":
            raise ConfigError("unknown profile `bad`")
        return tuple(fixed(plan_of(model), standing) for model in models)

    def _make(self, settings, plan, counters):
        self.made_n += 1
        return FakeModel(self, settings, plan, counters)

    def _settled(self):
        self.settled_n += 1


def plan_of(settings: ModelSettings) -> Plan:
    return Plan(
        model=settings.name,
        version=settings.version,
        device="simulated",
        engine="simulated",
        instances=1,
        threads_per_instance=1,
        max_batch=settings.batching.max_batch or 8,
        max_wait_ms=0.0,
        early_trigger=8,
        batching="dynamic",
        queue_rows=512,
        queue_bytes=1 << 20,
        preprocess_processes=0,
        cores=((),),
        reasons={"instances": "", "cores": ""},
    )


def fixed(plan: Plan, standing: Standing) -> Plan:
    of_model = standing.by_model.get(plan.model, PlanOverrides())
    for overrides in (standing.flags, standing.for_all, of_model):
        given = {key: value for key, value in structs.asdict(overrides).items() if value is not None}
        plan = structs.replace(plan, **given)
    return plan


async def turns(count=20):
    """Let everything that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition):
    """Wait for what needs a thread to finish."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
