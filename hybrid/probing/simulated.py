"""The profile of a simulated device, computed from its declaration: nobody waits for a device that sleeps. Pure.

There is one device however many workers share it, so batches of several instances take turns; a device that burns CPU
time (`busy`) takes turns only where there are fewer CPUs than instances.
"""

from collections.abc import Sequence
from typing import Final

from hybrid.config import SimulatedSettings
from hybrid.planner.measures import EngineProfile, MemoryLine, Probe, Timing

ENGINE: Final = "simulated"
_NOTHING_S: Final = 1e-6  # a device that does nothing still costs its worker a call


class SimulatedMeasurer:
    """Answers probes by the declared time and memory. `length` stands for the columns where they are not declared."""

    def __init__(self, device: SimulatedSettings, cpus: int, length: int) -> None:
        self._device = device
        self._cpus = cpus
        self._length = length

    def time(self, probes: Sequence[Probe]) -> tuple[Timing, ...]:
        """Return one answer per probe, in order."""
        return tuple(self._time(probe) for probe in probes)

    def _time(self, probe: Probe) -> Timing:
        device = self._device
        needed = probe.instances * (device.memory_weights_bytes + device.memory_per_row_bytes * probe.rows)
        if device.memory_total_bytes and needed > device.memory_total_bytes:
            text = f"{needed} bytes of memory are needed, the device has {device.memory_total_bytes}"
            return Timing(probe, float("inf"), runs=0, failure=text)
        columns = device.columns if device.columns > 0 else self._length
        row_ms = device.per_row_ms + device.per_token_ms * columns
        alone_s = max(_NOTHING_S, (device.fixed_ms + row_ms * probe.rows) / 1000.0)
        turns = max(1.0, probe.instances / self._cpus) if device.busy else float(probe.instances)
        return Timing(probe, alone_s * turns)


def engine_profile(device: SimulatedSettings) -> EngineProfile:
    """What would be found out about the device before any time is taken."""
    memory = None
    if device.memory_total_bytes:
        memory = MemoryLine(device.memory_weights_bytes, max(1, device.memory_per_row_bytes))
    return EngineProfile(
        ENGINE,
        engine_version="declared",
        device=ENGINE,
        memory=memory,
        variable=device.columns < 0,
        load_s=device.start_s,
    )
