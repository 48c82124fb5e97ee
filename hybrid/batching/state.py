"""Everything that may happen to a request between admission and answer, as a pure state machine.

Legal moves of a piece (a wrong one raises `IllegalMove` with the request's story):

    QUEUED ──send──▶ SENT ──finish──▶ DONE
      │               │ ├──fail─────▶ FAILED
      │               │ └──isolate──▶ ISOLATED ──send──▶ SENT
      └──drop──▶ DROPPED ◀──drop─────────┘

Knows no clock, socket, thread or event loop: each event takes `now` and returns what is to be done. Events that end
requests return the tickets they ended; `pump` returns the batches to send. After every event `check()` must hold.

Failures: a batch that the engine refuses is bisected until only the guilty request fails. A batch whose worker was lost
is retried once, each request alone; a request that loses a worker alone fails. Requests that waited behind it in
the same worker's pipeline never ran, so they are sent again as they were.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from hybrid.batching import invariants
from hybrid.batching.lanes import Lanes
from hybrid.batching.poison import PoisonList
from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import LaneKey, Outcome, Piece, PieceState, Ticket
from hybrid.batching.types import Batch, BatchStats, Deadlines, FreeSlots, IllegalMove, Worker
from hybrid.errors import PoisonRefused, QueueFull, TooLarge
from hybrid.messages import FailureKind, ReleaseReason

_MOVES: dict[tuple[PieceState, str], PieceState] = {
    (PieceState.QUEUED, "send"): PieceState.SENT,
    (PieceState.QUEUED, "drop"): PieceState.DROPPED,
    (PieceState.ISOLATED, "send"): PieceState.SENT,
    (PieceState.ISOLATED, "drop"): PieceState.DROPPED,
    (PieceState.SENT, "finish"): PieceState.DONE,
    (PieceState.SENT, "fail"): PieceState.FAILED,
    (PieceState.SENT, "isolate"): PieceState.ISOLATED,
}


class BatchState:
    """Queue, in-flight table and workers of one model. The single owner of every ticket between submit and answer."""

    def __init__(self, policy: BatchPolicy, fingerprint: Callable[[Any], bytes] | None = None) -> None:
        self.policy = policy
        self.draining = False
        self.lanes = Lanes()
        self.workers: dict[int, Worker] = {}
        self.batches: dict[int, Batch] = {}  # the in-flight table
        self.tickets: dict[int, Ticket] = {}  # every open ticket
        self.held_bytes = 0  # payload bytes of all open tickets: kept until answered, since a lost batch is retried
        self.stats = BatchStats()
        self._free = FreeSlots()
        self._isolated: deque[list[Piece]] = deque()
        self._orphans = 0  # SENT pieces whose ticket was answered meanwhile
        self._deadlines = Deadlines(self.tickets)
        self._poison = PoisonList()
        self._fingerprint = fingerprint
        self._next_ticket = 0
        self._next_batch = 0
        self._log: deque[tuple[float, int, str]] = deque(maxlen=1024)

    # Events from clients -------------------------------------------------------------------------------------------

    def submit(self, ticket: Ticket, now: float) -> None:
        """Admit a request into its lane. On any error the ticket stays the caller's.

        Raises:
            QueueFull: rows or bytes are at their bound; carries the predicted time until there is room.
            TooLarge: the request alone is over a bound, so waiting for room would not help.
            PoisonRefused: this content broke its batch repeatedly in the last minute.
        """
        if ticket.rows < 1 or ticket.id:
            raise IllegalMove("submit of a ticket without rows, or for the second time", self.story(ticket))
        policy = self.policy
        if self.lanes.rows + ticket.rows > policy.queue_rows or self.held_bytes + ticket.nbytes > policy.queue_bytes:
            raise self._over_bounds(ticket)
        if self._fingerprint is not None and self._poison:
            ticket.digest = self._fingerprint(ticket.payload)
            self._refuse_poison(ticket.digest, now)
        self._next_ticket += 1
        ticket.id = self._next_ticket
        ticket.arrived = now
        self.tickets[ticket.id] = ticket
        self.held_bytes += ticket.nbytes
        self.lanes.admit(ticket, policy, self._busy_lanes)
        ticket.open_pieces = len(ticket.pieces)
        self._deadlines.watch(ticket)
        self._log.append((now, ticket.id, "queued"))

    def cancel(self, ticket: Ticket, now: float) -> bool:
        """The client left. Return whether the ticket was still open; what runs already runs on unread."""
        if ticket.id not in self.tickets:
            return False
        self._close(ticket, Outcome.CANCELLED, now)
        return True

    def expire(self, now: float) -> list[Ticket]:
        """End every open ticket whose deadline has passed, wherever its pieces are."""
        ended: list[Ticket] = []
        while (ticket := self._deadlines.take_due(now)) is not None:
            self._close(ticket, Outcome.EXPIRED, now)
            ended.append(ticket)
        return ended

    # Events from workers -------------------------------------------------------------------------------------------

    def worker_up(self, worker_id: int, slots: int) -> None:
        """A warmed worker takes up to `slots` batches at once, of which it executes one."""
        if worker_id in self.workers:
            raise IllegalMove(f"worker {worker_id} came up twice", f"It has batches {self.workers[worker_id].batches}.")
        worker = self.workers[worker_id] = Worker(worker_id, slots)
        self._free.place(worker)

    def worker_retired(self, worker_id: int) -> None:
        """The worker gets no further batches; those it has will still be answered."""
        worker = self.workers.get(worker_id)
        if worker is not None:  # else it was lost before its time came
            worker.retired = True
            self._free.remove(worker)

    def worker_lost(self, worker_id: int, now: float, *, own: bool) -> list[Ticket]:
        """The worker is gone, by its `own` doing or not. What it ran is retried one by one, what waited as it was."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return []
        self._free.remove(worker)
        ended: list[Ticket] = []
        for position, batch_id in enumerate(list(worker.batches)):
            batch = self.batches.pop(batch_id)
            if position:
                self._isolate([self._still_wanted(batch, now)], now)
            else:
                ended += self._after_loss(batch, now, own)
        return ended

    def complete(self, batch_id: int, seconds: float, now: float) -> list[Ticket]:
        """The batch ran; return the tickets that are complete with it."""
        batch = self._take_batch(batch_id, now)
        self.lanes.ran(batch, seconds, self.policy)
        ended: list[Ticket] = []
        for piece in batch.pieces:
            self._move(piece, "finish", now)
            ticket = piece.ticket
            if ticket.outcome is not None:
                self._orphans -= 1
                continue
            ticket.open_pieces -= 1
            if ticket.open_pieces == 0:
                if ticket.digest:
                    self._poison.acquit(ticket.digest)
                self._close(ticket, Outcome.OK, now)
                ended.append(ticket)
        return ended

    def fail(self, batch_id: int, kind: FailureKind, text: str, now: float) -> list[Ticket]:
        """The batch failed on a worker that lives on; return the tickets that end with it."""
        batch = self._take_batch(batch_id, now)
        self.stats.failed_batches_n += 1
        if kind is FailureKind.OUTPUT:
            return self._fail_pieces(batch.pieces, kind, text, now)
        alone = len(batch.pieces) == 1
        wanted = self._still_wanted(batch, now)
        if not wanted:
            return []
        if not alone:
            # With some of them gone the guilty one may be gone too: the rest gets a run of its own before halving.
            middle = (len(wanted) + 1) // 2
            halves = [wanted[:middle], wanted[middle:]] if len(wanted) == len(batch.pieces) else [wanted]
            self._isolate(halves, now)
            return []
        piece = wanted[0]
        if kind is FailureKind.MEMORY and piece.rows > 1:
            self._isolate([[half] for half in piece.halve()], now)
            return []
        return self._fail_pieces(wanted, kind, text, now)

    # Decisions -----------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> list[Batch]:
        """Form as many batches as there are free slots and reasons to release; each is in flight on return.

        Call `expire` with the same `now` first: tickets end there, and this sends whoever is still open.
        """
        batches: list[Batch] = []
        while self.lanes.rows or self._isolated:
            worker = self._free_worker()
            batch = self._form(worker, now) if worker is not None else None
            if batch is None:
                break
            batches.append(batch)
        return batches

    def wake_at(self, now: float) -> float:
        """Return when `expire` or `pump` has something to do if nothing else happens; inf for never."""
        when = self._deadlines.next_at()
        if self.lanes.rows and self.policy.max_wait_s > 0.0 and self._free_worker() is not None:
            when = min(when, self.lanes.release_at(self.policy))
        return when if when > now else now

    def predicted_s(self, batch: Batch) -> float:
        """Return how long the batch should take by the fitted line of its lane."""
        lane = self.lanes.get(batch.lane_key)
        return lane.cost.predict(batch.rows * (batch.size or 1)) if lane is not None else 0.0

    def drain(self) -> None:
        """Release what waits without waiting for more, and so what still comes.

        Refusing new requests is left to the front end: one that it accepted may still be in preprocessing.
        """
        self.draining = True

    def set_policy(self, policy: BatchPolicy) -> None:
        """Use other numbers from now on. Waiting pieces larger than a new max batch still travel whole."""
        self.policy = policy

    def queue_wait_s(self) -> float:
        """Predict how long the queue needs to drain; what Retry-After is made of. At least 50 ms."""
        batches = self.lanes.rows / self.policy.max_batch / max(1, len(self.workers))
        return max(0.05, batches * self.lanes.slowest_s(self.policy.max_batch))

    # Internals -----------------------------------------------------------------------------------------------------

    def _over_bounds(self, ticket: Ticket) -> QueueFull | TooLarge:
        self.stats.refused_n += 1
        policy = self.policy
        if ticket.rows > policy.queue_rows or ticket.nbytes > policy.queue_bytes:
            return TooLarge(
                f"the request has {ticket.rows} rows and {ticket.nbytes} bytes; the queue never holds more than "
                f"{policy.queue_rows} rows and {policy.queue_bytes} bytes"
            )
        if self.lanes.rows + ticket.rows > policy.queue_rows:
            held = f"{self.lanes.rows} of {policy.queue_rows} rows wait and the request has {ticket.rows}"
        else:
            held = f"{self.held_bytes} of {policy.queue_bytes} bytes held and the request has {ticket.nbytes}"
        return QueueFull(f"queue full: {held}", self.queue_wait_s())

    def _refuse_poison(self, digest: bytes, now: float) -> None:
        if self._poison.refused(digest, now):
            self.stats.poison_refused_n += 1
            raise PoisonRefused("refused: this very input broke the model repeatedly within the last minute")

    def _free_worker(self) -> Worker | None:
        """Prefer a worker that idles; a further pipeline slot only counts when a batch is already worth sending."""
        worker = self._free.first_idle()
        if worker is None and self._free.partly and self._prefetch_pays():
            worker = self._free.least_loaded()
        return worker

    def _prefetch_pays(self) -> bool:
        policy = self.policy
        return self._next_isolated() or self.lanes.any_at_least(min(policy.early_trigger, policy.max_batch))

    def _next_isolated(self) -> bool:
        """Whether a group waits to run again. Groups whose tickets all ended meanwhile go."""
        groups = self._isolated
        while groups and not any(piece.state is PieceState.ISOLATED for piece in groups[0]):
            groups.popleft()
        return bool(groups)

    def _busy_lanes(self) -> set[LaneKey]:
        busy = {batch.lane_key for batch in self.batches.values()}
        return busy.union(piece.lane_key for group in self._isolated for piece in group)

    def _form(self, worker: Worker, now: float) -> Batch | None:
        if self._next_isolated():
            group = [piece for piece in self._isolated.popleft() if piece.state is PieceState.ISOLATED]
            return self._send(worker, group[0].lane_key, group, ReleaseReason.ISOLATE, now)
        formed = self.lanes.form(self.policy, self.draining, now, len(self._free.idle))
        return self._send(worker, *formed, now) if formed is not None else None

    def _send(self, worker: Worker, lane_key: LaneKey, pieces: list[Piece], reason: ReleaseReason, now: float) -> Batch:
        self._next_batch += 1
        rows = 0
        for piece in pieces:
            self._move(piece, "send", now)
            rows += piece.rows
            ticket = piece.ticket
            if not ticket.sent_at:
                ticket.sent_at = now
        batch = Batch(self._next_batch, worker.id, lane_key, pieces, rows, reason, now)
        self.batches[batch.id] = batch
        worker.batches.append(batch.id)
        self._free.place(worker)
        self.stats.batches_n += 1
        self.lanes.counters(lane_key, batch.size, self.policy).count(rows, reason)
        return batch

    def _take_batch(self, batch_id: int, now: float) -> Batch:
        batch = self.batches.pop(batch_id, None)
        if batch is None:
            raise IllegalMove(f"batch {batch_id} ended but is not in flight", f"In flight: {list(self.batches)}.")
        worker = self.workers[batch.worker]
        first = worker.batches[0] == batch_id
        worker.batches.remove(batch_id)
        if first and worker.batches:  # what waited behind it starts to run now
            self.batches[worker.batches[0]].started_at = now
        self._free.place(worker)
        return batch

    def _still_wanted(self, batch: Batch, now: float) -> list[Piece]:
        """Settle the pieces whose tickets were answered meanwhile and return the others, still SENT."""
        wanted = []
        for piece in batch.pieces:
            if piece.ticket.outcome is None:
                wanted.append(piece)
            else:
                self._move(piece, "fail", now)
                self._orphans -= 1
        return wanted

    def _after_loss(self, batch: Batch, now: float, own: bool) -> list[Ticket]:
        twice: list[Piece] = []
        retry: list[Piece] = []
        for piece in self._still_wanted(batch, now):
            piece.losses += 1
            # Whoever ends workers from outside may meet the same request twice: that says nothing about its content.
            piece.offences = piece.offences + 1 if own else 0
            (twice if piece.losses > 1 else retry).append(piece)
        self._isolate([[piece] for piece in retry], now)
        self.stats.lost_batches_n += 1
        return self._fail_pieces(twice, FailureKind.LOST, "the worker was lost twice while it ran this request", now)

    def _isolate(self, groups: list[list[Piece]], now: float) -> None:
        for group in groups:
            for piece in group:
                self._move(piece, "isolate", now)
            if group:
                self._isolated.append(group)

    def _fail_pieces(self, pieces: list[Piece], kind: FailureKind, text: str, now: float) -> list[Ticket]:
        ended: list[Ticket] = []
        for piece in pieces:
            ticket = piece.ticket
            self._move(piece, "fail", now)
            if ticket.outcome is not None:
                self._orphans -= 1
                continue
            ticket.failure, ticket.failure_text = kind, text
            # Not for memory: it may be short for a moment, and whoever comes again then is not to be refused for it.
            blameless = kind in (FailureKind.OUTPUT, FailureKind.MEMORY)
            offences = 0 if blameless else piece.offences if kind is FailureKind.LOST else 1
            if self._fingerprint is not None and offences:
                self._poison.remember(ticket.digest or self._fingerprint(ticket.payload), now, offences)
            self._close(ticket, Outcome.FAILED, now)
            ended.append(ticket)
        return ended

    def _close(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Answer a ticket, once. Pieces that have not run leave; pieces that run become orphans."""
        if ticket.outcome is not None:
            raise IllegalMove(f"ticket {ticket.id} answered twice", self.story(ticket))
        ticket.outcome = outcome
        del self.tickets[ticket.id]
        self.held_bytes -= ticket.nbytes
        self.stats.outcomes[outcome] += 1
        self._log.append((now, ticket.id, outcome.value))
        ticket.payload = None
        if outcome is Outcome.OK:  # its pieces hold the results; whoever takes them clears the list
            return
        for piece in ticket.pieces:
            if piece.state is PieceState.QUEUED:
                self._move(piece, "drop", now)
                self.lanes.forget(piece)
            elif piece.state is PieceState.ISOLATED:
                self._move(piece, "drop", now)
            elif piece.state is PieceState.SENT:
                self._orphans += 1
        ticket.pieces.clear()  # they point back: a cycle would keep what they hold until the collector runs

    def _move(self, piece: Piece, event: str, now: float) -> None:
        state = _MOVES.get((piece.state, event))
        if state is None:
            raise IllegalMove(f"{event} on a piece that is {piece.state.value}", self.story(piece.ticket))
        piece.state = state
        self._log.append((now, piece.ticket.id, event))

    def story(self, ticket: Ticket) -> str:
        """Return what recently happened to a ticket, oldest first, for error messages."""
        events = [f"{when:.6f} {event}" for when, ticket_id, event in self._log if ticket_id == ticket.id]
        return f"ticket {ticket.id} ({ticket.rows} rows, lane {ticket.lane_key}): " + ", ".join(events)

    # Invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. For tests: it recounts everything."""
        invariants.check(self)
