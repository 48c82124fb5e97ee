"""Our own client and `hybrid infer`, against a real server and against sockets that misbehave."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pictures import picture
from server import Server

from hybrid.client import Client
from hybrid.errors import BadRequest, DeadlineExceeded, NotFound, ServerUnreachable, Unauthorized

pytestmark = pytest.mark.slow

TEXTS = ["A man is playing the guitar.", "Someone plays music on a guitar."]
LIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("minilm", "nsfw", "simulated:null", config="[server.http]\nidle_timeout_s = 0.4\n") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.base) as made:
        yield made


class Peer:
    """A listening socket that answers connection by connection with the given pieces and then closes."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._scripts = scripts
        self.requests_n = 0
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for script in self._scripts:
            connection, _ = self._socket.accept()
            with connection:
                for piece in script:
                    if connection.recv(65536):
                        self.requests_n += 1
                    connection.sendall(piece)
        self._socket.close()

    def join(self) -> int:
        self._thread.join(5)
        assert not self._thread.is_alive()
        return self.requests_n


# The client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False])
def test_inference(client: Client, binary: bool):
    answer = client.infer("minilm", {"text": TEXTS}, binary=binary, outputs=["embedding"], version="1")
    (vectors,) = (tensor.array for tensor in answer.outputs)
    assert (answer.model_name, answer.model_version, answer.batch_rows) == ("minilm", "1", 2)
    assert answer.timings.compute > 0
    assert vectors.shape == (2, 384)
    assert 0.6 < vectors[0] @ vectors[1] < 0.95
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(client.infer("null", {"x": rows}, binary=binary).outputs[0].array, rows)


def test_what_the_server_says_of_itself(client: Client):
    assert [(entry.name, entry.state) for entry in client.models()][:2] == [("minilm", "READY"), ("nsfw", "READY")]
    signature = client.metadata("minilm")
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.inputs] == [("text", "BYTES", (-1,))]
    assert client.metadata("minilm", "1") == signature
    first = client.snapshot()
    stream = client.stream()
    second = next(stream)
    assert next(stream).seq > second.seq > first.seq
    stream.close()


def test_errors_are_those_of_the_server(client: Client):
    with pytest.raises(NotFound, match="no model named 'other'"):
        client.metadata("other")
    with pytest.raises(BadRequest, match="missing input 'text'"):
        client.infer("minilm", {"words": TEXTS})
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        client.infer("minilm", {"text": TEXTS * 100}, timeout_s=0.01)
    assert client.infer("minilm", {"text": TEXTS}).outputs


def test_a_connection_that_the_server_has_closed_is_replaced(server: Server, client: Client):
    """HTT-03: no reset reaches the caller, however long the pause."""
    for pause_s in (0, 0.3, 0.45, 0.9):
        time.sleep(pause_s)
        assert len(client.models()) == 3


def test_it_is_sent_again_once_and_only_on_a_used_connection():
    peer = Peer([LIVE], [LIVE, b""])
    with Client(peer.url) as client:
        assert client.models() == ()
        time.sleep(0.05)
        assert client.models() == ()
        with pytest.raises(ServerUnreachable):
            client.models()  # closed on it, and nobody listens any more
    assert peer.join() == 3
    peer = Peer([b""])
    with Client(peer.url) as client, pytest.raises(ServerUnreachable, match="no answer from "):
        client.models()
    assert peer.join() == 1


