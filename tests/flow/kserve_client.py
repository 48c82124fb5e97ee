"""The inference clients of KServe's SDK, unmodified: `kserve_client.py grpc|rest PORT TEXT` prints what they got.

Importing `kserve` itself loads its model server with Kubernetes, FastAPI, pandas and CloudEvents, none of which its
clients use, so the package's `__init__` is left out and these libraries are stand-ins. Runs in a process of its own.
"""

import asyncio
import importlib.util
import json
import sys
import types
from unittest.mock import MagicMock

import numpy as np


def _prepare() -> None:
    spec = importlib.util.find_spec("kserve")
    package = types.ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["kserve"] = package
    for name in ("pandas", "fastapi", "fastapi.responses", "cloudevents", "cloudevents.conversion", "cloudevents.http"):
        sys.modules[name] = MagicMock()
    for name in ("kserve.protocol.rest.v2_datamodels",):
        sys.modules[name] = MagicMock()


async def _main(protocol: str, port: str, text: str) -> dict[str, object]:
    from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
    from kserve.protocol.infer_type import InferInput, InferRequest

    def request(model: str, given: InferInput) -> InferRequest:
        return InferRequest(model_name=model, infer_inputs=[given], request_id="k")

    words = InferInput("text", [2], "BYTES")
    words.set_data_from_numpy(np.array([text, text], object), binary_data=False)
    numbers = InferInput("x", [1, 2], "FP32", data=[1.5, 2.5])
    if protocol == "grpc":
        async with InferenceGRPCClient(f"127.0.0.1:{port}") as client:
            ready = [
                await client.is_server_live(),
                await client.is_server_ready(),
                await client.is_model_ready("minilm"),
            ]
            vectors = await client.infer(request("minilm", words))
            values = await client.infer(request("null", numbers))
    else:
        client, base = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://127.0.0.1:{port}"
        ready = [
            await client.is_server_live(base),
            await client.is_server_ready(base),
            await client.is_model_ready(base, "minilm"),
        ]
        vectors = await client.infer(base, request("minilm", words), model_name="minilm")
        values = await client.infer(base, request("null", numbers), model_name="null")
        await client.close()
    array = vectors.outputs[0].as_numpy()
    return {
        "ready": ready,
        "outputs": [[output.name, output.datatype, list(output.shape)] for output in vectors.outputs],
        "norms": np.linalg.norm(array, axis=1).tolist(),
        "cosine": float(array[0] @ array[1]),
        "values": values.outputs[0].as_numpy().tolist(),
    }


if __name__ == "__main__":
    _prepare()
    print(json.dumps(asyncio.run(_main(*sys.argv[1:]))))
