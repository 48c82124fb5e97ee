"""Starts that must fail: the exit code, one line that says why, within seconds, and nothing left running."""

import os
import shutil
import socket

import pytest
from abuse import assert_all_well, cannot_start, model_folder, the_error_line
from server import Server

from hybrid.models.catalog import resolve

pytestmark = pytest.mark.slow

MINILM = resolve("minilm").file
TEXT = 'file = "model.onnx"\n[preprocess.text]\n'


def fails(*arguments, code, seconds=10.0, **more):
    """Start, and return the error line after the checks that all of them have in common."""
    got, _, stderr, took = cannot_start(*map(str, arguments), **more)
    line = the_error_line(stderr)
    assert got == code, stderr
    assert took < seconds
    return line, stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prot", "1"), "no such option '--prot'"),
        (("--port", "99999"), "`server.port`: expected an integer >= 0 and <= 65535, got 99999"),
        (("simulated:nothing",), "unknown simulated device `nothing`"),
        (("minilmm",), "did you mean `minilm`?"),
        (("--profile", "nix"), "unknown profile `nix`"),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml: no such file"),
    ],
)
def test_bad_usage_is_code_2(arguments, says):
    line, stderr = fails("simulated:null", "--port", "0", *arguments, code=2)
    assert says in line
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[server]\nprot = 1\n", "unknown key `server.prot`; did you mean `server.port`?"),
        (b'[server]\nport = "a"\n', "`server.port`: expected an integer"),
    ],
)
def test_bad_configuration_is_code_2_and_names_file_and_key(tmp_path, config, says):
    path = tmp_path / "config.toml"
    path.write_bytes(config)
    line, _ = fails("simulated:null", "--config", path, code=2)
    assert str(path) in line
    assert says in line


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", "host 192.0.2.1: not an address of this machine"),
        ("a..b", "host a..b: cannot be resolved"),
        ("", "host is empty"),
    ],
)
def test_bad_host(host, says):
    line, stderr = fails("simulated:null", "--port", "0", "--host", host, code=1)
    assert says in line
    assert stderr.count("\n") == 1


def test_port_taken_by_another_program():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line, stderr = fails("minilm", "--port", port, code=1)
    assert f"port {port} on 127.0.0.1 is already in use" in line
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_taken_port_is_named_before_any_model_is_measured(tmp_path, option):
    environment = os.environ | {"HYBRID_MEASURE": "auto", "XDG_CACHE_HOME": str(tmp_path)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line, stderr = fails("minilm", "--port", "0", option, port, code=1, env=environment, seconds=6.0)
    assert f"port {port} on 127.0.0.1 is already in use" in line
    assert stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_port_taken_by_ourselves_does_not_disturb_the_first(host):
    with Server("simulated:null") as first:
        before = first.children()
        line, _ = fails("simulated:null", "--port", first.port, "--host", host, code=1)
        assert f"port {first.port}" in line
        assert "already in use" in line
        assert first.children() == before
        assert_all_well(first, "simulated:null")


def test_a_broken_model_file(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(bytes(range(256)) * 500)
    line, stderr = fails(broken, "--port", "0", code=1)
    assert line.startswith(f"hybrid: error: model broken cannot start: {broken} cannot be loaded")
    assert stderr.count("\n") == 1


def test_an_empty_model_file(tmp_path):
    empty = tmp_path / "empty.onnx"
    empty.touch()
    line, _ = fails(empty, "--port", "0", code=2)
    assert f"{empty}: is empty" in line


@pytest.mark.parametrize(
    ("toml", "tokenizer", "code", "says"),
    [
        (TEXT, None, 2, "tokenizer.json: no such file"),
        (TEXT, '{"a":', 1, "tokenizer.json: not a tokenizer.json that can be loaded"),
        (TEXT, "{}", 1, "tokenizer.json: not a tokenizer.json that can be loaded"),
        ('file = "model.onnx"\n[preprocess.image]\n', None, 1, "the model takes input_ids"),
        ('file = "model.onnx"\nengine = "tensorrt"\n', None, 2, "`engine`: expected one of"),
        ('file = "other.onnx"\n', None, 2, "other.onnx: no such file"),
        ('file = "../../model.onnx"\n', None, 2, "leads out of the model folder"),
        ('file = "model.onnx"\n[workers]\nstart_timeout_s = 0.05\n', None, 1, "not ready after 0.05 s"),
    ],
)
def test_a_wrong_model_folder(tmp_path, toml, tokenizer, code, says):
    folder = model_folder(tmp_path / "m", toml)
    shutil.copy(MINILM, tmp_path / "m" / "model.onnx")
    if tokenizer is not None:
        (tmp_path / "m" / "tokenizer.json").write_text(tokenizer)
    line, _ = fails(folder, "--port", "0", code=code, seconds=15)
    assert says in line


def test_one_broken_model_among_good_ones(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not an onnx file")
    line, _ = fails("simulated:null", broken, "minilm", "--port", "0", code=1, seconds=15)
    assert str(broken) in line


def test_weights_that_do_not_fit(tmp_path):
    folder = model_folder(tmp_path / "m", "[simulated]\nmemory_total_bytes = 10\nmemory_weights_bytes = 20\n")
    line, _ = fails(folder, "--port", "0", code=1)
    assert "weights of 20 bytes do not fit the device's 10 bytes" in line


@pytest.mark.parametrize("certificate", ["missing.pem", "garbage.pem"])
def test_tls_files(tmp_path, certificate):
    (tmp_path / "garbage.pem").write_text("garbage")
    config = tmp_path / "config.toml"
    config.write_text(
        f'[server.tls]\ncertificate = "{tmp_path}/{certificate}"\nkey = "{tmp_path}/{certificate}"\n', encoding="utf-8"
    )
    line, _ = fails("simulated:null", "--port", "0", "--config", config, code=1)
    assert str(tmp_path / certificate) in line
