import numpy as np
import pytest

from hybrid.preprocess.job import Refused
from hybrid.preprocess.transfer import INLINE_BYTES, pack_items, pack_rows, unpack_items, unpack_rows
from hybrid.workers import wire
from hybrid.workers.arena import Slab


@pytest.fixture
def slabs():
    """The same memory as the server and as the process sees it."""
    ours = Slab.create()
    theirs = Slab(ours.fd)
    yield ours, theirs
    theirs.fd = -1
    theirs.close()
    ours.close()


def over_the_wire(message):
    packet = wire.encode(message)
    assert len(packet) <= wire.MAX_PACKET
    return wire.decode_command(packet) if isinstance(message, wire.Transform) else wire.decode_event(packet)


@pytest.mark.parametrize("items", [[b"a"], [b""], [b"a", b"", b"\xff" * 999], [b"x" * INLINE_BYTES]])
def test_small_items_travel_in_the_packet(slabs, items):
    ours, theirs = slabs
    command = over_the_wire(pack_items(7, items, ours))
    assert command.job_id == 7
    assert list(unpack_items(command, theirs)) == items
    assert ours.size == 0


@pytest.mark.parametrize("items", [[b"x" * (INLINE_BYTES + 1)], [b"a" * 50_000, b"", b"b" * 50_000]])
def test_large_items_travel_in_the_slab(slabs, items):
    ours, theirs = slabs
    command = over_the_wire(pack_items(7, items, ours))
    assert not command.inline
    assert unpack_items(command, theirs) == items


def test_small_rows_come_back_in_the_packet_each_with_its_own_outcome(slabs):
    ours, theirs = slabs
    rows = [
        (np.arange(5, dtype=np.int32),),
        Refused("bad" * 1000),
        (np.ones((2, 3), np.float16), np.array(True)),
        Refused("broke", ours=True),
        (np.empty((0, 4), np.int64),),
    ]
    back = unpack_rows(over_the_wire(pack_rows(3, rows, theirs, 0.5)), ours)
    assert [type(row) for row in back] == [tuple, Refused, tuple, Refused, tuple]
    assert back[1] == Refused(("bad" * 1000)[:1000])
    assert back[3] == rows[3]
    for index in (0, 2, 4):
        for got, sent in zip(back[index], rows[index], strict=True):
            assert got.dtype == sent.dtype
            assert got.shape == sent.shape
            assert np.array_equal(got, sent)
            assert got.flags.aligned


def test_large_rows_are_copied_out_of_the_slab(slabs):
    ours, theirs = slabs
    image = np.arange(3 * 224 * 224, dtype=np.float32).reshape(3, 224, 224)
    (row,) = unpack_rows(over_the_wire(pack_rows(3, [(image,)], theirs, 0.5)), ours)
    theirs.reserve(1)[:] = 0  # the process works on its next image
    assert np.array_equal(row[0], image)


def test_the_worst_task_fits_into_a_packet():
    refused = [Refused("\U0001f600" * 5000)] * 16
    slab = Slab.create()
    assert len(wire.encode(pack_rows(1, refused, slab, 0.0))) <= wire.MAX_PACKET
    slab.close()
