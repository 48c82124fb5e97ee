"""Who may fix a number of the plan, and in which order: a re-plan at run time, flags, profile, model.toml, a guess.

Owns the order and the words "set by ...". Knows no rule of the plan itself.
"""

from typing import Final, Literal, TypeVar

from msgspec import Struct, structs

from hybrid.config import BatchingSettings, ModelSettings, engine_of
from hybrid.planner.types import PlanOverrides, Profile, RunTimeOverrides

T = TypeVar("T", int, float, str, bool)

#: What measuring a model decides better than any file about machines of that kind can.
MEASURED: Final = (
    "engine",
    "instances",
    "threads_per_instance",
    "max_batch",
    "max_wait_ms",
    "early_trigger",
    "pipeline_depth",
)


class Layer(Struct, frozen=True):
    """One source of overrides, as it is called in a reason or an error."""

    source: str
    overrides: PlanOverrides


class Choices:
    """Settles one model's numbers one by one and keeps a reason and the source for each."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.reasons: dict[str, str] = {}
        self._layers = layers

    def fixed(self, key: str) -> tuple[str, object] | None:
        """The strongest (source, value) that fixes `key`, or None when it is open."""
        for layer in self._layers:
            value = getattr(layer.overrides, key)
            if value is not None:
                return layer.source, value
        return None

    def number(self, key: str) -> int | None:
        """The integer that fixes `key`, or None."""
        found = self.fixed(key)
        return found[1] if found is not None and isinstance(found[1], int) else None

    def settle(self, key: str, guess: T, why: str) -> T:
        """Return what fixes `key`, else `guess`, and keep the matching reason."""
        found = self.fixed(key)
        if found is None:
            self.reasons[key] = why
            return guess
        source, value = found
        if value == guess:
            self.reasons[key] = f"{why} ({source} agrees.)".strip()
        else:
            shown = f"{guess:g}" if isinstance(guess, float) else guess
            instead = "" if isinstance(guess, bool) else f"; the first guess was {shown}"
            self.reasons[key] = f"Set by {source}{instead}."
        return value  # type: ignore[return-value]  # the field of PlanOverrides has the type of the guess

    def source(self, key: str) -> str:
        """Where `key` comes from, for a message about it."""
        found = self.fixed(key)
        return found[0] if found else "first guess"


def layers_of(
    model: ModelSettings, profile: Profile | None, flags: PlanOverrides, own_device: bool, measured: bool = False
) -> tuple[Layer, ...]:
    """The layers for one model, strongest first.

    A profile that was asked for is stronger than model.toml. One that was found by matching the machine is a better
    first guess, no more: it must not undo what the author of a model wrote down, nor what was `measured` of the model
    on this very machine. `[plan]` is for models on the CPU and `[gpu]` for those on a device. A simulated device is no
    part of this machine, so nothing found by matching applies to it; with a profile asked for it is rehearsed.
    """
    author = Layer("the model's settings", _from_model(model))
    layers = [*_at_run_time(model.name, flags), Layer("command line", flags)]
    if profile is None:
        return (*layers, author)
    if model.name in profile.model:
        layers.append(Layer(f"profile {profile.name} [model.{model.name}]", profile.model[model.name]))
    if own_device:
        general = Layer(f"profile {profile.name} [gpu]", profile.gpu)
    else:
        general = Layer(f"profile {profile.name} [plan]", profile.plan)
    if not profile.automatic:
        return (*layers, general, author)
    if engine_of(model) == "simulated":
        return (*layers, author)
    if measured:
        kept = structs.replace(general.overrides, **dict.fromkeys(MEASURED))
        general = structs.replace(general, overrides=kept)
    return (*layers, author, general)


def _at_run_time(name: str, flags: PlanOverrides) -> list[Layer]:
    if not isinstance(flags, RunTimeOverrides):
        return []
    fixed = (flags.by_model.get(name, PlanOverrides()), flags.for_all)
    return [Layer("a re-plan at run time", overrides) for overrides in fixed]


def _from_model(model: ModelSettings) -> PlanOverrides:
    """What model.toml says. Settings that cannot be None count as said when they differ from their default."""
    batching, workers = model.batching, model.workers
    return PlanOverrides(
        instances=workers.instances,
        threads_per_instance=workers.threads,
        max_batch=batching.max_batch,
        max_wait_ms=None if batching.max_wait_s is None else batching.max_wait_s * 1000.0,
        early_trigger=batching.early_trigger,
        batching=_batching(batching),
        queue_rows=batching.queue_rows,
        queue_bytes=batching.queue_bytes,
        preprocess_processes=model.preprocess.processes,
        pipeline_depth=None if workers.pipeline_depth == 1 else workers.pipeline_depth,
        pin=None if workers.pin else False,
    )


def _batching(settings: BatchingSettings) -> Literal["static", "off"] | None:
    if not settings.enabled:
        return "off"
    return "static" if settings.kind == "static" else None
