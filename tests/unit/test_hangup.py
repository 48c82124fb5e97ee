"""SIGHUP: what is wrong with the settings or the profile is said once."""

import pytest
from serving_world import World, plan_of

from hybrid.errors import ConfigError
from hybrid.serving.hangup import Reread, plan_again


@pytest.fixture
async def manager(tmp_path):
    world = World(tmp_path)
    world.write("m")
    world.manager.begin([(s, plan_of(s)) for s in world.sources.settings("m")], {})
    await world.manager.start_all(world.sources.stamps())
    yield world.manager
    await world.manager.stop(0.0)


async def test_a_wrong_profile_is_one_line(manager, caplog):
    await plan_again(manager, lambda: Reread("bad"))
    assert [record.getMessage() for record in caplog.records] == ["SIGHUP: nothing changed: unknown profile `bad`"]
    assert manager.replans == {"refused": 1}


async def test_wrong_settings_are_one_line(manager, caplog):
    def read() -> Reread:
        raise ConfigError("settings.toml: `profile`: expected a string")

    await plan_again(manager, read)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert manager.replans == {}
