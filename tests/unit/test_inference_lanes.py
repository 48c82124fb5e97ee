"""Which requests may share a batch: lanes by datatype and trailing shape; areas, and rows in rising order."""

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES, Tensor, TensorSpec
from hybrid.serving.sizes import area_of, image_dims, lane_of, rising

PAD = {"ids": 0, "mask": 0}


def tensor(name: str, *shape: int, datatype: str = "FP32") -> Tensor:
    return Tensor(name, datatype, np.zeros(shape, DTYPES[datatype]))


def padded(length: int, rows: int = 1) -> list[Tensor]:
    return [tensor(name, rows, length, datatype="INT64") for name in PAD]


def lane(*tensors: Tensor, size: int = 0, pad: dict[str, int] | None = None):
    return lane_of(tensors, pad or {}, size)


def test_rows_do_not_matter_shapes_and_types_do():
    assert lane(tensor("x", 1, 4)) == lane(tensor("x", 9, 4))
    others = [tensor("x", 1, 5), tensor("x", 1, 4, 1), tensor("x", 4), tensor("x", 1, 4, datatype="INT32")]
    lanes = {lane(tensor("x", 1, 4))[0], *(lane(other)[0] for other in others)}
    assert len(lanes) == 5


def test_every_input_counts():
    one = lane(tensor("a", 1, 4), tensor("b", 1, 2))
    assert one == lane(tensor("a", 3, 4), tensor("b", 3, 2))
    assert one != lane(tensor("a", 1, 2), tensor("b", 1, 4))
    assert one != lane(tensor("a", 1, 4), tensor("b", 1, 3))


def test_padded_inputs_of_all_lengths_share_one_lane():
    assert lane(*padded(3), pad=PAD)[0] == lane(*padded(300), pad=PAD)[0]
    assert lane(*padded(300), pad=PAD)[1] == 300


def test_what_is_not_padded_still_separates():
    extra = tensor("pixels", 1, 8)
    assert lane(*padded(3), extra, pad=PAD)[0] == lane(*padded(5), extra, pad=PAD)[0]
    assert lane(*padded(3), extra, pad=PAD)[0] != lane(*padded(3), tensor("pixels", 1, 9), pad=PAD)[0]


def test_padded_inputs_of_different_lengths_are_refused_alone_as_in_a_batch():
    with pytest.raises(BadRequest, match=r"disagree on dimension 1, .*'ids' \[1, 5\], 'mask' \[1, 7\]"):
        lane(padded(5)[0], padded(7)[1], pad=PAD)


def test_the_size_from_preprocess_is_kept():
    assert lane(tensor("pixels", 2, 8), size=224 * 224)[1] == 224 * 224


@pytest.mark.parametrize(
    ("shape", "dims"), [((-1, 3, -1, -1), (2, 3)), ((-1, -1), None), ((-1, 3, 224, 224), None), ((-1,), None)]
)
def test_area_is_height_times_width_where_both_vary(shape: tuple[int, ...], dims: tuple[int, ...] | None):
    found = image_dims((TensorSpec("flags", "BOOL", (-1, 2)), TensorSpec("x", "FP32", shape)))
    assert found == (None if dims is None else ("x", dims))
    if found is not None:
        sent = [tensor("flags", 2, 2), tensor("x", *(dim if dim > 0 else 5 + place for place, dim in enumerate(shape)))]
        assert area_of(sent, found) == 7 * 8
        assert area_of(sent[:1], found) == 0


def test_rows_in_rising_order_and_the_way_back():
    words = ["ccc", "a", "bb", "dd", "e"]
    found = rising(words, len)
    assert found is not None
    rows, sizes, places = found
    assert (rows, sizes) == (["a", "e", "bb", "dd", "ccc"], [1, 1, 2, 2, 3])
    assert [rows[place] for place in places] == words
    assert rising(["aa", "bb"], len) is None
