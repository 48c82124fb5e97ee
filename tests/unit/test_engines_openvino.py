"""The OpenVINO engine on tiny graphs: signatures, types, failures, devices, precision and broken files."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphs as graphs
import pytest
from engine_world import fails

from hybrid.config import ModelSettings, OpenVinoSettings
from hybrid.engines import openvino_engine
from hybrid.engines.base import EngineFailure, EngineSettings
from hybrid.engines.openvino_engine import DATATYPES, FAILURES, OpenVinoEngine, failure, load, properties
from hybrid.engines.pipeline import Pipeline
from hybrid.errors import StartupError
from hybrid.messages import DTYPES, FailureKind, TensorSpec

ov = openvino_engine.ov  # not imported here: the engine's file does it without telling OpenVINO's makers
ov_exceptions = import_module("openvino.exceptions")


def loaded(file: str, device: str = "cpu", threads: int = 1, **more: Any) -> OpenVinoEngine:
    settings = ModelSettings(name="m", file=file, engine="openvino", openvino=OpenVinoSettings(**more))
    return load(settings, EngineSettings(threads=threads, device=device))


def test_signature_and_run(tmp_path: Path) -> None:
    engine = loaded(graphs.two_outputs(tmp_path / "m.onnx"))
    assert engine.signature.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert engine.signature.outputs == (TensorSpec("double", "FP32", (-1, 4)), TensorSpec("total", "FP32", (-1,)))
    assert engine.signature.platform == "openvino_f32"
    assert engine.max_rows is None
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = engine.run({"x": x}, 3)
    np.testing.assert_array_equal(out["double"], 2 * x)
    np.testing.assert_array_equal(out["total"], [6, 22, 38])


def test_ir_files_are_served_like_onnx(tmp_path: Path) -> None:
    ov.save_model(ov.Core().read_model(graphs.two_outputs(tmp_path / "m.onnx")), str(tmp_path / "m.xml"))
    engine = loaded(str(tmp_path / "m.xml"))
    assert [spec.name for spec in engine.signature.outputs] == ["double", "total"]
    np.testing.assert_array_equal(engine.run({"x": np.ones((2, 4), np.float32)}, 2)["total"], [4, 4])


def test_tensors_without_names_are_called_as_openvino_calls_them(tmp_path: Path) -> None:
    x = ov.opset13.parameter([-1, 2], ov.Type.f32)
    ov.save_model(ov.Model([ov.opset13.relu(x)], [x], "m"), str(tmp_path / "m.xml"))
    first, second = loaded(str(tmp_path / "m.xml")), loaded(str(tmp_path / "m.xml"))
    assert first.signature == second.signature
    given, taken = first.signature.inputs[0].name, first.signature.outputs[0].name
    assert given
    assert first.run({given: np.array([[-1, 1]], np.float32)}, 1)[taken].tolist() == [[0, 1]]


def test_results_outlive_the_next_run_and_inputs_are_left_alone(tmp_path: Path) -> None:
    node = graphs.helper.make_node("Relu", ["x"], ["y"])
    x, y = (graphs.value(name, graphs.FLOAT, ["n", 4]) for name in "xy")
    engine = loaded(graphs.write(tmp_path / "m.onnx", [node], [x], [y]))
    first, second = np.full((2, 4), -1, np.float32), np.full((2, 4), 7, np.float32)
    kept = engine.run({"x": first}, 2)["y"]
    engine.run({"x": second}, 2)
    assert (kept == 0).all()
    assert (first == -1).all()


def test_read_only_and_strided_views_are_taken(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))
    x = np.frombuffer(bytes(range(64)), np.uint8)[16:48].view(np.float32).reshape(2, 4)
    np.testing.assert_array_equal(engine.run({"x": x}, 2)["y"], x)
    y = np.arange(16, dtype=np.float32).reshape(2, 8)[:, ::2]
    np.testing.assert_array_equal(engine.run({"x": y}, 2)["y"], y)


@pytest.mark.parametrize("datatype", sorted(DATATYPES.values()))
def test_every_datatype_goes_through_unchanged(tmp_path: Path, datatype: str) -> None:
    kind = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}.get(datatype, datatype)
    engine = loaded(graphs.identity(tmp_path / "m.onnx", kind=graphs.TensorProto.DataType.Value(kind)))
    assert engine.signature.inputs[0].datatype == datatype
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(DTYPES[datatype]) * (0x3F80 if datatype == "BF16" else 1)
    x = x.astype(DTYPES[datatype])
    y = engine.run({"x": x}, 2)["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)
    assert engine.run({"x": x[:0]}, 0)["y"].shape == (0, 4)


@pytest.mark.parametrize("kind", [graphs.STRING, graphs.TensorProto.FLOAT8E4M3FN, graphs.TensorProto.INT4])
def test_types_that_cannot_be_carried_are_refused_at_load(tmp_path: Path, kind: int) -> None:
    with pytest.raises(StartupError, match=r"input `x` is of type .*, which this engine cannot serve"):
        loaded(graphs.identity(tmp_path / "m.onnx", kind=kind))


def test_what_openvino_would_compute_on_silently_is_refused(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))
    good = np.ones((2, 4), np.float32)
    engine.run({"x": good}, 2)
    wrong = {
        "shape [2, 5]": {"x": np.ones((2, 5), np.float32)},
        "shape [2, 4, 1]": {"x": good[..., None]},
        "is float64, expected FP32": {"x": good.astype(np.float64)},
        "`x` is missing": {"nope": good},
        "no input `extra`": {"x": good, "extra": good},
    }
    for text, inputs in wrong.items():
        error = fails(engine, **inputs)
        assert error.kind is FailureKind.INPUT
        assert text in error.text
    np.testing.assert_array_equal(engine.run({"x": good}, 2)["y"], good)


def test_fixed_rows_are_filled_up(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx", shape=(4, 4)))
    assert engine.max_rows == 4
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(Pipeline(engine).run({"x": x}, 2)["y"], x)
    assert fails(engine, x=x).kind is FailureKind.INPUT


def test_rows_that_influence_each_other_are_found(tmp_path: Path) -> None:
    reason = Pipeline(loaded(graphs.minus_batch_mean(tmp_path / "m.onnx"))).check_batchable(1e-3)
    assert "differs from the row alone" in (reason or "")
    assert Pipeline(loaded(graphs.two_outputs(tmp_path / "t.onnx"))).check_batchable(1e-3) is None


def test_shapes_that_disagree_never_give_foreign_rows(tmp_path: Path) -> None:
    add = Pipeline(loaded(graphs.add(tmp_path / "m.onnx")))
    with pytest.raises(EngineFailure):
        add.run({"a": np.ones((2, 3), np.float32), "b": np.ones((2, 4), np.float32)}, 2)
    assert add.run({"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}, 2)["y"].shape == (2, 3)


def test_every_exception_is_mapped_by_name() -> None:
    bindings = [*vars(openvino_engine.ov._pyopenvino).values(), *vars(ov_exceptions).values()]
    classes = {c.__name__ for c in bindings if isinstance(c, type) and issubclass(c, Exception)}
    assert {"GeneralFailure", "UserInputError"} <= classes
    # What pybind11 makes of the exceptions of the C++ standard library.
    standard = {"RuntimeError", "ValueError", "IndexError", "KeyError", "TypeError", "MemoryError", "OverflowError"}
    assert (classes | standard) - set(FAILURES) == {"OVError"}  # the base of two others, never raised itself
    assert failure(RuntimeError("std::bad_alloc")).kind is FailureKind.MEMORY
    assert failure(RuntimeError("[GPU] CL_OUT_OF_RESOURCES")).kind is FailureKind.MEMORY
    assert failure(RuntimeError("Check 'shape.is_static()' failed")).kind is FailureKind.INPUT
    assert failure(RuntimeError("the primitive was not found")).kind is FailureKind.ENGINE
    assert failure(MemoryError()).kind is FailureKind.MEMORY
    assert failure(LookupError("never seen")).kind is FailureKind.ENGINE


def test_what_a_run_raises_leaves_as_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))

    def raises(*_: object, **__: object) -> None:
        raise RuntimeError("Exception from src/x.cpp:1:\nout of memory\n\n")

    monkeypatch.setattr(engine, "_request", type("Request", (), {"infer": raises}))
    error = fails(engine, x=np.ones((1, 4), np.float32))
    assert error.kind is FailureKind.MEMORY
    assert error.text == "RuntimeError: Exception from src/x.cpp:1: out of memory"


@pytest.mark.parametrize("suffix", ["onnx", "xml"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x08" * 50])
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    path.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        loaded(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(StartupError, match="no such file"):
        loaded(str(tmp_path / f"none.{suffix}"))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "unknown device `tpu`; expected cpu, gpu"),
        ("cuda:0", "unknown device `cuda:0`"),
        ("gpu.7", r"`gpu\.7` is not there; OpenVINO finds .*CPU"),
        ("cpu:3", "`cpu:3` is not there"),
    ],
)
def test_a_device_that_is_not_there_is_never_replaced(tmp_path: Path, device: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        loaded(graphs.identity(tmp_path / "m.onnx"), device)


def test_auto_is_taken_when_asked_for(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"), "auto")
    assert engine.run({"x": np.ones((1, 4), np.float32)}, 1)["y"].tolist() == [[1, 1, 1, 1]]


def test_threads_streams_pinning_and_precision_are_what_was_asked_for(tmp_path: Path) -> None:
    """NUM-01, DTY-12: read back from the compiled model, not from what was passed."""
    settings = ModelSettings(name="m", file=graphs.identity(tmp_path / "m.onnx"))
    wanted = properties("CPU", settings, EngineSettings(threads=2))
    compiled = ov.Core().compile_model(settings.file, "CPU", wanted)
    told = {
        name: compiled.get_property(name) for name in ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING")
    }
    assert told == {"INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


def test_a_precision_that_the_device_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = graphs.identity(tmp_path / "m.onnx")
    asked = {}

    def as_f32(*arguments: Any) -> dict[str, Any]:
        asked.update(properties(*arguments))
        return asked | {"INFERENCE_PRECISION_HINT": "f32"}

    monkeypatch.setattr(openvino_engine, "properties", as_f32)
    with pytest.raises(StartupError, match="precision` is bf16, but CPU computes in f32"):
        loaded(file, precision="bf16")
    assert asked["INFERENCE_PRECISION_HINT"] == "bf16"


def test_an_unreadable_cpu_topology_is_one_line_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU-11."""

    def raises() -> None:
        raise RuntimeError("Exception from src/inference/src/os/lin/lin_system_conf.cpp:1:\nstoi\n")

    monkeypatch.setattr(openvino_engine.ov, "Core", raises)
    with pytest.raises(StartupError, match=r"cannot read the CPU topology .*allowed CPUs \d.*onnxruntime") as caught:
        loaded(graphs.identity(tmp_path / "m.onnx"))
    assert "\n" not in str(caught.value)


