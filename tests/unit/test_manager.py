"""Load, load again, unload: in which order, and what is left when something goes wrong. No model has processes."""

import asyncio

import pytest
from serving_world import World, turns, until

from hybrid.errors import LoadFailed, NotFound, NotReady, QueueFull, StartupError


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    made.write("m")
    made.write("other")
    yield made
    await made.manager.stop(0.0)


async def begin(world, *names, broken=None, strict=False):
    models = [(settings, plan) for name in names for settings in world.sources.settings(name)
              for plan in world._plan([settings])]  # fmt: skip
    world.manager.begin(models, broken or {})
    await world.manager.start_all(world.sources.stamps(), strict)


# Load --------------------------------------------------------------------------------------------------------------


async def test_the_new_one_is_warm_before_it_is_served_and_the_old_one_stops_last(world):
    await begin(world, "m")
    world.automatic = False
    world.log.clear()
    load = asyncio.create_task(world.manager.load("m"))
    await until(lambda: world.made_n == 2)
    old = world.model("m")
    assert old.ready
    new = next(model for model, part in world.manager.alive() if part == "next")
    old.open_n = 1
    new.become_ready()
    await until(lambda: world.model("m") is new)
    await turns()
    assert world.log == ["start m/1#2", "drain m/1#1"]
    assert not load.done()
    old.open_n = 0
    await load
    assert world.log[-1] == "stop m/1#1"
    assert world.manager.alive() == [(new, "")]


async def test_new_settings_are_read_and_the_counts_go_on(world):
    await begin(world, "m")
    world.write("m", "[batching]\nmax_batch = 3")
    world.model("m").counters.tally.ok_n = 5
    await world.manager.load("m")
    assert world.model("m").plan.max_batch == 3
    assert world.model("m").counters.tally.ok_n == 5


async def test_a_failed_load_keeps_the_old_one_and_says_why(world, caplog):
    await begin(world, "m")
    old = world.model("m")
    world.broken = {"1"}
    with pytest.raises(LoadFailed, match="it is broken; the one before serves on"):
        await world.manager.load("m")
    assert world.model("m") is old
    assert old.ready
    assert world.manager.alive() == [(old, "")]
    assert world.log[-1] == "stop m/1#2"
    entry = next(e for e in await world.manager.index() if e.name == "m")
    assert (entry.state, entry.reason) == ("READY", "the last load failed: model m cannot start: it is broken")
    assert sum("cannot be loaded" in record.getMessage() for record in caplog.records) == 1
    world.broken = set()
    await world.manager.load("m")
    assert world.model("m") is not old


async def test_wrong_settings_start_nothing(world):
    await begin(world, "m")
    (world.root / "m" / "model.toml").write_text("max_batch = 3")
    with pytest.raises(LoadFailed, match="unknown key"):
        await world.manager.load("m")
    assert world.made_n == 1


async def test_a_failed_first_load_leaves_nothing(world):
    world.broken = {"1"}
    with pytest.raises(LoadFailed, match="it is broken"):
        await world.manager.load("m")
    assert world.served() == []
    assert world.manager.alive() == []
    with pytest.raises(NotFound, match="it is broken"):
        world.model("m")
    assert world.repository.ready


async def test_of_several_versions_all_change_or_none(world):
    world.write("m", 'versions = "all"', ("1", "2"))
    await world.manager.load("m")
    assert world.served() == ["m/1#1", "m/2#2"]
    world.write("m", 'versions = "all"', ("3",))
    world.broken = {"3"}
    with pytest.raises(LoadFailed):
        await world.manager.load("m")
    assert world.served() == ["m/1#1", "m/2#2"]
    assert len(world.manager.alive()) == 2
    world.broken = set()
    world.write("m", 'versions = ["1", "3"]')
    await world.manager.load("m")
    assert [model.version for model in world.repository] == ["1", "3"]
    assert world.model("m").version == "3"


async def test_an_unknown_name_changes_nothing(world):
    with pytest.raises(NotFound, match="no model named 'nobody' to load; there are: m, other"):
        await world.manager.load("nobody")
    with pytest.raises(NotFound):
        await world.manager.unload("nobody")
    assert {entry.name for entry in await world.manager.index()} == {"m", "other"}


