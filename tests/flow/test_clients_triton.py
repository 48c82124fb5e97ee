"""The unmodified tritonclient against the two real models."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from pictures import picture
from server import Server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

TEXT = "A man is playing the guitar."


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("minilm", "nsfw") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as made:
        yield made


def tensor(name: str, array: np.ndarray, datatype: str = "BYTES", *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def text(*rows: str, binary: bool = True) -> list[triton.InferInput]:
    return [tensor("text", np.array(rows, object), binary=binary)]


def test_what_the_server_says_of_itself(client: triton.InferenceServerClient):
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata()
    assert metadata["name"] == "hybrid"
    assert "binary_tensor_data" in metadata["extensions"]
    for model in ("minilm", "nsfw"):
        assert client.is_model_ready(model)
        assert client.is_model_ready(model, "1")
        assert not client.is_model_ready(model, "2")
    assert not client.is_model_ready("other")
    index = client.get_model_repository_index()
    assert {(entry["name"], entry["version"], entry["state"]) for entry in index} == {
        ("minilm", "1", "READY"),
        ("nsfw", "1", "READY"),
    }


def test_metadata_says_what_to_send(client: triton.InferenceServerClient):
    minilm, nsfw = client.get_model_metadata("minilm"), client.get_model_metadata("nsfw", "1")
    assert minilm["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert minilm["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}]
    assert minilm["versions"] == ["1"]
    assert nsfw["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert [(output["datatype"], output["shape"]) for output in nsfw["outputs"]] == [("FP32", [-1, 2])]


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_text(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool):
    outputs = [triton.InferRequestedOutput("embedding", binary_data=binary_out)]
    inputs = text(TEXT, "Stocks fell sharply.", binary=binary_in)
    result = client.infer("minilm", inputs, outputs=outputs, request_id="mine")
    vectors = result.as_numpy("embedding")
    assert (vectors.shape, vectors.dtype) == ((2, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("mine", "minilm", "1")
    assert response["parameters"]["timings_us"]["compute"] > 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("with_version", ["", "1"])
def test_images(client: triton.InferenceServerClient, kind: str, with_version: str):
    inputs = [tensor("image", np.array([picture(kind)], object))]
    output = client.get_model_metadata("nsfw")["outputs"][0]["name"]
    scores = client.infer("nsfw", inputs, model_version=with_version).as_numpy(output)
    assert scores.shape == (1, 2)
    assert scores.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_raw_tensors_skip_the_preprocess_step(client: triton.InferenceServerClient, binary: bool):
    ids = np.array([[101, 1037, 2158, 2003, 2652, 1996, 2858, 1012, 102]], np.int64)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    inputs = [tensor(name, array, "INT64", binary=binary) for name, array in arrays.items()]
    vector = client.infer("minilm", inputs).as_numpy("embedding")[0]
    same = client.infer("minilm", text(TEXT)).as_numpy("embedding")[0]
    assert vector @ same > 0.9999


@pytest.mark.parametrize("binary", [True, False])
def test_a_raw_image_tensor(client: triton.InferenceServerClient, binary: bool):
    pixels = np.full((1, 224, 224, 3), 0.5, np.float32)
    scores = client.infer("nsfw", [tensor("input:0", pixels, "FP32", binary=binary)]).as_numpy("outputs")
    assert scores.shape == (1, 2)
    assert scores.sum() == pytest.approx(1, abs=1e-5)


def test_async_infer_keeps_requests_apart(client: triton.InferenceServerClient):
    texts = [f"Sentence number {k} about {'cats' if k % 2 else 'ships'}." for k in range(16)]
    alone = [client.infer("minilm", text(one)).as_numpy("embedding")[0] for one in texts]
    pending = [client.async_infer("minilm", text(one), request_id=str(k)) for k, one in enumerate(texts)]
    for k, waiting in enumerate(pending):
        result = waiting.get_result()
        assert result.get_response()["id"] == str(k)
        assert result.as_numpy("embedding")[0] @ alone[k] > 0.9999


@pytest.mark.parametrize("asked", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compressed_requests_and_a_wish_for_compressed_answers(
    client: triton.InferenceServerClient, asked: str, binary: bool
):
    plain = client.infer("minilm", text(TEXT)).as_numpy("embedding")
    outputs = [triton.InferRequestedOutput("embedding", binary_data=binary)]
    result = client.infer(
        "minilm",
        text(TEXT, binary=binary),
        outputs=outputs,
        request_compression_algorithm=asked,
        response_compression_algorithm=asked,
    )
    np.testing.assert_allclose(result.as_numpy("embedding"), plain, atol=1e-5)


def test_timeout_priority_and_foreign_parameters(client: triton.InferenceServerClient):
    given = {"timeout": 5_000_000, "priority": 1, "parameters": {"mine": "ignored"}, "sequence_id": 0}
    assert client.infer("minilm", text(TEXT), **given).as_numpy("embedding").shape == (1, 384)
    with pytest.raises(InferenceServerException, match="deadline") as caught:
        client.infer("minilm", text(TEXT), timeout=1)
    assert caught.value.status() == "504"
    with pytest.raises(InferenceServerException, match=r"parameters\.priority: expected a whole number") as caught:
        client.infer("minilm", text(TEXT), priority=10)
    assert caught.value.status() == "400"


def test_errors_say_what_is_wrong(client: triton.InferenceServerClient):
    def refused(status: str, pattern: str, *arguments: object, **more: object) -> None:
        with pytest.raises(InferenceServerException, match=pattern) as caught:
            client.infer(*arguments, **more)
        assert caught.value.status() == status

    refused("404", "no model named 'MiniLM'; served here: minilm, nsfw", "MiniLM", text(TEXT))
    refused("404", "no version '7'; versions: 1", "minilm", text(TEXT), model_version="7")
    wrong = [tensor("texts", np.array([TEXT], object))]
    refused("400", "missing input 'text'; unknown input 'texts'; the model takes 'text' BYTES", "minilm", wrong)
    typed = [tensor("text", np.ones((1,), np.float32), "FP32")]
    refused("400", "input 'text': expected datatype BYTES, got 'FP32'", "minilm", typed)
    outputs = [triton.InferRequestedOutput("vector")]
    refused("400", "unknown output 'vector'; the model gives 'embedding'", "minilm", text(TEXT), outputs=outputs)
    broken = [tensor("image", np.array([picture("JPEG")[:500]], object))]
    refused("400", "image", "nsfw", broken)
    refused("400", "image", "nsfw", [tensor("image", np.array([b""], object))])
    with pytest.raises(InferenceServerException) as caught:
        client.get_model_metadata("other")
    assert caught.value.status() == "404"


def test_statistics(client: triton.InferenceServerClient):
    before = client.get_inference_statistics("minilm")["model_stats"][0]
    for _ in range(3):
        client.infer("minilm", text(TEXT, TEXT))
    after = client.get_inference_statistics("minilm")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]


def test_several_clients_in_threads(server: Server):
    alone: dict[int, np.ndarray] = {}
    wrong: list[int] = []

    def work(number: int) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as mine:
            for _ in range(8):
                vector = mine.infer("minilm", text(f"This is number {number}.")).as_numpy("embedding")[0]
                if vector @ alone.setdefault(number, vector) < 0.9999:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(alone) == 6
