"""What a measurement holds for: this kind of machine, this content of a model, these engines. Reads files.

Everything that may change a time is part of a key, and nothing else: the same model under another name, or on the same
machine after a restart, is not measured again.
"""

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from hybrid.compiled import COMPILED
from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.prepare import weight_files

#: Engine -> the packages that may bring it, the usual one first.
_PACKAGES: Final = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    "openvino": ("openvino",),
    "torch": ("torch",),
}
#: Memory that differs by less counts as the same: a new kernel changes its size by a few pages.
MEMORY_STEP: Final = 64 * 1024 * 1024
_CHUNK: Final = 1 << 20
_DIGEST_BYTES: Final = 16


def machine_key(machine: MachineFacts) -> str:
    """Return a name for machines that measure alike."""
    facts = (
        machine.model_name,
        machine.architecture,
        machine.isa,
        machine.cpu.usable,
        len(machine.cpu.cpus),
        machine.physical_cores,
        machine.numa_nodes,
        len(machine.efficiency_cpus),
        machine.memory_limit_bytes // MEMORY_STEP,
        [(gpu.name, gpu.memory_total_bytes // MEMORY_STEP) for gpu in machine.gpus],
        COMPILED,
    )
    return _digest(msgspec.json.encode(facts))


def model_key(model: ModelSettings, digests: tuple[str, ...]) -> str:
    """Return a name for models that run alike: the content of their files, and the settings that change a run."""
    text, image = model.preprocess.text, model.preprocess.image
    facts = (
        digests,
        model.inputs,
        model.outputs,
        model.postprocess,
        (text.max_tokens, text.pad_id) if text is not None else None,
        image,
        model.example_rows,
        (model.batching.kind, model.batching.static_length, sorted(model.batching.pad_inputs)),
        model.batching.tolerance,
        (model.workers.device, model.workers.pin),
        model.openvino,
        model.torch,
        model.simulated,
    )
    return _digest(msgspec.json.encode(facts))


def model_files(model: ModelSettings) -> tuple[Path, ...]:
    """Return the files whose content a model is made of: its own, weights beside it, and its tokenizer.

    Empty for a model without a file. Files that cannot be read are left out: whoever loads the model says so.
    """
    if not model.file:
        return ()
    path, text = Path(model.file), model.preprocess.text
    tokenizer = [Path(text.tokenizer)] if text is not None else []
    return tuple(dict.fromkeys([path, *weight_files(path), *tokenizer]))


def file_digest(path: Path) -> str:
    """Return the digest of a file's content.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def engine_version(engine: str) -> str:
    """Return the installed version of an engine without importing it; "" when it is not installed."""
    for package in _PACKAGES.get(engine, ()):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