async def test_loads_run_one_after_the_other(world):
    world.automatic = False
    loads = [asyncio.create_task(world.manager.load(name)) for name in ("m", "other", "m")]
    for made in (1, 2, 3):
        await until(lambda made=made: world.made_n == made)
        await turns()
        assert world.made_n == made
        next(model for model, part in world.manager.alive() if part == "next").become_ready()
    await asyncio.gather(*loads)
    assert world.served() == ["m/1#3", "other/1#2"]


async def test_waiting_operations_are_bounded(world):
    world.automatic = False
    loads = [asyncio.create_task(world.manager.load("m")) for _ in range(40)]
    await turns()
    refused = [load for load in loads if load.done()]
    assert len(refused) == 8
    assert all(isinstance(load.exception(), QueueFull) for load in refused)
    await world.manager.close()
    await asyncio.gather(*loads, return_exceptions=True)


async def test_a_load_goes_on_when_its_caller_leaves(world):
    world.automatic = False
    load = asyncio.create_task(world.manager.load("m"))
    await until(lambda: world.made_n == 1)
    load.cancel()
    await turns()
    next(model for model, _ in world.manager.alive()).become_ready()
    await until(lambda: world.served() == ["m/1#1"])
    assert load.cancelled()


async def test_closing_gives_up_a_load_and_keeps_what_is_served(world):
    await begin(world, "m")
    world.automatic = False
    load = asyncio.create_task(world.manager.load("m"))
    await until(lambda: world.made_n == 2)
    await world.manager.close()
    with pytest.raises(NotReady, match="stopping"):
        await load
    assert world.served() == ["m/1#1"]
    assert world.log[-1] == "stop m/1#2"
    with pytest.raises(NotReady, match="stopping"):
        await world.manager.load("m")


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_what_is_in_force_is_no_failure_when_the_server_stops_before_the_old_one_is_done(world, caplog, verb):
    caplog.set_level("INFO")
    await begin(world, "m")
    old = world.model("m")
    old.open_n = 1
    task = asyncio.create_task(getattr(world.manager, verb)("m"))
    await until(lambda: f"drain {old.label}" in world.log)
    await world.manager.close()
    await task
    assert "m: the change is in force; the server stops, so nobody waits for the old processes" in caplog.messages
    assert world.served() == (["m/1#2"] if verb == "load" else [])
    assert world.manager.asleep == (set() if verb == "load" else {"m"})
    assert old in dict(world.manager.alive())  # it still owes an answer, and has until the end of the drain


async def test_a_request_that_does_not_end_holds_the_old_one_only_so_long(tmp_path):
    world = World(tmp_path, max_timeout_s=0.02)
    world.write("m")
    await world.manager.load("m")
    world.model("m").open_n = 1
    await world.manager.load("m")
    assert world.log[-1] == "stop m/1#1"


async def test_what_is_replaced_has_as_long_as_its_requests_have_whatever_the_drain_time(tmp_path):
    world = World(tmp_path, drain_timeout_s=0.0)
    world.write("m")
    await world.manager.load("m")
    old = world.model("m")
    old.open_n = 1
    load = asyncio.create_task(world.manager.load("m"))
    await until(lambda: "drain m/1#1" in world.log)
    await turns()
    assert "stop m/1#1" not in world.log
    old.open_n = 0
    await load
    assert world.log[-1] == "stop m/1#1"


async def test_what_is_unloaded_has_the_drain_time(tmp_path):
    world = World(tmp_path, drain_timeout_s=0.0)
    world.write("m")
    await world.manager.load("m")
    world.model("m").open_n = 1
    await world.manager.unload("m")
    assert world.log[-1] == "stop m/1#1"


# Unload ------------------------------------------------------------------------------------------------------------


