"""File changes are found and acted on; what cannot be loaded is said once and changes nothing."""

import shutil

import pytest
from repositories import Load, ask, folder, index, load, plus, truncate
from server import Server

pytestmark = pytest.mark.slow


def test_changed_new_and_removed_folders(tmp_path):
    named = folder(tmp_path / "elsewhere", "named", 1.0)
    root = tmp_path / "models"
    folder(root, "m", 1.0)
    with Server(str(named), options=["--repository", str(root), "--repository-poll-s", "0.1"]) as server:
        with Load(server, "m", clients=2) as clients:
            plus(root / "m" / "m.onnx", 2.0)
            server.until(lambda: ask(server, "m") == 2.0, what="the changed file is served")
            folder(root, "new", 5.0, version="1")
            server.until(lambda: ask(server, "new") == 5.0, what="the new folder is served")
            plus(root / "new" / "2" / "m.onnx", 6.0)
            server.until(lambda: ask(server, "new") == 6.0, what="the new version is served")
            plus(named / "m.onnx", 7.0)
            server.until(lambda: ask(server, "named") == 7.0, what="the named model is served anew")
            shutil.rmtree(root / "new")
            server.until(lambda: ("new", "2") not in index(server), what="the removed folder is forgotten")
            assert ask(server, "new") == 404
        assert set(clients.answers) <= {(1.0, "1"), (2.0, "1")}
        assert clients.answers[-1] == (2.0, "1")
        assert len(server.children()) == 2


def test_a_broken_change_is_said_once_and_tried_again_when_it_changes(tmp_path):
    path = folder(tmp_path, "m", 1.0) / "m.onnx"
    folder(tmp_path, "asleep", 1.0)
    with Server(options=["--repository", str(tmp_path), "--repository-poll-s", "0.1"]) as server:
        assert load(server, "asleep", "unload")[0] == 200
        plus(tmp_path / "asleep" / "m.onnx", 2.0)
        part = path.with_name(".part")
        plus(part, 3.0)
        truncate(part)
        part.replace(path)
        server.until(lambda: "the last load failed" in index(server)["m", "1"][1], what="it was tried")
        assert ask(server, "m") == 1.0
        tries = server.err.count("its files have changed")
        plus(path, 4.0)
        server.until(lambda: ask(server, "m") == 4.0, what="the whole file is served")
        assert index(server)["m", "1"] == ("READY", "")
        assert server.err.count("the one before serves on") == 1
        assert server.err.count("its files have changed") <= tries + 2
        assert index(server)["asleep", "1"] == ("UNAVAILABLE", "unloaded")
        assert load(server, "asleep")[0] == 200
        assert ask(server, "asleep") == 2.0
