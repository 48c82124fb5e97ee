"""The PyTorch engine: TorchScript and exported programs, what may not be loaded, types, failures, devices."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_models as models
from engine_world import fails
from torch_models import ROWS, tensor

from hybrid.config import ModelSettings, TensorSettings, TorchSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.torch_engine import DATATYPES, FAILURES, TorchEngine, load
from hybrid.errors import StartupError
from hybrid.messages import DTYPES, FailureKind, TensorSpec

Shapes = tuple[TensorSettings, ...]


class Expand(torch.nn.Module):
    """y has as many rows as the input says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(int(x.sum()))


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise ValueError("only negative numbers")
        return x


def loaded(file: str, inputs: Shapes = (), outputs: Shapes = (), device: str = "cpu", **more: Any) -> TorchEngine:
    settings = ModelSettings(name="m", file=file, inputs=inputs, outputs=outputs, torch=TorchSettings(**more))
    return load(settings, EngineSettings(threads=1, device=device))


def conv(tmp_path: Path, **more: Any) -> TorchEngine:
    file = models.script(tmp_path / "m.pt", models.ConvNet())
    return loaded(file, (models.PICTURES,), (models.FEATURES,), **more)


# TorchScript -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [True, False])
def test_a_script_runs_as_declared(tmp_path: Path, freeze: bool) -> None:
    engine = conv(tmp_path, freeze=freeze)
    assert engine.signature.inputs == (TensorSpec("x", "FP32", (-1, 3, -1, -1)),)
    assert engine.signature.platform == "pytorch_torchscript"
    x = np.random.default_rng(0).random((2, 3, 9, 7), np.float32)
    expected = models.ConvNet()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(engine.run({"x": x}, 2)["y"], expected, rtol=1e-5, atol=1e-6)


def test_what_is_not_declared_is_named(tmp_path: Path) -> None:
    file = models.script(tmp_path / "m.pt", models.ConvNet())
    with pytest.raises(
        StartupError, match=r"lacks `\[\[inputs\]\]` and `\[\[outputs\]\]`; expected one table with `name`"
    ):
        loaded(file)
    with pytest.raises(StartupError, match=r"lacks `\[\[outputs\]\]`"):
        loaded(file, (models.PICTURES,))
    with pytest.raises(StartupError, match="2 declared, but the model's forward takes x"):
        loaded(file, (models.PICTURES, ROWS.__class__(name="z", datatype="FP32", shape=(-1,))), (models.FEATURES,))
    with pytest.raises(StartupError, match="unknown datatype `float`; expected one of BOOL"):
        loaded(file, (tensor("x", "float", -1),), (models.FEATURES,))
    with pytest.raises(StartupError, match="`x` is declared twice"):
        loaded(file, (ROWS, ROWS), (models.FEATURES,))


def test_a_dict_of_results_is_taken_by_name(tmp_path: Path) -> None:
    outputs = (tensor("total", "FP32", -1), tensor("double", "FP32", -1, 4))
    file = models.script(tmp_path / "m.pt", models.TwoHeads())
    out = loaded(file, (ROWS,), outputs).run({"x": np.ones((3, 4), np.float32)}, 3)
    assert out["total"].tolist() == [4, 4, 4]
    assert out["double"].shape == (3, 4)
    error = fails(loaded(file, (ROWS,), (tensor("sum", "FP32", -1),)), x=np.ones((1, 4), np.float32))
    assert error.kind is FailureKind.OUTPUT
    assert "returned double, total, but not `sum`" in error.text


def test_results_must_be_of_the_declared_type_and_number(tmp_path: Path) -> None:
    file = models.script(tmp_path / "m.pt", models.ConvNet())
    x = np.ones((1, 3, 8, 8), np.float32)
    error = fails(loaded(file, (models.PICTURES,), (tensor("y", "FP64", -1, 12),)), x=x)
    assert (error.kind, error.text) == (FailureKind.OUTPUT, "output `y` is FP32, but declared FP64")
    error = fails(loaded(file, (models.PICTURES,), (models.FEATURES, tensor("z", "FP32", -1))), x=x)
    assert (error.kind, error.text) == (FailureKind.OUTPUT, "the model returned 1 outputs, expected 2: y, z")


