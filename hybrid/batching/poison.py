"""Content that broke its batch, remembered for a while by hash.

Digests are computed only for requests found guilty, and for new requests only while the list is not empty: an
undisturbed server never hashes a byte.
"""

from collections import OrderedDict

_KEEP = 1024


class PoisonList:
    """Offences per content digest within `ttl_s`; refused from the `after`-th offence on."""

    def __init__(self, ttl_s: float = 60.0, after: int = 2) -> None:
        self._ttl_s = ttl_s
        self._after = after
        self._offences: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._offences)

    def remember(self, digest: bytes, now: float, *, grave: bool = False) -> None:
        """Count an offence; a grave one (it killed a worker twice) is refused from now on."""
        count, when = self._offences.pop(digest, (0, now))
        if now - when > self._ttl_s:
            count = 0
        self._offences[digest] = (count + (self._after if grave else 1), now)
        while len(self._offences) > _KEEP:
            self._offences.popitem(last=False)

    def refused(self, digest: bytes, now: float) -> bool:
        """Whether content with this digest is to be refused at `now`. Forgets what is older than the limit."""
        while self._offences:
            oldest, (_, when) = next(iter(self._offences.items()))
            if now - when <= self._ttl_s:
                break
            del self._offences[oldest]
        count, _ = self._offences.get(digest, (0, 0.0))
        return count >= self._after
