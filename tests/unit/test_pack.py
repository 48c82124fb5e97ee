"""Batches are formed row by row exactly: whole requests, split pieces, padding, every datatype."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_arena import values

from hybrid.messages import DTYPES, Tensor
from hybrid.workers.arena import Slab, read_array
from hybrid.workers.pack import Rows, pack_batch


@pytest.fixture
def slab():
    made = Slab.create()
    yield made
    made.close()


def tensor(name, datatype, array):
    return Tensor(name, datatype, np.asarray(array, DTYPES[datatype]))


def packed(slab, pieces, pad=None):
    """Pack and read back: name -> array."""
    rows = sum(piece[2] for piece in pieces)
    blocks = pack_batch(slab, [Rows(*piece) for piece in pieces], rows, pad or {})
    return {block.name: read_array(slab.view(slab.size), block) for block in blocks}


@pytest.mark.parametrize("datatype", DTYPES)
def test_rows_of_several_requests_stand_in_order(slab, datatype):
    requests = [values(datatype, (rows, 4)) for rows in (1, 3, 2)]
    batch = packed(slab, [((tensor("x", datatype, array),), 0, len(array)) for array in requests])
    assert batch["x"].dtype == DTYPES[datatype]
    assert batch["x"].tolist() == [row for array in requests for row in array.tolist()]


@pytest.mark.parametrize("datatype", DTYPES)
def test_pieces_of_a_split_request(slab, datatype):
    array = values(datatype, (33, 2))
    request = (tensor("x", datatype, array),)
    seen = []
    for start in range(0, 33, 8):
        seen += packed(slab, [(request, start, min(8, 33 - start))])["x"].tolist()
    assert seen == array.tolist()


def test_a_piece_may_share_its_batch(slab):
    big, small = np.arange(20.0).reshape(10, 2), np.array([[-1.0, -2.0]])
    pieces = [((tensor("x", "FP32", big),), 8, 2), ((tensor("x", "FP32", small),), 0, 1)]
    assert packed(slab, pieces)["x"].tolist() == [[16, 17], [18, 19], [-1, -2]]


def test_several_inputs_keep_their_own_types_and_shapes(slab):
    def request(rows, at):
        ids = tensor("ids", "INT64", np.full((rows, 3), at))
        image = tensor("image", "UINT8", np.full((rows, 2, 2), at))
        return (ids, image, tensor("text", "BYTES", np.array([[b"%d" % at]] * rows, object))), 0, rows

    batch = packed(slab, [request(2, 1), request(1, 2)])
    assert batch["ids"][:, 0].tolist() == [1, 1, 2]
    assert batch["image"].shape == (3, 2, 2)
    assert batch["image"][2].tolist() == [[2, 2], [2, 2]]
    assert batch["text"].tolist() == [[b"1"], [b"1"], [b"2"]]


def test_padding_fills_up_to_the_longest_of_this_batch(slab):
    def request(*lengths):
        arrays = [np.full((1, length), length) for length in lengths]
        return [((tensor("ids", "INT64", array), tensor("mask", "INT64", array > 0)), 0, 1) for array in arrays]

    pad = {"ids": 9, "mask": 0}
    batch = packed(slab, request(2, 5, 1), pad)
    assert batch["ids"].tolist() == [[2, 2, 9, 9, 9], [5] * 5, [1, 9, 9, 9, 9]]
    assert batch["mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]
    assert packed(slab, request(1, 3), pad)["ids"].tolist() == [[1, 9, 9], [3, 3, 3]]  # nothing stays of the last one
    assert packed(slab, request(4), pad)["ids"].tolist() == [[4] * 4]


def test_padding_of_pieces_and_of_deeper_shapes(slab):
    long, short = np.arange(24.0).reshape(4, 3, 2), np.ones((1, 1, 2))
    pieces = [((tensor("x", "FP32", long),), 1, 2), ((tensor("x", "FP32", short),), 0, 1)]
    batch = packed(slab, pieces, {"x": -1})["x"]
    assert np.array_equal(batch[:2], long[1:3])
    assert batch[2].tolist() == [[1, 1], [-1, -1], [-1, -1]]


def test_a_piece_is_as_long_as_it_needs_to_be(slab):
    """Of a request whose rows are sorted by length, the short ones do not pay for the longest."""
    ids = np.array([[1, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 3]])
    request = (tensor("ids", "INT64", ids),)
    other = (tensor("ids", "INT64", np.array([[7, 7, 7]])),)
    assert packed(slab, [(request, 0, 2, 2)], {"ids": 0})["ids"].tolist() == [[1, 0], [2, 2]]
    batch = packed(slab, [(request, 0, 2, 2), (other, 0, 1)], {"ids": 9})["ids"]
    assert batch.tolist() == [[1, 0, 9], [2, 2, 9], [7, 7, 7]]
    assert packed(slab, [(request, 2, 1, 4)], {"ids": 0})["ids"].tolist() == [[3, 3, 3, 3]]


def test_rows_without_elements(slab):
    batch = packed(slab, [((tensor("x", "FP32", np.empty((2, 0))),), 0, 2)])
    assert batch["x"].shape == (2, 0)


def test_read_only_and_strided_inputs(slab):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    array.flags.writeable = False
    assert packed(slab, [((Tensor("x", "FP32", array),), 0, 3)])["x"].tolist() == array.tolist()


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4), st.integers(0, 4)), min_size=1),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mixture_of_pieces_equals_numpy(slab, requests, pad):
    """Against the obvious way: pad every piece with numpy and concatenate."""
    pieces, expected = [], []
    longest = max(length for _, length, _, _ in requests) if pad else 4
    for number, (rows, length, first, last) in enumerate(requests):
        array = np.arange(rows * (length if pad else 4), dtype=np.int32).reshape(rows, -1) + 1000 * number
        start, end = min(first, rows - 1), max(min(first, rows - 1) + 1, min(rows, last))
        pieces.append(((Tensor("x", "INT32", array),), start, end - start))
        expected.append(np.pad(array[start:end], ((0, 0), (0, longest - array.shape[1])), constant_values=-7))
    if pad:
        used = max(piece[0][0].array.shape[1] for piece in pieces)
        expected = [array[:, :used] for array in expected]
    batch = packed(slab, pieces, {"x": -7} if pad else {})
    assert np.array_equal(batch["x"], np.concatenate(expected))