def test_a_model_that_writes_into_its_input_hurts_nobody(tmp_path: Path) -> None:
    file = models.script(tmp_path / "m.pt", models.WritesItsInput())
    engine = loaded(file, (ROWS,), (tensor("y", "FP32", -1, 4),))
    x = np.zeros((2, 4), np.float32)
    kept = engine.run({"x": x}, 2)["y"]
    engine.run({"x": x}, 2)
    assert (x == 0).all()
    assert (kept == 1).all()
    assert Pipeline(engine).check_batchable(1e-3) is None


# Exported programs -------------------------------------------------------------------------------------------------


def test_a_program_says_itself_what_it_takes(tmp_path: Path) -> None:
    engine = loaded(models.conv_program(tmp_path / "m.pt2"))
    assert engine.signature.inputs == (TensorSpec("x", "FP32", (-1, 3, -1, -1)),)
    assert engine.signature.outputs == (TensorSpec("mean", "FP32", (-1, 12)),)
    assert engine.max_rows is None
    x = np.random.default_rng(0).random((3, 3, 9, 12), np.float32)
    expected = models.ConvNet()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(engine.run({"x": x}, 3)["mean"], expected, rtol=1e-5, atol=1e-6)
    error = fails(engine, x=np.ones((1, 3, 4, 4), np.float32))  # exported for 8 x 8 and more
    assert error.kind is FailureKind.INPUT


def test_a_program_of_fixed_rows_is_filled_up(tmp_path: Path) -> None:
    engine = loaded(models.program(tmp_path / "m.pt2", models.TwoHeads(), torch.ones(4, 4)))
    assert engine.max_rows == 4
    assert [spec.name for spec in engine.signature.outputs] == ["double", "total"]
    assert Pipeline(engine).run({"x": np.ones((2, 4), np.float32)}, 2)["total"].tolist() == [4, 4]


def test_names_of_a_program_may_be_declared_but_not_its_shapes(tmp_path: Path) -> None:
    file = models.conv_program(tmp_path / "m.pt2")
    engine = loaded(file, (tensor("image", "FP32", -1, 3, -1, -1),), (models.FEATURES,))
    assert (engine.signature.inputs[0].name, engine.signature.outputs[0].name) == ("image", "y")
    assert engine.run({"image": np.ones((1, 3, 8, 8), np.float32)}, 1)["y"].shape == (1, 12)
    with pytest.raises(
        StartupError, match=r"declared FP32 \[-1, 3, 8, 8\], but the program says FP32 \[-1, 3, -1, -1\]"
    ):
        loaded(file, (tensor("image", "FP32", -1, 3, 8, 8),))
    with pytest.raises(StartupError, match="2 declared, but the program has 1: x"):
        loaded(file, (ROWS, models.FEATURES))


def test_keyword_arguments_and_repeated_results(tmp_path: Path) -> None:
    class Keywords(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + bias, x + bias

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Keywords(), (torch.ones(2, 4),), {"bias": torch.ones(2, 4)}), str(path))
    engine = loaded(str(path))
    assert [spec.name for spec in engine.signature.inputs] == ["x", "bias"]
    out = engine.run({"x": np.ones((2, 4), np.float32), "bias": np.full((2, 4), 2, np.float32)}, 2)
    assert all((array == 3).all() for array in out.values())


def test_arguments_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
            return x * k

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Times(), (torch.ones(2, 4), 3)), str(path))
    with pytest.raises(StartupError, match="`inputs`: `3` is no tensor"):
        loaded(str(path))


