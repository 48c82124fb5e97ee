"""The simulated devices that can be served by name, as `simulated:NAME`.

The figures are round ones for a model of about 100 million parameters on a device of that class, good for rehearsing a
policy; they are measurements of no product.
"""

from typing import Final

from hybrid.config import ModelSettings, SimulatedSettings

PREFIX: Final = "simulated:"
_GIB: Final = 1024**3
_MIB: Final = 1024**2

#: Name -> what it is for, and the device.
DEVICES: Final[dict[str, tuple[str, SimulatedSettings]]] = {
    "null": ("does nothing: what is left is the server itself", SimulatedSettings()),
    "echo": ("1 ms for any batch", SimulatedSettings(fixed_ms=1.0)),
    "cpu-small": (
        "a small CPU: every row costs 8 ms of CPU time, batches gain little",
        SimulatedSettings(fixed_ms=2.0, per_row_ms=8.0, noise=0.05, busy=True),
    ),
    "gpu-8g": (
        "a small GPU: batches pay, memory ends at about 38 rows",
        SimulatedSettings(
            fixed_ms=8.0,
            per_row_ms=0.9,
            noise=0.05,
            memory_total_bytes=8 * _GIB,
            memory_weights_bytes=2 * _GIB,
            memory_per_row_bytes=160 * _MIB,
            start_s=1.0,
            first_run_ms=300.0,
        ),
    ),
    "gpu-24g": (
        "a mid-size GPU: 2 GiB of weights and 0.5 GiB per row, so 36 rows with 15 % headroom",
        SimulatedSettings(
            fixed_ms=6.0,
            per_row_ms=0.4,
            noise=0.05,
            memory_total_bytes=24 * _GIB,
            memory_weights_bytes=2 * _GIB,
            memory_per_row_bytes=_GIB // 2,
            start_s=1.5,
            first_run_ms=400.0,
        ),
    ),
    "gpu-80g": (
        "a large GPU: only large batches fill it",
        SimulatedSettings(
            fixed_ms=4.0,
            per_row_ms=0.1,
            noise=0.05,
            memory_total_bytes=80 * _GIB,
            memory_weights_bytes=2 * _GIB,
            memory_per_row_bytes=_GIB // 4,
            start_s=2.0,
            first_run_ms=500.0,
        ),
    ),
    "gpu-141g": (
        "the largest single GPU: memory for more rows than any objective wants",
        SimulatedSettings(
            fixed_ms=3.5,
            per_row_ms=0.07,
            noise=0.05,
            memory_total_bytes=141 * _GIB,
            memory_weights_bytes=2 * _GIB,
            memory_per_row_bytes=_GIB // 4,
            start_s=2.5,
            first_run_ms=500.0,
        ),
    ),
    "gpu-mig-10g": (
        "a seventh of a large GPU: its compute and an eighth of its memory",
        SimulatedSettings(
            fixed_ms=5.0,
            per_row_ms=0.7,
            noise=0.05,
            memory_total_bytes=10 * _GIB,
            memory_weights_bytes=2 * _GIB,
            memory_per_row_bytes=_GIB // 4,
            start_s=2.0,
            first_run_ms=500.0,
        ),
    ),
    "faulty": (
        "5 ms, and faults on demand by marker values in the input",
        SimulatedSettings(fixed_ms=5.0, faults=True),
    ),
}


def settings_of(name: str) -> ModelSettings:
    """Return the model behind `simulated:name`; KeyError when there is none."""
    description, device = DEVICES[name]
    return ModelSettings(
        name=PREFIX + name, engine="simulated", task="simulated", description=description, simulated=device
    )
