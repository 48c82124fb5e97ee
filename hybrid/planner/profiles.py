"""Profiles: TOML with the numbers that suit one kind of machine. Finding, reading, matching and saving them.

Owns which profile is taken. Knows nothing of what a number means; `layers` says which wins. A file has `[match]` (which
machines it is for), `[plan]` (models on the CPU), `[gpu]` (models on a GPU) and `[model.NAME]` (one model).
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field, structs

from hybrid.config import Settings
from hybrid.config_file import load_settings, load_toml, nearest
from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.planner.matching import matches, specificity
from hybrid.planner.profile_files import AUTO as AUTO
from hybrid.planner.profile_files import NONE as NONE
from hybrid.planner.profile_files import check_name, chosen, config_folder, folders, write_profile
from hybrid.planner.profile_text import profile_text
from hybrid.planner.types import Match, PlanOverrides, Profile


class ProfileFile(Settings, frozen=True):
    """What may stand in a profile file. Without `match` it is only taken when asked for by name."""

    description: str = ""
    match: Match | None = None
    plan: PlanOverrides = PlanOverrides()
    gpu: PlanOverrides = PlanOverrides()
    model: dict[str, PlanOverrides] = field(default_factory=dict)


class Listed(Struct, frozen=True):
    """One known profile as it stands to this machine. `fits` is None where only its name brings it in.

    `error` says what is wrong with a file that is none.
    """

    name: str
    path: Path
    description: str = ""
    fits: bool | None = None
    error: str = ""


def load_profile(path_or_name: str | Path, machine: MachineFacts) -> Profile | None:
    """Return the profile that was asked for.

    "auto" takes what this machine was told to use, else the most specific one whose `[match]` fits the machine, and
    none when none fits; "none" takes none. Anything with a folder in it or ending in .toml is a path, everything else a
    name to be looked up. A profile asked for is used even where its `[match]` does not fit: whoever names it knows
    better.

    Raises:
        ConfigError: no such file or name, or a file that is not a valid profile.
    """
    text = str(path_or_name)
    if text == NONE:
        return None
    if text == AUTO:
        choice = chosen()
        return _best_match(machine) if choice is None else _chosen(choice.profile)
    path = profile_path(path_or_name)
    return _profile(path, read_profile(path))


def profile_path(path_or_name: str | Path, here: bool = True) -> Path:
    """The file behind a name or path; unless `here`, names in the current directory do not count.

    Raises:
        ConfigError: no profile has that name. Whether a path leads anywhere is seen when it is read.
    """
    text = str(path_or_name)
    if isinstance(path_or_name, Path) or "/" in text or text.endswith(".toml"):
        return Path(path_or_name)
    known = known_profiles(here)
    if text in (AUTO, NONE):
        what = "the one that fits this machine best" if text == AUTO else "no profile at all"
        raise ConfigError(f"`{text}` is no profile: it stands for {what}; `hybrid profile list` shows those there are")
    if text not in known:
        raise ConfigError(f"unknown profile `{text}`; {nearest(text, [*known, AUTO, NONE])}")
    return known[text]


def read_profile(path: Path) -> ProfileFile:
    """Read and check one file.

    Raises:
        ConfigError: it is missing, unreadable or not a valid profile.
    """
    return load_settings(ProfileFile, load_toml(path), str(path))


def known_profiles(here: bool = True) -> dict[str, Path]:
    """Profiles that can be asked for by name; the current directory wins over the user's, these over what is shipped.

    Unless `here`, those in the current directory are left out.
    """
    found: dict[str, Path] = {}
    for folder in folders(here):
        try:
            paths = sorted(folder.glob("*.toml"))
        except OSError:
            continue
        for path in paths:
            if not path.name.startswith("."):
                found.setdefault(path.stem, path)
    return found


def listed_profiles(machine: MachineFacts) -> list[Listed]:
    """Every known profile by name, broken files too."""
    found = []
    for name, path in sorted(known_profiles().items()):
        try:
            content = read_profile(path)
        except ConfigError as error:
            found.append(Listed(name, path, error=str(error)))
            continue
        fits = None if content.match is None else matches(content.match, machine)
        found.append(Listed(name, path, content.description, fits))
    return found


def save_profile(
    name: str,
    overrides: PlanOverrides,
    machine: MachineFacts,
    why: str,
    *,
    model: str = "",
    reasons: Mapping[str, str] | None = None,
    force: bool = False,
) -> Path:
    """Write numbers that were found on this machine as a profile of the user's, to be taken by name.

    Args:
        name: The profile's name.
        overrides: The numbers to fix.
        machine: Where they were found; stands in the file as a comment and as a `[match]` to be switched on.
        why: Where the numbers come from, in words; the first line becomes the description.
        model: The model that they are for; "" for every model on the CPU.
        reasons: A sentence for each number, under its key.
        force: Whether a profile of that name may be replaced.

    Raises:
        ConfigError: the name cannot be one, is taken, or the file cannot be written.
    """
    check_free(name, force)
    return write_profile(name, profile_text(name, overrides, machine, why, model, reasons or {}), force)


def check_free(name: str, force: bool) -> None:
    """See that a profile may be saved under a name, and is what that name brings in then.

    Raises:
        ConfigError: the name cannot be one, is taken (without `force`), or means a file of the current directory.
    """
    known = known_profiles(here=False).get(check_name(name))
    if known is not None and not force:
        raise ConfigError(f"profile `{name}` exists already ({known}); --force puts the new one in its place")
    local, user = known_profiles().get(name), config_folder()
    mine = None if user is None else (user / "profiles" / f"{name}.toml").resolve()
    if local is not None and not local.is_absolute() and local.resolve() != mine:
        raise ConfigError(f"profile `{name}` would not be taken here, but {local} in its place; take another name")


def _best_match(machine: MachineFacts) -> Profile | None:
    best: tuple[tuple[bool, int, int], Profile] | None = None
    for path in known_profiles().values():
        table = load_toml(path)
        if "match" not in table:
            continue  # only by name; and a folder called profiles may hold other people's TOML files
        content = load_settings(ProfileFile, table, str(path))
        if content.match is None or not matches(content.match, machine):
            continue
        rank = specificity(content.match)
        if best is None or rank > best[0]:
            best = rank, structs.replace(_profile(path, content), automatic=True)
    return None if best is None else best[1]


def _chosen(name: str) -> Profile | None:
    """The profile of `hybrid profile use`, which must not change with the directory that a server is started in."""
    if name == NONE:
        return None
    try:
        path = profile_path(name, here=False)
        return structs.replace(_profile(path, read_profile(path)), chosen=True)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; it was chosen for this machine, `hybrid profile use {AUTO}` takes that back"
        ) from None


def _profile(path: Path, content: ProfileFile) -> Profile:
    return Profile(
        name=path.stem,
        source=str(path),
        description=content.description,
        plan=content.plan,
        gpu=content.gpu,
        model=content.model,
    )
