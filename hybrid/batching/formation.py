"""Which waiting pieces of one lane travel together, and where a request of many rows is cut, when rows are padded.

A batch costs `fixed + rows * longest`, in units of size (tokens): `fixed` is the size that costs as much as one more
batch does. The batch is built around the most urgent piece, so the order of urgency holds as strictly as in a plain
queue: nobody waits for more batches than there were more urgent pieces before it. Company is chosen among neighbours
by size, so that as much as possible of what is computed is not padding.

Not the best batch of all that wait: that is 2 % cheaper and lets rare sizes wait three times as long. Not the optimal
partition of everything that waits (dynamic programming) either: it gains nothing over this (a closed loop of 64, rows
log-normal: 192 against 192 rows/s) and costs time with the square of the queue. Fixed classes gave 177, one queue 76.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hybrid.batching.queue import Piece

_MAX_TOPS: Final = 24
_SCAN: Final = 2  # places looked at, per row of a batch, for pieces that fit into the room left
_PERFECT: Final = 1.0 - 1e-9
_INFINITY: Final = float("inf")


Entry = tuple[int, int, "Piece"]  # size, sequence (unique), piece


class BySize:
    """Waiting pieces by priority and size. Adding and removing cost a bisection and a shift of the list."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __iter__(self) -> Iterator["Piece"]:
        for level in self._levels.values():
            for entry in level:
                yield entry[2]

    def add(self, piece: "Piece") -> None:
        """Take a piece in."""
        insort(self._levels.setdefault(piece.ticket.priority, []), (piece.size, piece.sequence, piece))

    def remove(self, piece: "Piece") -> None:
        """Let go of a piece that is in here."""
        level = self._levels[piece.ticket.priority]
        del level[_place(level, piece)]
        if not level:
            del self._levels[piece.ticket.priority]

    def take(self, anchor: "Piece", max_rows: int, fixed: float) -> list["Piece"]:
        """Remove and return `anchor` and the pieces that are to run with it: at most `max_rows` rows in sum.

        Pieces of its own priority choose first; those of lower ones only fill what room is left. No row is padded by
        more than `fixed`, because a batch of its own would then be cheaper.
        """
        level = self._levels[anchor.ticket.priority]
        places = neighbours(level, _place(level, anchor), max_rows, fixed)
        taken = [level[place][2] for place in places]
        longest = level[places[0]][0]
        self._delete(anchor.ticket.priority, places)
        room = max_rows - sum(piece.rows for piece in taken)
        if room > 0 and self._levels:
            for priority in sorted(self._levels):
                if priority > anchor.ticket.priority:
                    filling = self._fill(priority, longest, room, fixed)
                    taken += filling
                    room -= sum(piece.rows for piece in filling)
        return taken

    def within(self, fixed: float | None) -> bool:
        """Whether no two pieces are further apart in size than `fixed`; where it is None, than the shortest is long.

        They may all share a batch then. Where they may not, sizes alone spread them over several.
        """
        levels = self._levels.values()
        shortest, longest = min(level[0][0] for level in levels), max(level[-1][0] for level in levels)
        return longest - shortest <= max(1.0, shortest if fixed is None else fixed)

    def larger_than(self, rows: int) -> "Piece | None":
        """A piece of more rows than this, of the most urgent priority that has one; it stays in here."""
        for priority in sorted(self._levels):
            for _, _, piece in self._levels[priority]:
                if piece.rows > rows:
                    return piece
        return None

    def _fill(self, priority: int, longest: int, room: int, fixed: float) -> list["Piece"]:
        level = self._levels[priority]
        places: list[int] = []
        place = bisect_right(level, (longest, _INFINITY)) - 1
        last = max(0, place - _SCAN * room)
        while room > 0 and place >= last and longest - level[place][0] <= fixed:
            if level[place][2].rows <= room:
                places.append(place)
                room -= level[place][2].rows
            place -= 1
        taken = [level[place][2] for place in places]
        self._delete(priority, places)
        return taken

    def _delete(self, priority: int, places: Sequence[int]) -> None:
        level = self._levels[priority]
        for place in sorted(places, reverse=True):
            del level[place]
        if not level:
            del self._levels[priority]


def neighbours(level: Sequence[Entry], at: int, max_rows: int, fixed: float) -> list[int]:
    """Return the places of the pieces that run with the one at `at`, longest first and `at` among them.

    Every candidate for the longest piece is tried with the best company below it; the batch with the largest share of
    useful work wins. O(max_rows^2) looks at most, far fewer when sizes are scattered or all alike.
    """
    size = level[at][0]
    best, best_share = [at], 0.0
    for top in _tops(level, at, max_rows):
        if top != at and level[top][0] - size > fixed:
            break
        share, places = _company(level, at, top, max_rows, fixed)
        if share > best_share:
            best, best_share = places, share
            if share >= _PERFECT:
                break
    return best


def cut_even(rows: int, max_rows: int) -> list[int]:
    """Return the row counts of the pieces of a request whose rows are all alike."""
    full, rest = divmod(rows, max_rows)
    return [max_rows] * full + [rest] * (rest > 0)


def cut_sorted(sizes: Sequence[int], max_rows: int, fixed: float) -> list[int]:
    """Return the row counts of the pieces of a request whose rows have these sizes, in rising order.

    Each piece is filled from its longest row downwards for as long as a row makes the share of useful work larger.
    """
    counts: list[int] = []
    end = len(sizes)
    while end:
        longest = sizes[end - 1]
        per_row = fixed / max_rows
        start, useful, share = end, 0.0, 0.0
        while start and end - start < max_rows and longest - sizes[start - 1] <= fixed:
            more = useful + sizes[start - 1] + per_row
            new_share = more / (fixed + (end - start + 1) * longest)
            if new_share <= share:
                break
            start, useful, share = start - 1, more, new_share
        counts.append(end - start)
        end = start
    return counts[::-1]


def _tops(level: Sequence[Entry], at: int, max_rows: int) -> Iterator[int]:
    """Candidates for the longest piece: first the last of those as long as this one, then further ones."""
    last = min(len(level), at + max_rows) - 1
    alike = min(bisect_right(level, (level[at][0], _INFINITY), at, last + 1) - 1, last)
    yield alike
    yield from range(alike + 1, last + 1, max(1, (last - alike) // _MAX_TOPS))


def _company(level: Sequence[Entry], at: int, top: int, max_rows: int, fixed: float) -> tuple[float, list[int]]:
    """Fill a batch from `top` downwards; return the share of its cost that is useful work, and the places in it."""
    longest = level[top][0]
    per_row = fixed / max_rows  # a row's part of the fixed cost of a full batch is no waste
    size, _, anchor = level[at]
    rows = anchor.rows
    useful = rows * (size + per_row)
    share = useful / (fixed + rows * longest)
    places: list[int] = []
    joined = False
    for place in range(top, max(-1, top - _SCAN * max_rows), -1):
        if place == at:
            places.append(at)
            joined = True
            continue
        size, _, piece = level[place]
        if rows >= max_rows or longest - size > fixed:
            break
        more = piece.rows
        if rows + more > max_rows:
            continue
        new_useful = useful + more * (size + per_row)
        new_share = new_useful / (fixed + (rows + more) * longest)
        if new_share <= share:
            break
        rows, useful, share = rows + more, new_useful, new_share
        places.append(place)
    if not joined:
        places.append(at)
    return share, places


def _place(level: Sequence[Entry], piece: "Piece") -> int:
    return bisect_left(level, (piece.size, piece.sequence))