def test_an_answer_that_breaks_off_is_not_asked_for_again():
    peer = Peer([LIVE, b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n["])
    with Client(peer.url) as client:
        client.models()
        with pytest.raises(ServerUnreachable):
            client.models()
    assert peer.join() == 2


def test_a_refusal_before_the_body_was_read_is_seen(tmp_path: Path):
    with Server("simulated:null", config="[server.http]\nmax_body_bytes = 100_000\n") as server:
        with Client(server.base) as client, pytest.raises(BadRequest) as caught:
            client.infer("null", {"x": np.zeros((1, 5_000_000), np.float32)})
        assert caught.value.code == "too_large"


def test_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_s=0.2) as client, pytest.raises(DeadlineExceeded, match=r"no answer .* within 0\.2 s"):
            client.snapshot()
    with Client(url) as client, pytest.raises(ServerUnreachable, match="connection refused"):
        client.snapshot()
    with Client(url) as client, pytest.raises(ServerUnreachable, match="connection refused"):
        next(client.stream())


def test_keys():
    with Server("simulated:null", config='[server]\napi_keys = ["open-sesame"]\n') as server:
        with Client(server.base) as client, pytest.raises(Unauthorized):
            client.models()
        with Client(server.base + "/", api_key="open-sesame") as client:
            assert len(client.models()) == 1
            assert next(client.stream()).models


# hybrid infer ------------------------------------------------------------------------------------------------------


def infer(server: Server | str, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    url = server if isinstance(server, str) else server.base
    command = [sys.executable, "-m", "hybrid", "infer", *arguments, "--url", url]
    done = subprocess.run(command, capture_output=True, input=stdin, timeout=30, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("form", [[], ["--binary"]])
def test_texts(server: Server, form: list[str]):
    code, out, err = infer(server, "minilm", "--text", TEXTS[0], "--text", TEXTS[1], *form)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("minilm version 1, in a batch of 2; ms: ")
    assert lines[1] == "embedding FP32 [2, 384]"
    assert [line[:5] for line in lines[2:]] == ["  0: ", "  1: "]
    assert lines[2].endswith(" ... 378 more")


@pytest.mark.parametrize("form", [[], ["--binary"]])
def test_an_image_as_json(server: Server, tmp_path: Path, form: list[str]):
    path = tmp_path / "picture.png"
    path.write_bytes(picture("PNG"))
    code, out, err = infer(server, "nsfw", "--image", str(path), "--as-json", *form)
    assert (code, err) == (0, "")
    (output,) = json.loads(out)["outputs"]
    assert output["shape"] == [1, 2]
    assert sum(output["data"]) == pytest.approx(1, abs=1e-5)


def test_a_request_as_json_from_a_file_and_from_stdin(server: Server, tmp_path: Path):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [30, 1], "data": list(range(30))}]}
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    code, out, _ = infer(server, "null", "--json", str(path))
    assert code == 0
    assert "y FP32 [30, 1]" in out
    assert "and 10 more rows" in out
    code, out, _ = infer(server, "null", "--json", "-", "--binary", "--as-json", stdin=path.read_bytes())
    assert json.loads(out)["outputs"][0]["data"] == list(range(30))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["minilm"], 2, "expected one of --text, --image and --json"),
        (["minilm", "--text", "a", "--json", "-"], 2, "expected one of --text, --image and --json"),
        (["minilm", "--text", "a", "--timeout", "0"], 2, "--timeout"),
        (["minilm", "--image", "/no/such/file"], 1, "/no/such/file: cannot be read: No such file or directory"),
        (["minilm", "--image", __file__], 1, "model minilm takes text, not images: send it with --text"),
        (["other", "--text", "a"], 1, "no model named 'other'"),
        (["null", "--text", "a"], 1, "model null takes x FP32 [-1, -1]: send it with --json"),
        (["null", "--json", "-"], 1, "body: JSON ends too early"),
        (["minilm", "--text", "a", "--ca", "/no/such/file"], 1, "--ca /no/such/file: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line(server: Server, arguments: list[str], code: int, message: str):
    found, out, err = infer(server, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    code, out, err = infer(f"http://127.0.0.1:{port}", "minilm", "--text", "a")
    assert (code, out) == (1, "")
    assert err == (
        f"hybrid: error: no server answers at http://127.0.0.1:{port} (connection refused);"
        " is `hybrid serve` running?\n"
    )
    code, _, err = infer("nowhere", "minilm", "--text", "a")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "expected http://HOST:PORT" in err
