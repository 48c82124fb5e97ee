"""Every setting, as frozen values, parsed once at the edge.

Times are seconds, sizes bytes, and say so in their names. A file that holds an unknown key, or a value of the wrong
type or out of range, is refused by `config_file.load` with the file, the key and the nearest known name. Nothing in
here reads a file, an environment variable or the command line.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(ge=1)]
#: Rows, processes or threads: beyond it is a slip of the hand, and the planner cannot compute with it.
Number = Annotated[int, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=86_400)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
PortOrOff = Annotated[int, Meta(ge=-1, le=65_535)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings: frozen, keyword only, unknown keys refused."""


class HttpLimits(Settings, frozen=True):
    """What the HTTP front end tolerates from a client."""

    max_connections: Positive = 4096
    max_header_bytes: Positive = 65_536
    max_header_count: Positive = 128
    max_body_bytes: Positive = 64 * 1024 * 1024
    max_buffered_bytes: Positive = 1024 * 1024 * 1024  # bodies of all connections together
    max_pipelined: Positive = 64
    header_timeout_s: PositiveSeconds = 10.0
    body_timeout_s: PositiveSeconds = 60.0
    idle_timeout_s: PositiveSeconds = 75.0
    write_timeout_s: PositiveSeconds = 60.0


class TlsFiles(Settings, frozen=True):
    """Certificate and key as PEM files; `client_ca` asks for client certificates."""

    certificate: str
    key: str
    client_ca: str | None = None


class ServerSettings(Settings, frozen=True):
    """Where the server listens and how it treats clients as a whole."""

    host: str = "127.0.0.1"
    port: Port = 8000
    grpc_port: PortOrOff | None = None  # -1: no gRPC; None: 8001, or a free one where `port` asks for a free one
    api_keys: tuple[str, ...] = ()
    admin_token: str | None = None
    tls: TlsFiles | None = None
    http: HttpLimits = HttpLimits()
    default_timeout_s: Seconds = 30.0  # deadline of a request that names none; 0 = none
    max_timeout_s: PositiveSeconds = 3600.0
    drain_delay_s: Seconds = 0.0  # keep accepting for this long after ready turned false
    drain_timeout_s: Seconds = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class BatchingSettings(Settings, frozen=True):
    """Overrides of the plan for one model; None leaves the number to the planner."""

    enabled: bool = True
    # static: every batch is run with exactly `max_batch` rows of one length, filled up where requests give fewer.
    kind: Literal["dynamic", "static"] = "dynamic"
    static_length: Positive | None = None  # length along dimension 1 of `pad_inputs`; text: `max_tokens` when unset
    max_batch: Number | None = None
    max_wait_s: Seconds | None = None
    early_trigger: Number | None = None
    queue_rows: Positive | None = None
    queue_bytes: Positive | None = None
    # Where `pad_inputs` names any. sorted: a batch is the most urgent request and its neighbours by length. classes:
    # one queue per size class. fifo: one queue, whatever the length.
    formation: Literal["sorted", "classes", "fifo"] = "sorted"
    size_edges: tuple[Positive, ...] = ()  # upper edges of size classes (tokens or pixels); unset: learned
    max_classes: Annotated[int, Meta(ge=1, le=32)] = 8  # the most that are learned
    pad_inputs: dict[str, int] = field(default_factory=dict)  # input -> fill value along dimension 1
    tolerance: float = 1e-3  # how far batched rows may be from the same rows alone, relative to the largest value


class WorkerSettings(Settings, frozen=True):
    """How worker processes are cared for."""

    device: str = "cpu"  # cpu, cuda or cuda:N (torch, onnxruntime), gpu, gpu.N or auto (openvino)
    instances: Number | None = None
    threads: Number | None = None
    pin: bool = True
    start_timeout_s: PositiveSeconds = 120.0
    heartbeat_timeout_s: PositiveSeconds = 3.0
    hang_factor: Annotated[float, Meta(ge=1.5)] = 10.0
    hang_min_s: PositiveSeconds = 5.0
    rss_limit_bytes: Positive | None = None
    pipeline_depth: Annotated[int, Meta(ge=1, le=4)] = 1


class TextSettings(Settings, frozen=True):
    """Tokenise BYTES rows of one input into the model's id tensors."""

    input: str = "text"
    tokenizer: str = "tokenizer.json"
    max_tokens: Positive = 256
    pad_id: Count = 0


class ImageSettings(Settings, frozen=True):
    """Decode an encoded image per row, resize, normalise."""

    input: str = "image"
    width: Positive = 224
    height: Positive = 224
    # stretch: straight to width x height. crop: short side to `resize_to`, then the centre. stretch_crop: to a square
    # of `resize_to`, then the centre. fit: the whole picture, black bars. `resize_to` is max(width, height) when unset.
    resize: Literal["stretch", "crop", "stretch_crop", "fit"] = "stretch"
    resize_to: Positive | None = None
    channels: Literal["rgb", "bgr"] = "rgb"
    layout: Literal["nhwc", "nchw"] = "nchw"
    scale: float = 1.0  # pixel (0..255) * scale, then (x - mean) / std per channel in `channels` order
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    jpeg_round_trip: bool = False  # some models were trained on pixels that went through JPEG once more
    max_pixels: Positive = 64_000_000


class PreprocessSettings(Settings, frozen=True):
    """The preprocess step of a model: at most one of `text` and `image`."""

    text: TextSettings | None = None
    image: ImageSettings | None = None
    item_timeout_s: PositiveSeconds = 5.0
    on_timeout: Literal["reject", "downgrade"] = "reject"
    cache_bytes: Count = 0  # of results; 0 keeps none
    processes: Number | None = None
    # Texts of a request up to so many bytes together are tokenised in the server process; 0: all go to the pool.
    inline_bytes: Annotated[int, Meta(ge=0, le=1024)] = 192
    queue_items: Positive = 1024
    queue_bytes: Positive = 256 * 1024 * 1024


