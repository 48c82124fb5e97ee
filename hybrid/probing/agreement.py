"""Whether two engines give the same answer, so that a plan may take the faster one. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

#: Distance of outputs relative to their length. Kernels for 8-bit weights round differently: MiniLM with such weights
#: differs by 0.02 between ONNX Runtime and OpenVINO, and its cosine similarity is 0.9998. Another answer differs by 1.
_DISTANCE: Final = 0.05

#: Numbers of each output; what is not finite is None where it comes from JSON.
Sample = Mapping[str, Sequence[float | None]]


def disagreement(first: Sample, other: Sample) -> str:
    """Say where `other` differs from `first` by more than rounding explains; "" where they agree."""
    if first.keys() != other.keys():
        return f"it has the outputs {', '.join(sorted(other)) or 'none'}, not {', '.join(sorted(first)) or 'none'}"
    for name, values in first.items():
        a, b = np.array(values, float), np.array(other[name], float)
        if a.shape != b.shape:
            return f"output `{name}` has another size"
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)):
            return f"output `{name}` is finite in other places"
        distance, size = float(np.linalg.norm((a - b)[finite])), float(np.linalg.norm(a[finite]))
        if distance > _DISTANCE * size:
            return f"output `{name}` differs by {distance / size if size else np.inf:.2g} of its length"
    return ""
