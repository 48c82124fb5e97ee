"""A request that works as printed, for each kind of model."""

import json
import shlex

from hybrid.config import ModelSettings


def curl_line(base: str, model: ModelSettings, needs_key: bool) -> str:
    """Return a curl command that infers one example row on `model`."""
    key = "-H 'Authorization: Bearer KEY' " if needs_key else ""
    insecure = "-k " if base.startswith("https") else ""
    url = f"{base}/v2/models/{model.name}/infer"
    body = _body(model)
    if body is None:
        return f"curl -s {insecure}{key}{base}/v2/models/{model.name}"
    return f"curl -s {insecure}{key}{url} -d {shlex.quote(json.dumps(body, separators=(',', ':')))}"


def _body(model: ModelSettings) -> dict[str, object] | None:
    """A body for models whose input is known before they are loaded; None for any other: ask for its metadata first."""
    if model.preprocess.text is not None:
        rows = list(model.example_rows[:2]) or ["hello"]
        return _one_input(model.preprocess.text.input, "BYTES", [len(rows)], rows)
    if model.preprocess.image is not None and model.example_rows:
        return _one_input(model.preprocess.image.input, "BYTES", [1], [model.example_rows[0]])
    if model.simulated is not None:
        columns = max(1, model.simulated.columns)
        return _one_input("x", "FP32", [1, columns], [1.0] * columns)
    return None


def _one_input(
    name: str, datatype: str, shape: list[int], data: list[object] | list[str] | list[float]
) -> dict[str, object]:
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": list(data)}]}
