"""Which GPUs this process may use: NVIDIA by NVML, Intel by OpenVINO in a process of its own, AMD by name only.

Owns the looking. Loads no engine and never fails: what cannot be asked is not there, and a note says why.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from hybrid.facts import GpuFacts
from hybrid.planner.cgroups import read_text
from hybrid.planner.nvml import read_nvidia, visible_gpus

#: One of these is there where an NVIDIA driver is: natively, in a container, under WSL. Looking spares every start on a
#: machine without one the import of the library.
_NVIDIA_SIGNS: Final = ("proc/driver/nvidia", "dev/nvidiactl", "dev/nvidia0", "dev/dxg")
_CARDS: Final = "sys/class/drm"
_INTEL, _AMD = "0x8086", "0x1002"
_OPENVINO_S: Final = 20.0


class GpuSurvey(msgspec.Struct, frozen=True):
    """What was found. `note` says why there is none, or what was left out; "" when there is nothing to say."""

    gpus: tuple[GpuFacts, ...] = ()
    note: str = ""


def survey_gpus(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    nvml: Callable[[], Any] | None = None,
    openvino: Callable[[], str] | None = None,
) -> GpuSurvey:
    """Look for GPUs.

    Args:
        root: Where /proc, /dev and /sys are looked for.
        environ: For `CUDA_VISIBLE_DEVICES`.
        nvml: Returns the module `pynvml`, or raises ImportError.
        openvino: Returns what `hybrid.engines.openvino_devices` prints, "" for nothing.
    """
    cards = _vendors(root)
    nvidia, note = _nvidia(root, environ, nvml or _import_nvml)
    intel = _intel(openvino or _ask_openvino) if _INTEL in cards else ()
    amd = tuple(
        GpuFacts(index=number, name=f"AMD GPU {card}", memory_total_bytes=0, kind="amd")
        for number, card in enumerate(cards.get(_AMD, ()))
    )
    gpus = nvidia + intel + amd
    notes = [note, "an Intel GPU is there, but OpenVINO lists none" if _INTEL in cards and not intel else ""]
    said = "; ".join(filter(None, notes))
    return GpuSurvey(gpus, said if gpus or said else "no GPU driver")


def _nvidia(root: Path, environ: Mapping[str, str], nvml: Callable[[], Any]) -> tuple[tuple[GpuFacts, ...], str]:
    if not any((root / sign).exists() for sign in _NVIDIA_SIGNS):
        return (), ""
    try:
        module = nvml()
    except ImportError as error:
        return (), f"the NVIDIA driver cannot be asked: {error}"
    found, note = read_nvidia(module)
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible_gpus(found, wanted)
    if found and not visible:
        note = f"CUDA_VISIBLE_DEVICES is `{wanted}`, which leaves none of {len(found)}"
    return visible, note


def _import_nvml() -> Any:
    return importlib.import_module("pynvml")


def _vendors(root: Path) -> dict[str, list[str]]:
    """PCI vendor -> names of its cards, as "card0"; connectors ("card0-DP-1") and render nodes are no cards."""
    vendors: dict[str, list[str]] = {}
    try:
        cards = sorted(path for path in (root / _CARDS).iterdir() if path.name.removeprefix("card").isdecimal())
    except OSError:
        return {}
    for card in cards:
        vendors.setdefault(read_text(card / "device/vendor") or "", []).append(card.name)
    return vendors


def _intel(openvino: Callable[[], str]) -> tuple[GpuFacts, ...]:
    try:
        return msgspec.json.decode(openvino() or "[]", type=tuple[GpuFacts, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def _ask_openvino() -> str:
    """Ask in a child: the library must not be loaded here, and a GPU driver that crashes takes nobody with it."""
    if importlib.util.find_spec("openvino") is None:
        return ""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hybrid.engines.openvino_devices"],
            capture_output=True,
            text=True,
            timeout=_OPENVINO_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
