"""The cache of preprocessed rows: never over its bytes, the least recently used leave first, nothing is mixed up."""

import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.preprocess.cache import RowCache


def row(value: int, bytes_: int = 8, arrays: int = 1) -> tuple[np.ndarray, ...]:
    return tuple(np.full(bytes_, value, np.uint8) for _ in range(arrays))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 6000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 2000), st.integers(1, 3)), max_size=80),
)
def test_random_use_keeps_to_its_bytes_and_to_the_most_recent(limit, events):
    cache = RowCache(limit, b"salt")
    model: OrderedDict[bytes, int] = OrderedDict()  # key -> size as the cache counts it
    hits = misses = 0
    for write, value, nbytes, arrays in events:
        key = cache.key(b"%d" % value)
        if write:
            before = cache.stats().nbytes
            cache.put(key, row(value, nbytes, arrays))
            alone = RowCache(10**9, b"")
            alone.put(b"x", row(value, nbytes, arrays))
            size = alone.stats().nbytes
            if key not in model and size <= limit:
                model[key] = size
                while sum(model.values()) > limit:
                    model.popitem(last=False)
            else:
                assert cache.stats().nbytes == before
        else:
            found = cache.get(key)
            assert (found is not None) == (key in model)
            if found is not None:
                assert all((array == value).all() for array in found)
                model.move_to_end(key)
                hits += 1
            else:
                misses += 1
        stats = cache.stats()
        assert stats.nbytes == sum(model.values()) <= limit
        assert (stats.entries, stats.hits_n, stats.misses_n) == (len(model), hits, misses)


def test_the_bookkeeping_is_counted_in_full():
    cache = RowCache(10**9, b"salt")
    cache.put(cache.key(b"a"), row(1, 10, 2))
    arrays = sum(sys.getsizeof(array) for array in row(1, 10, 2))
    held = sys.getsizeof(cache.key(b"a")) + sys.getsizeof(row(1, 10, 2)) + arrays + 100  # about a node of the table
    assert held <= cache.stats().nbytes < 3 * held


def test_what_comes_out_is_a_copy_that_nobody_can_change():
    cache = RowCache(10**6, b"salt")
    mine = row(1)
    cache.put(b"k", mine)
    mine[0][:] = 9
    (kept,) = cache.get(b"k")
    assert kept.tolist() == [1] * 8
    assert kept.base is None, "it would keep the message that it came in"
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 2


def test_keys_depend_on_content_and_salt_only():
    first, second = RowCache(1000, b"one"), RowCache(1000, b"two")
    assert first.key(b"item") == first.key(bytearray(b"item")) != first.key(b"Item")
    assert first.key(b"item") != second.key(b"item")
    assert first.key(b"") != first.key(b"\0")


def test_items_that_would_hold_up_the_loop_are_not_kept():
    cache = RowCache(10**9, b"salt")
    key = cache.key(bytes(5 << 20))
    assert key == b""
    cache.put(key, row(1))
    assert cache.get(key) is None
    assert cache.stats().entries == 0
