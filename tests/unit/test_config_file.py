import os
from pathlib import Path

import pytest

from hybrid.config import Config, ImageSettings, ModelSettings, TensorSettings, TextSettings
from hybrid.config_file import load_config, load_settings, load_toml, nearest, replace_setting
from hybrid.errors import ConfigError
from hybrid.planner.profiles import ProfileFile
from hybrid.planner.types import PlanOverrides


def refusal(data: dict[str, object], cls: type = ModelSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(cls, data, "model.toml")
    return str(caught.value)


def test_nested_tables_become_nested_settings() -> None:
    data = {
        "name": "m",
        "batching": {"max_batch": 16, "size_edges": [16, 32], "pad_inputs": {"ids": 0}, "max_wait_s": 1},
        "preprocess": {"text": {"max_tokens": 64}},
        "workers": {"pin": False},
    }
    settings = load_settings(ModelSettings, data, "model.toml")
    assert settings.batching.max_batch == 16
    assert settings.batching.size_edges == (16, 32)
    assert settings.batching.pad_inputs == {"ids": 0}
    assert isinstance(settings.batching.max_wait_s, float)
    assert settings.preprocess.text == TextSettings(max_tokens=64)
    assert settings.preprocess.image is None
    assert settings.workers.pin is False


def test_unknown_key_names_the_nearest() -> None:
    message = refusal({"name": "m", "batching": {"max_bach": 3}})
    assert message == "model.toml: unknown key `batching.max_bach`; did you mean `batching.max_batch`?"


def test_unknown_key_deep_inside_an_optional_table() -> None:
    message = refusal({"name": "m", "preprocess": {"image": {"widht": 3}}})
    assert message == "model.toml: unknown key `preprocess.image.widht`; did you mean `preprocess.image.width`?"


def test_unknown_key_that_resembles_nothing_lists_the_known_ones() -> None:
    message = refusal({"name": "m", "workers": {"zzz": 3}})
    assert message.startswith("model.toml: unknown key `workers.zzz`; known: device, hang_factor, ")


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ({"batching": {"max_batch": 0}}, ("`batching.max_batch`", "an integer >= 1", "got 0")),
        ({"batching": {"max_batch": "8"}}, ("`batching.max_batch`", "an integer >= 1", 'got "8" (a string)')),
        ({"batching": {"max_batch": 8.5}}, ("an integer >= 1", "got 8.5 (a number)")),
        ({"batching": {"max_batch": True}}, ("an integer >= 1", "got true (a boolean)")),
        ({"batching": {"max_wait_s": -1}}, ("`batching.max_wait_s`", "a number >= 0 and <= 86400", "got -1")),
        ({"batching": {"max_wait_s": float("nan")}}, ("a number >= 0", "got nan")),
        ({"batching": {"tolerance": float("inf")}}, ("`batching.tolerance`", "a number", "got inf")),
        ({"batching": {"size_edges": [16, 0]}}, ("`batching.size_edges`", "a list, each an integer >= 1", "[16, 0]")),
        ({"batching": {"pad_inputs": {"ids": "x"}}}, ("`batching.pad_inputs.ids`", "an integer", '"x"')),
        ({"batching": {"enabled": 1}}, ("true or false", "got 1 (an integer)")),
        ({"batching": 8}, ("`batching`", "expected a table", "got 8")),
        ({"preprocess": {"text": "yes"}}, ("`preprocess.text`", "expected a table", '"yes"')),
        ({"engine": "tensorrt"}, ("`engine`", '"auto", "onnxruntime"', 'got "tensorrt"')),
        ({"workers": {"pipeline_depth": 9}}, (">= 1 and <= 4", "got 9")),
        ({"description": "x" * 500}, ()),
        ({"version": ["x" * 500]}, ("`version`", "a string", "...")),
    ],
)
def test_wrong_values_name_key_expectation_and_value(data: dict[str, object], parts: tuple[str, ...]) -> None:
    if not parts:
        assert load_settings(ModelSettings, {"name": "m", **data}, "model.toml").description
        return
    message = refusal({"name": "m", **data})
    assert message.startswith("model.toml: `")
    assert all(part in message for part in parts), message
    assert len(message) < 250


