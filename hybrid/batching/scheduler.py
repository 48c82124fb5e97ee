"""The thin driver of the batching state: gives it time, performs what it decides, hands results to their tickets.

Runs on the event loop. Owns the state and the ticket callbacks; the pool owns processes. One pump per turn of the loop:
everything parsed in one turn may share a batch, and a lone request still leaves in the turn it came.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.batching.cost import CostModel
from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import INFINITY, Outcome, Piece, Ticket
from hybrid.batching.state import BatchState
from hybrid.batching.types import Batch
from hybrid.config import WorkerSettings
from hybrid.messages import FailureKind, Tensor
from hybrid.workers import wire
from hybrid.workers.arena import pack_raw
from hybrid.workers.pack import Rows
from hybrid.workers.pool import BatchOrder, Output, WorkerPool
from hybrid.workers.process import End

log = logging.getLogger("hybrid.batching")

Payload = tuple[Tensor, ...]


class Scheduler:
    """Queue and in-flight table of one model, driven by its worker pool and the clock."""

    def __init__(
        self,
        policy: BatchPolicy,
        pool: WorkerPool,
        pad: dict[str, int],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self.state = BatchState(policy, fingerprint)
        self.pool = pool
        self.on_ready: Callable[[wire.Ready], None] | None = None
        pool.listener = self
        self._pad = pad
        self._loop = loop
        self._clock = clock
        self._workers: WorkerSettings = pool.model.workers
        self._pump_due = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = INFINITY
        self._warm = CostModel()
        self.state.lanes.unknown = self._warm

    # Clients -------------------------------------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> None:
        """Admit a ticket; its `on_done` is called exactly once, later, unless it is cancelled first.

        Raises:
            QueueFull, TooLarge, PoisonRefused: the ticket was not taken.
        """
        self.state.submit(ticket, self._clock())
        self._pump_soon()

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket whose client left; `on_done` will not be called."""
        if self.state.cancel(ticket, self._clock()):
            ticket.on_done = None
            ticket.pieces = []

    def drain(self) -> None:
        """Release what waits, and what still comes, without waiting for more."""
        self.state.drain()
        self._pump_soon()

    def abandon(self) -> None:
        """End every open ticket as cancelled; `on_done` is called for each."""
        now = self._clock()
        for ticket in list(self.state.tickets.values()):
            self.state.cancel(ticket, now)
            _finish(ticket)

    def set_policy(self, policy: BatchPolicy) -> None:
        """Batch by other numbers from now on."""
        self.state.set_policy(policy)
        self._pump_soon()

    @property
    def idle(self) -> bool:
        """Whether no ticket is open."""
        return not self.state.tickets

    # Workers (called by the pool) ----------------------------------------------------------------------------------

    def on_worker_ready(self, worker: int, slots: int, ready: wire.Ready) -> None:
        """A warmed worker takes batches."""
        for rows, seconds in ready.warm:
            self._warm.observe(rows, seconds)
        if self.on_ready is not None:
            self.on_ready(ready)
        self.state.worker_up(worker, slots)
        self._pump_soon()

    def on_worker_retired(self, worker: int) -> None:
        """The worker takes no further batches."""
        self.state.worker_retired(worker)

    def on_worker_lost(self, worker: int, end: End) -> None:
        """The worker is gone: what it ran is retried or fails, at once."""
        for ticket in self.state.worker_lost(worker, self._clock(), own=end.own):
            ticket.failure_text = f"{ticket.failure_text} ({end.cause})"
            _finish(ticket)
        self._pump_soon()

    def on_no_hope(self) -> None:
        """Whoever waits is told now what new requests are told too, and not at the end of a long deadline."""
        self.abandon()

    def on_batch_ran(self, batch: int, outputs: Sequence[Output], ran: wire.Ran) -> None:
        """Give each piece its own rows and answer the tickets that are complete."""
        entry = self.state.batches[batch]
        wrong = next((out for out in outputs if len(out.array) != entry.rows), None)
        if wrong is not None:
            text = f"output {wrong.name} has {len(wrong.array)} rows for a batch of {entry.rows}"
            self.on_batch_failed(batch, FailureKind.OUTPUT, text)
            return
        row = 0
        for piece in entry.pieces:
            _deliver(piece, outputs, row, entry.rows, ran)
            row += piece.rows
        self._end(self.state.complete(batch, ran.compute_s + ran.post_s, self._clock()))

    def on_batch_failed(self, batch: int, kind: FailureKind, text: str) -> None:
        """Bisect, retry smaller or fail, as the state decides."""
        entry = self.state.batches.get(batch)
        if entry is None:
            return  # its worker was lost between a failed send and this call; the loss took care of it
        name, rows = self.pool.model.name, entry.rows
        log.warning("%s: batch %d of %d rows failed (%s): %s", name, batch, rows, kind.value, text)
        self._end(self.state.fail(batch, kind, text, self._clock()))

    # Driving -------------------------------------------------------------------------------------------------------

    def _end(self, tickets: list[Ticket]) -> None:
        # The next batch leaves before the answers of this one are serialised: the worker must not wait for JSON.
        self._pump()
        for ticket in tickets:
            _finish(ticket)

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        now = self._clock()
        expired = self.state.expire(now)
        for batch in self.state.pump(now):
            self._send(batch)
        self._arm(now)
        for ticket in expired:
            _finish(ticket)

    def _send(self, batch: Batch) -> None:
        expected_s, limit_s = self._limits(batch)
        order = BatchOrder(batch.id, batch.worker, batch.rows, expected_s, limit_s)
        pieces = [_rows_of(piece) for piece in batch.pieces]
        try:
            self.pool.send(order, pieces, self._pad)
        except MemoryError as error:
            self._loop.call_soon(self.on_batch_failed, batch.id, FailureKind.MEMORY, str(error))

    def _limits(self, batch: Batch) -> tuple[float, float]:
        """Return (expected, at most) seconds. A class that never ran is guessed from warm-up, with tenfold room."""
        settings = self._workers
        expected_s = self.state.predicted_s(batch)
        if expected_s > 0.0:
            return expected_s, max(settings.hang_min_s, expected_s * settings.hang_factor)
        expected_s = 10.0 * self._warm.predict(batch.rows)
        return expected_s, max(6.0 * settings.hang_min_s, expected_s * settings.hang_factor)

    def _arm(self, now: float) -> None:
        """One timer per model. One that fires too early is kept: re-arming per request would cost more."""
        when = self.state.wake_at(now)
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
            self._timer = None
        if when != INFINITY:
            # The time is kept here, because for less than half a millisecond uvloop gives a handle that has none.
            self._timer_at = when
            self._timer = self._loop.call_later(max(0.0, when - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()


def fingerprint(payload: Payload) -> bytes:
    """Return a digest of a request's content: names, types, shapes and bytes of its tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in payload:
        digest.update(f"{tensor.name}:{tensor.datatype}:{tensor.array.shape}".encode())
        array = tensor.array
        digest.update(pack_raw(list(array.flat)) if array.dtype == object else np.ascontiguousarray(array).data)
    return digest.digest()


def _rows_of(piece: Piece) -> Rows:
    """The rows of a piece. Of a request whose rows are sorted by length, a piece needs no more than its longest."""
    ticket = piece.ticket
    return Rows(ticket.payload, piece.start, piece.rows, piece.size if ticket.sizes else None)


def _deliver(piece: Piece, outputs: Sequence[Output], row: int, batch_rows: int, ran: wire.Ran) -> None:
    ticket = piece.ticket
    if ticket.outcome is not None:
        return
    rows = piece.rows
    piece.result = [Output(out.name, out.datatype, out.array[row : row + rows], out.finite) for out in outputs]
    # A request of several pieces reports the sum of what its pieces took.
    ticket.copy_s += ran.copy_s
    ticket.compute_s += ran.compute_s
    ticket.post_s += ran.post_s
    ticket.batch_rows = max(ticket.batch_rows, batch_rows)


def _finish(ticket: Ticket) -> None:
    if ticket.outcome is Outcome.OK:
        ticket.result = _assemble(ticket.pieces)
    ticket.pieces = []  # they point back to the ticket: cut here, so that no request is left to the cycle collector
    if ticket.on_done is not None:
        on_done, ticket.on_done = ticket.on_done, None
        try:
            on_done(ticket)
        except Exception:
            # A fault of ours with this one ticket: the others of its batch are still owed their answers.
            log.exception("ticket %d could not be answered", ticket.id)


def _assemble(pieces: list[Piece]) -> list[Output]:
    if len(pieces) == 1:
        result: list[Output] = pieces[0].result
        return result
    return [_join([piece.result[index] for piece in pieces]) for index in range(len(pieces[0].result))]


def _join(parts: list[Any]) -> Output:
    array = np.concatenate([part.array for part in parts])
    return Output(parts[0].name, parts[0].datatype, array, all(part.finite for part in parts))
