"""Which models may be asked for, what their versions are, and that no name is ever a path."""

import os
from pathlib import Path

import pytest

from hybrid.errors import ConfigError, NotFound, StartupError
from hybrid.serving.sources import ModelSources, read_all


def model(folder: Path, toml: str | None = "", files: tuple[str, ...] = ("m.onnx",)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if toml is not None:
        (folder / "model.toml").write_text(toml)
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("weights")
    return folder


def versions(sources: ModelSources, name: str) -> list[tuple[str, str]]:
    return [(s.version, Path(s.file).parent.name) for s in sources.settings(name)]


def refused(sources: ModelSources, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        sources.settings(name)
    return str(caught.value)


def test_every_sub_folder_with_a_model_is_one(tmp_path: Path) -> None:
    model(tmp_path / "toml", "[batching]\nmax_batch = 3\n")
    model(tmp_path / "bare", None)
    model(tmp_path / "numbered", None, ("1/m.onnx",))
    model(tmp_path / "notes", None, ("read.me",))
    model(tmp_path / ".hidden")
    (tmp_path / "file.onnx").write_text("not a folder")
    sources = ModelSources((), tmp_path)
    assert sources.names() == ("bare", "numbered", "toml")
    assert sources.settings("toml")[0].batching.max_batch == 3
    assert sources.settings("bare")[0].name == "bare"
    assert not sources.required("bare")


def test_an_empty_repository_has_no_names_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    assert ModelSources((), tmp_path).names() == ()
    with pytest.raises(ConfigError, match="cannot be read"):
        ModelSources((), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", ["10"]),
        ('versions = "latest"', ["10"]),
        ('versions = "all"', ["2", "3", "10"]),
        ('versions = ["10", "2"]', ["2", "10"]),
    ],
)
def test_version_folders(tmp_path: Path, wanted: str, expected: list[str]) -> None:
    files = ("2/m.onnx", "3/m.onnx", "10/m.onnx", "old/m.onnx", "007/m.onnx")
    model(tmp_path / "m", wanted, files)
    assert versions(ModelSources((), tmp_path), "m") == [(version, version) for version in expected]


def test_a_file_of_a_version_may_lie_beside_model_toml(tmp_path: Path) -> None:
    toml = 'versions = "all"\n[preprocess.text]\ntokenizer = "t.json"\n'
    model(tmp_path / "m", toml, ("t.json", "1/m.onnx", "2/m.onnx", "2/t.json"))
    one, two = ModelSources((), tmp_path).settings("m")
    assert one.preprocess.text is not None
    assert two.preprocess.text is not None
    assert one.preprocess.text.tokenizer == str(tmp_path / "m" / "t.json")
    assert two.preprocess.text.tokenizer == str(tmp_path / "m" / "2" / "t.json")


@pytest.mark.parametrize(
    ("toml", "files", "expected"),
    [
        ('versions = ["3"]', ("1/m.onnx",), "`versions`: expected some of 1, got no sub-folder for 3"),
        ("versions = []", ("1/m.onnx",), "`versions`: expected some of 1, got an empty list"),
        ('versions = "all"', ("m.onnx",), "`versions`: expected sub-folders 1, 2, ..."),
        ('versions = "newest"', ("m.onnx",), "`versions`: expected"),
        ('version = "4"', ("1/m.onnx",), "`version`: expected none, the sub-folders are the versions: 1"),
        ('name = "other"', ("m.onnx",), "`name`: expected 'm', the name of the folder, got 'other'"),
        ("", ("1/read.me",), "missing key `file`"),
        ('file = "../outside.onnx"', ("m.onnx",), "leads out of the model folder"),
        ("max_batch = 4", ("m.onnx",), "unknown key `max_batch`"),
    ],
)
def test_what_is_wrong_is_said_with_the_key(tmp_path: Path, toml: str, files: tuple[str, ...], expected: str) -> None:
    (tmp_path / "outside.onnx").write_text("weights")
    model(tmp_path / "m", toml, files)
    assert expected in refused(ModelSources((), tmp_path), "m")


@pytest.mark.parametrize(
    "name", ["../secret", "..", ".", "", "/etc", "m/../../secret", "m/1", "M", "m\0", "secret", "~", "simulated:null"]
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    model(tmp_path / "secret")
    model(tmp_path / "models" / "m", "", ("1/m.onnx",))
    sources = ModelSources((), tmp_path / "models")
    with pytest.raises(NotFound):
        sources.settings(name)
    with pytest.raises(NotFound):
        sources.stamp(name)


def test_symlinks_may_not_lead_out_of_the_repository(tmp_path: Path) -> None:
    model(tmp_path / "outside")
    inside = tmp_path / "models"
    model(inside / ".store" / "m-v7")
    (inside / "good").symlink_to(inside / ".store" / "m-v7")
    (inside / "bad").symlink_to(tmp_path / "outside")
    sources = ModelSources((), inside)
    assert sources.settings("good")[0].name == "good"
    assert "leads out of the repository" in refused(sources, "bad")
    assert sources.stamps()["bad"] == ()
    model(inside / "versions", None, ("1/m.onnx",))
    (inside / "versions" / "2").symlink_to(tmp_path / "outside")
    assert "leads out of the model folder" in refused(sources, "versions")


def test_a_name_that_is_no_part_of_an_url_is_passed_over_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model(tmp_path / "my model")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / "m.onnx").write_text("weights")
    sources = ModelSources((), tmp_path)
    assert sources.names() == sources.names() == ()
    assert [("my model" in r.getMessage()) for r in caplog.records].count(True) == 1
    assert len(caplog.records) == 2


def test_named_models_are_read_again_and_keep_their_name(tmp_path: Path) -> None:
    path = model(tmp_path / "m", 'name = "a"\n[batching]\nmax_batch = 2\n')
    sources = ModelSources(("simulated:null", str(path)))
    assert sources.names() == ("simulated:null", "a")
    assert sources.required("a")
    (path / "model.toml").write_text('name = "a"\n[batching]\nmax_batch = 5\n')
    assert sources.settings("a")[0].batching.max_batch == 5
    (path / "model.toml").write_text('name = "b"\n')
    assert "is called 'b' in its model.toml now" in refused(sources, "a")
    (path / "m.onnx").unlink()
    (path / "model.toml").unlink()
    assert "no model.toml" in refused(sources, "a")


def test_two_folders_may_be_versions_of_one_model(tmp_path: Path) -> None:
    one = model(tmp_path / "one", 'name = "a"')
    two = model(tmp_path / "two", 'name = "a"\nversion = "2"')
    assert versions(ModelSources((str(one), str(two))), "a") == [("1", "one"), ("2", "two")]


def test_a_name_that_is_named_and_in_the_repository_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "repository" / "m")
    with pytest.raises(ConfigError, match="two models are called `m`"):
        ModelSources((str(path),), tmp_path / "repository")


