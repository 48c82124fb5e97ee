"""What nobody foresaw: a load that is faster than the start, errors without a name. No model has processes."""

import asyncio

import pytest
from serving_world import World, plan_of, turns

from hybrid.errors import LoadFailed, NotFound


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    made.write("m")
    made.write("other")
    yield made
    await made.manager.stop(0.0)


async def test_a_load_that_comes_before_the_start_is_not_undone_by_it(world):
    models = [(s, plan_of(s)) for name in ("m", "other") for s in world.sources.settings(name)]
    world.manager.begin(models, {})
    load = asyncio.create_task(world.manager.load("m"))
    await turns(3)
    async with asyncio.timeout(5):
        await world.manager.start_all(world.sources.stamps())
    await load
    assert world.served() == ["m/1#3", "other/1#2"]
    assert [line for line in world.log if line.startswith("start")] == ["start m/1#3", "start other/1#2"]


async def test_an_error_that_nobody_foresaw_is_a_failed_load(world, caplog):
    (world.root / "m" / "model.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(LoadFailed, match="nested too deeply"):
        await world.manager.load("m")
    world.unforeseen = ZeroDivisionError("oh")
    with pytest.raises(LoadFailed, match="oh"):
        await world.manager.load("other")
    with pytest.raises(NotFound, match="model other is not loaded: oh"):
        world.model("other")
    assert caplog.text.count("Traceback") == 1
    world.unforeseen = None
    await world.manager.load("other")
    assert world.served() == ["other/1#1"]
