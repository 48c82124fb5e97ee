"""What the search asks and what it is told, as frozen values: a load on a setting, and what came of it.

The search is a function of these values alone, so a recorded answer is as good as a measured one.
"""

from typing import Any, Literal

from msgspec import Struct

from hybrid.planner.measures import Setting

Stage = Literal["single", "probe", "round", "rate", "confirm", "curve"]


class Load(Struct, frozen=True):
    """Requests of `rows` rows for `seconds`: from `clients` that wait for their answers, or else a Poisson stream.

    What takes longer than `slo_s` is late. With `late_limit` a stream ends as soon as so many requests were late, since
    its verdict is certain then.
    """

    seconds: float
    clients: int = 0
    rate_rps: float = 0.0
    rows: int = 1
    seed: int = 0
    late_limit: int | None = None
    slo_s: float | None = None


class Ask(Struct, frozen=True):
    """One measurement that is wanted; `round` numbers the rounds of halving, from 1.

    `left_s` is about how long the rest of the search takes after it, for the progress bar.
    """

    setting: Setting
    load: Load
    stage: Stage
    text: str = ""
    left_s: float = 0.0
    round: int = 0


class Seen(Struct, frozen=True, kw_only=True):
    """What a load showed. Times in seconds from the intended send time; None without an answer.

    `late_n` of the `offered_n` requests were not answered within the objective, for whatever reason; `errors_n` were
    refused, failed or lost. `stopped` when the load ended at its `late_limit`, `void` when the generator itself was
    late too often, `failure` why the setting could not be run at all.
    """

    rps: float = 0.0
    offered_n: int = 0
    late_n: int = 0
    errors_n: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    lag_p99_s: float | None = None
    mean_batch: float | None = None
    stopped: bool = False
    void: bool = False
    failure: str = ""
    first_error: str = ""


class Answer(Struct, frozen=True):
    """What was seen, and how many seconds of the budget are left."""

    seen: Seen
    left_s: float


class Trial(Struct, frozen=True):
    """One measurement that was made. `verdict` says what was made of it, and `rejected` why its setting fell out.

    In rounds `score` is what settings were compared by, in requests per second.
    """

    ask: Ask
    seen: Seen
    verdict: str = ""
    rejected: str = ""
    score: float | None = None


class Terms(Struct, frozen=True):
    """What is wanted, and the length of the first measurements, `window_s`.

    `slo_s` bounds the 99th percentile; None takes what single requests suggest.
    """

    objective: Literal["latency", "throughput"] = "latency"
    slo_s: float | None = None
    window_s: float = 1.5


class Candidate(Struct, frozen=True):
    """A setting that may be tried, and what is expected of it."""

    setting: Setting
    predicted_rps: float


class Curve(Struct, frozen=True):
    """Latency over rate of one setting, in rising rates, with its knee as `find_knee` has it."""

    trials: tuple[Trial, ...] = ()
    knee_rps: float | None = None
    knee_p99_s: float | None = None
    cross_check_rps: float | None = None
    sharp: bool = False


class Found(Struct, frozen=True):
    """The best setting and all that led to it.

    `rps` is the largest rate that holds the objective (throughput: what saturated clients got), `p99_s` an upper bound
    of the p99 there; `certain` when enough requests were seen to say so with 99 % confidence. `gain_over_default`
    is the requests/s over those of `default`, what a framework does by itself, under the same clients in the first
    round; `single_s` is the median of a request alone, at best.
    """

    setting: Setting
    rps: float
    p99_s: float | None
    certain: bool
    slo_s: float | None
    trials: tuple[Trial, ...]
    space_n: int
    curve: Curve = Curve()
    default: Setting | None = None
    gain_over_default: float | None = None
    single_s: float | None = None
    notes: tuple[str, ...] = ()


class Outcome(Struct, frozen=True):
    """What was found, the whole plan that it makes, how long it took, and how many trials an earlier run had made."""

    found: Found
    plan: dict[str, Any]
    took_s: float
    resumed_n: int = 0