# What may not be loaded --------------------------------------------------------------------------------------------


class Explodes:
    """Unpickling this would end the test."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.exit, ("it was unpickled",))


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    torch.save(models.ConvNet(), tmp_path / "module.pt")
    torch.save({"a": Explodes()}, tmp_path / "evil.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Explodes()))
    for name in ("module.pt", "evil.pt"):
        with pytest.raises(StartupError, match=r"is a pickled module or state dict .*; save it with torch\.jit\.save"):
            loaded(str(tmp_path / name), (ROWS,), (ROWS,))
    with pytest.raises(StartupError, match="is no TorchScript"):
        loaded(str(tmp_path / "bare.pt"), (ROWS,), (ROWS,))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("data/sample_inputs/model.pt", "no exported program"),
        ("data/constants/custom_obj_0", "holds `data/constants/custom_obj_0`, which is neither a graph nor"),
        ("data/weights/model.pt", "holds `data/weights/model.pt`"),
        ("data/aotinductor/model/kernel.so", "holds `data/aotinductor"),
    ],
)
def test_a_program_with_a_pickle_inside_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    good, evil = tmp_path / "m.pt2", tmp_path / "evil.pt2"
    models.conv_program(good)
    torch.save(Explodes(), tmp_path / "payload")
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(evil, "w") as target:
        for name in source.namelist():
            if not name.endswith(entry):
                target.writestr(name.replace("m/", "evil/", 1), source.read(name))
        target.writestr(f"evil/{entry}", (tmp_path / "payload").read_bytes())
    with pytest.raises(StartupError, match=message):
        loaded(str(evil))


def test_pickled_weights_of_a_program_are_refused(tmp_path: Path) -> None:
    good, evil = tmp_path / "m.pt2", tmp_path / "evil.pt2"
    models.conv_program(good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(evil, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("model_weights_config.json"):
                assert b'"use_pickle": false' in content
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true', 1)
            target.writestr(name.replace("m/", "evil/", 1), content)
    with pytest.raises(StartupError, match="holds pickled tensors"):
        loaded(str(evil))


@pytest.mark.parametrize("suffix", ["pt", "pt2"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" * 50])
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"is no (TorchScript|exported program)") as caught:
        loaded(str(path), (ROWS,), (ROWS,))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(StartupError, match="no such file"):
        loaded(str(tmp_path / f"none.{suffix}"), (ROWS,), (ROWS,))


# Types and failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", sorted(DATATYPES.values()))
def test_every_datatype_goes_through_unchanged(tmp_path: Path, datatype: str) -> None:
    file = models.script(tmp_path / "m.pt", torch.nn.Identity())
    engine = loaded(file, (tensor("x", datatype, -1, 4),), (tensor("y", datatype, -1, 4),))
    x = np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(DTYPES[datatype])
    y = engine.run({"x": x}, 2)["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)
    assert y is not x
    assert engine.run({"x": x[:0]}, 0)["y"].shape == (0, 4)


def test_read_only_and_strided_views_are_taken(tmp_path: Path) -> None:
    file = models.script(tmp_path / "m.pt", torch.nn.Identity())
    engine = loaded(file, (ROWS,), (tensor("y", "FP32", -1, 4),))
    x = np.frombuffer(bytes(range(64)), np.uint8)[16:48].view(np.float32).reshape(2, 4)
    np.testing.assert_array_equal(engine.run({"x": x}, 2)["y"], x)
    y = np.arange(16, dtype=np.float32).reshape(2, 8)[::-1, ::-2]
    np.testing.assert_array_equal(engine.run({"x": y}, 2)["y"], y)


def test_bad_data_is_the_inputs_fault(tmp_path: Path) -> None:
    file = models.script(tmp_path / "m.pt", models.Gather())
    engine = loaded(file, (tensor("x", "INT64", -1),), (tensor("y", "FP32", -1),))
    for wrong in (np.array([0, 5]), np.array([[0], [1]]), np.array([0.0, 1.0])):
        error = fails(engine, x=wrong)
        assert error.kind is FailureKind.INPUT
        assert "\n" not in error.text
    assert engine.run({"x": np.array([2, 0])}, 2)["y"].tolist() == [30, 10]


def test_what_a_script_raises_is_the_engines_word_without_its_source(tmp_path: Path) -> None:
    engine = loaded(models.script(tmp_path / "m.pt", Raises()), (ROWS,), (tensor("y", "FP32", -1, 4),))
    error = fails(engine, x=np.ones((1, 4), np.float32))
    assert error.kind is FailureKind.ENGINE
    assert error.text.endswith("only negative numbers")
    assert "forward" not in error.text


def test_an_impossible_allocation_is_a_memory_failure(tmp_path: Path) -> None:
    engine = loaded(models.script(tmp_path / "m.pt", Expand()), (tensor("x", "INT64", 1),), (tensor("y", "FP32", -1),))
    assert fails(engine, x=np.array([10**14])).kind is FailureKind.MEMORY
    assert engine.run({"x": np.array([3])}, 1)["y"].tolist() == [1, 1, 1]


def test_every_exception_is_mapped_by_name(tmp_path: Path) -> None:
    found = [*vars(torch).values(), *vars(torch._C).values(), *vars(torch.jit).values(), *vars(torch.linalg).values()]
    names = {
        c.__name__ for c in found if isinstance(c, type) and issubclass(c, Exception) and not issubclass(c, Warning)
    }
    assert {"OutOfMemoryError", "AcceleratorError", "Error"} <= names
    assert names - set(FAILURES) == {"TracingCheckError"}  # of exporting, not of running
    engine = conv(tmp_path)
    kinds = {
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"): FailureKind.MEMORY,
        RuntimeError("CUDA error: out of memory"): FailureKind.MEMORY,
        RuntimeError("DefaultCPUAllocator: can't allocate memory"): FailureKind.MEMORY,
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"): FailureKind.INPUT,
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"): FailureKind.ENGINE,
        AssertionError("Guard failed: x.size()[1] == 3"): FailureKind.INPUT,
        MemoryError(): FailureKind.MEMORY,
        LookupError("never seen"): FailureKind.ENGINE,
    }
    assert {error: engine.failure(error).kind for error in kinds} == kinds


@pytest.mark.parametrize(
    "text", ["CUDA error: device-side assert triggered", "CUDA error: an illegal memory access was"]
)
def test_a_lost_device_ends_the_process(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit):
        conv(tmp_path).failure(RuntimeError(text))


# Devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "message"),
    [("tpu", "unknown device `tpu`"), ("cuda:x", "unknown device"), ("cpu:1", "unknown device"), ("gpu", "unknown")],
)
def test_unknown_devices_are_refused(tmp_path: Path, device: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        conv(tmp_path, device=device)


@pytest.mark.parametrize("visible", [None, "", "0", "nonsense"])
def test_cuda_is_never_replaced_by_the_cpu(
    tmp_path: Path, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU-01, GPU-03: whatever the environment says."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(StartupError, match=r"device `cuda:0` is not there; PyTorch .* (without CUDA|no CUDA device)"):
        conv(tmp_path, device="cuda:0")


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"`torch\.compile` does nothing for TorchScript"):
        conv(tmp_path, compile=True)
    with pytest.raises(StartupError, match=r"cuda_graphs` needs `workers\.device"):
        conv(tmp_path, cuda_graphs=True)


def test_threads_are_set(tmp_path: Path) -> None:
    conv(tmp_path)
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (1, 1)


def test_memory_and_close(tmp_path: Path) -> None:
    engine = conv(tmp_path)
    assert engine.memory().allocated is None
    engine.close()
    assert "closed" in fails(engine, x=np.ones((1, 3, 8, 8), np.float32)).text
