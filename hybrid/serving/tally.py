"""How the requests of one model ended and where their time went. Counters only; rates are the reader's job."""

from hybrid.errors import BadRequest, ClientGone, DeadlineExceeded, HybridError, NotReady, QueueFull
from hybrid.messages import Timings
from hybrid.telemetry.histogram import Histogram
from hybrid.telemetry.snapshot import Outcomes, Stages


class Tally:
    """Outcomes and stage times of one model. Every request that named the model is counted exactly once."""

    __slots__ = (
        "bad_input_n",
        "cancelled_n",
        "compute",
        "copy",
        "e2e",
        "failed_n",
        "late_n",
        "left_n",
        "ok_n",
        "parse",
        "post",
        "preprocess",
        "queue",
        "queue_full_n",
        "serialise",
    )

    def __init__(self) -> None:
        self.ok_n = self.bad_input_n = self.queue_full_n = self.late_n = 0
        self.left_n = self.failed_n = self.cancelled_n = 0
        self.e2e = Histogram()
        self.parse, self.preprocess, self.queue = Histogram(), Histogram(), Histogram()
        self.copy, self.compute, self.post, self.serialise = Histogram(), Histogram(), Histogram(), Histogram()

    def succeeded(self, timings: Timings, serialise_s: float, total_s: float) -> None:
        """Count an answer that went out, with its times."""
        self.ok_n += 1
        self.e2e.observe(total_s)
        self.parse.observe(timings.parse)
        self.queue.observe(timings.queue)
        self.copy.observe(timings.copy)
        self.compute.observe(timings.compute)
        if timings.preprocess:
            self.preprocess.observe(timings.preprocess)
        if timings.post:
            self.post.observe(timings.post)
        self.serialise.observe(serialise_s)

    def failed(self, error: HybridError) -> None:
        """Count a request that got an error, by whose fault it was."""
        if isinstance(error, QueueFull):
            self.queue_full_n += 1
        elif isinstance(error, DeadlineExceeded):
            self.late_n += 1
        elif isinstance(error, ClientGone):
            self.left_n += 1
        elif isinstance(error, BadRequest):
            self.bad_input_n += 1
        elif isinstance(error, NotReady):
            self.cancelled_n += 1
        else:
            self.failed_n += 1

    def outcomes(self) -> Outcomes:
        """Return the counters as the Snapshot has them."""
        return Outcomes(
            ok_n=self.ok_n,
            bad_input_n=self.bad_input_n,
            queue_full_n=self.queue_full_n,
            late_n=self.late_n,
            cancelled_n=self.cancelled_n,
            left_n=self.left_n,
            failed_n=self.failed_n,
        )

    def stages(self) -> Stages:
        """Return the stage histograms. The wait for a batch to fill is part of `queue` here."""
        return Stages(
            parse=self.parse.sparse(),
            pre=self.preprocess.sparse(),
            queue=self.queue.sparse(),
            copy=self.copy.sparse(),
            exec=self.compute.sparse(),
            post=self.post.sparse(),
            serialise=self.serialise.sparse(),
        )
