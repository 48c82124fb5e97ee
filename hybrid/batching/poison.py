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

    def remember(self, digest: bytes, now: float, offences: int = 1) -> None:
        """Count offences of this content, on top of those that are not forgotten yet."""
        count, when = self._offences.pop(digest, (0, now))
        if now - when > self._ttl_s:
            count = 0
        self._offences[digest] = (count + offences, now)
        while len(self._offences) > _KEEP:
            self._offences.popitem(last=False)

    def acquit(self, digest: bytes) -> None:
        """Forget content that has succeeded, unless it is refused already: something else broke its batch."""
        if 0 < self._offences.get(digest, (0, 0.0))[0] < self._after:
            del self._offences[digest]

    def refused(self, digest: bytes, now: float) -> bool:
        """Whether content with this digest is to be refused at `now`. Forgets what is older than the limit."""
        while self._offences:
            oldest, (_, when) = next(iter(self._offences.items()))
            if now - when <= self._ttl_s:
                break
            del self._offences[oldest]
        count, _ = self._offences.get(digest, (0, 0.0))
        return count >= self._after