async def test_an_unloaded_model_is_refused_at_once_and_ends_when_it_is_done(world):
    await begin(world, "m", "other")
    model = world.model("m")
    model.open_n = 1
    unload = asyncio.create_task(world.manager.unload("m"))
    await until(lambda: "drain m/1#1" in world.log)
    with pytest.raises(NotFound, match="finishes what it has"):
        world.model("m")
    assert [(e.name, e.state) for e in await world.manager.index()] == [("other", "READY"), ("m", "UNLOADING")]
    assert world.repository.ready
    model.open_n = 0
    await unload
    assert world.log[-1] == "stop m/1#1"
    assert [(e.name, e.state, e.reason) for e in await world.manager.index()][1] == ("m", "UNAVAILABLE", "unloaded")
    assert world.manager.asleep == {"m"}
    await world.manager.unload("m")
    await world.manager.load("m")
    assert world.model("m").ready
    assert not world.manager.asleep


async def test_a_removed_model_is_forgotten_whether_it_was_loaded_or_not(world):
    await begin(world, "m")
    for name in ("m", "other"):
        (world.root / name / "model.toml").unlink()
        await world.manager.remove(name)
    assert await world.manager.index() == []
    assert world.manager.read.keys() == set()
    assert not world.manager.asleep


# Start -------------------------------------------------------------------------------------------------------------


async def test_a_named_model_that_cannot_start_ends_the_start(tmp_path, world):
    world.broken = {"1"}
    named = World(tmp_path, named=("simulated:null",))
    named.broken = {"1"}
    with pytest.raises(StartupError, match="it is broken"):
        await begin(named, "simulated:null", "m")
    await named.manager.stop(0.0)


async def test_one_of_the_repository_that_cannot_start_is_left_out(world):
    world.write("bad", 'version = "9"')
    world.broken = {"9"}
    await begin(world, "m", "bad", broken={"worse": "not TOML"})
    assert world.served() == ["m/1#1"]
    states = {entry.name: (entry.state, entry.reason) for entry in world.repository.index()}
    assert states["bad"] == ("UNAVAILABLE", "model bad cannot start: it is broken")
    assert states["worse"] == ("UNAVAILABLE", "not TOML")
    assert world.repository.ready


async def test_of_several_versions_those_that_start_are_served(world):
    world.write("m", 'versions = "all"', ("1", "2"))
    world.broken = {"2"}
    await begin(world, "m")
    assert world.served() == ["m/1#1"]
    assert "version 2: model m cannot start" in world.repository.index()[0].reason


async def test_it_ends_when_all_fail_and_when_one_fails_if_strict(tmp_path, world):
    world.broken = {"1"}
    with pytest.raises(StartupError, match="no model can be served; model m cannot start"):
        await begin(world, "m", "other")
    world.write("bad", 'version = "9"')
    strict = World(tmp_path)
    strict.broken = {"9"}
    with pytest.raises(StartupError, match="model bad cannot start"):
        await begin(strict, "m", "bad", strict=True)
    await strict.manager.stop(0.0)


async def test_starting_with_nothing_is_fine(world):
    await begin(world)
    assert world.repository.ready
    await world.manager.load("m")
    assert world.served() == ["m/1#1"]


# Counts ------------------------------------------------------------------------------------------------------------


async def test_another_version_counts_on_for_the_worker_slots(world):
    world.write("m", "", ("1",))
    await world.manager.load("m")
    world.model("m").counters.pool.seat(0).rows_n = 10
    world.model("m").counters.tally.ok_n = 10
    world.write("m", "", ("2",))
    await world.manager.load("m")
    assert world.model("m").version == "2"
    assert world.model("m").counters.pool.seat(0).rows_n == 10
    assert world.model("m").counters.tally.ok_n == 0
    assert sum(counters.tally.ok_n for counters in world.manager.ledger) == 10


async def test_versions_that_are_gone_are_kept_up_to_a_bound(world):
    for version in range(1, 60):
        world.write("m", f'version = "{version}"')
        await world.manager.load("m")
        world.model("m").counters.pool.seat(0).rows_n += 1
    assert world.model("m").counters.pool.seat(0).rows_n == 59
    assert len(list(world.manager.ledger)) == 33
    assert world.settled_n == 58
