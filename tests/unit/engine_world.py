"""For the tests of real engines."""

import numpy as np
import pytest

from hybrid.engines.base import Engine, EngineFailure


def fails(engine: Engine, **inputs: np.ndarray) -> EngineFailure:
    """What a run on these inputs raises; the first of them says how many rows it is for."""
    with pytest.raises(EngineFailure) as caught:
        engine.run(inputs, len(next(iter(inputs.values()))))
    return caught.value
