"""What requests are bound by, and what is said of models that are not served."""

from types import SimpleNamespace

import pytest
from serving_world import FakeModel, plan_of

from hybrid.config import ModelSettings
from hybrid.errors import NotFound, NotReady
from hybrid.serving.repository import Repository


@pytest.fixture
def make():
    def make(name, version="1", ready=True):
        settings = ModelSettings(name=name, version=version)
        model = FakeModel(SimpleNamespace(made_n=0, log=[]), settings, plan_of(settings))
        if ready:
            model.become_ready()
        return model

    return make


def index(repository):
    return [(entry.name, entry.version, entry.state, entry.reason) for entry in repository.index()]


async def test_without_a_version_the_highest_number_is_meant(make):
    repository = Repository([make("m", version) for version in ("9", "10", "beta")])
    assert repository.get("m").version == "10"
    assert repository.get("m", "beta").version == "beta"
    assert repository.versions("m") == ["beta", "9", "10"]
    assert repository.infer_paths["/v2/models/m/infer"] is repository.get("m", "10")
    assert repository.infer_paths["/v2/models/m/versions/9/infer"] is repository.get("m", "9")
    with pytest.raises(NotFound, match="no version '1'; versions: 10, 9, beta"):
        repository.get("m", "1")


async def test_publishing_replaces_all_versions_of_one_model_in_the_same_table(make):
    old, other = [make("m"), make("m", "2")], make("other")
    repository = Repository([*old, other])
    table = repository.infer_paths
    new = make("m", "3")
    assert repository.publish("m", [new]) == old
    assert repository.infer_paths is table
    assert table == {
        "/v2/models/m/infer": new,
        "/v2/models/m/versions/3/infer": new,
        "/v2/models/other/infer": other,
        "/v2/models/other/versions/1/infer": other,
    }
    assert repository.publish("new", [make("new")]) == []


async def test_a_model_that_was_withdrawn_is_known_but_not_found(make):
    model = make("m", "7")
    repository = Repository([model, make("other")])
    assert repository.withdraw("m", "UNLOADING", "it finishes what it has") == [model]
    assert "/v2/models/m/infer" not in repository.infer_paths
    assert index(repository)[1] == ("m", "7", "UNLOADING", "it finishes what it has")
    repository.note("m", "UNAVAILABLE", "unloaded")
    assert index(repository) == [("other", "1", "READY", ""), ("m", "7", "UNAVAILABLE", "unloaded")]
    with pytest.raises(NotFound, match="model m is not loaded: unloaded"):
        repository.get("m")
    assert not repository.serves("m")
    assert repository.serves("other")
    assert repository.ready
    assert repository.withdraw("m", "UNLOADING", "again") == []
    assert index(repository)[1] == ("m", "7", "UNLOADING", "again")
    repository.forget("m")
    with pytest.raises(NotFound, match="no model named 'm'; served here: other"):
        repository.serves("m")


async def test_a_first_load_asks_clients_to_come_back(make):
    repository = Repository()
    repository.note("m", "LOADING", "it is being loaded")
    with pytest.raises(NotReady, match="it is being loaded"):
        repository.get("m")
    assert not repository.serves("m")
    assert index(repository) == [("m", "", "LOADING", "it is being loaded")]
    repository.publish("m", [make("m")])
    assert index(repository) == [("m", "1", "READY", "")]


async def test_a_failed_reload_shows_beside_the_version_that_serves(make):
    repository = Repository([make("m")])
    repository.note("m", "UNAVAILABLE", "the last load failed: truncated")
    assert index(repository) == [("m", "1", "READY", "the last load failed: truncated")]
    assert repository.serves("m")
    repository.publish("m", [make("m")])
    assert index(repository) == [("m", "1", "READY", "")]


async def test_a_served_model_without_workers_makes_the_server_not_ready(make):
    model = make("m", ready=False)
    repository = Repository([model, make("other")])
    assert not repository.ready
    assert index(repository)[0] == ("m", "1", "LOADING", "still starting")
    model.become_ready()
    assert repository.ready
    model.ready, model.why_not_ready = False, "no warmed worker"
    assert index(repository)[0] == ("m", "1", "UNAVAILABLE", "no warmed worker")


async def test_a_simulated_device_may_be_named_without_its_prefix(make):
    repository = Repository([make("simulated:null")])
    assert repository.get("null").name == "simulated:null"
    assert repository.versions("null") == ["1"]
    assert repository.serves("null")


async def test_an_empty_repository_is_ready():
    repository = Repository()
    assert repository.ready
    assert index(repository) == []
    with pytest.raises(NotFound, match="served here: none"):
        repository.get("m")
