"""Damaged and random bodies: nothing but BadRequest may come out, and what is accepted must be what was written.

By default a fixed number of cases from a fixed seed. HYBRID_FUZZ_SECONDS=180 runs fresh seeds for that long instead.
"""

import json
import os
import random
import time

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES, Tensor, TensorSpec, WantedOutput
from hybrid.protocol import oip, tensors_json

SECONDS = float(os.environ.get("HYBRID_FUZZ_SECONDS", "0"))
CASES = 4000
SLOWEST_S = 2.0
TOKENS = [
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b'"',
        b"null",
        b"true",
        b"false",
        b"NaN",
        b"-Infinity",
        b"[]",
        b"{}",
        b"[[]]",
    ),
    *(b"-1", b"0", b"1", b"-0", b"1.5", b"1e2", b"1e39", b"1e999", b"256", b"18446744073709551616", b"9" * 400),
    *(b'""', b'"x"', b'"\\ud800"', b"\xff", b"\xc5\xbe", b"\xef\xbb\xbf", b"\0", b" ", b"\n", b"\\", b"[" * 200),
    *(b'"shape":', b'"data":', b'"datatype":', b'"parameters":', b'"binary_data_size":4', b'"timeout":1', b'"id":'),
    *(b'"inputs":', b'"outputs":', b'"name":', *(f'"{datatype}"'.encode() for datatype in DTYPES)),
]


def some_tensor(rng: random.Random, name: str, binary: bool) -> Tensor:
    datatype = rng.choice([key for key in DTYPES if binary or key != "BF16"])
    shape = tuple(rng.choice([1, 1, 1, 2, 3, 0]) for _ in range(rng.randint(1, 3)))
    size = int(np.prod(shape))
    if datatype == "BYTES":
        elements = [rng.choice([b"", b"a", "ž".encode(), b"long text, with [,] in it"]) for _ in range(size)]
        return Tensor(name, datatype, np.array(elements, object).reshape(shape))
    return Tensor(
        name, datatype, np.array([rng.randint(0, 1) for _ in range(size)]).astype(DTYPES[datatype]).reshape(shape)
    )


def valid_request(rng: random.Random) -> tuple[bytes, int | None]:
    binary = rng.random() < 0.5
    inputs = [some_tensor(rng, name, binary) for name in ("x", "ž", "mask")[: rng.randint(1, 3)]]
    outputs = [WantedOutput("y", rng.random() < 0.5)] if rng.random() < 0.3 else None
    timeout_s = 1.0 if rng.random() < 0.3 else None
    body, header_length = oip.encode_request(
        inputs,
        id=rng.choice(["", "i"]),
        binary=binary,
        outputs=outputs,
        timeout_s=timeout_s,
        priority=rng.choice([None, 3]),
    )
    if not binary and rng.random() < 0.5:
        body = nest(body)
    return body, header_length


def nest(body: bytes) -> bytes:
    wire = json.loads(body)
    for item in wire["inputs"]:
        item["data"] = np.array(item["data"], object).reshape(item["shape"]).tolist()
    return json.dumps(wire).encode()


def damage(rng: random.Random, body: bytes) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randint(0, len(body))
        end = min(len(body), at + rng.choice([0, 0, 1, 1, 2, 8, 30]))
        middle = rng.choice(
            [b"", rng.choice(TOKENS), rng.choice(TOKENS), rng.randbytes(rng.randint(1, 4)), body[at:end] * 2]
        )
        body = body[:at] + middle + body[end:]
    return body


def case(rng: random.Random) -> tuple[bytes, int | None]:
    if rng.random() < 0.05:
        return rng.randbytes(rng.randint(0, 200)), rng.choice([None, rng.randint(-5, 250)])
    if rng.random() < 0.05:
        return b"".join(rng.choices(TOKENS, k=rng.randint(1, 40))), None
    body, header_length = valid_request(rng)
    if rng.random() < 0.9:
        body = damage(rng, body)
    if header_length is not None and rng.random() < 0.3:
        header_length = rng.choice(
            [None, 0, len(body), header_length + rng.randint(-3, 3), rng.randint(-5, 2 * len(body))]
        )
    return body, header_length


def assert_as_written(body: bytes, header_length: int | None, request) -> None:
    """Compare an accepted request with what Python's own JSON reader sees."""
    try:
        wire = json.loads(body[:header_length], parse_constant=lambda text: pytest.fail(f"{text} was accepted"))
    except ValueError:
        return  # not UTF-8 in a field that nobody reads
    for item, tensor in zip(wire["inputs"], request.inputs, strict=True):
        assert tensor.array.shape == tuple(item["shape"])
        assert tensor.array.dtype == DTYPES[item["datatype"]]
        if "data" in item:
            assert_same_elements(item["data"], tensor)


def assert_same_elements(data, tensor: Tensor) -> None:
    while any(isinstance(element, list) for element in data):
        data = [inner for element in data for inner in element]
    kind = {"b": bool, "u": int, "i": int, "O": str}.get(tensor.array.dtype.kind)
    if kind is None:
        assert all(type(element) in (int, float) for element in data)
        assert np.array(data, np.float64).astype(tensor.array.dtype).tolist() == tensor.array.reshape(-1).tolist()
        return
    assert all(type(element) is kind for element in data)
    expected = [element.encode() for element in data] if kind is str else data
    assert expected == tensor.array.reshape(-1).tolist()


def refusal_of(function, *args) -> tuple[object, str]:
    """Call, and return the result and an empty text, or None and the text of a BadRequest; all else is a failure."""
    try:
        return function(*args), ""
    except BadRequest as error:
        return None, str(json.loads(oip.encode_error(error))["error"])


def run_one(rng: random.Random) -> bool:
    body, header_length = case(rng)
    request, text = refusal_of(oip.decode_infer, body, header_length)
    if request is None:
        assert 10 < len(text) < 1000
        return False
    assert_as_written(body, header_length, request)
    specs = tuple(TensorSpec(name, rng.choice(["FP32", "BYTES"]), (-1, rng.choice([-1, 2]))) for name in ("x", "mask"))
    rows, text = refusal_of(oip.check_inputs, request, specs, ())
    assert rows is None or rows > 0
    assert rows is not None or 10 < len(text) < 2000
    return True


def run_response(rng: random.Random) -> None:
    body, header_length = case(rng)
    body = body.replace(b'"inputs":', b'"model_name":"m","outputs":', 1)
    if header_length is not None:
        header_length += len(b'"model_name":"m","outputs":') - len(b'"inputs":')
    response, text = refusal_of(oip.decode_response, body, header_length)
    assert (response is None) == bool(text)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("big", [False, True], ids=["short lists", "long lists"])
def test_damaged_bodies(big, monkeypatch):
    if big:
        monkeypatch.setattr(tensors_json, "BIG_BYTES", 0)
        monkeypatch.setattr(tensors_json, "_PIECE_BYTES", 8)
    end = time.monotonic() + SECONDS / 2
    base = time.time_ns() if SECONDS else 0
    accepted = done = 0
    slowest_s = 0.0
    while (time.monotonic() < end) if SECONDS else (done < CASES):
        start = time.monotonic()
        try:
            accepted += run_one(random.Random(base + done))
            run_response(random.Random(base + done))
        except BaseException as error:
            error.add_note(f"seed {base + done}: {case(random.Random(base + done))}")
            raise
        slowest_s = max(slowest_s, time.monotonic() - start)
        done += 1
    print(f"{done} cases, {accepted} accepted, slowest {1e3 * slowest_s:.1f} ms")
    assert slowest_s < SLOWEST_S
    assert 0.05 < accepted / done < 0.8
