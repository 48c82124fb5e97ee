"""Profile files: TOML with the numbers that suit one kind of machine.

Owns finding, reading and matching them. Knows nothing of what a number means; `layers` says which wins. A file has
`[match]` (which machines it is for), `[plan]` (for all models) and `[model.NAME]` (for one).
"""

import sys
from pathlib import Path
from typing import Final

from msgspec import field, structs

from hybrid.config import Settings
from hybrid.config_file import load_settings, load_toml, nearest
from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.planner.types import Match, PlanOverrides, Profile

AUTO: Final = "auto"
NONE: Final = "none"


class ProfileFile(Settings, frozen=True):
    """What may stand in a profile file. Without `match` it is only taken when asked for by name."""

    description: str = ""
    match: Match | None = None
    plan: PlanOverrides = PlanOverrides()
    model: dict[str, PlanOverrides] = field(default_factory=dict)


def load_profile(path_or_name: str | Path, machine: MachineFacts) -> Profile | None:
    """Return the profile that was asked for.

    "auto" takes the one whose `[match]` fits the machine with the most conditions, and none when none fits; "none"
    takes none. Anything with a folder in it or ending in .toml is a path, everything else a name to be looked up. A
    profile asked for is used even where its `[match]` does not fit: whoever names it knows better.

    Raises:
        ConfigError: no such file or name, or a file that is not a valid profile.
    """
    text = str(path_or_name)
    if text == NONE:
        return None
    if text == AUTO:
        return _best_match(machine)
    if isinstance(path_or_name, Path) or "/" in text or text.endswith(".toml"):
        path = Path(path_or_name)
        return _profile(path, _read(path))
    known = known_profiles()
    if text not in known:
        raise ConfigError(f"unknown profile `{text}`; {nearest(text, [*known, AUTO, NONE])}")
    return _profile(known[text], _read(known[text]))


def known_profiles() -> dict[str, Path]:
    """Profiles that can be asked for by name; the current directory wins over what is installed."""
    found: dict[str, Path] = {}
    for folder in _folders():
        try:
            paths = sorted(folder.glob("*.toml"))
        except OSError:
            continue
        for path in paths:
            found.setdefault(path.stem, path)
    return found


def matches(match: Match, machine: MachineFacts) -> bool:
    """Whether every condition that is set holds on this machine."""
    gpu_bounds = (match.gpu_memory_bytes_min, match.gpu_memory_bytes_max)
    return (
        _within(machine.cpu.usable, match.usable_cpus_min, match.usable_cpus_max)
        and _within(machine.memory_limit_bytes, match.memory_limit_bytes_min, match.memory_limit_bytes_max)
        and set(match.isa) <= set(machine.isa)
        and match.architecture in (None, machine.architecture)
        and (gpu_bounds == (None, None) or any(_within(gpu.memory_total_bytes, *gpu_bounds) for gpu in machine.gpus))
    )


def _folders() -> tuple[Path, ...]:
    """Where profiles lie: here, beside the package in a checkout, and where a wheel installs them."""
    package = Path(__file__).resolve().parent.parent
    return Path("profiles"), package.parent / "profiles", Path(sys.prefix) / "share" / "hybrid" / "profiles"


def _best_match(machine: MachineFacts) -> Profile | None:
    best: tuple[int, Profile] | None = None
    for path in known_profiles().values():
        table = load_toml(path)
        if "match" not in table:
            continue  # only by name; and a folder called profiles may hold other people's TOML files
        content = load_settings(ProfileFile, table, str(path))
        if content.match is None or not matches(content.match, machine):
            continue
        conditions = sum(value not in (None, ()) for value in structs.astuple(content.match))
        if best is None or conditions > best[0]:
            best = conditions, structs.replace(_profile(path, content), automatic=True)
    return None if best is None else best[1]


def _read(path: Path) -> ProfileFile:
    return load_settings(ProfileFile, load_toml(path), str(path))


def _profile(path: Path, content: ProfileFile) -> Profile:
    return Profile(
        name=path.stem, source=str(path), description=content.description, plan=content.plan, model=content.model
    )


def _within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)
