"""The codec of the embeddings API in the form of OpenAI: the four forms of input, vectors, errors."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import (
    BadRequest,
    DeadlineExceeded,
    HybridError,
    NotFound,
    NotReady,
    QueueFull,
    TooLarge,
    Unauthorized,
)
from hybrid.protocol.openai import (
    MAX_INPUTS,
    decode_embeddings,
    encode_embeddings,
    encode_error,
    encode_model,
    encode_models,
    encode_vectors,
)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m"} | fields).encode()


def refused(data: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_embeddings(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "texts", "ids"),
    [
        ("a \u20ac", ("a \u20ac".encode(),), ()),
        ("", (b"",), ()),
        (["a", ""], (b"a", b""), ()),
        ([1, 2, 3], (), ([1, 2, 3],)),
        ([[1], [2, 3]], (), ([1], [2, 3])),
        ([[]], (), ([],)),
    ],
)
def test_the_four_forms_of_input(given: Any, texts: tuple, ids: tuple):
    request = decode_embeddings(body(input=given))
    assert (request.model, request.texts, request.ids) == ("m", texts, ids)
    assert (request.base64, request.dimensions) == (False, None)


def test_white_space_does_not_hide_the_form():
    assert decode_embeddings(b'{"model":"m","input": \n [ \t [ 5 ] ] }').ids == ([5],)


def test_the_other_fields():
    request = decode_embeddings(body(input="a", encoding_format="base64", dimensions=3, user="u", other={"a": 1}))
    assert (request.base64, request.dimensions) == (True, 3)
    assert not decode_embeddings(body(input="a", encoding_format="float")).base64
    assert not decode_embeddings(body(input="a", encoding_format=None, dimensions=None)).base64


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"", "body: "),
        (b"{", "body: "),
        (b"[]", "body: expected object, got array"),
        (b'{"input":"a"}', "body: object missing required field model"),
        (b'{"model":"m"}', "body: object missing required field input"),
        (body(input="a", model=3), "model: expected str, got int 3"),
        (body(input="a", encoding_format="hex"), 'encoding_format: expected float or base64, got "hex"'),
        (body(input="a", dimensions=0), "dimensions: expected int >= 1, got 0"),
        (body(input=[]), f"input: expected 1 to {MAX_INPUTS} inputs, got 0"),
        (body(input=["a"] * (MAX_INPUTS + 1)), f"input: expected 1 to {MAX_INPUTS} inputs, got {MAX_INPUTS + 1}"),
        (body(input=["a", 1]), "input[1]: expected str, got int 1"),
        (body(input=[1, "a"]), 'input[1]: expected int, got str "a"'),
        (body(input=[[1], "a"]), 'input[1]: expected array, got str "a"'),
        (body(input=[[1], [1.5]]), "input[1][0]: expected int, got float 1.5"),
        (body(input=[-1]), "input[0]: expected int >= 0, got -1"),
        (body(input=[1 << 31]), "input[0]: expected int <= 2147483647, got 2147483648"),
        (body(input=None), "input: expected a string, a list of strings"),
        (body(input={"a": 1}), "input: expected a string, a list of strings"),
        (body(input=7), "input: expected a string, a list of strings"),
        (body(input=[None]), "input: expected a string, a list of strings"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, start: str):
    assert refused(data).startswith(start)


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2)))
def test_vectors_come_back_in_both_forms(rows: list[list[float]]):
    vectors = np.array(rows, np.float32).reshape(-1, 2)
    for as_base64 in (False, True):
        entries = json.loads(b"[" + encode_vectors(vectors, 5, as_base64) + b"]")
        assert [entry["index"] for entry in entries] == list(range(5, 5 + len(rows)))
        assert {entry["object"] for entry in entries} <= {"embedding"}
        given = [entry["embedding"] for entry in entries]
        found = [np.frombuffer(base64.b64decode(v), "<f4") if as_base64 else np.float32(v) for v in given]
        np.testing.assert_array_equal(np.array(found, np.float32).reshape(-1, 2), vectors)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_become_float32(dtype: type):
    (entry,) = json.loads(b"[" + encode_vectors(np.array([[0.5, 2]], dtype), 0, True) + b"]")
    assert np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() == [0.5, 2]


def test_the_answer_holds_all_parts():
    parts = [encode_vectors(np.full((2, 1), n, np.float32), 2 * n, False) for n in range(3)]
    answer = json.loads(b"".join(encode_embeddings('m"', parts, 17)))
    assert (answer["object"], answer["model"]) == ("list", 'm"')
    assert answer["usage"] == {"prompt_tokens": 17, "total_tokens": 17}
    assert [entry["index"] for entry in answer["data"]] == list(range(6))
    assert [entry["embedding"] for entry in answer["data"]] == [[0], [0], [1], [1], [2], [2]]


def test_models():
    entry = {"id": "a", "object": "model", "created": 5, "owned_by": "hybrid"}
    assert json.loads(encode_model("a", 5)) == entry
    assert json.loads(encode_models(["a", "b"], 5)) == {"object": "list", "data": [entry, entry | {"id": "b"}]}
    assert json.loads(encode_models([], 5)) == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (BadRequest("input[3]: no"), "invalid_request_error", "input", "bad_request"),
        (BadRequest("dimensions: no"), "invalid_request_error", "dimensions", "bad_request"),
        (BadRequest("something else: no"), "invalid_request_error", None, "bad_request"),
        (NotFound("model: no such"), "invalid_request_error", "model", "model_not_found"),
        (NotFound("no such path"), "invalid_request_error", None, "not_found"),
        (Unauthorized("no"), "invalid_request_error", None, "invalid_api_key"),
        (TooLarge("no"), "invalid_request_error", None, "too_large"),
        (QueueFull("no"), "rate_limit_error", None, "queue_full"),
        (NotReady("no"), "server_error", None, "not_ready"),
        (DeadlineExceeded("no"), "server_error", None, "deadline_exceeded"),
        (HybridError(""), "server_error", None, "hybrid_error"),
    ],
)
def test_errors(error: HybridError, kind: str, param: str | None, code: str):
    found = json.loads(encode_error(error))["error"]
    assert found == {"message": str(error) or "hybrid_error", "type": kind, "param": param, "code": code}


def test_a_text_that_utf8_cannot_carry():
    assert json.loads(encode_error(BadRequest("\udc80")))["error"]["message"] == "\\udc80"
