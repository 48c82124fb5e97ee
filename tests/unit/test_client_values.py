"""What our client makes of values, URLs and errors; connections are in the flow tests."""

import json
from typing import Any

import numpy as np
import pytest

from hybrid import client as module
from hybrid.client import Client
from hybrid.errors import BadRequest, HybridError, MethodNotAllowed, NotFound, QueueFull, WorkerLost


def tensor(values: Any) -> tuple[str, tuple[int, ...], list]:
    made = module._tensor("x", values)
    return made.datatype, made.array.shape, made.array.tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.ones((1, 2), np.float32), ("FP32", (1, 2), [[1, 1]])),
        (np.ones((1, 2), np.float16), ("FP16", (1, 2), [[1, 1]])),
        (np.ones(2, np.uint16), ("UINT16", (2,), [1, 1])),
        ([True, False], ("BOOL", (2,), [True, False])),
        ([[1, 2], [3, 4]], ("INT64", (2, 2), [[1, 2], [3, 4]])),
        ([1.5], ("FP64", (1,), [1.5])),
        (["a", "\u20ac"], ("BYTES", (2,), [b"a", "\u20ac".encode()])),
        ([b"a\0", "b"], ("BYTES", (2,), [b"a\0", b"b"])),
        ([["a"], ["b"]], ("BYTES", (2, 1), [[b"a"], [b"b"]])),
        (np.array(["a", "b"]), ("BYTES", (2,), [b"a", b"b"])),
    ],
)
def test_values_become_tensors(values: Any, expected: tuple):
    assert tensor(values) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([None], "input 'x': expected numbers, strings or bytes, got NoneType"),
        (np.array([1 + 2j]), "input 'x': numpy type complex128 has no datatype"),
    ],
)
def test_values_that_no_tensor_holds(values: Any, message: str):
    with pytest.raises(BadRequest, match=message):
        tensor(values)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://a:99999"])
def test_urls_that_are_none(url: str):
    with pytest.raises(BadRequest, match=r"^url "):
        Client(url)


def told(status: int, body: bytes, **headers: str) -> HybridError:
    return module._error(module._Answer(status, headers, body), "http://there")


@pytest.mark.parametrize("kind", [BadRequest, NotFound, MethodNotAllowed, WorkerLost, HybridError])
def test_errors_come_back_as_what_they_were(kind: type[HybridError]):
    error = told(kind.status, json.dumps({"error": "why", "code": kind("").code}).encode())
    assert (type(error), str(error)) == (kind, "why")


def test_when_to_come_back():
    body = json.dumps({"error": "why", "code": "queue_full"}).encode()
    error = told(429, body, **{"retry-after": "7"})
    assert isinstance(error, QueueFull)
    assert error.retry_after_s == 7
    assert told(429, body, **{"retry-after": "soon"}).retry_after_s == 1


def test_answers_of_something_else():
    assert str(told(502, b"<html>Bad Gateway")) == "http://there answered with status 502: <html>Bad Gateway"
    assert str(told(418, b'{"error":"tea","code":"from_the_future"}')) == "tea"