def test_memory_is_told_where_the_device_tells(tmp_path: Path) -> None:
    class Core:
        def get_property(self, device: str, name: str) -> dict[str, int]:
            assert (device, name) == ("GPU.0", "GPU_MEMORY_STATISTICS")
            return {"usm_host": 10, "usm_device": 20}

    class Lost:
        def get_property(self, *_: str) -> dict[str, int]:
            raise RuntimeError("device lost")

    assert openvino_engine._Memory(Core(), "GPU.0").read().allocated == 30
    assert openvino_engine._Memory(Lost(), "GPU.0").read().allocated is None
    assert loaded(graphs.identity(tmp_path / "m.onnx")).memory().allocated is None


def test_a_closed_engine_refuses(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))
    engine.close()
    assert "closed" in fails(engine, x=np.ones((1, 4), np.float32)).text


@pytest.mark.slow
def test_loading_writes_nothing_home_and_starts_under_one_cpu(tmp_path: Path) -> None:
    """CPU-11 under an affinity of one CPU, which need not be CPU 0; and nobody is told that OpenVINO was imported."""
    file = graphs.identity(tmp_path / "m.onnx")
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import os, sys; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
        "import numpy as np\n"
        "from hybrid.config import ModelSettings\n"
        "from hybrid.engines.base import EngineSettings\n"
        "from hybrid.engines.openvino_engine import load\n"
        f"engine = load(ModelSettings(name='m', file={file!r}), EngineSettings(threads=1))\n"
        "print(engine.run({'x': np.ones((1, 4), np.float32)}, 1)['y'].tolist())\n"
        "print(sys.modules['openvino_telemetry'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"HOME": str(home)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[[1.0, 1.0, 1.0, 1.0]]", "None"]
    assert done.stderr == ""
    assert list(home.iterdir()) == []
