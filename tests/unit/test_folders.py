"""The folders of a user, with and without a home."""

from pathlib import Path

import pytest

from hybrid.folders import cache_folder, config_folder


def test_the_standard_names_the_folders():
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/hybrid")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/hybrid")
    assert config_folder({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/hybrid")
    assert config_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/h/.config/hybrid")


def test_a_relative_folder_is_ignored():
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/hybrid")


def test_without_a_home_there_is_no_folder(monkeypatch: pytest.MonkeyPatch):
    def nowhere():
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    assert cache_folder({}) is None
    assert config_folder({"HOME": ""}) is None
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/hybrid")
