"""A served model over its life: what was found at load stays, what was learned is used, nothing comes in at the end."""

import asyncio
from types import SimpleNamespace

import pytest
from model_world import ModelWorld
from msgspec.structs import replace

from hybrid.errors import NotReady
from hybrid.preprocess.job import Prepared
from hybrid.workers import wire

WHY = "row 1 differs"


class Step:
    """A preprocess step that cannot put rows together."""

    def tokens(self, rows):
        return 0

    def assemble(self, rows):
        raise MemoryError


@pytest.fixture
async def world(monkeypatch):
    made = ModelWorld(monkeypatch)
    made.models = []
    yield made
    for model in made.models:
        model.pool._stopping = True
        model.pool._ticker.cancel()
        for member in model.pool.members.values():
            member.close()


def started(world, plan=None):
    model = world.make(plan)
    world.models.append(model)
    model.start()
    return model


async def test_rows_that_may_not_share_a_batch_do_not_after_a_restart_and_a_re_plan(world):
    model = started(world)
    world.children[0].ready(unbatchable=WHY)
    assert model.scheduler.state.policy.max_batch == 1
    world.children[0].gone()
    await asyncio.sleep(0.01)
    assert world.children[1].start.max_batch == 1
    world.children[1].ready()  # started for single rows, it has checked nothing
    model.adopt(replace(world.plan, max_wait_ms=1.0), "another wait")
    assert model.plan.max_batch == model.scheduler.state.policy.max_batch == 1
    assert WHY in model.plan.reasons["max_batch"]


async def test_a_model_of_so_many_rows_keeps_its_bound_over_re_plans(world):
    model = started(world)
    world.children[0].ready(max_rows=4)
    model.adopt(replace(world.plan, max_batch=2), "less")
    assert model.plan.max_batch == 2
    model.adopt(replace(world.plan, max_batch=8), "more")
    assert model.plan.max_batch == model.scheduler.state.policy.max_batch == 4


async def test_other_workers_batch_by_the_classes_that_were_learned_before_them(world):
    old = started(world)
    old.plan = replace(old.plan, size_edges=(8, 64), reasons={"size_edges": "Learned"})
    heir = world.make(replace(world.plan, instances=2))
    world.models.append(heir)
    heir.inherit(old)
    heir.start()
    assert heir.plan.size_edges == (8, 64)
    assert heir.scheduler.state.policy.size_edges == (8, 64)


async def test_nothing_is_taken_in_once_the_end_has_begun(world):
    model = started(world)
    world.children[0].ready()
    stopping = asyncio.create_task(model.stop(3.0))
    await asyncio.sleep(0)  # the open tickets are ended, the workers hear of it in the next turn
    world.request(model)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.children[0].sent == [wire.Stop()]
    world.children[0].gone("stopped")
    await stopping
    assert isinstance(world.answers[0], NotReady)
    assert model.open_n == 0


async def test_a_fault_of_ours_is_an_answer_and_leaves_nothing_open(world, monkeypatch, caplog):
    model = started(world)
    world.children[0].ready()

    def fail(ticket):
        raise MemoryError

    monkeypatch.setattr(model.scheduler, "submit", fail)
    world.request(model)
    late = world.inference(model)
    late._on_answer, model.open_n = world.answers.append, 1
    model.preprocessor = Step()
    late._on_prepared(Prepared((), 0.0))
    assert [str(answer) for answer in world.answers] == ["model m: internal error; the server's log has more"] * 2
    assert (model.open_n, model.tally.failed_n) == (0, 2)
    assert caplog.text.count("could not be queued") == 2


async def test_what_a_preprocess_process_once_ended_with_keeps_no_heir_from_being_ready(world):
    heir = started(world)
    world.children[0].ready()
    heir.preprocess = SimpleNamespace(ready=1, processes=2, first_error="killed by SIGKILL", changed=asyncio.Event())
    heir.owns_preprocess = False
    async with asyncio.timeout(1):
        await heir.wait_ready()
    assert heir.ready
