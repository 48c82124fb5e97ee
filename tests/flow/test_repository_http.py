"""The repository over HTTP and gRPC: index, load, unload, versions, who may, and what a server starts with."""

import http.client
import json
import re

import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import Load, ask, folder, index, load, plus, truncate
from server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folder(root, "a", 1.0)
    folder(root, "b", 2.0, 'versions = "all"', "1")
    folder(root, "b", 3.0, 'versions = "all"', "2")
    folder(root, "broken", 0.0, "max_batch = 1")
    folder(root, "torn", 0.0)
    truncate(root / "torn" / "m.onnx")
    return root


@pytest.fixture(scope="module")
def server(root):
    with Server("simulated:null", options=["--repository", str(root)]) as running:
        yield running


def test_what_can_be_served_is_and_the_rest_has_a_reason(server):
    found = index(server)
    ready = {key for key, (state, _) in found.items() if state == "READY"}
    assert ready == {("simulated:null", "1"), ("a", "1"), ("b", "1"), ("b", "2")}
    assert "unknown key `max_batch`" in found["broken", ""][1]
    assert found["torn", "1"][0] == "UNAVAILABLE"
    assert "torn cannot start" in found["torn", "1"][1]
    assert "torn" not in server.out.partition("ready on ")[2]  # nor in the line to try
    assert "broken is not served" in server.err
    assert server.get("/v2/health/ready")[0] == 200
    assert server.get("/v2/models/torn/ready") == (503, {"name": "torn", "ready": False})
    assert ask(server, "torn") == 404
    assert "torn is not loaded: " in server.get("/v2/models/torn")[1]["error"]
    ready_only = server.post("/v2/repository/index", {"ready": True})[1]
    assert {(entry["name"], entry["version"]) for entry in ready_only} == ready


def test_versions_have_paths_of_their_own(server):
    assert [ask(server, path) for path in ("b", "b/versions/1", "b/versions/2")] == [3.0, 2.0, 3.0]
    assert ask(server, "b/versions/3") == 404
    assert server.get("/v2/models/b")[1]["versions"] == ["1", "2"]
    assert server.get("/v2/models/b/versions/2")[1]["versions"] == ["2"]
    plans = [plan["version"] for plan in server.get("/hybrid/v1/plan")[1] if plan["model"] == "b"]
    assert plans == ["1", "2"]


def test_unloading_one_of_two_under_load_disturbs_nobody(server):
    with Load(server, "b", clients=2) as others:
        assert load(server, "a", "unload") == (200, {})
        assert ask(server, "a") == 404
        assert server.get("/v2/models/a/ready") == (503, {"name": "a", "ready": False})
        assert server.get("/v2/models/b/ready")[0] == 200
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 200
        assert index(server)["a", "1"] == ("UNAVAILABLE", "unloaded")
        assert not [worker for worker in server.workers() if worker["model"] == "a"]
        assert load(server, "a", "unload") == (200, {})
        assert load(server, "a") == (200, {})
        assert ask(server, "a") == 1.0
    assert set(others.answers) == {(3.0, "2")}


def test_accepted_requests_of_an_unloaded_model_are_answered(server, root):
    path = root / "slow"
    path.mkdir()
    (path / "model.toml").write_text(
        "[workers]\ninstances = 1\n[batching]\nmax_batch = 1\n[simulated]\nfixed_ms = 150\n"
    )
    assert ask(server, "slow") == 404
    assert index(server)["slow", ""] == ("UNAVAILABLE", "not loaded")
    assert load(server, "slow") == (200, {})
    with Load(server, "slow", clients=4) as clients:
        server.until(lambda: len(clients.answers) > 2, what="requests are answered")
        assert load(server, "slow", "unload")[0] == 200
    answered = [answer for answer in clients.answers if answer == (0.0, "1")]
    refused = [answer for answer in clients.answers if answer[0] == 404]
    assert len(answered) >= 4
    assert len(answered) + len(refused) == len(clients.answers)


