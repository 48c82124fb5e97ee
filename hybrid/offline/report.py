"""What a job says of itself: how far it is, what it did, and why it failed. Values only."""

from msgspec import Struct

from hybrid.errors import StartupError


class JobFailed(StartupError):
    """The job ended before all rows were done; what was written stays and is continued by the next run."""


class Work(Struct, frozen=True):
    """What was computed: batches, the row lengths in them (real ones, and as filled up), and why batches left."""

    batches_n: int = 0
    rows_n: int = 0
    real_n: int = 0
    computed_n: int = 0
    released: dict[str, int] = {}

    @property
    def padding(self) -> float:
        """The share of what was computed that was padding."""
        return 1.0 - self.real_n / self.computed_n if self.computed_n else 0.0


class Counts(Struct, frozen=True):
    """How far the job is. `done_n` rows have left, in this run or an earlier one; `faults_n` of them failed."""

    done_n: int
    start: int
    faults_n: int
    rows_n: int | None  # in the input, where that is known
    position: int  # bytes of the input that were read, of `size`
    size: int
    elapsed_s: float  # since the model was ready; 0 before


class Report(Struct, frozen=True):
    """What a job did in this run. `signal` is the signal that ended it early, 0 without one."""

    counts: Counts
    work: Work
    startup_s: float
    signal: int = 0
