"""What must hold after every event of the state machine; run by tests, recounts everything from scratch."""

from typing import TYPE_CHECKING

from hybrid.batching.queue import INFINITY, Piece, PieceState

if TYPE_CHECKING:
    from hybrid.batching.state import BatchState


def check(state: "BatchState") -> None:
    """Raise AssertionError, with the story of the ticket at fault, unless every invariant holds."""
    _check_tickets(state)
    _check_queue(state)
    _check_flight(state)
    _check_workers(state)


def _check_tickets(state: "BatchState") -> None:
    for number, ticket in state.tickets.items():
        # The story is read from the log only by an assertion that fails.
        assert number == ticket.id
        assert ticket.outcome is None, f"open and answered: {state.story(ticket)}"
        row = 0
        for piece in ticket.pieces:
            assert piece.start == row, f"rows lost or out of order: {state.story(ticket)}"
            row += piece.rows
        assert row == ticket.rows, f"rows lost: {state.story(ticket)}"
        unfinished = [p for p in ticket.pieces if p.state is not PieceState.DONE]
        assert len(unfinished) == ticket.open_pieces > 0, f"pieces miscounted: {state.story(ticket)}"
        dead = [p for p in unfinished if p.state in (PieceState.FAILED, PieceState.DROPPED)]
        assert not dead, f"open with a dead piece: {state.story(ticket)}"
        assert ticket.deadline == INFINITY or ticket in state._deadlines, "a deadline is not watched"
    assert state.held_bytes == sum(ticket.nbytes for ticket in state.tickets.values()), "bytes miscounted"


def _check_queue(state: "BatchState") -> None:
    queued = _open_pieces(state, PieceState.QUEUED)
    assert state.lanes.rows == sum(piece.rows for piece in queued), "queued rows miscounted"
    for lane in state.lanes:
        mine = [piece for piece in queued if piece.lane_key == lane.key]
        assert lane.rows == sum(piece.rows for piece in mine), f"rows of lane {lane.key} miscounted"
        assert lane.pieces == len(mine), f"pieces of lane {lane.key} miscounted"
        assert lane.by_size is None or set(lane.by_size) == set(mine), f"order by size of lane {lane.key} is wrong"
        assert (lane in state.lanes._waiting) == bool(mine), f"lane {lane.key} waits wrongly"
        assert lane.oldest() == min((p.ticket.arrived for p in mine), default=INFINITY), "wrong oldest piece"
        assert lane.earliest_deadline() == min((p.ticket.deadline for p in mine), default=INFINITY), "wrong deadline"
    waiting = [id(piece) for piece in _open_pieces(state, PieceState.ISOLATED)]
    listed = [id(p) for group in state._isolated for p in group if p.state is PieceState.ISOLATED]
    assert sorted(waiting) == sorted(listed), "an isolated piece is in no group, or in two"


def _check_flight(state: "BatchState") -> None:
    flying: list[Piece] = []
    for batch in state.batches.values():
        assert batch.worker in state.workers, "a batch runs on no worker"
        assert batch.id in state.workers[batch.worker].batches, "a batch is unknown to its worker"
        assert sum(piece.rows for piece in batch.pieces) == batch.rows, "batch rows miscounted"
        assert len({piece.lane_key for piece in batch.pieces}) == 1, "a batch mixes lanes"
        flying += batch.pieces
    for piece in flying:
        assert piece.state is PieceState.SENT, f"in flight but {piece.state}: {state.story(piece.ticket)}"
    running = [id(piece) for piece in _open_pieces(state, PieceState.SENT)]
    wanted = [id(piece) for piece in flying if piece.ticket.outcome is None]
    assert sorted(running) == sorted(wanted), "a piece is sent in no batch, or in two"
    assert state._orphans == len(flying) - len(wanted), "orphans miscounted"


def _check_workers(state: "BatchState") -> None:
    for worker in state.workers.values():
        assert len(worker.batches) <= worker.slots, "slots overbooked"
        assert all(state.batches[batch_id].worker == worker.id for batch_id in worker.batches), (
            "batch of another worker"
        )
        load, takes = len(worker.batches), not worker.retired
        assert (worker.id in state._free.idle) == (takes and load == 0), "idle worker miscounted"
        assert (worker.id in state._free.partly) == (takes and 0 < load < worker.slots), "free slot miscounted"
    assert sum(len(worker.batches) for worker in state.workers.values()) == len(state.batches)
    assert {*state._free.idle, *state._free.partly} <= set(state.workers), "a lost worker still takes batches"


def _open_pieces(state: "BatchState", where: PieceState) -> list[Piece]:
    return [piece for ticket in state.tickets.values() for piece in ticket.pieces if piece.state is where]
