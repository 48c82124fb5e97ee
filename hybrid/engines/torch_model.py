"""A PyTorch model file -> a function from tensors to named tensors, and its signature. Nothing is ever unpickled.

Owns TorchScript (`.pt`) and exported programs (`.pt2`): what may stand in such a file, how it is loaded, and how its
structured arguments and results become flat lists. Knows no stream, batch or numpy array.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import torch
from msgspec import Struct
from torch.utils import _pytree as pytree

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineFailure
from hybrid.engines.feed import declared, one_line
from hybrid.errors import StartupError
from hybrid.messages import FailureKind, Signature, TensorSpec

#: torch's type -> protocol datatype.
DATATYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}

Tensors = list[torch.Tensor]


class TorchModel(Struct, frozen=True):
    """A loaded model. `call` takes one tensor per input of `signature` and returns one per output, in order."""

    call: Callable[[Sequence[torch.Tensor]], Tensors]
    signature: Signature


def load_script(settings: ModelSettings, device: str) -> TorchModel:
    """Load TorchScript. The file carries no shapes, so the settings declare inputs and outputs.

    Raises:
        StartupError: the declaration is missing or does not fit, or the file is no TorchScript.
    """
    inputs, outputs = declared(settings, "inputs"), declared(settings, "outputs")
    if not inputs or not outputs:
        missing = " and ".join(
            f"`[[{role}]]`" for role, specs in (("inputs", inputs), ("outputs", outputs)) if not specs
        )
        raise StartupError(
            f"model {settings.name}: TorchScript carries no names and shapes, and model.toml lacks {missing}; expected "
            f'one table with `name`, `datatype` and `shape` per tensor, such as: name = "x", datatype = "FP32", '
            f"shape = [-1, 3, 224, 224]"
        )
    with warnings.catch_warnings():  # torch 2.13 calls TorchScript deprecated; whoever exports models is told, not we
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            module = torch.jit.load(settings.file, map_location=device).eval()
        except Exception as error:
            raise StartupError(_no_script(settings, error)) from error
        _check_arity(settings, module, len(inputs))
        if settings.torch.freeze:
            try:
                module = torch.jit.freeze(module)
            except Exception as error:
                why = f"cannot be frozen ({one_line(error)}); set `torch.freeze = false`"
                raise StartupError(f"model {settings.name}: {settings.file} {why}") from error
    names = tuple(spec.name for spec in outputs)
    return TorchModel(
        call=lambda tensors: by_name(module(*tensors), names),
        signature=Signature(inputs=inputs, outputs=outputs, platform="pytorch_torchscript"),
    )


def load_program(settings: ModelSettings, device: str) -> TorchModel:
    """Load an exported program. Its graph says what it takes; `[[inputs]]` and `[[outputs]]` may rename, in order.

    Raises:
        StartupError: the file is no exported program, holds objects that only pickle can read, or takes or gives
            something else than tensors.
    """
    path = settings.file
    try:
        _refuse_pickles(path)
        program = torch.export.load(path)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        module = program.module()
    except StartupError as error:
        raise StartupError(f"model {settings.name}: {path} {error}") from None
    except Exception as error:
        raise StartupError(f"model {settings.name}: {path} is no exported program: {one_line(error)}") from error
    signature, keys = _program_signature(settings, program)
    run = _compiled(module, signature.inputs) if settings.torch.compile else module
    arguments = program.call_spec.in_spec

    def call(tensors: Sequence[torch.Tensor]) -> Tensors:
        args, kwargs = pytree.tree_unflatten(list(tensors), arguments)
        return by_name(run(*args, **kwargs), keys)

    return TorchModel(call, signature)


def by_name(result: Any, names: Sequence[str]) -> Tensors:
    """The tensors of a result in the order of `names`: a tensor, a sequence of them, or a dict by name.

    Raises:
        EngineFailure: OUTPUT when the result has other names, another number of tensors, or something else in it.
    """
    if isinstance(result, dict):
        missing = [name for name in names if name not in result]
        if missing:
            raise EngineFailure(
                FailureKind.OUTPUT, f"the model returned {', '.join(map(str, result))}, but not `{missing[0]}`"
            )
        found = [result[name] for name in names]
    else:
        found = [result] if isinstance(result, torch.Tensor) else list(result)
    if len(found) != len(names):
        raise EngineFailure(
            FailureKind.OUTPUT, f"the model returned {len(found)} outputs, expected {len(names)}: {', '.join(names)}"
        )
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, torch.Tensor):
            raise EngineFailure(FailureKind.OUTPUT, f"output `{name}` is a {type(value).__name__}, expected a tensor")
    return found


def _no_script(settings: ModelSettings, error: BaseException) -> str:
    text = one_line(error)
    if "constants.pkl" in text:
        text = (
            "is a pickled module or state dict (torch.save), which would run whatever code is in it; save it with "
            "torch.jit.save, or export it to a .pt2 file with torch.export.save"
        )
        return f"model {settings.name}: {settings.file} {text}"
    return f"model {settings.name}: {settings.file} is no TorchScript: {text}"


def _check_arity(settings: ModelSettings, module: Any, count: int) -> None:
    arguments = module.forward.schema.arguments[1:]  # the first is the module itself
    needed = [a.name for a in arguments if not a.has_default_value()]
    if not len(needed) <= count <= len(arguments):
        raise StartupError(
            f"model {settings.name}: `inputs`: {count} declared, but the model's forward takes {', '.join(needed)}"
        )


def _refuse_pickles(path: str) -> None:
    """Let nothing into `torch.export.load` that it would unpickle without restriction, or run as machine code.

    Its own reader is used for this, so that both see the same archive.
    """
    from torch.export.pt2_archive._package import PT2ArchiveReader

    with PT2ArchiveReader(path) as archive:
        for name in archive.get_file_names():
            if name.startswith(("data/weights/", "data/constants/")) and name.endswith("_config.json"):
                entries = json.loads(archive.read_string(name))["config"].values()
                if any(entry.get("use_pickle") for entry in entries):
                    raise StartupError(f"holds pickled tensors ({name}); save plain tensors only")
            elif name.startswith("data/sample_inputs/"):
                content = archive.read_bytes(name)
                if content:
                    torch.load(BytesIO(content), weights_only=True)
            elif not name.startswith(_PLAIN):
                raise StartupError(f"holds `{name}`, which is neither a graph nor a plain tensor")


_PLAIN: Final = (
    "models/",
    "data/weights/weight_",
    "data/constants/tensor_",
    "archive_format",
    "archive_version",
    "byteorder",
    "version",
    ".data/",
    "extra/",
)


def _compiled(module: Any, inputs: tuple[TensorSpec, ...]) -> Any:
    """The module through torch.compile, which works when it first runs. No pool of compiling processes beside us."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    return torch.compile(module, dynamic=any(-1 in spec.shape for spec in inputs))


