import msgspec
import pytest

from hybrid.config import BatchingSettings, ModelSettings, SimulatedSettings, WorkerSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.explain import WIDTH, cpu_ranges, machine_json, machine_table, plan_json, plan_table, readable_bytes
from hybrid.planner.plan import first_plan
from hybrid.planner.types import Profile

FIXED_PLAN_KEYS = {
    "model", "device", "engine", "instances", "threads_per_instance", "max_batch", "max_wait_ms", "early_trigger",
    "batching", "queue_rows", "reasons",
}  # fmt: skip
FIXED_MACHINE_KEYS = {"usable_cpus", "memory_limit_bytes", "isa", "numa_nodes", "gpus"}
BUDGET = CpuBudget(64, tuple(range(64)), 64, None, None, 64, "all 64 CPUs of the machine, no limit below that")
MACHINE = MachineFacts(
    BUDGET,
    64 << 30,
    "cgroup v2 memory.max of /" + "x" * 150,
    "A CPU",
    "x86_64",
    ("avx2",),
    gpus=(GpuFacts(0, "G", 1 << 34),),
)
MODELS = [
    ModelSettings(name="m", batching=BatchingSettings(size_edges=tuple(range(1, 40)), max_wait_s=0.0015)),
    ModelSettings(
        name="off", batching=BatchingSettings(enabled=False), workers=WorkerSettings(instances=1, threads=16)
    ),
    ModelSettings(name="d", simulated=SimulatedSettings()),
]


def test_plan_json_has_the_fixed_keys_and_survives_the_encoder() -> None:
    made = plan_json(first_plan(MACHINE, MODELS, None)[0])
    assert set(made) >= FIXED_PLAN_KEYS
    assert set(made["reasons"]) == set(made) - {"model", "version", "reasons", "alternatives"}
    assert msgspec.json.decode(msgspec.json.encode(made)) == made


def test_machine_json_has_the_fixed_keys_and_survives_the_encoder() -> None:
    facts = machine_json(MACHINE)
    assert set(facts) >= FIXED_MACHINE_KEYS
    assert facts["gpus"][0]["memory_total_bytes"] == 1 << 34
    assert msgspec.json.decode(msgspec.json.encode(facts)) == facts


def test_table_fits_its_width_and_explains_every_number() -> None:
    plans = first_plan(MACHINE, MODELS, None)
    text = plan_table(plans, MACHINE, Profile("p", "profiles/p.toml", automatic=True))
    assert max(map(len, text.splitlines())) <= WIDTH
    joined = "".join(text.split())
    for key in plans[0].reasons:
        assert "".join(plans[0].reasons[key].split()) in joined, key
    assert "p, fits this machine (profiles/p.toml)" in text
    assert "m on cpu with onnxruntime: 46 workers x 1 thread, batches of up to 8, waiting up to 1.5 ms" in text
    assert "off on cpu with onnxruntime: 1 worker x 16 threads, batching off, no waiting" in text
    assert "\x1b" not in text


def test_machine_table_names_the_limit_and_the_gpu() -> None:
    text = machine_table(MACHINE)
    assert "64 usable of 0-63: all 64" in text
    assert "G with 16 GiB" in text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (256 << 20, "256 MiB")])
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text


def test_cpu_ranges() -> None:
    assert cpu_ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert cpu_ranges(()) == ""
