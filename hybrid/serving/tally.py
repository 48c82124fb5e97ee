"""How the requests of one model ended and where their time went. Counters only; rates are the reader's job."""

import numpy as np

from hybrid.errors import BadRequest, ClientGone, DeadlineExceeded, HybridError, NotReady, QueueFull
from hybrid.messages import Timings
from hybrid.telemetry.histogram import Histogram
from hybrid.telemetry.snapshot import Outcomes, Stages

_STAGES = ("e2e", "serialise", "parse", "preprocess", "queue", "copy", "compute", "post")
_OPTIONAL = ("preprocess", "post")  # a request that skipped the stage is not counted in it
_FOLD_AT = 1024


class Tally:
    """Outcomes and stage times of one model. Every request that named the model is counted exactly once.

    Times are kept as they come and counted into histograms by the thousand: eight histogram updates per request would
    cost a tenth of everything else that happens to it.
    """

    def __init__(self) -> None:
        self.ok_n = self.bad_input_n = self.queue_full_n = self.late_n = 0
        self.left_n = self.failed_n = self.cancelled_n = 0
        self._histograms = {stage: Histogram() for stage in _STAGES}
        self._recent: list[tuple[float, ...]] = []

    def succeeded(self, timings: Timings, serialise_s: float, total_s: float) -> None:
        """Count an answer that went out, with its times."""
        self.ok_n += 1
        t = timings
        recent = self._recent
        recent.append((total_s, serialise_s, t.parse, t.preprocess, t.queue, t.copy, t.compute, t.post))
        if len(recent) >= _FOLD_AT:
            self._fold()

    def histogram(self, stage: str) -> Histogram:
        """Return the times of a stage: e2e, parse, preprocess, queue, copy, compute, post or serialise."""
        self._fold()
        return self._histograms[stage]

    @property
    def e2e(self) -> Histogram:
        """First byte of the request to its answer."""
        return self.histogram("e2e")

    def _fold(self) -> None:
        if not self._recent:
            return
        columns = np.array(self._recent).T
        self._recent.clear()
        for stage, column in zip(_STAGES, columns, strict=True):
            self._histograms[stage].observe_many(column[column > 0.0] if stage in _OPTIONAL else column)

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
        self._fold()
        kept = self._histograms
        return Stages(
            parse=kept["parse"].sparse(),
            pre=kept["preprocess"].sparse(),
            queue=kept["queue"].sparse(),
            copy=kept["copy"].sparse(),
            exec=kept["compute"].sparse(),
            post=kept["post"].sparse(),
            serialise=kept["serialise"].sparse(),
        )