def test_tritonclient_over_http(server, root):
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        names = {entry["name"] for entry in client.get_model_repository_index()}
        assert {"a", "b", "broken"} <= names
        client.unload_model("a")
        assert not client.is_model_ready("a")
        client.load_model("a")
        assert client.is_model_ready("a")
        with pytest.raises(tritonclient.http.InferenceServerException, match=r"parameters\.config: not taken"):
            client.load_model("a", config=json.dumps({"max_batch_size": 3}))
        with pytest.raises(tritonclient.http.InferenceServerException, match="no model named 'nobody'"):
            client.load_model("nobody")
        with pytest.raises(tritonclient.http.InferenceServerException, match="torn"):
            client.load_model("torn")


def test_tritonclient_over_grpc(server):
    port = re.search(r"^gRPC on .*:(\d+)$", server.out, re.MULTILINE)
    assert port
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port[1]}") as client:
        assert {"a", "b"} <= {entry.name for entry in client.get_model_repository_index().models}
        client.unload_model("a")
        assert not client.is_model_ready("a")
        client.load_model("a")
        assert client.is_model_ready("a")
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="torn"):
            client.load_model("torn")
        with pytest.raises(tritonclient.grpc.InferenceServerException, match=r"parameters\.config: not taken"):
            client.load_model("a", config="{}")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v2/repository/index", b"", 405),
        ("GET", "/v2/repository/models/a/load", b"", 405),
        ("POST", "/v2/repository/models/a/load", b"[", 400),
        ("POST", "/v2/repository/models/a/load", b'{"parameters": 3}', 400),
        ("POST", "/v2/repository/models/a/load", b'{"parameters": {"file:1/m.onnx": "AA=="}}', 400),
        ("POST", "/v2/repository/index", b'{"ready": "yes"}', 400),
        ("POST", "/v2/repository/models/a/reload", b"", 404),
        ("POST", "/v2/repository/models/..%2F..%2Fa/load", b"", 404),
        ("POST", "/v2/repository/models/a%00/unload", b"", 404),
        ("POST", "/v2/repository/models//load", b"", 404),
        ("POST", "/v2/repository/models/a/versions/1/load", b"", 404),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(server, method, path, body, status):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert (answer.status, "error" in json.loads(answer.read())) == (status, True)
    finally:
        connection.close()
    assert server.get("/v2/models/a/ready")[0] == 200


def test_a_proxy_or_a_web_page_may_not(server):
    assert load(server, "a", headers={"X-Forwarded-For": "203.0.113.9"})[0] == 401
    status, answer = load(server, "a", headers={"Origin": "http://attacker.example"})
    assert status == 401
    assert "server.admin_token" in answer["error"]


def test_with_an_admin_token_it_is_asked_for(tmp_path):
    folder(tmp_path, "a", 1.0)
    with Server(config=f'repository = "{tmp_path}"\n[server]\nadmin_token = "s3cret"\napi_keys = ["key"]\n') as server:
        assert load(server, "a")[0] == 401
        assert load(server, "a", headers={"X-API-Key": "key"})[0] == 401
        assert load(server, "a", headers={"X-Admin-Token": "s3cret"}) == (200, {})
        assert load(server, "a", "unload", headers={"Authorization": "Bearer s3cret"}) == (200, {})
        assert server.post("/v2/repository/index", b"", {"X-Admin-Token": "s3cret"})[0] == 401
        assert server.post("/v2/repository/index", b"", {"X-API-Key": "key"})[0] == 200
        assert "s3cret" not in server.err + server.out


def test_an_empty_repository_is_ready_and_fills_up(tmp_path):
    with Server(options=["--repository", str(tmp_path)]) as server:
        assert server.get("/v2/health/ready") == (200, {"ready": True})
        assert index(server) == {}
        assert "models: none yet" in server.out
        plus(tmp_path / "late" / "m.onnx", 4.0)  # without a model.toml
        assert load(server, "late") == (200, {})
        assert ask(server, "late") == 4.0


@pytest.mark.parametrize("strict", [False, True])
def test_a_repository_of_which_nothing_starts_ends_the_server(tmp_path, strict):
    folder(tmp_path, "torn", 0.0)
    truncate(tmp_path / "torn" / "m.onnx")
    if strict:
        folder(tmp_path, "good", 1.0)
    options = ["--repository", str(tmp_path), *(["--repository-strict"] if strict else [])]
    server = Server(options=options).start()
    assert server.wait() == 1
    assert "model torn cannot start" in server.err.splitlines()[-1]
    assert "ready on" not in server.out
    server.stop()
