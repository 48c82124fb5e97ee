"""API keys and TLS, by configuration file, with ordinary clients."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gevent.ssl
import numpy as np
import pytest
import tritonclient.http as triton
import trustme
from clients import Client, fp32, post
from server import Server

pytestmark = pytest.mark.slow

KEYS = ("first-key", "second-key")
PATH = "/v2/models/simulated:null/infer"
PROTECTED = (
    "/v2",
    "/v2/models/null",
    "/v2/models/null/ready",
    "/v2/models/null/stats",
    "/v2/models/nope",
    "/metrics",
    "/hybrid/v1/snapshot",
    "/hybrid/v1/plan",
    "/hybrid/v1/stream",
    "/nowhere",
)


class Authority:
    """A certificate authority and the files of a server certificate for 127.0.0.1."""

    def __init__(self, root: Path) -> None:
        self.ca = trustme.CA()
        issued = self.ca.issue_cert("127.0.0.1", "localhost")
        self.certificate, self.key, self.root = (str(root / name) for name in ("cert.pem", "key.pem", "ca.pem"))
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(self.certificate, append=number > 0)
        issued.private_key_pem.write_to_path(self.key)
        self.ca.cert_pem.write_to_path(self.root)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    with Server("simulated:null", config=f'[server]\napi_keys = ["{KEYS[0]}", "{KEYS[1]}"]\n') as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[Server]:
    tls = f'[server.tls]\ncertificate = "{authority.certificate}"\nkey = "{authority.key}"\n'
    with Server("simulated:null", config=tls) as running:
        yield running


def status(server: Server, path: str, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    if answer.status == 401:
        assert answer.getheader("WWW-Authenticate") == "Bearer"
    connection.close()
    return answer.status


def test_health_is_open_and_nothing_else(keyed: Server):
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert status(keyed, path) == 200
    for path in PROTECTED:
        assert status(keyed, path) == 401, path
        assert status(keyed, path, {"X-API-Key": "wrong"}) == 401, path
    for path in ("/metrics", "/hybrid/v1/snapshot", "/v2/models/null/ready"):
        assert status(keyed, path, {"X-API-Key": KEYS[0]}) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first-key"}, 200),
        ({"authorization": "bearer  second-key "}, 200),
        ({"X-API-Key": "second-key"}, 200),
        ({"X-API-Key": "second-ke"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"Authorization": "first-key"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"X-API-Key": "\xe9\xe8"}, 401),
    ],
)
async def test_inference_needs_a_key(keyed: Server, headers: dict[str, str], expected: int):
    answer = await post(keyed.port, PATH, fp32([1.0], (1, 1)), headers)
    assert answer.status == expected
    if expected == 401:
        assert answer.body["code"] == "unauthorized"
        assert "X-API-Key" in answer.body["error"]


async def test_keys_are_looked_at_before_bodies_and_connections_go_on(keyed: Server):
    async with Client(keyed.port) as client:
        assert (await client.post(PATH, b"not json")).status == 401
        assert (await client.post(PATH, b"not json", {"X-API-Key": KEYS[0]})).status == 400
        assert (await client.post("/v2/models/nope/infer", b"{}")).status == 401
        assert (await client.post(PATH, fp32([1.0], (1, 1)), {"X-API-Key": KEYS[1]})).status == 200


def test_keys_are_never_written_anywhere(keyed: Server):
    plan = urllib.request.Request(keyed.base + "/hybrid/v1/snapshot", headers={"X-API-Key": KEYS[0]})
    with urllib.request.urlopen(plan) as answer:
        shown = answer.read().decode()
    assert not any(key in text for key in KEYS for text in (shown, keyed.out, keyed.err))


def infer_with(client: triton.InferenceServerClient, **more: object) -> None:
    x = triton.InferInput("x", [2, 3], "FP32")
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.set_data_from_numpy(mine)
    np.testing.assert_array_equal(client.infer("simulated:null", [x], **more).as_numpy("y"), mine)


def test_tritonclient_with_a_key(keyed: Server):
    with triton.InferenceServerClient(f"127.0.0.1:{keyed.port}") as client:
        assert client.is_server_ready()
        infer_with(client, headers={"Authorization": f"Bearer {KEYS[0]}"})
        with pytest.raises(Exception, match="a valid API key is needed"):
            infer_with(client)


def test_tls_with_urllib(encrypted: Server, authority: Authority):
    context = ssl.create_default_context(cafile=authority.root)
    for host in ("127.0.0.1", "localhost"):
        with urllib.request.urlopen(f"https://{host}:{encrypted.port}/v2/health/ready", context=context) as answer:
            assert answer.status == 200
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[4.5]}]}'
    with urllib.request.urlopen(f"https://127.0.0.1:{encrypted.port}{PATH}", body, context=context) as answer:
        assert b'"data":[4.5]' in answer.read()
    assert f"https://127.0.0.1:{encrypted.port}" in encrypted.out


def test_tls_with_tritonclient(encrypted: Server, authority: Authority):
    client = triton.InferenceServerClient(
        f"127.0.0.1:{encrypted.port}",
        ssl=True,
        ssl_options={"ca_certs": authority.root},
        ssl_context_factory=lambda: gevent.ssl.create_default_context(cafile=authority.root),
    )
    with client:
        assert client.is_server_live()
        infer_with(client)


async def test_who_does_not_speak_tls_harms_nobody(encrypted: Server, authority: Authority):
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"https://127.0.0.1:{encrypted.port}/v2", context=ssl.create_default_context())  # noqa: ASYNC210
    with pytest.raises(Exception, match=r"0 bytes read|reset|closed"):
        async with Client(encrypted.port) as client:
            await client.post(PATH, fp32([1.0], (1, 1)))
    test_tls_with_urllib(encrypted, authority)
