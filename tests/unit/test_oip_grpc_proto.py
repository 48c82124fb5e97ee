"""Our messages have the names, numbers and types of those that Triton and KServe ship."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
from proto_fields import fields, methods
from tritonclient.grpc import service_pb2 as triton

from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb

#: Prints the fields of KServe's messages. Loaded by path: the package itself would load a whole server.
KSERVE = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
from proto_fields import fields, methods
root = importlib.util.find_spec("kserve").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("kserve_pb2", root + "/protocol/grpc/grpc_predict_v2_pb2.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([fields(module.DESCRIPTOR), methods(module.DESCRIPTOR)]))
"""


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    return {name: (value, theirs.get(name)) for name, value in ours.items() if theirs.get(name) != value}


def test_every_field_is_that_of_triton():
    extra = set(differing(fields(pb.DESCRIPTOR), fields(triton.DESCRIPTOR)))
    assert extra == {
        "inference.RepositoryModelLoadResponse.model_name",
        "inference.RepositoryModelLoadResponse.isLoaded",
        "inference.RepositoryModelUnloadResponse.model_name",
        "inference.RepositoryModelUnloadResponse.isUnloaded",
    }


def test_every_method_is_that_of_triton():
    assert not differing(methods(pb.DESCRIPTOR), methods(triton.DESCRIPTOR))
    assert len(methods(pb.DESCRIPTOR)) == 9


def test_no_field_of_a_message_that_we_have_is_missing():
    ours = fields(pb.DESCRIPTOR)
    messages = {name.rpartition(".")[0] for name in ours}
    theirs = {name for name in fields(triton.DESCRIPTOR) if name.rpartition(".")[0] in messages}
    assert not theirs - ours.keys()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("kserve") is None, reason="kserve is not installed: `make test` does")
def test_every_field_of_kserve_is_ours():
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", KSERVE, folder], capture_output=True, text=True, check=True)
    theirs, their_methods = json.loads(done.stdout)
    assert len(theirs) > 60
    wrong = differing(theirs, fields(pb.DESCRIPTOR))
    assert {name.split(".")[1] for name in wrong} <= {"RepositoryModelLoadRequest", "RepositoryModelUnloadRequest"}
    assert not differing(their_methods, methods(pb.DESCRIPTOR))


def test_the_messages_share_a_process_with_those_of_triton():
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"abc"])
    made.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
    made.parameters["timeout"].int64_param = 5
    theirs = triton.ModelInferRequest.FromString(made.SerializeToString())
    assert theirs.inputs[0].contents.fp32_contents == [0.5]
    assert pb.ModelInferRequest.FromString(theirs.SerializeToString()) == made
