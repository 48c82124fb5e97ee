"""Planning anew: what counts, what can change in running workers, and that all of it comes into force or nothing."""

import asyncio

import pytest
from msgspec.structs import replace
from serving_world import World, plan_of, turns, until

from hybrid.config import BatchingSettings, ModelSettings
from hybrid.errors import BadRequest, LoadFailed, NotFound, NotReady
from hybrid.planner.layers import Choices, layers_of
from hybrid.planner.types import PlanOverrides, Profile
from hybrid.serving.replan import Standing, Wish, needs_workers

PADDED = BatchingSettings(pad_inputs={"ids": 0})
BARE = BatchingSettings()
CPU = replace(plan_of(ModelSettings(name="m")), device="cpu", engine="onnxruntime")


def wish(model=None, *back, profile=None, **numbers):
    return Wish(model, PlanOverrides(**numbers), frozenset(back), profile)


# What plans are made by ---------------------------------------------------------------------------------------------


def test_the_last_word_counts_and_null_takes_back():
    standing = Standing(flags=PlanOverrides(max_batch=4))
    standing = standing.changed(wish("m", max_batch=8, instances=2))
    standing = standing.changed(wish("m", "max_batch", max_wait_ms=1.0))
    assert standing.by_model == {"m": PlanOverrides(instances=2, max_wait_ms=1.0)}
    assert standing.for_all == PlanOverrides()
    assert standing.flags.max_batch == 4


def test_a_word_about_all_models_takes_back_what_was_said_of_one():
    standing = Standing().changed(wish("m", max_batch=8, instances=2)).changed(wish(None, max_batch=16))
    assert standing.by_model == {"m": PlanOverrides(instances=2)}
    assert standing.for_all == PlanOverrides(max_batch=16)
    assert standing.changed(wish(None, "max_batch", "instances")).by_model == {"m": PlanOverrides()}


def test_a_profile_stays_until_another_is_named():
    standing = Standing("auto").changed(wish(profile="fast"))
    assert standing.changed(wish(max_batch=2)).profile == "fast"


def test_the_planner_takes_one_model_before_all_before_the_command_line():
    standing = Standing(flags=PlanOverrides(max_batch=1, instances=1, max_wait_ms=1.0))
    standing = standing.changed(wish(None, max_batch=2, instances=2)).changed(wish("m", max_batch=3))
    profile = Profile("p", "p.toml", plan=PlanOverrides(max_batch=9, queue_rows=9))
    choices = Choices(layers_of(ModelSettings(name="m"), profile, standing.overrides, False))
    assert choices.fixed("max_batch") == ("a re-plan at run time", 3)
    assert choices.fixed("instances") == ("a re-plan at run time", 2)
    assert choices.fixed("max_wait_ms") == ("command line", 1.0)
    assert choices.fixed("queue_rows") == ("profile p [plan]", 9)


def test_a_wish_says_what_it_is():
    assert wish("m", "instances", max_batch=8).text == "re-planned at run time: instances left open, max_batch = 8"
    assert wish(profile="x").text == "re-planned at run time: profile x"
    assert wish().text == "re-planned at run time: as asked"


# What needs other workers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "before", "after", "needed"),
    [
        (BARE, {}, {}, False),
        (PADDED, {}, {"max_wait_ms": 5.0, "early_trigger": 4, "queue_rows": 99, "queue_bytes": 99}, False),
        (PADDED, {}, {"max_batch": 16}, False),
        (PADDED, {}, {"max_batch": 2, "early_trigger": 2}, False),
        # So many were never run: whether memory holds them is seen when a worker warms up with them.
        (PADDED, {}, {"max_batch": 64}, False),
        (PADDED, {}, {"max_batch": 65}, True),
        (PADDED, {"max_batch": 512}, {"max_batch": 300}, False),
        (PADDED, {}, {"instances": 2}, True),
        (PADDED, {}, {"threads_per_instance": 2}, True),
        (PADDED, {}, {"cores": ((0,),)}, True),
        (PADDED, {}, {"engine": "openvino"}, True),
        (PADDED, {}, {"pipeline_depth": 2}, True),
        (PADDED, {}, {"preprocess_processes": 2}, True),
        # A worker that was started for single rows never checked that rows may share a batch.
        (BARE, {"max_batch": 1}, {"max_batch": 2}, True),
        (BARE, {}, {"max_batch": 1, "batching": "off"}, False),
        # Rows that are sorted by length wait in another order than rows that run alone.
        (PADDED, {}, {"max_batch": 1, "batching": "off"}, True),
        # Memory of another device was seen to hold so many rows and no more.
        (PADDED, {"device": "cuda"}, {"max_batch": 16}, True),
        (PADDED, {"device": "cuda"}, {"max_batch": 4}, False),
        (PADDED, {"batching": "static"}, {"max_batch": 4}, True),
        (PADDED, {"batching": "static"}, {"max_wait_ms": 4.0}, False),
        (PADDED, {"batching": "static"}, {"batching": "dynamic"}, True),
    ],
)
def test_which_changes_need_other_workers(settings, before, after, needed):
    running = replace(CPU, **before)
    assert needs_workers(running, replace(running, **after), settings) is needed


