"""What must hold after every event of the state machine; run by tests, recounts everything from scratch."""

from typing import TYPE_CHECKING

from hybrid.batching.queue import PieceState

if TYPE_CHECKING:
    from hybrid.batching.state import BatchState


def check(state: "BatchState") -> None:
    """Raise AssertionError, with the story of the ticket at fault, unless every invariant holds."""
    _check_tickets(state)
    _check_queue(state)
    _check_flight(state)


def _check_tickets(state: "BatchState") -> None:
    for ticket in state.tickets.values():
        story = state.story(ticket)
        assert ticket.outcome is None, f"open and answered: {story}"
        assert sum(piece.rows for piece in ticket.pieces) == ticket.rows, f"rows lost: {story}"
        starts = [piece.start for piece in ticket.pieces]
        assert starts == sorted(starts), f"order lost: {story}"
        unfinished = [p for p in ticket.pieces if p.state is not PieceState.DONE]
        assert len(unfinished) == ticket.open_pieces, f"pieces miscounted: {story}"
        dead = [p for p in unfinished if p.state in (PieceState.FAILED, PieceState.DROPPED)]
        assert not dead, f"open with a dead piece: {story}"
    assert state.held_bytes == sum(ticket.nbytes for ticket in state.tickets.values()), "bytes miscounted"
    due = {ticket_id for _, ticket_id in state._deadlines}
    missing = [t for t in state.tickets.values() if t.deadline != float("inf") and t.id not in due]
    assert not missing, "a deadline is not watched"


def _check_queue(state: "BatchState") -> None:
    queued = [p for t in state.tickets.values() for p in t.pieces if p.state is PieceState.QUEUED]
    assert state.lanes.rows == sum(piece.rows for piece in queued), "queued rows miscounted"
    for lane in state.lanes:
        mine = [piece for piece in queued if piece.ticket.lane_key == lane.key]
        assert lane.rows == sum(piece.rows for piece in mine), f"rows of lane {lane.key} miscounted"
        assert lane.pieces == len(mine), f"pieces of lane {lane.key} miscounted"
    waiting = {id(p) for t in state.tickets.values() for p in t.pieces if p.state is PieceState.ISOLATED}
    listed = {id(p) for group in state._isolated for p in group if p.state is PieceState.ISOLATED}
    assert waiting == listed, "an isolated piece is in no group, or in two"


def _check_flight(state: "BatchState") -> None:
    sent = 0
    for batch in state.batches.values():
        assert batch.worker in state.workers, "a batch runs on no worker"
        assert batch.id in state.workers[batch.worker].batches, "a batch is unknown to its worker"
        assert sum(piece.rows for piece in batch.pieces) == batch.rows, "batch rows miscounted"
        for piece in batch.pieces:
            assert piece.state is PieceState.SENT, f"in flight but {piece.state}: {state.story(piece.ticket)}"
            sent += 1
    running = [p for t in state.tickets.values() for p in t.pieces if p.state is PieceState.SENT]
    assert len(running) + state._orphans == sent, "in-flight pieces miscounted"
    for worker in state.workers.values():
        assert len(worker.batches) <= worker.slots, "slots overbooked"
        assert all(batch_id in state.batches for batch_id in worker.batches), "a worker holds a finished batch"
