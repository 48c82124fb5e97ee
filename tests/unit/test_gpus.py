"""GPUs from an NVML that is an object of the test's own, an OpenVINO that is a text, and fixture trees of /sys."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hybrid.facts import GpuFacts
from hybrid.planner.gpus import GpuSurvey, survey_gpus
from hybrid.planner.nvml import read_nvidia, visible_gpus

GIB = 1 << 30


class Card:
    """One GPU as NVML knows it. A field that is an exception is raised when it is asked for."""

    def __init__(self, name: Any = "NVIDIA H200", memory: Any = 141 * GIB, uuid: Any = "GPU-0", **more: Any) -> None:
        self.name, self.memory, self.uuid = name, memory, uuid
        self.power = more.get("power", 700_000)
        self.capability = more.get("capability", (9, 0))
        self.mig = more.get("mig", (0, 0))
        self.parts: list[Card | None] = more.get("parts", [])
        self.attributes = more.get("attributes", NotSupported())
        self.lost = more.get("lost", False)


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    def __str__(self) -> str:
        return "Not Supported"


class FakeNvml:
    """The functions of the module `pynvml` that are used, over a list of cards."""

    NVMLError = NvmlError

    def __init__(self, *cards: Card, start: Exception | None = None, driver: Any = "580.65.06") -> None:
        self.cards, self.start, self.driver = cards, start, driver
        self.open = 0

    def nvmlInit(self) -> None:
        if self.start:
            raise self.start
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:
        return said(self.driver)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost:
            raise NvmlError("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetName(self, card: Card) -> Any:
        return said(card.name)

    def nvmlDeviceGetUUID(self, card: Card) -> Any:
        return said(card.uuid)

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return SimpleNamespace(total=said(card.memory), free=1, used=1)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> Any:
        return said(card.power)

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> Any:
        return said(card.capability)

    def nvmlDeviceGetMigMode(self, card: Card) -> Any:
        return said(card.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return len(card.parts)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        part = card.parts[index]
        if part is None:
            raise NvmlError("Not Found")
        return part

    def nvmlDeviceGetAttributes(self, card: Card) -> Any:
        return said(card.attributes)


def said(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def slice_of(number: int, memory: Any, units: int) -> Card:
    attributes = SimpleNamespace(computeInstanceSliceCount=units, gpuInstanceSliceCount=units, memorySizeMB=18_000)
    return Card(f"NVIDIA H200 MIG {units}g", memory, f"MIG-{number}", attributes=attributes, power=NotSupported())


@pytest.fixture
def with_driver(tmp_path: Path) -> Path:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    return tmp_path


def look(root: Path, nvml: FakeNvml | Exception, environ: dict[str, str] | None = None) -> GpuSurvey:
    return survey_gpus(root, environ or {}, lambda: said(nvml), lambda: "")


# --- NVIDIA -----------------------------------------------------------------------------------------------------------


def test_one_gpu(with_driver: Path) -> None:
    nvml = FakeNvml(Card())
    survey = look(with_driver, nvml)
    (gpu,) = survey.gpus
    assert gpu == GpuFacts(0, "NVIDIA H200", 141 * GIB, "cuda", "GPU-0", "580.65.06", "9.0", 700.0)
    assert survey.note == ""
    assert nvml.open == 0, "NVML is left as it was found"


def test_eight_gpus(with_driver: Path) -> None:
    cards = [Card(uuid=f"GPU-{number}", memory=(number + 1) * GIB) for number in range(8)]
    gpus = look(with_driver, FakeNvml(*cards)).gpus
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert [gpu.memory_total_bytes // GIB for gpu in gpus] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_slices_stand_for_a_gpu_in_mig_mode(with_driver: Path) -> None:
    parts = [slice_of(0, 70 * GIB, 3), slice_of(1, 35 * GIB, 2), None, slice_of(2, 18 * GIB, 1), None]
    survey = look(with_driver, FakeNvml(Card(mig=(1, 1), parts=parts), Card(uuid="GPU-1")))
    assert [(gpu.uuid, gpu.mig, gpu.slices, gpu.memory_total_bytes // GIB) for gpu in survey.gpus] == [
        ("MIG-0", True, 3, 70),
        ("MIG-1", True, 2, 35),
        ("MIG-2", True, 1, 18),
        ("GPU-1", False, None, 141),
    ]
    assert survey.gpus[2].name == "NVIDIA H200 MIG 1g"
    assert survey.gpus[2].driver == "580.65.06"


def test_memory_of_a_slice_comes_from_its_attributes_when_it_may_not_be_asked(with_driver: Path) -> None:
    part = slice_of(0, NvmlError("Insufficient Permissions"), 1)
    (gpu,) = look(with_driver, FakeNvml(Card(mig=(1, 1), parts=[part]))).gpus
    assert gpu.memory_total_bytes == 18_000 << 20


def test_a_slice_that_answers_nothing_is_still_a_slice(with_driver: Path) -> None:
    no = NotSupported()
    part = Card(no, no, no, attributes=no)
    (gpu,) = look(with_driver, FakeNvml(Card(mig=(1, 1), parts=[part]))).gpus
    assert (gpu.name, gpu.mig, gpu.slices, gpu.memory_total_bytes, gpu.uuid) == ("NVIDIA H200 MIG", True, None, 0, "")


def test_mig_mode_that_is_only_pending_is_not_on(with_driver: Path) -> None:
    (gpu,) = look(with_driver, FakeNvml(Card(mig=(0, 1)))).gpus
    assert not gpu.mig


def test_mig_mode_without_slices_leaves_nothing_to_use_and_says_so(with_driver: Path) -> None:
    survey = look(with_driver, FakeNvml(Card(mig=(1, 1), parts=[None] * 7)))
    assert survey.gpus == ()
    assert "MIG mode and has no slice" in survey.note


@pytest.mark.parametrize(
    ("field", "fact", "unknown"),
    [
        ("name", "name", "NVIDIA GPU"),
        ("memory", "memory_total_bytes", 0),
        ("uuid", "uuid", ""),
        ("power", "power_limit_w", None),
        ("capability", "compute_capability", ""),
        ("mig", "mig", False),
    ],
)
def test_field_that_is_not_supported_costs_that_field_only(
    with_driver: Path, field: str, fact: str, unknown: Any
) -> None:
    (whole,) = look(with_driver, FakeNvml(Card())).gpus
    (gpu,) = look(with_driver, FakeNvml(Card(**{field: NotSupported()}))).gpus
    assert gpu == msgspec.structs.replace(whole, **{fact: unknown})


def test_driver_version_that_cannot_be_read(with_driver: Path) -> None:
    (gpu,) = look(with_driver, FakeNvml(Card(), driver=NotSupported())).gpus
    assert (gpu.driver, gpu.name) == ("", "NVIDIA H200")


def test_answers_in_bytes(with_driver: Path) -> None:
    (gpu,) = look(with_driver, FakeNvml(Card(b"Tesla T4", uuid=b"GPU-9"), driver=b"470.1")).gpus
    assert (gpu.name, gpu.uuid, gpu.driver) == ("Tesla T4", "GPU-9", "470.1")


def test_lost_gpu_is_left_out_and_named(with_driver: Path) -> None:
    survey = look(with_driver, FakeNvml(Card(lost=True), Card(uuid="GPU-1")))
    assert [gpu.uuid for gpu in survey.gpus] == ["GPU-1"]
    assert survey.note == "GPU 0 is left out, NVML: GPU is lost"


@pytest.mark.parametrize("why", ["Driver Not Loaded", "NVML Shared Library Not Found", "RM has detected a mismatch"])
def test_driver_that_does_not_start_is_no_gpu(with_driver: Path, why: str) -> None:
    assert look(with_driver, FakeNvml(Card(), start=NvmlError(why))) == GpuSurvey((), f"NVML: {why}")


def test_count_that_cannot_be_read_is_no_gpu_and_nvml_is_closed() -> None:
    nvml = FakeNvml()
    nvml.nvmlDeviceGetCount = lambda: said(NvmlError("Unknown Error"))  # type: ignore[method-assign]
    assert read_nvidia(nvml) == ((), "NVML: Unknown Error")
    assert nvml.open == 0


def test_driver_without_gpu(with_driver: Path) -> None:
    assert look(with_driver, FakeNvml()) == GpuSurvey((), "NVML: the driver lists no GPU")


def test_library_that_is_not_installed_is_no_gpu(with_driver: Path) -> None:
    survey = look(with_driver, ImportError("No module named 'pynvml'"))
    assert survey == GpuSurvey((), "the NVIDIA driver cannot be asked: No module named 'pynvml'")


def test_without_a_driver_the_library_is_not_even_imported(tmp_path: Path) -> None:
    assert look(tmp_path, AssertionError("imported")) == GpuSurvey((), "no GPU driver")


@pytest.mark.parametrize("sign", ["proc/driver/nvidia", "dev/nvidiactl", "dev/dxg"])
def test_any_sign_of_a_driver_is_enough(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).mkdir(parents=True)
    assert len(look(tmp_path, FakeNvml(Card())).gpus) == 1


# --- CUDA_VISIBLE_DEVICES ---------------------------------------------------------------------------------------------

THREE = tuple(GpuFacts(number, "G", GIB, uuid=f"GPU-{number}abc") for number in range(3))


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        (None, ["GPU-0abc", "GPU-1abc", "GPU-2abc"]),
        ("0", ["GPU-0abc"]),
        ("2,0", ["GPU-2abc", "GPU-0abc"]),
        (" 1 , 2 ", ["GPU-1abc", "GPU-2abc"]),
        ("GPU-1", ["GPU-1abc"]),
        ("GPU-2abc,0", ["GPU-2abc", "GPU-0abc"]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("1,-1,2", ["GPU-1abc"]),
        ("7,0", []),
        ("1,1", ["GPU-1abc"]),
    ],
)
def test_visible_devices(wanted: str | None, uuids: list[str]) -> None:
    kept = visible_gpus(THREE, wanted)
    assert [gpu.uuid for gpu in kept] == uuids
    assert [gpu.index for gpu in kept] == list(range(len(uuids)))


def test_number_of_a_gpu_in_mig_mode_means_its_slices() -> None:
    slices = tuple(GpuFacts(0, "G MIG", GIB, uuid=f"MIG-{number}", mig=True) for number in range(2))
    gpus = (*slices, GpuFacts(1, "G", GIB, uuid="GPU-1"))
    assert [gpu.uuid for gpu in visible_gpus(gpus, "0")] == ["MIG-0", "MIG-1"]
    assert [(gpu.uuid, gpu.index) for gpu in visible_gpus(gpus, None)] == [("MIG-0", 0), ("MIG-1", 1), ("GPU-1", 2)]
    assert [gpu.uuid for gpu in visible_gpus(gpus, "MIG-1,1")] == ["MIG-1", "GPU-1"]


def test_variable_that_hides_all_is_named(with_driver: Path) -> None:
    survey = look(with_driver, FakeNvml(Card()), {"CUDA_VISIBLE_DEVICES": ""})
    assert survey == GpuSurvey((), "CUDA_VISIBLE_DEVICES is ``, which leaves none of 1")


def test_variable_of_the_container_runtime_is_not_applied_a_second_time(with_driver: Path) -> None:
    assert len(look(with_driver, FakeNvml(Card()), {"NVIDIA_VISIBLE_DEVICES": "5"}).gpus) == 1


# --- Intel and AMD ----------------------------------------------------------------------------------------------------


def card(root: Path, name: str, vendor: str) -> None:
    (root / f"sys/class/drm/{name}/device").mkdir(parents=True)
    (root / f"sys/class/drm/{name}/device/vendor").write_text(f"{vendor}\n")


def intel(root: Path, answer: Callable[[], str]) -> GpuSurvey:
    return survey_gpus(root, {}, lambda: said(AssertionError("no NVIDIA here")), answer)


def test_intel_gpu_is_described_by_openvino(tmp_path: Path) -> None:
    card(tmp_path, "card0", "0x8086")
    arc = GpuFacts(0, "Intel(R) Arc(TM) A770", 16 * GIB, "intel", integrated=False)
    survey = intel(tmp_path, lambda: msgspec.json.encode([arc]).decode())
    assert survey == GpuSurvey((arc,), "")


@pytest.mark.parametrize("answer", ["", "[]", "Traceback", '{"a": 1}', '[{"index": "x"}]'])
def test_intel_gpu_that_openvino_does_not_list(tmp_path: Path, answer: str) -> None:
    card(tmp_path, "card0", "0x8086")
    assert intel(tmp_path, lambda: answer) == GpuSurvey((), "an Intel GPU is there, but OpenVINO lists none")


def test_openvino_is_not_asked_where_no_intel_gpu_is(tmp_path: Path) -> None:
    card(tmp_path, "card0", "0x1234")
    card(tmp_path, "card0-HDMI-A-1", "0x8086")  # a connector
    card(tmp_path, "renderD128", "0x8086")
    assert intel(tmp_path, lambda: said(AssertionError("asked"))) == GpuSurvey((), "no GPU driver")


def test_amd_gpu_is_named_and_has_no_memory_that_a_profile_could_match(tmp_path: Path) -> None:
    card(tmp_path, "card1", "0x1002")
    (gpu,) = intel(tmp_path, lambda: "").gpus
    assert (gpu.kind, gpu.name, gpu.memory_total_bytes) == ("amd", "AMD GPU card1", 0)


def test_card_without_a_vendor_file(tmp_path: Path) -> None:
    (tmp_path / "sys/class/drm/card0").mkdir(parents=True)
    assert intel(tmp_path, lambda: "").gpus == ()


def test_intel_and_nvidia_side_by_side(with_driver: Path) -> None:
    card(with_driver, "card0", "0x8086")
    igpu = GpuFacts(0, "Intel(R) UHD", 4 * GIB, "intel", integrated=True)
    survey = survey_gpus(with_driver, {}, lambda: FakeNvml(Card()), lambda: msgspec.json.encode([igpu]).decode())
    assert [(gpu.kind, gpu.index) for gpu in survey.gpus] == [("cuda", 0), ("intel", 0)]
