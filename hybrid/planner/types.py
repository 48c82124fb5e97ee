"""The plan as a value: what every other part is built from."""

from msgspec import Struct


class Plan(Struct, frozen=True):
    """How one model runs on one device. `reasons` has one sentence for each number.

    `cores[i]` are the CPU ids of instance i, empty when not pinned. `size_edges` are upper edges of the size classes,
    the last one open. Times in milliseconds only here, because the fixed JSON form has them so; `max_wait_s` derives.
    """

    model: str
    device: str
    engine: str
    instances: int
    threads_per_instance: int
    max_batch: int
    max_wait_ms: float
    early_trigger: int
    batching: str
    queue_rows: int
    queue_bytes: int
    preprocess_processes: int
    cores: tuple[tuple[int, ...], ...]
    size_edges: tuple[int, ...] = ()
    pipeline_depth: int = 1
    reasons: dict[str, str] = {}

    @property
    def max_wait_s(self) -> float:
        """The longest wait of the oldest request, in seconds."""
        return self.max_wait_ms / 1000.0
