"""What was measured of a machine, its caches and its GPUs, in words and as JSON. Pure; part of `explain`."""

from typing import Any

from msgspec import structs

from hybrid.facts import CacheFacts, GpuFacts
from hybrid.planner.measures import CoreRate, MachineSpeed
from hybrid.planner.roofline import ridge_rows, ridge_sentence, saturation_cores


def speed_json(speed: MachineSpeed) -> dict[str, Any]:
    """The measured speed under fixed keys; what was not measured is null or an empty list."""
    return {
        "spin_share": speed.spin_share if speed.spins else None,
        "spins": [structs.asdict(spin) for spin in speed.spins],
        "rates": [structs.asdict(rate) for rate in speed.rates],
        "saturation_cores": saturation_cores(speed.rates),
        "ridge_rows": ridge_rows(speed.rates[-1]) if speed.rates else None,
        "note": speed.note,
    }


def speed_rows(speed: MachineSpeed) -> tuple[tuple[str, str], ...]:
    """Key and text of each line; a line without text has nothing to say."""
    spins = [f"{spin.received_cpus:.2f} CPUs for {spin.busy} busy" for spin in speed.spins]
    got = f", {speed.spin_share:.0%} of what was asked" if speed.spins else ""
    matrix = ", ".join(f"{rate.matrix_flops / 1e9:.0f} with {rate.cores}" for rate in speed.rates)
    return (
        ("cpu time", "; ".join(spins) + got),
        ("arithmetic", f"GFLOP/s of single precision by cores: {matrix}" if matrix else ""),
        ("memory speed", _copying(speed.rates)),
        ("balance", ridge_sentence(speed.rates)),
        ("note", speed.note),
    )


def gpu_words(gpu: GpuFacts, memory: str) -> str:
    """One GPU in words; `memory` is its memory as text."""
    facts = [f"{gpu.name} with {memory}" if gpu.memory_total_bytes else f"{gpu.name}, memory unknown"]
    facts += ["shared with the host"] if gpu.integrated else []
    facts += [f"MIG slice of size {gpu.slices}" if gpu.slices else "MIG slice"] if gpu.mig else []
    facts += [f"compute capability {gpu.compute_capability}"] if gpu.compute_capability else []
    facts += [f"driver {gpu.driver}"] if gpu.driver else []
    facts += [f"{gpu.power_limit_w:.0f} W"] if gpu.power_limit_w is not None else []
    facts += ["not used by any engine here"] if gpu.kind == "amd" else []
    return ", ".join(facts)


def cache_words(cache: CacheFacts, size: str) -> str:
    """One cache in words, as in "L2 1 MiB x 8"; `size` is its size as text."""
    kind = "" if cache.kind == "unified" else f" {cache.kind}"
    return f"L{cache.level}{kind} {size}" + (f" x {cache.instances}" if cache.instances > 1 else "")


def _copying(rates: tuple[CoreRate, ...]) -> str:
    if not rates:
        return ""
    text = ", ".join(f"{rate.copy_bytes_per_s / 1e9:.1f} with {rate.cores}" for rate in rates)
    enough = saturation_cores(rates)
    verdict = "" if enough is None else f"; {enough} cores gain less than 10 % over fewer"
    return f"GB/s read and written by copying, by cores: {text}{verdict}"
