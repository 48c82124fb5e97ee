"""NVIDIA GPUs and MIG slices, as NVML tells of them.

Owns every call into NVML at start-up. Must never raise: a driver that answers one question and refuses the next
(slices, laptops, containers without rights on the parent GPU) costs that one field. Without a driver there is no GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import structs

from hybrid.facts import GpuFacts

_MIB: Final = 1 << 20
T = TypeVar("T")


def read_nvidia(nvml: Any) -> tuple[tuple[GpuFacts, ...], str]:
    """Return the GPUs of this machine in NVML's order, and why there are none or which are left out ("" if neither).

    A GPU in MIG mode is replaced by its slices. `GpuFacts.index` is the number of the GPU, for slices that of the GPU
    they are cut from; `visible_gpus` numbers anew.

    Args:
        nvml: The module `pynvml`, or whatever has its functions and its `NVMLError`.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), f"NVML: {error}"
    try:
        return _all_gpus(nvml)
    except nvml.NVMLError as error:
        return (), f"NVML: {error}"
    finally:
        _ask(nvml, nvml.nvmlShutdown, None)


def visible_gpus(gpus: tuple[GpuFacts, ...], wanted: str | None) -> tuple[GpuFacts, ...]:
    """Keep what `CUDA_VISIBLE_DEVICES` leaves, in its order, and number it as CUDA does.

    The list holds numbers of GPUs or beginnings of UUIDs and ends at the first entry that names nothing. A number of a
    GPU in MIG mode stands for all its slices. `NVIDIA_VISIBLE_DEVICES` is not looked at: the container runtime has
    acted on it before this process began, and its numbers are those of the host.

    Args:
        gpus: What `read_nvidia` found.
        wanted: The variable; None when it is not set.
    """
    kept: list[GpuFacts] = []
    for entry in [str(gpu.index) for gpu in gpus] if wanted is None else wanted.split(","):
        named = [gpu for gpu in gpus if _is_named(gpu, entry.strip())]
        if not named:
            break
        kept += [gpu for gpu in named if gpu not in kept]
    return tuple(structs.replace(gpu, index=number) for number, gpu in enumerate(kept))


def _is_named(gpu: GpuFacts, entry: str) -> bool:
    if entry.isdecimal():
        return gpu.index == int(entry)
    return bool(entry) and gpu.uuid.startswith(entry)


def _all_gpus(nvml: Any) -> tuple[tuple[GpuFacts, ...], str]:
    driver = _text(_ask(nvml, nvml.nvmlSystemGetDriverVersion, ""))
    found: list[GpuFacts] = []
    left_out: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:  # fallen off the bus, or no permission
            left_out.append(f"GPU {index} is left out, NVML: {error}")
            continue
        gpu = _gpu(nvml, handle, index, driver)
        if not _in_mig_mode(nvml, handle):
            found.append(gpu)
        elif slices := _slices(nvml, handle, gpu):
            found += slices
        else:
            left_out.append(f"{gpu.name} {index} is in MIG mode and has no slice")
    return tuple(found), "; ".join(left_out) or ("" if found else "NVML: the driver lists no GPU")


def _gpu(nvml: Any, handle: Any, index: int, driver: str) -> GpuFacts:
    capability = _ask(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), ())
    # The enforced limit counts what the board's owner and its temperature leave of the limit that was set.
    power_mw = _ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle), None)
    return GpuFacts(
        index=index,
        name=_name(nvml, handle),
        memory_total_bytes=_memory_bytes(nvml, handle),
        uuid=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetUUID(handle), "")),
        driver=driver,
        compute_capability=".".join(map(str, capability)),
        power_limit_w=None if power_mw is None else power_mw / 1000.0,
    )


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    """Whether MIG is on now; a mode that only waits for the next reset does not count."""
    current, _pending = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle), (0, 0))
    return bool(current)


def _slices(nvml: Any, handle: Any, gpu: GpuFacts) -> list[GpuFacts]:
    slices = []
    for number in range(_ask(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)):
        found = _ask(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number), None)
        if found is not None:  # places without a slice answer "not found"
            slices.append(_slice(nvml, found, gpu))
    return slices


def _slice(nvml: Any, part: Any, gpu: GpuFacts) -> GpuFacts:
    attributes = _ask(nvml, lambda: nvml.nvmlDeviceGetAttributes(part), None)
    memory_bytes = _memory_bytes(nvml, part)
    if not memory_bytes and attributes is not None:
        memory_bytes = int(attributes.memorySizeMB) * _MIB
    return structs.replace(
        gpu,
        name=_name(nvml, part, f"{gpu.name} MIG"),
        memory_total_bytes=memory_bytes,
        uuid=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetUUID(part), "")),
        mig=True,
        slices=None if attributes is None else int(attributes.computeInstanceSliceCount),
    )


def _name(nvml: Any, handle: Any, unknown: str = "NVIDIA GPU") -> str:
    return _text(_ask(nvml, lambda: nvml.nvmlDeviceGetName(handle), unknown))


def _memory_bytes(nvml: Any, handle: Any) -> int:
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    return 0 if memory is None else int(memory.total)


def _text(value: str | bytes) -> str:
    """Older releases of the library answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _ask(nvml: Any, question: Callable[[], T], otherwise: T) -> T:
    """Ask for one field; a driver that does not support it, or forbids it, gives `otherwise`."""
    try:
        return question()
    except nvml.NVMLError:
        return otherwise