def test_numbers_that_are_too_large_are_refused_before_anybody_computes_with_them() -> None:
    with pytest.raises(ConfigError, match=r"`max_batch`: expected an integer >= 1 and <= 1e\+06, got 1000001"):
        load_settings(PlanOverrides, {"max_batch": 1_000_001}, "p.toml")
    with pytest.raises(ConfigError, match="`queue_rows`: expected no number beyond 9007199254740992, got 99999"):
        load_settings(PlanOverrides, {"queue_rows": 10**20 - 1}, "p.toml")
    assert load_settings(PlanOverrides, {"queue_rows": 2**53}, "p.toml").queue_rows == 2**53


def test_missing_key() -> None:
    assert refusal({}) == "model.toml: missing key `name`; expected a string"
    message = refusal({"server": {"tls": {"certificate": "c.pem"}}}, Config)
    assert message == "model.toml: missing key `server.tls.key`; expected a string"


def test_table_of_tables_keeps_the_whole_path() -> None:
    message = refusal({"model": {"minilm": {"max_bach": 3}}}, ProfileFile)
    assert message == "model.toml: unknown key `model.minilm.max_bach`; did you mean `model.minilm.max_batch`?"


def test_lists_of_tables_keep_the_whole_path() -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    made = load_settings(ModelSettings, {"name": "m", "inputs": [x]}, "m.toml")
    assert made.inputs == (TensorSettings(name="x", datatype="FP32", shape=(-1, 4)),)
    for wrong, message in (
        ([x, {"name": "y"}], "missing key `inputs.2.datatype`; expected a string"),
        ([x | {"shape": [-2]}], "`inputs.1.shape`: expected a list, each an integer >= -1"),
        ([x | {"kind": "FP32"}], "unknown key `inputs.1.kind`"),
        (["x"], "`inputs`: expected a list, each a table"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(ModelSettings, {"name": "m", "inputs": wrong}, "m.toml")
        assert message in str(caught.value)


def test_a_struct_that_checks_itself_is_reported_with_its_table() -> None:
    message = refusal({"match": {"usable_cpus_min": 4, "usable_cpus_max": 2}}, ProfileFile)
    assert message == "model.toml: `match`: usable_cpus_min 4 is above usable_cpus_max 2"


@pytest.mark.parametrize(
    "data", [{"api_keys": "hunter2"}, {"api_keys": ["hunter2", 3]}, {"admin_token": ["hunter2"]}], ids=str
)
def test_secrets_never_appear(data: dict[str, object]) -> None:
    message = refusal({"server": data}, Config)
    assert "hunter2" not in message
    assert "not shown" in message


# --- files ------------------------------------------------------------------------------------------------------------


def file_refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_toml(path)
    return str(caught.value)


def test_file_faults(tmp_path: Path) -> None:
    assert file_refusal(tmp_path / "no.toml") == f"{tmp_path / 'no.toml'}: no such file"
    before = len(os.listdir("/proc/self/fd"))
    assert "is a directory" in file_refusal(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # paths come over HTTP: a refusal must cost nothing
    broken = tmp_path / "broken.toml"
    broken.write_text("a = 1\nb = = 2\n")
    assert "not TOML" in file_refusal(broken)
    assert "line 2" in file_refusal(broken)
    broken.write_bytes(b"a = '\xff'")
    assert "not UTF-8" in file_refusal(broken)
    assert "cannot be read" in file_refusal(broken / "below-a-file.toml")


def test_what_would_wait_or_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "is a pipe or a device, expected a TOML file" in file_refusal(tmp_path / "pipe.toml")
    assert "is a pipe or a device" in file_refusal(Path("/dev/zero"))
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(400 << 20)
    assert "larger than 1 MiB" in file_refusal(tmp_path / "large.toml")


@pytest.mark.parametrize("name", ["a\0.toml", "a\ud800.toml"])
def test_what_cannot_be_a_path_is_said_like_any_wrong_file(name: str) -> None:
    assert "cannot be a path" in file_refusal(Path(name))


def test_unreadable_file_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_args: object, **_kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hybrid.config_file.os.open", denied)  # tests may run as root, whom no mode bits stop
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    assert (
        file_refusal(tmp_path / "c.toml") == f"{tmp_path / 'c.toml'}: cannot be read by user alice: Permission denied"
    )


def test_user_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    def denied(*_args: object, **_kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hybrid.config_file.os.open", denied)
    monkeypatch.setattr("getpass.getuser", nameless)
    assert "by user id " in file_refusal(tmp_path / "c.toml")


# --- file, environment, flags -----------------------------------------------------------------------------------------


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hybrid.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    assert load_config(None, {}, {}) == Config()


def test_later_sources_win(tmp_path: Path) -> None:
    path = write(tmp_path, 'models = ["minilm"]\n[server]\nhost = "::1"\nport = 1\nlog_level = "error"\n')
    config = load_config(path, {"HYBRID_PORT": "2", "HYBRID_LOG_LEVEL": "DEBUG"}, {"server.port": 3})
    assert (config.server.host, config.server.port, config.server.log_level) == ("::1", 3, "debug")
    assert config.models == ("minilm",)


def test_flags_that_were_not_given_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\n")
    config = load_config(path, {}, {"server.port": None, "server.host": None, "profile": "ci", "models": ("a", "b")})
    assert (config.server.port, config.server.host, config.profile, config.models) == (1, "127.0.0.1", "ci", ("a", "b"))


def test_api_keys_are_separated_by_commas() -> None:
    assert load_config(None, {"HYBRID_API_KEYS": "a, b,"}).server.api_keys == ("a", "b")


def test_environment_that_is_set_but_empty_counts_as_not_set(tmp_path: Path) -> None:
    path = write(tmp_path, '[server]\napi_keys = ["k"]\n')
    assert load_config(path, {"HYBRID_API_KEYS": "", "HYBRID_PORT": " "}).server.api_keys == ("k",)


def config_refusal(environ: dict[str, str], overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, environ, overrides)
    return str(caught.value)


def test_wrong_values_name_their_source() -> None:
    assert config_refusal({"HYBRID_PORT": "http"}).startswith(
        "environment variable HYBRID_PORT: `server.port`: expected"
    )
    assert "70000" in config_refusal({"HYBRID_PORT": "70000"})
    assert config_refusal({}, {"server.port": -1}).startswith("option --port: `server.port`: expected an integer >= 0")
    assert "log_level" in config_refusal({"HYBRID_LOG_LEVEL": "loud"})
    assert "only commas" in config_refusal({"HYBRID_API_KEYS": " ,"})
    assert "did you mean `server.port`" in config_refusal({}, {"server.prt": 1})


@pytest.mark.parametrize("name", ["HYBRID_API_KEY", "HYBRID_PORTS", "HYBRID_LOGLEVEL", "HYBRID_ADMIN_TOKENS"])
def test_misspelled_variables_are_refused_without_their_value(name: str) -> None:
    message = config_refusal({name: "hunter2"})
    assert f"unknown variable {name}; did you mean HYBRID_" in message
    assert "hunter2" not in message


def test_other_variables_with_the_prefix_are_left_alone() -> None:
    kubernetes = {
        "HYBRID_PORT": "tcp://10.0.0.7:8000",
        "HYBRID_SERVICE_HOST": "10.0.0.7",
        "HYBRID_SERVICE_PORT": "8000",
        "HYBRID_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "HYBRID_PORT_8000_TCP_ADDR": "10.0.0.7",
    }
    assert load_config(None, {"HYBRID_FUZZ_SECONDS": "3", "HYBRID_DEBUG": "1", **kubernetes}) == Config()


def test_empty_secrets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="empty key"):
        load_config(write(tmp_path, '[server]\napi_keys = [""]\n'), {})
    with pytest.raises(ConfigError, match="admin_token"):
        load_config(write(tmp_path, '[server]\nadmin_token = " "\n'), {})


def test_replace_setting_keeps_the_rest() -> None:
    image = ImageSettings(width=10)
    assert replace_setting(image, "height", 20, "here") == ImageSettings(width=10, height=20)
    with pytest.raises(ConfigError, match="here: `height`: expected an integer >= 1"):
        replace_setting(image, "height", 0, "here")


def test_nearest() -> None:
    assert nearest("prot", ["port", "host"]) == "did you mean `port`?"
    assert nearest("x", ["port", "host"]) == "known: host, port"
    assert nearest("x", []) == "none is known"