def test_reading_all_leaves_out_what_is_broken_unless_somebody_named_it(tmp_path: Path) -> None:
    model(tmp_path / "good")
    broken = model(tmp_path / "broken")
    sources = ModelSources((), tmp_path)
    named = ModelSources((str(broken),))
    (broken / "model.toml").write_text("nonsense")
    found, wrong = read_all(sources)
    assert list(found) == ["good"]
    assert "not TOML" in wrong["broken"]
    with pytest.raises(StartupError, match="not TOML"):
        read_all(sources, strict=True)
    with pytest.raises(StartupError, match="not TOML"):
        read_all(named)


# Stamps ------------------------------------------------------------------------------------------------------------


def test_a_stamp_changes_with_every_file_of_a_folder_and_with_nothing_else(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "", ("1/m.onnx", "1/m.onnx.data"))
    sources = ModelSources((), tmp_path)
    seen = {sources.stamp("m")}
    assert sources.stamp("m") in seen
    (folder / "1" / "m.onnx.data").write_text("longer weights")
    seen.add(sources.stamp("m"))
    os.utime(folder / "1" / "m.onnx", ns=(1, 1))
    seen.add(sources.stamp("m"))
    (folder / "model.toml").write_text("version = '1'")
    seen.add(sources.stamp("m"))
    model(folder, None, ("2/m.onnx",))
    seen.add(sources.stamp("m"))
    other = folder / "other"
    other.write_text("weights")
    os.utime(other, ns=(1, 1))
    seen.add(sources.stamp("m"))
    before = sources.stamp("m")
    (folder / "1" / "m.onnx").rename(folder / "kept")
    other.rename(folder / "1" / "m.onnx")  # same size, same time, another file
    (folder / "kept").rename(folder / "other")
    seen.add(sources.stamp("m"))
    assert len(seen) == 7
    assert sources.stamp("m") != before
    (folder / ".part").write_text("is being written")
    assert sources.stamp("m") in seen


def test_stamps_of_named_models(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_text("weights")
    (tmp_path / "m2.onnx").write_text("another model")
    sources = ModelSources((str(file), "simulated:null"))
    assert [Path(stamp.path).name for stamp in sources.stamp("m")] == ["m.onnx"]
    (tmp_path / "m.onnx.data").write_text("weights")
    (tmp_path / "m.bin").write_text("weights")
    assert len(sources.stamp("m")) == 3
    assert sources.stamps()["simulated:null"] == ()
    file.unlink()
    assert len(sources.stamp("m")) == 2
