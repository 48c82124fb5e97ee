"""Which requests may share a batch: lanes by datatype, trailing shape and size class."""

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES, Tensor
from hybrid.serving.inference import lane_of

PAD = {"ids": 0, "mask": 0}
EDGES = (16, 32)


def tensor(name: str, *shape: int, datatype: str = "FP32") -> Tensor:
    return Tensor(name, datatype, np.zeros(shape, DTYPES[datatype]))


def padded(length: int, rows: int = 1) -> list[Tensor]:
    return [tensor(name, rows, length, datatype="INT64") for name in PAD]


def lane(*tensors: Tensor, edges: tuple[int, ...] = (), size: int = 0, pad: dict[str, int] | None = None):
    return lane_of(tensors, pad or {}, edges, size)


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


@pytest.mark.parametrize(
    ("length", "size_class"), [(1, "16"), (16, "16"), (17, "32"), (32, "32"), (33, "32+"), (500, "32+")]
)
def test_padded_inputs_share_a_lane_per_size_class(length: int, size_class: str):
    key, size = lane(*padded(length), edges=EDGES, pad=PAD)
    assert (key.size_class, size) == (size_class, length)
    assert (lane(*padded(1), edges=EDGES, pad=PAD)[0] == key) == (size_class == "16")


def test_without_edges_all_lengths_share_one_lane():
    assert lane(*padded(3), pad=PAD)[0] == lane(*padded(300), pad=PAD)[0]


def test_what_is_not_padded_still_separates():
    extra = tensor("pixels", 1, 8)
    assert lane(*padded(3), extra, pad=PAD)[0] == lane(*padded(5), extra, pad=PAD)[0]
    assert lane(*padded(3), extra, pad=PAD)[0] != lane(*padded(3), tensor("pixels", 1, 9), pad=PAD)[0]


def test_padded_inputs_of_different_lengths_are_refused_alone_as_in_a_batch():
    with pytest.raises(BadRequest, match=r"disagree on dimension 1, .*'ids' \[1, 5\], 'mask' \[1, 7\]"):
        lane(padded(5)[0], padded(7)[1], pad=PAD)


def test_the_size_from_preprocess_is_kept():
    assert lane(tensor("pixels", 2, 8), size=224 * 224)[1] == 224 * 224
