"""Slabs: what is written is what is read, growth and shrink, memory that is not to be had, nothing left behind."""

import os
import resource

import numpy as np
import pytest

from hybrid.messages import DTYPES
from hybrid.workers.arena import Slab, aligned, pack_raw, read_array, unpack_raw, write_arrays

MIB = 1 << 20


@pytest.fixture
def slab():
    made = Slab.create()
    yield made
    made.close()


def values(datatype, shape):
    """An array of a datatype whose every element differs from zero and from its neighbour."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        array = np.empty(count, object)
        array[:] = [b"\x00\xff" * (index % 5) + str(index).encode() for index in range(count)]
    elif datatype == "BOOL":
        array = np.arange(count) % 3 == 1
    else:
        array = (np.arange(count) % 100 + 1).astype(DTYPES[datatype])
    return array.reshape(shape)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 3, 5), (5,), (0, 4), (3, 0)])
@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_comes_back(slab, datatype, shape):
    array = values(datatype, shape)
    (block,) = write_arrays(slab, [("x", datatype, array)])
    read = read_array(slab.view(slab.size), block)
    assert read.dtype == array.dtype
    assert read.shape == shape
    assert read.tolist() == array.tolist()


def test_arrays_of_one_slab_do_not_touch_each_other(slab):
    arrays = [(name, name, values(name, (3, 5))) for name in DTYPES]
    blocks = write_arrays(slab, arrays)
    for (_, _, array), block in zip(arrays, blocks, strict=True):
        assert block.offset % 64 == 0
        assert read_array(slab.view(slab.size), block).tolist() == array.tolist()
    ends = [block.offset + block.length for block in blocks]
    assert all(end <= block.offset for end, block in zip(ends, blocks[1:], strict=False))


def test_strided_and_reversed_arrays_are_written_as_they_read(slab):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (whole[::2], whole[:, ::3], whole[::-1], whole.T):
        (block,) = write_arrays(slab, [("y", "FP32", array)])
        assert np.array_equal(read_array(slab.view(slab.size), block), array)


@pytest.mark.parametrize(("value", "finite"), [(1.5, True), (np.nan, False), (np.inf, False), (-np.inf, False)])
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_the_writer_says_whether_all_is_finite(slab, datatype, value, finite):
    array = np.array([[0.0, value]], DTYPES[datatype])
    (block,) = write_arrays(slab, [("y", datatype, array)])
    assert block.finite is finite


@pytest.mark.parametrize("elements", [[], [b""], [b"", b"a", b""], [b"\x00" * 1000, b"x"], [bytes(range(256))] * 3])
def test_bytes_elements_come_back(elements):
    array = unpack_raw(pack_raw(elements), (len(elements),))
    assert array.tolist() == elements


def test_reserve_grows_geometrically_and_keeps_what_is_there(slab):
    sizes = set()
    slab.reserve(1)[0] = 7
    for length in range(1, 4 * MIB, 50_000):
        assert len(slab.reserve(length)) >= length
        sizes.add(slab.size)
    assert slab.reserve(1)[0] == 7
    assert os.fstat(slab.fd).st_size == slab.size < 5 * MIB
    assert len(sizes) < 40  # not one system call per batch that is a little larger


def test_views_survive_growth(slab):
    old = slab.reserve(100)
    old[:3] = (1, 2, 3)
    new = slab.reserve(10 * MIB)
    assert old[:3].tolist() == [1, 2, 3]
    old[0] = 9
    assert new[0] == 9  # one memory, two mappings


def test_release_cuts_back_only_what_was_unusual(slab):
    slab.reserve(1 * MIB)
    slab.release()
    assert slab.size >= 1 * MIB
    slab.reserve(100 * MIB)
    slab.release()
    assert slab.size == os.fstat(slab.fd).st_size == 64 * MIB
    assert os.fstat(slab.fd).st_blocks * 512 <= 64 * MIB
    slab.reserve(65 * MIB)[65 * MIB - 1] = 1  # grows again after it was cut


def test_the_reader_follows_growth_and_shrink(slab):
    reader = Slab(os.dup(slab.fd))
    for length in (10, 3 * MIB, 70 * MIB, 100, 90 * MIB):
        slab.reserve(length)[length - 1] = length % 251
        assert reader.view(slab.size)[length - 1] == length % 251
        slab.release()
    reader.close()


def test_memory_that_is_not_to_be_had_is_a_memory_error_and_nothing_changes(slab):
    slab.reserve(1000)[:4] = 5
    size = slab.size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))  # beyond it the kernel says EFBIG (SIGXFSZ is ignored here)
    try:
        with pytest.raises(MemoryError, match="no shared memory for a batch of 8388608 bytes"):
            slab.reserve(8 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert slab.size == os.fstat(slab.fd).st_size == size
    assert slab.reserve(8 * MIB)[:4].tolist() == [5] * 4


def test_address_space_that_is_not_to_be_had_is_a_memory_error_too(slab):
    slab.reserve(1000)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 16 * MIB, hard))
    try:
        with pytest.raises(MemoryError, match="no shared memory"):
            slab.reserve(64 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert os.fstat(slab.fd).st_size == slab.size < MIB  # the file does not keep what could not be mapped
    slab.reserve(64 * MIB)[0] = 1


def test_slabs_leave_no_descriptor_no_mapping_and_no_file():
    before, shm = descriptors(), set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    for _ in range(50):
        slab = Slab.create()
        assert not os.get_inheritable(slab.fd)
        slab.reserve(200_000)
        slab.close()
        slab.close()  # closing twice is harmless
    assert descriptors() == before
    with open("/proc/self/maps") as maps:
        assert "memfd:hybrid" not in maps.read()
    assert shm == (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set())


def test_without_memfd_an_unlinked_file_does(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slab = Slab.create()
    slab.reserve(100)[:] = 3
    assert list(tmp_path.iterdir()) == []
    assert not os.get_inheritable(slab.fd)
    slab.close()


def test_aligned():
    assert [aligned(n) for n in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
