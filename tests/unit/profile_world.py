"""For the tests of profiles: machines, a user's folder, and files in it."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.facts import CpuBudget, GpuFacts, MachineFacts

GIB = 1 << 30


def machine(usable: int = 2, isa: tuple[str, ...] = ("avx2",), gpu_gib: int = 0, **more: Any) -> MachineFacts:
    budget = CpuBudget(usable, tuple(range(usable)), usable, None, None, usable, "test")
    gpus = (GpuFacts(0, "gpu", gpu_gib * GIB),) if gpu_gib else ()
    return MachineFacts(budget, 16 * GIB, "host memory", architecture="x86_64", isa=isa, gpus=gpus, **more)


def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, empty, and a current directory without profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "hybrid"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path
