"""The program `python -m hybrid.engines.openvino_devices`: prints the Intel GPUs that OpenVINO can use, as JSON.

A process of its own, started by `hybrid.planner.gpus`. Knows no model; its answer is a list of `GpuFacts`.
"""

import sys

import msgspec

from hybrid.facts import GpuFacts

# OpenVINO reports its use over the network where this package is installed; see the engine.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino as ov  # noqa: E402


def main() -> None:
    """Print the list; empty where the GPU plugin finds nothing."""
    core = ov.Core()
    names = [name for name in core.available_devices if name.partition(".")[0] == "GPU"]
    gpus = [_facts(core, name, number) for number, name in enumerate(names)]
    sys.stdout.write(msgspec.json.encode(gpus).decode())


def _facts(core: ov.Core, device: str, number: int) -> GpuFacts:
    return GpuFacts(
        index=number,
        name=_ask(core, device, "FULL_DEVICE_NAME") or device,
        memory_total_bytes=int(_ask(core, device, "GPU_DEVICE_TOTAL_MEM_SIZE") or 0),
        kind="intel",
        uuid=_ask(core, device, "DEVICE_UUID"),
        integrated="INTEGRATED" in _ask(core, device, "DEVICE_TYPE").upper(),
    )


def _ask(core: ov.Core, device: str, field: str) -> str:
    """One property as text; "" where this plugin or driver does not have it, which it says by RuntimeError."""
    try:
        return str(core.get_property(device, field))
    except RuntimeError:
        return ""


if __name__ == "__main__":
    main()
