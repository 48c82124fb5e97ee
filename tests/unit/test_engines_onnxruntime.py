"""The ONNX Runtime engine on tiny graphs: signatures, types, failures and broken files."""

from pathlib import Path

import numpy as np
import onnx_graphs as graphs
import onnxruntime as ort
import pytest
from engine_world import fails
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.onnxruntime_engine import DATATYPES, FAILURES, OnnxEngine, failure, load
from hybrid.errors import StartupError
from hybrid.messages import DTYPES, FailureKind, TensorSpec


def loaded(file: str, device: str = "cpu", threads: int = 1) -> OnnxEngine:
    return load(ModelSettings(name="m", file=file), EngineSettings(threads=threads, device=device))


def test_signature_and_run(tmp_path: Path) -> None:
    engine = loaded(graphs.two_outputs(tmp_path / "m.onnx"))
    assert engine.signature.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert engine.signature.outputs == (TensorSpec("double", "FP32", (-1, 4)), TensorSpec("total", "FP32", (-1,)))
    assert engine.max_rows is None
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = engine.run({"x": x}, 3)
    np.testing.assert_array_equal(out["double"], 2 * x)
    np.testing.assert_array_equal(out["total"], [6, 22, 38])


def test_a_view_into_a_larger_read_only_buffer_is_taken(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))
    x = np.frombuffer(bytes(range(64)), np.uint8)[16:48].view(np.float32).reshape(2, 4)
    np.testing.assert_array_equal(engine.run({"x": x}, 2)["y"], x)


def test_unnamed_dimensions_are_variable_and_fixed_rows_are_reported(tmp_path: Path) -> None:
    free = loaded(graphs.identity(tmp_path / "a.onnx", shape=(None, "k")))
    assert free.signature.inputs[0].shape == (-1, -1)
    fixed = loaded(graphs.identity(tmp_path / "b.onnx", shape=(1, 4)))
    assert fixed.max_rows == 1
    assert fixed.signature.inputs[0].shape == (1, 4)
    assert fails(fixed, x=np.ones((2, 4), np.float32)).kind is FailureKind.INPUT


def test_scalar_output(tmp_path: Path) -> None:
    engine = loaded(graphs.scalar_output(tmp_path / "m.onnx"))
    assert engine.signature.outputs == (TensorSpec("y", "FP32", ()),)
    assert engine.run({"x": np.ones((2, 4), np.float32)}, 2)["y"].shape == ()


@pytest.mark.parametrize("datatype", sorted(set(DATATYPES.values()) - {"BYTES"}))
def test_every_datatype_goes_through_unchanged(tmp_path: Path, datatype: str) -> None:
    kind = {"BOOL": "BOOL", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}.get(datatype, datatype)
    engine = loaded(graphs.identity(tmp_path / "m.onnx", kind=graphs.TensorProto.DataType.Value(kind)))
    assert engine.signature.inputs[0].datatype == datatype
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(DTYPES[datatype])
    y = engine.run({"x": x}, 2)["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_strings_are_bytes_on_both_sides(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx", kind=graphs.STRING, shape=("n",)))
    assert engine.signature.inputs[0].datatype == "BYTES"
    x = np.array([b"abc", "grün".encode(), b"", b"a\0b"], object)
    y = engine.run({"x": x}, 4)["y"]
    assert y.tolist() == x.tolist()
    error = fails(engine, x=np.array([b"ok", b"\xff"], object))
    assert error.kind is FailureKind.INPUT
    assert "element 1 is not UTF-8" in error.text


def test_types_without_a_numpy_form_are_refused_at_load(tmp_path: Path) -> None:
    file = graphs.identity(tmp_path / "m.onnx", kind=graphs.BFLOAT16)
    with pytest.raises(StartupError, match=r"input `x` is a tensor\(bfloat16\), which cannot be served"):
        loaded(file)


def test_every_ort_exception_is_mapped_by_name() -> None:
    classes = [c for c in vars(ort_state).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) >= 10
    assert {c.__name__ for c in classes} - set(FAILURES) == set()
    assert failure(ort_state.InvalidArgument("x")).kind is FailureKind.INPUT
    assert failure(ort_state.EPFail("device gone")).kind is FailureKind.ENGINE
    assert failure(ort_state.RuntimeException("std::bad_alloc")).kind is FailureKind.MEMORY
    assert failure(MemoryError()).kind is FailureKind.MEMORY
    assert failure(KeyError("never seen")).kind is FailureKind.ENGINE


@pytest.mark.parametrize(("shape", "shared"), [(("n", 4), "1"), (("n", "length"), None)])
def test_the_arena_that_sessions_share_is_for_rows_of_one_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[str | int, ...], shared: str | None
) -> None:
    used: list[dict[str, str]] = []

    class Options(ort.SessionOptions):
        def __init__(self) -> None:
            super().__init__()
            used.append({})

        def add_session_config_entry(self, key: str, value: str) -> None:
            used[-1][key] = value
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(ort, "SessionOptions", Options)
    for _ in range(2):  # the second session finds the arena set up
        engine = loaded(graphs.identity(tmp_path / "m.onnx", shape=shape))
        assert used[-1].get("session.use_env_allocators") == shared
        for rows in (8, 3, 8):
            x = np.ones((rows, 4), np.float32)
            np.testing.assert_array_equal(engine.run({"x": x}, rows)["y"], x)


def test_bad_data_is_the_inputs_fault(tmp_path: Path) -> None:
    engine = loaded(graphs.gather(tmp_path / "m.onnx"))
    for wrong in (np.array([0, 5]), np.array([[0], [1]]), np.array([0.0, 1.0])):
        assert fails(engine, x=wrong).kind is FailureKind.INPUT
    assert fails(engine, nope=np.array([0])).kind is FailureKind.INPUT
    assert "\n" not in fails(engine, x=np.array([9])).text
    add = loaded(graphs.add(tmp_path / "add.onnx"))
    assert fails(add, a=np.ones((2, 3), np.float32), b=np.ones((2, 4), np.float32)).kind is FailureKind.INPUT
    np.testing.assert_array_equal(engine.run({"x": np.array([2, 0])}, 2)["y"], [30, 10])


def test_an_impossible_allocation_is_a_memory_failure(tmp_path: Path) -> None:
    engine = loaded(graphs.expand(tmp_path / "m.onnx"))
    assert fails(engine, x=np.array([10**14])).kind is FailureKind.MEMORY
    assert fails(engine, x=np.array([10**18 * 8])).kind is FailureKind.MEMORY


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x08" * 50])
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        loaded(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_truncated_files(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no such file"):
        loaded(str(tmp_path / "none.onnx"))
    path = tmp_path / "m.onnx"
    graphs.identity(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StartupError, match="cannot be loaded"):
        loaded(str(path))


@pytest.mark.parametrize(
    ("device", "message"),
    [("tpu", "unknown device `tpu`"), ("cuda:x", "unknown device"), ("cuda:0", "needs CUDAExecutionProvider")],
)
def test_a_device_that_is_not_there_is_never_replaced_by_the_cpu(tmp_path: Path, device: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        loaded(graphs.identity(tmp_path / "m.onnx"), device)


def test_a_closed_engine_refuses(tmp_path: Path) -> None:
    engine = loaded(graphs.identity(tmp_path / "m.onnx"))
    engine.close()
    assert "closed" in fails(engine, x=np.ones((1, 4), np.float32)).text