class SimulatedSettings(Settings, frozen=True):
    """A simulated device. Latency of a batch of b rows: fixed_ms + per_row_ms*b + per_token_ms*tokens.

    `faults` switches on what a marker value in a row does: see `engines.simulated_engine`.
    """

    fixed_ms: Annotated[float, Meta(ge=0)] = 0.0
    per_row_ms: Annotated[float, Meta(ge=0)] = 0.0
    per_token_ms: Annotated[float, Meta(ge=0)] = 0.0
    noise: Annotated[float, Meta(ge=0, le=2)] = 0.0  # sigma of a log-normal factor
    busy: bool = False  # burn CPU instead of sleeping
    memory_total_bytes: Count = 0  # 0 = no memory model
    memory_weights_bytes: Count = 0
    memory_per_row_bytes: Count = 0
    leak_bytes_per_run: Count = 0
    start_s: Seconds = 0.0
    first_run_ms: Annotated[float, Meta(ge=0)] = 0.0
    faults: bool = False
    columns: int = -1
    seed: int = 0


class TensorSettings(Settings, frozen=True):
    """An input or output as `model.toml` declares it, for files that do not say. `shape` has the row dimension."""

    name: str
    datatype: str
    shape: tuple[Annotated[int, Meta(ge=-1)], ...]  # -1 is variable


class OpenVinoSettings(Settings, frozen=True):
    """How OpenVINO computes. `cache_entries`: compiled kernels kept per kind of layer, one per shape."""

    precision: Literal["f32", "bf16", "f16"] = "f32"
    cache_entries: Count = 256


class TorchSettings(Settings, frozen=True):
    """How PyTorch computes. `cache_entries`: oneDNN kernels kept on the CPU, one per layer and shape."""

    freeze: bool = True  # TorchScript: weights become constants
    compile: bool = False  # exported programs: through torch.compile, which needs a C++ compiler
    cuda_graphs: bool = False  # on CUDA: record a shape once, then replay it
    tf32: bool = False  # on CUDA: let FP32 products round their inputs to 10 bits, which is faster
    cache_entries: Positive = 256


#: The engine that loads a file, by its suffix, where `engine` is "auto".
ENGINE_OF_SUFFIX: Final = {".onnx": "onnxruntime", ".xml": "openvino", ".pt": "torch", ".pt2": "torch"}


#: All engines that can load a file, by its suffix; the first is taken where nothing has been measured.
ENGINES_OF_SUFFIX: Final = {
    ".onnx": ("onnxruntime", "openvino"),
    ".xml": ("openvino",),
    ".pt": ("torch",),
    ".pt2": ("torch",),
}


class ModelSettings(Settings, frozen=True):
    """One model: `model.toml`, a built-in, or made up around a bare model file."""

    name: str
    version: str = "1"
    versions: Literal["latest", "all"] | tuple[str, ...] = "latest"  # which of the folder's version sub-folders
    engine: Literal["auto", "onnxruntime", "openvino", "torch", "simulated"] = "auto"
    file: str = ""  # absolute once loaded; relative to model.toml inside it
    task: Literal["", "embed", "classify", "simulated"] = ""
    description: str = ""
    inputs: tuple[TensorSettings, ...] = ()  # for TorchScript, which does not say what it takes
    outputs: tuple[TensorSettings, ...] = ()
    postprocess: Literal["", "mean_pool_l2"] = ""
    preprocess: PreprocessSettings = PreprocessSettings()
    batching: BatchingSettings = BatchingSettings()
    workers: WorkerSettings = WorkerSettings()
    openvino: OpenVinoSettings = OpenVinoSettings()
    torch: TorchSettings = TorchSettings()
    simulated: SimulatedSettings | None = None
    example_rows: tuple[str, ...] = ()  # for the curl line and warm-up; text as it is, images as base64
    slo_p99_ms: Annotated[float, Meta(gt=0)] | None = None


def engine_of(model: ModelSettings) -> str:
    """Return the name of the engine that a model asks for, or that its file's suffix stands for; "" when neither."""
    if model.engine != "auto":
        return model.engine
    if model.simulated is not None:
        return "simulated"
    stem, dot, suffix = model.file.rpartition(".")
    return ENGINE_OF_SUFFIX.get(dot + suffix.lower(), "") if stem else ""


def engines_for(model: ModelSettings) -> tuple[str, ...]:
    """Return the engines that may serve a model: the one that it asks for, else all that take its kind of file."""
    if model.engine != "auto" or model.simulated is not None:
        return (engine_of(model),)
    stem, dot, suffix = model.file.rpartition(".")
    return ENGINES_OF_SUFFIX.get(dot + suffix.lower(), ()) if stem else ()


class PlannerSettings(Settings, frozen=True):
    """Whether models are measured before they are planned, and where measurements are kept ("": the user's cache)."""

    # auto: what is not known yet is measured at start. cached: only what is known counts. never: not even that.
    measure: Literal["auto", "cached", "never"] = "auto"
    probe_budget_s: PositiveSeconds = 20.0  # for each model
    cache_folder: str = ""


class Config(Settings, frozen=True):
    """Everything `hybrid serve` was told, from file, environment and flags, in that order."""

    server: ServerSettings = ServerSettings()
    planner: PlannerSettings = PlannerSettings()
    models: tuple[str, ...] = ()
    profile: str = "auto"
    repository: str = ""  # a folder of models; "" = none
    repository_poll_s: Seconds = 0.0  # how often to look for changed files; 0 = never
    repository_strict: bool = False  # a model of the repository that cannot start ends the server
