"""The models on which the planner is measured, with the objective of each: p99 in milliseconds."""

import tempfile
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bench.small_models import mlp_onnx
from hybrid.config import ModelSettings
from hybrid.models.catalog import resolve


class Subject(Struct, frozen=True):
    """A model: `slo_ms` is some ten times what one row takes alone, as for somebody who waits for the answer."""

    name: str
    slo_ms: float

    @property
    def argument(self) -> str:
        """What `hybrid serve` is given; a made-up model is written first."""
        if self.name != "mlp":
            return self.name
        folder = Path(tempfile.gettempdir()) / "hybrid-bench"
        folder.mkdir(exist_ok=True)
        path = folder / "mlp.onnx"
        return str(path) if path.exists() else mlp_onnx(path)

    @property
    def settings(self) -> ModelSettings:
        """Its settings, with the engine left to the planner."""
        return replace(resolve(self.argument), engine="auto")


SUBJECTS: Final = {
    subject.name: subject for subject in (Subject("minilm", 200.0), Subject("nsfw", 500.0), Subject("mlp", 25.0))
}