def _program_signature(settings: ModelSettings, program: Any) -> tuple[Signature, tuple[str, ...]]:
    """The signature, and the names under which the program returns its results."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    arguments, results = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    keys = _result_keys(program, results)
    inputs = _program_specs(settings, "inputs", [(str(name), name) for name in arguments], values)
    outputs = _program_specs(settings, "outputs", list(zip(keys, results, strict=True)), values)
    return Signature(inputs=inputs, outputs=outputs, platform="pytorch_export"), keys


def _result_keys(program: Any, results: Sequence[Any]) -> tuple[str, ...]:
    """Names of the results: the keys of a dict that the model returns, else what the graph calls them."""
    nested = pytree.tree_unflatten(list(results), program.call_spec.out_spec)
    flat = isinstance(nested, dict) and len(nested) == len(results)
    return tuple(str(name) for name in (nested if flat else results))


def _program_specs(
    settings: ModelSettings, role: str, names: Sequence[tuple[str, Any]], values: dict[str, Any]
) -> tuple[TensorSpec, ...]:
    chosen = declared(settings, role)
    if chosen and len(chosen) != len(names):
        known = ", ".join(name for name, _ in names)
        raise StartupError(
            f"model {settings.name}: `{role}`: {len(chosen)} declared, but the program has {len(names)}: {known}"
        )
    specs: list[TensorSpec] = []
    for index, (name, node) in enumerate(names):
        value = values.get(node) if isinstance(node, str) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in DATATYPES:
            what = f"of type {value.dtype}" if isinstance(value, torch.Tensor) else "no tensor"
            raise StartupError(f"model {settings.name}: `{role}`: `{name}` is {what}, which cannot be served")
        shape = tuple(d if isinstance(d, int) else -1 for d in value.shape)
        spec = TensorSpec(chosen[index].name if chosen else name, DATATYPES[value.dtype], shape)
        if chosen and chosen[index] != spec:
            raise StartupError(
                f"model {settings.name}: `{role}`: `{spec.name}` is declared {chosen[index].datatype} "
                f"{list(chosen[index].shape)}, but the program says {spec.datatype} {list(shape)}"
            )
        if any(spec.name == other.name for other in specs):
            raise StartupError(
                f"model {settings.name}: `{role}`: two are called `{spec.name}`; name them in model.toml"
            )
        specs.append(spec)
    return tuple(specs)
