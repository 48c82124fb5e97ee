"""One lane: the queue of one data format, or of one size class of it, and what its batches have cost."""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from hybrid.batching.cost import AROUND_S, CostModel, SizeCost
from hybrid.batching.formation import BySize
from hybrid.batching.queue import INFINITY, LaneKey, Piece, PieceState


class Lane:
    """Waiting pieces of one format (and size class), ordered by (priority, deadline, arrival).

    Removal is lazy: a piece that left the QUEUED state is skipped when it surfaces, and what holds it is rebuilt when
    more than half of that is dead, so that memory follows the live queue. Only the order by size, which a lane keeps
    when batches are to be made of neighbours, is exact.
    """

    __slots__ = (
        "_arrivals", "_earliest", "_earliest_left", "_heap", "_sequence", "by_size", "cost", "key", "largest", "pieces",
        "row_work", "rows", "size_cost",
    )  # fmt: skip

    def __init__(self, key: LaneKey, *, by_size: bool = False) -> None:
        self.key = key
        self.rows = 0
        self.pieces = 0
        self.largest = 0  # size of the longest piece since it was last empty
        self.cost = CostModel()  # over work: rows times the size they were padded to, or rows where sizes do not matter
        self.size_cost = SizeCost()
        self.row_work = 1.0  # work per row of late
        self.by_size = BySize() if by_size else None
        self._heap: list[tuple[int, float, int, Piece]] = []
        self._arrivals: deque[Piece] = deque()
        self._sequence = 0
        self._earliest = INFINITY
        self._earliest_left = False  # pieces have left, one of them maybe with the earliest deadline

    def push(self, piece: Piece) -> None:
        """Take a QUEUED piece in."""
        ticket = piece.ticket
        self._sequence += 1
        piece.sequence = self._sequence
        heappush(self._heap, (ticket.priority, ticket.deadline, self._sequence, piece))
        self._arrivals.append(piece)
        if piece.size > self.largest:
            self.largest = piece.size
        if self.by_size is not None:
            self.by_size.add(piece)
        if ticket.deadline < self._earliest:
            self._earliest = ticket.deadline
        self.rows += piece.rows
        self.pieces += 1
        # Not only when pieces are forgotten: behind one that stays at the front, those taken by urgency pile up, and so
        # do in the heap those that were taken by size.
        if max(len(self._arrivals), len(self._heap)) > 2 * self.pieces + 64:
            self._compact()

    def forget(self, piece: Piece) -> None:
        """Account for a piece that is leaving QUEUED without being taken."""
        if self.by_size is not None:
            self.by_size.remove(piece)
        self._left(piece.rows, 1)
        if len(self._heap) > 2 * self.pieces + 64:
            self._compact()

    def take(self, max_rows: int, cut: bool = False) -> list[Piece]:
        """Remove and return pieces that fit into `max_rows` together: the most urgent one at least, and its company.

        Company are the next in urgency, or the neighbours in size where the lane is ordered by size. With `cut` a piece
        that is too large leaves a part of itself behind; else the most urgent one is taken however large it is.
        """
        if self.by_size is not None:
            return self._take_neighbours(self.by_size, max_rows, cut)
        taken: list[Piece] = []
        room = max_rows
        heap = self._heap
        while heap:
            piece = heap[0][3]
            if piece.state is not PieceState.QUEUED:
                heappop(heap)
                continue
            if piece.rows > room and cut:
                self._left(max_rows, len(taken))
                return [*taken, piece.cut_off(room)]
            if piece.rows > room and taken:
                break
            heappop(heap)
            taken.append(piece)
            room -= piece.rows
            if room <= 0:
                break
        self._left(max_rows - room, len(taken))
        return taken

    def observe(self, rows: int, size: int, seconds: float) -> None:
        """Take in a batch that ran: `size` is what its rows were padded to, 0 where that does not matter."""
        if size:
            self.row_work += 0.05 * (size - self.row_work) if self.cost.known else size - self.row_work
            self.size_cost.observe(rows * size, seconds)
        self.cost.observe(rows * (size or 1), seconds)

    def predict(self, rows: int) -> float:
        """Return the expected seconds of a batch of `rows` rows of the usual size; 0 while nothing is known."""
        return self.cost.predict(rows * self.row_work)

    def predictor(self, otherwise: CostModel) -> Callable[[int], float] | None:
        """Return what predicts the seconds of a batch by its rows; None where the difference rows make is not known.

        `otherwise` serves where batches of this lane have not told yet: it is over rows of any size.
        """
        if self.cost.line() is not None:
            return lambda rows: AROUND_S + self.predict(rows)
        return (lambda rows: AROUND_S + otherwise.predict(rows)) if otherwise.tells_sizes else None

    def urgency(self) -> tuple[int, float]:
        """Return the priority of the most urgent piece and the arrival of the oldest, of a lane that is not empty."""
        heap = self._heap
        while heap[0][3].state is not PieceState.QUEUED:
            heappop(heap)
        return heap[0][0], self.oldest()

    def oldest(self) -> float:
        """Return the arrival time of the piece that waits longest; inf when empty."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].state is not PieceState.QUEUED:
            arrivals.popleft()
        return arrivals[0].ticket.arrived if arrivals else INFINITY

    def __iter__(self) -> Iterator[Piece]:
        for entry in self._heap:
            if entry[3].state is PieceState.QUEUED:
                yield entry[3]

    def earliest_deadline(self) -> float:
        """Return the earliest deadline waiting here; inf without one. O(n) after pieces have left."""
        if self._earliest_left:
            queued = PieceState.QUEUED
            self._earliest = min((entry[1] for entry in self._heap if entry[3].state is queued), default=INFINITY)
            self._earliest_left = False
        return self._earliest

    def _take_neighbours(self, by_size: BySize, max_rows: int, cut: bool) -> list[Piece]:
        heap = self._heap
        while heap[0][3].state is not PieceState.QUEUED:
            heappop(heap)
        if cut and heap[0][3].rows > max_rows:
            self._left(max_rows, 0)
            return [heap[0][3].cut_off(max_rows)]
        anchor = heappop(heap)[3]
        fixed = self.size_cost.fixed_work()
        # Until it is known: as if a batch cost as much by itself as one row does.
        taken = by_size.take(anchor, max_rows, max(1.0, anchor.size if fixed is None else fixed))
        rows = sum(piece.rows for piece in taken)
        larger = by_size.larger_than(max_rows - rows) if cut and rows < max_rows else None
        if larger is not None:
            self._left(max_rows, len(taken))
            return [*taken, larger.cut_off(max_rows - rows)]
        self._left(rows, len(taken))
        return taken

    def _left(self, rows: int, pieces: int) -> None:
        self.rows -= rows
        self.pieces -= pieces
        if not self.rows:
            self.largest = 0
        self._earliest_left = self._earliest < INFINITY

    def _compact(self) -> None:
        queued = PieceState.QUEUED
        self._heap = [entry for entry in self._heap if entry[3].state is queued]
        heapify(self._heap)
        self._arrivals = deque(piece for piece in self._arrivals if piece.state is queued)