def test_reasons_are_no_difference():
    assert replace(CPU, reasons={"instances": "another"}).differs(CPU) == ()
    assert replace(CPU, max_batch=3, instances=3).differs(CPU) == ("instances", "max_batch")


# The whole step -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    for name in ("m", "other"):
        made.write(name)
    models = [(s, plan_of(s)) for name in ("m", "other") for s in made.sources.settings(name)]
    made.manager.begin(models, {})
    await made.manager.start_all(made.sources.stamps())
    made.log.clear()
    yield made
    await made.manager.stop(0.0)


async def test_numbers_of_the_batcher_change_in_the_workers_that_run(world):
    (done,) = await world.manager.replan(wish("m", max_batch=16))
    assert (done.changed, done.restarted, done.plan.max_batch) == (("max_batch",), False, 16)
    assert world.model("m").why == "re-planned at run time: max_batch = 16"
    assert world.model("other").plan.max_batch == 8
    assert world.log == []
    assert world.manager.replans == {"batcher": 1}


async def test_nothing_changed_is_nothing_done(world):
    done = await world.manager.replan(wish(max_batch=8))
    assert [(one.plan.model, one.changed, one.restarted) for one in done] == [("m", (), False), ("other", (), False)]
    assert world.log == []
    assert world.manager.replans == {"unchanged": 1}


async def test_new_workers_are_warm_before_all_models_change_at_once(world):
    world.automatic = False
    old = [world.model(name) for name in ("m", "other")]
    old[0].open_n = 1
    task = asyncio.create_task(world.manager.replan(wish(instances=2)))
    for made in (3, 4):
        await until(lambda made=made: world.made_n == made)
        await turns()
        assert [world.model(name) for name in ("m", "other")] == old
        next(m for m, part in world.manager.alive() if part == "next" and not m.ready).become_ready()
    await until(lambda: world.model("m") is not old[0])
    assert world.model("other").plan.instances == 2
    await turns()
    assert not any(line.startswith("stop") for line in world.log)  # the old one owes an answer
    assert not task.done()
    old[0].open_n = 0
    done = await task
    assert all(one.restarted and one.changed == ("instances",) for one in done)
    assert {line for line in world.log if line.startswith("stop")} == {"stop m/1#1", "stop other/1#2"}
    assert "m/1#3 takes over from m/1#1" in world.log
    assert world.manager.replans == {"workers": 1}


async def test_of_a_model_with_versions_those_that_do_not_change_stay(world):
    world.write("two", 'versions = "all"', ("1", "2"))
    await world.manager.load("two")
    first, second = world.model("two", "1"), world.model("two", "2")
    first.planned = first.started_by = replace(first.plan, instances=2)
    await world.manager.replan(wish("two"))
    assert world.model("two", "1") is not first
    assert world.model("two", "2") is second
    assert second.ready


async def test_workers_that_cannot_start_change_nothing(world):
    world.write("zwei", 'versions = "all"', ("1", "2"))
    await world.manager.load("zwei")
    before = world.served()
    world.broken = {"2"}
    with pytest.raises(LoadFailed, match="it is broken; the plan before stays in force"):
        await world.manager.replan(wish(instances=3))
    assert world.served() == before
    assert all(part == "" for _, part in world.manager.alive())
    assert world.manager.standing == Standing()
    assert world.manager.replans == {"failed": 1}
    world.broken = set()
    (done,) = await world.manager.replan(wish("m", max_wait_ms=2.0))
    assert done.changed == ("max_wait_ms",)  # the number that failed is forgotten


async def test_a_plan_that_cannot_be_made_changes_nothing(world):
    with pytest.raises(BadRequest, match="unknown profile `bad`"):
        await world.manager.replan(wish(profile="bad", max_batch=3))
    with pytest.raises(NotFound, match="no model named 'nobody' is served"):
        await world.manager.replan(wish("nobody", max_batch=3))
    assert world.manager.standing == Standing()
    assert world.manager.replans == {"refused": 2}
    assert world.log == []


async def test_a_model_that_is_loaded_later_goes_by_what_was_fixed(world):
    await world.manager.replan(wish(max_batch=5))
    world.write("late")
    await world.manager.load("late")
    assert world.model("late").plan.max_batch == 5
    assert world.model("late").why == "loaded"


async def test_a_server_that_stops_gives_a_re_plan_up(world):
    world.automatic = False
    task = asyncio.create_task(world.manager.replan(wish("m", instances=2)))
    await until(lambda: world.made_n == 3)
    await world.manager.close()
    with pytest.raises(NotReady):
        await task
    assert len(world.manager.alive()) == 2


async def test_a_plan_in_force_is_no_failure_when_the_server_stops_before_the_old_workers_are_done(world, caplog):
    caplog.set_level("INFO")
    old = world.model("m")
    old.open_n = 1
    task = asyncio.create_task(world.manager.replan(wish("m", instances=2)))
    await until(lambda: f"drain {old.label}" in world.log)
    await world.manager.close()
    (done,) = await task
    assert (done.changed, done.restarted, world.model("m").plan.instances) == (("instances",), True, 2)
    assert world.manager.replans == {"workers": 1}
    assert caplog.messages[-1] == "m: the change is in force; the server stops, so nobody waits for the old processes"
    assert old in dict(world.manager.alive())  # it still owes an answer, and has until the end of the drain
