"""What a server starts with: every model that can be read and planned, and why others of the repository cannot.

Reads files; starts nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.errors import ConfigError, StartupError
from hybrid.planner.prepare import Prepared
from hybrid.planner.types import PlanOverrides
from hybrid.serving.sources import ModelSources, Stamp, read_all


class PlanFor(Protocol):
    """Makes plans, by the profile and flags of the start unless others are given."""

    def __call__(
        self, models: Sequence[ModelSettings], *, profile: str | Path = ..., flags: PlanOverrides | None = ...
    ) -> Prepared:
        """Return a plan for each of the models."""


class Opening(Struct, frozen=True):
    """Models with their plans, in the same order. By name: the files before they were read, and what is wrong."""

    models: tuple[ModelSettings, ...]
    prepared: Prepared
    stamps: dict[str, Stamp]
    broken: dict[str, str]


def open_sources(sources: ModelSources, plan: PlanFor, strict: bool = False) -> Opening:
    """Read and plan all models. One of the repository may be wrong; the others are served.

    Raises:
        ConfigError, StartupError: a named model is wrong, any if `strict`, or all; or the repository cannot be read.
    """
    stamps = sources.stamps()
    found, broken = read_all(sources, strict)
    models = [settings for versions in found.values() for settings in versions]
    try:
        prepared = plan(models)
    except ConfigError:
        if strict:
            raise
        _drop_unplannable(sources, plan, found, broken)
        models = [settings for versions in found.values() for settings in versions]
        prepared = plan(models)
    if broken and not models:
        name, reason = next(iter(broken.items()))
        raise StartupError(f"no model can be served; {name}: {reason}")
    return Opening(tuple(models), prepared, stamps, broken)


def _drop_unplannable(
    sources: ModelSources, plan: PlanFor, found: dict[str, tuple[ModelSettings, ...]], broken: dict[str, str]
) -> None:
    """Overrides contradict each other within a model, never across them: planning each alone finds the wrong ones."""
    for name, versions in list(found.items()):
        try:
            plan(versions)
        except ConfigError as error:
            if sources.required(name):
                raise
            broken[name] = str(error)
            del found[name]
