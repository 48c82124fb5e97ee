"""The unmodified `openai` SDK against the real text model."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from clients import Counters, folder, leave_after_sending
from server import Server

pytestmark = pytest.mark.slow

KEY = "open-sesame"
TEXT = "A man is playing the guitar."
IDS = [101, 1037, 2158, 2003, 2652, 1996, 2858, 1012, 102]
HEADERS = {"Authorization": f"Bearer {KEY}"}


class Keyed(Server):
    """A server whose snapshot asks for the key as well."""

    def snapshot(self) -> Any:
        with openai.OpenAI(base_url=self.base, api_key=KEY) as client:
            return json.loads(client.get("/hybrid/v1/snapshot", cast_to=str))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    bare = folder(tmp_path_factory.mktemp("models"), "bare", simulated="", head='task = "embed"')
    with Keyed("minilm", "simulated:null", bare, config=f'[server]\napi_keys = ["{KEY}"]\n') as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def vectors(answer: Any) -> np.ndarray:
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data], np.float32)


def test_models(client: openai.OpenAI):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["minilm", "bare"]
    assert client.models.retrieve("minilm") == listed[0]
    assert (listed[0].object, listed[0].owned_by) == ("model", "hybrid")
    assert abs(listed[0].created - time.time()) < 600


def test_a_string_is_the_vector_that_the_other_protocol_gives(server: Server, client: openai.OpenAI):
    answer = client.embeddings.create(model="minilm", input=TEXT, user="somebody")
    (vector,) = vectors(answer)
    assert (answer.object, answer.model, answer.data[0].object) == ("list", "minilm", "embedding")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (len(IDS), len(IDS))
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
    _, other = server.post("/v2/models/minilm/infer", body, HEADERS)
    np.testing.assert_allclose(vector, other["outputs"][0]["data"], atol=1e-6)


@pytest.mark.parametrize("text", [TEXT, "Stocks fell sharply.", "\u20ac \u2603"])
def test_float_and_base64_are_the_same_numbers(client: openai.OpenAI, text: str):
    # One text at a time: of several, those that share a batch are padded alike, and which do is a matter of time.
    as_float = client.embeddings.create(model="minilm", input=text, encoding_format="float", dimensions=384)
    given = client.embeddings.create(model="minilm", input=text, encoding_format="base64")
    found = [np.frombuffer(base64.b64decode(entry.embedding), "<f4") for entry in given.data]
    np.testing.assert_allclose(vectors(as_float), found, atol=1e-6)
    assert as_float.usage == given.usage


def test_token_ids_skip_the_tokenizer(client: openai.OpenAI):
    (same,) = vectors(client.embeddings.create(model="minilm", input=TEXT))
    one = client.embeddings.create(model="minilm", input=IDS)
    assert one.usage.prompt_tokens == len(IDS)
    assert vectors(one)[0] @ same > 0.9999
    several = client.embeddings.create(model="minilm", input=[[101, 102], IDS, [101, 2158, 102]])
    assert several.usage.prompt_tokens == 2 + len(IDS) + 3
    assert vectors(several)[1] @ same > 0.9999


def test_a_long_list_is_counted_once_and_keeps_its_order(server: Server, client: openai.OpenAI):
    texts = [f"{number} " + "word " * (number % 9) for number in range(300)]
    counters = Counters(server, "minilm")
    found = vectors(client.embeddings.create(model="minilm", input=texts))
    since = counters.since()
    assert (since["ok"], since["rows"]) == (1, 300)
    for number in (0, 127, 128, 255, 256, 299):
        (alone,) = vectors(client.embeddings.create(model="minilm", input=texts[number]))
        assert found[number] @ alone > 0.999
        assert np.argmax(found @ alone) == number


def test_up_to_2048_inputs(client: openai.OpenAI):
    answer = client.embeddings.create(model="minilm", input=[[101]] * 2048)
    assert len(vectors(answer)) == answer.usage.prompt_tokens == 2048
    with pytest.raises(openai.BadRequestError, match="expected 1 to 2048 inputs, got 2049"):
        client.embeddings.create(model="minilm", input=[[101]] * 2049)


@pytest.mark.parametrize(
    ("given", "kind", "param", "message"),
    [
        ({"model": "MiniLM", "input": "a"}, openai.NotFoundError, "model", "no model named 'MiniLM'; served here: "),
        ({"model": "null", "input": "a"}, openai.NotFoundError, "model", "makes no embeddings"),
        (
            {"model": "bare", "input": "a"},
            openai.BadRequestError,
            "model",
            "bare takes no text; use /v2/models/bare/infer",
        ),
        ({"model": "minilm", "input": []}, openai.BadRequestError, "input", "got 0"),
        ({"model": "minilm", "input": [IDS, []]}, openai.BadRequestError, "input", "input[1]: expected 1 to 256"),
        ({"model": "minilm", "input": [1] * 257}, openai.BadRequestError, "input", "token ids, got 257"),
        ({"model": "minilm", "input": [30522]}, openai.BadRequestError, "input", "none of the vocabulary"),
        ({"model": "minilm", "input": [1.5]}, openai.BadRequestError, "input", "expected int"),
        (
            {"model": "minilm", "input": "a", "dimensions": 256},
            openai.BadRequestError,
            "dimensions",
            "have 384, got 256",
        ),
    ],
)
def test_errors(client: openai.OpenAI, given: dict, kind: type[openai.APIStatusError], param: str, message: str):
    with pytest.raises(kind) as caught:
        client.embeddings.create(**given)
    error = caught.value
    assert message in error.body["message"]
    assert (error.body["type"], error.param) == ("invalid_request_error", param)
    assert error.code == ("model_not_found" if kind is openai.NotFoundError else "bad_request")


def test_keys(server: Server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="wrong") as client:
        for call in (client.models.list, lambda: client.embeddings.create(model="minilm", input="a")):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"


def test_a_deadline_ends_all_parts_and_is_counted_once(server: Server, client: openai.OpenAI):
    counters = Counters(server, "minilm")
    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model="minilm", input=[TEXT] * 1000, extra_headers={"X-Request-Timeout-Ms": "100"})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    server.until(lambda: counters.depth() == 0, what="an empty queue")
    since = counters.since()
    assert {name: since[name] for name in ("ok", "late", "left") if name in since} == {"late": 1}
    assert since.get("rows", 0) < 500


def test_a_client_that_leaves_ends_all_parts_and_is_counted_once(server: Server):
    counters = Counters(server, "minilm")
    body = {"model": "minilm", "input": [TEXT] * 1000}
    sock = leave_after_sending(server.port, "/v1/embeddings", body, HEADERS)
    server.until(lambda: counters.since().get("batches"), what="a batch")
    sock.close()
    server.until(lambda: counters.since().get("left"), what="a client that left")
    server.until(lambda: counters.depth() == 0, what="an empty queue")
    since = counters.since()
    assert {name: since[name] for name in ("ok", "late", "left") if name in since} == {"left": 1}
    assert since["rows"] < 500


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("get", "/embeddings", 405, "method_not_allowed"),
        ("post", "/models", 405, "method_not_allowed"),
        ("get", "/models/other", 404, "model_not_found"),
        ("get", "/nothing", 404, "not_found"),
        ("get", "", 404, "not_found"),
    ],
)
def test_other_paths(client: openai.OpenAI, method: str, path: str, status: int, code: str):
    with pytest.raises(openai.APIStatusError) as caught:
        getattr(client, method)(path, cast_to=str)
    assert (caught.value.status_code, caught.value.code) == (status, code)
