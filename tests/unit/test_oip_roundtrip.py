"""Client half and server half against each other, for every datatype, shape and form (hypothesis)."""

import os

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES, InferRequest, InferResponse, Tensor, TensorSpec, Timings, WantedOutput
from hybrid.protocol import oip

FLOATS = ("FP16", "FP32", "FP64")
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
NAMES = st.text(min_size=0, max_size=8)

quick = settings(
    max_examples=int(os.environ.get("HYBRID_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def tensors(draw, binary: bool, name=NAMES) -> Tensor:
    datatype = draw(st.sampled_from([key for key in DTYPES if binary or key != "BF16"]))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        element = st.binary(max_size=6) if binary else st.text(max_size=6).map(str.encode)
        size = int(np.prod(shape))
        elements = draw(st.lists(element, min_size=size, max_size=size))
        return Tensor(draw(name), datatype, np.array(elements, object).reshape(shape))
    finite = datatype in FLOATS and not binary
    options = {"elements": {"allow_nan": False, "allow_infinity": False}} if finite else {}
    return Tensor(draw(name), datatype, draw(hnp.arrays(DTYPES[datatype], shape, **options)))


def assert_same(given_tensors, read_tensors) -> None:
    assert len(given_tensors) == len(read_tensors)
    for one, other in zip(given_tensors, read_tensors, strict=True):
        assert (one.name, one.datatype, one.array.shape) == (other.name, other.datatype, other.array.shape)
        assert one.array.dtype == other.array.dtype
        if one.datatype == "BYTES":
            assert one.array.tolist() == other.array.tolist()
        else:
            assert one.array.tobytes() == other.array.tobytes()


FORMS = st.booleans().flatmap(
    lambda binary: st.tuples(st.just(binary), st.lists(tensors(binary), min_size=1, max_size=3))
)


@pytest.mark.slow
@quick
@given(
    form=FORMS,
    id=st.text(max_size=20),
    outputs=st.none() | st.lists(st.builds(WantedOutput, NAMES, st.booleans()), min_size=1, max_size=3),
    timeout_us=st.none() | st.integers(1, 86_400_000_000),
    priority=st.none() | st.integers(1, 9),
)
def test_requests(form, id, outputs, timeout_us, priority):
    binary, inputs = form
    body, header_length = oip.encode_request(
        inputs,
        id=id,
        binary=binary,
        outputs=outputs,
        timeout_s=None if timeout_us is None else timeout_us / 1e6,
        priority=priority,
    )
    request = oip.decode_infer(body, header_length)
    assert_same(inputs, request.inputs)
    assert (request.id, request.binary, request.priority) == (id, binary, priority)
    assert request.outputs == (None if outputs is None else tuple(outputs))
    assert request.timeout_s == (None if timeout_us is None else pytest.approx(timeout_us / 1e6))


@pytest.mark.slow
@quick
@given(form=FORMS, id=st.text(max_size=20), rows=st.integers(0, 100), queue_s=st.floats(0, 100))
def test_responses(form, id, rows, queue_s):
    binary, outputs = form
    response = InferResponse("m", "1", tuple(outputs), id, Timings(queue=queue_s), rows)
    encoded = oip.encode_infer(response, InferRequest((), binary=binary))
    body, header_length = flatten(encoded)
    read = oip.decode_response(body, header_length)
    assert_same(outputs, read.outputs)
    assert (read.model_name, read.model_version, read.id, read.batch_rows) == ("m", "1", id, rows)
    assert read.timings.queue == pytest.approx(queue_s, abs=1e-7)
    assert read.timings.serialise > 0


@pytest.mark.slow
@quick
@given(tensor=tensors(False, st.just("x")).filter(lambda tensor: tensor.array.size))
def test_nested_lists_read_as_flat_ones(tensor):

    array = tensor.array if tensor.datatype != "BYTES" else np.vectorize(bytes.decode, otypes=[object])(tensor.array)
    item = {"name": "x", "datatype": tensor.datatype, "shape": array.shape, "data": array.tolist()}
    body = msgspec.json.encode({"inputs": [item]})
    assert_same([tensor], oip.decode_infer(body, None).inputs)


@pytest.mark.slow
@quick
@given(tensor=tensors(True, st.just("x")), cut=st.integers(1, 4), grow=st.binary(min_size=1, max_size=4))
def test_binary_bodies_of_another_length_are_refused(tensor, cut, grow):
    body, header_length = oip.encode_request([tensor], binary=True)
    with pytest.raises(BadRequest):
        oip.decode_infer(body + grow, header_length)
    assume(len(body) - cut >= header_length)
    with pytest.raises(BadRequest):
        oip.decode_infer(body[:-cut], header_length)


@pytest.mark.slow
@quick
@given(tensor=tensors(True, st.just("x")))
def test_a_checked_request_has_rows(tensor):
    spec = TensorSpec("x", tensor.datatype, (-1,) * tensor.array.ndim)
    request = InferRequest((tensor,))
    if tensor.array.shape[0]:
        assert oip.check_inputs(request, (spec,), ()) == tensor.array.shape[0]
    else:
        with pytest.raises(BadRequest, match="rows"):
            oip.check_inputs(request, (spec,), ())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_client_does_not_send_null_for_a_number(value):
    with pytest.raises(BadRequest, match=r"'x'.*binary"):
        oip.encode_request([Tensor("x", "FP32", np.array([value], np.float32))], binary=False)
    with pytest.raises(BadRequest, match=r"'x'.*BF16"):
        oip.encode_request([Tensor("x", "BF16", np.array([1], np.uint16))], binary=False)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"model_name":"m"}', "outputs"),
        (b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"FP32","data":[null]}]}', "output 'y'"),
        (b'{"model_name":"m","outputs":[{"name":"y","shape":["a"],"datatype":"FP32","data":[1]}]}', "shape"),
    ],
)
def test_answers_that_are_none(body, word):
    with pytest.raises(BadRequest, match=word):
        oip.decode_response(body, None)


def test_answers_of_other_servers_without_our_parameters():
    body = b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{"a":1}}'
    response = oip.decode_response(body, None)
    assert (response.model_version, response.timings, response.batch_rows) == ("", Timings(), 0)


def flatten(encoded: oip.Encoded) -> tuple[bytes, int | None]:
    """What a client sees of an answer: the body in one piece, and the header length."""
    fields = dict(line.split(b": ", 1) for line in encoded.extra.splitlines())
    header_length = fields.get(b"Inference-Header-Content-Length")
    body = encoded.body if isinstance(encoded.body, bytes) else b"".join(encoded.body)
    return body, None if header_length is None else int(header_length)
