"""Whether a model could be served at all, found out by one worker: it is ended in any case."""

import os

import psutil
import pytest
from onnx_models import graphs

from hybrid.cli.loading import refuse_unloadable
from hybrid.errors import StartupError
from hybrid.models.catalog import resolve
from hybrid.planner.prepare import plan_here

pytestmark = pytest.mark.slow


def settings_and_plan(path):
    settings = resolve(str(path))
    return settings, plan_here([settings], "none").plans[0]


@pytest.mark.parametrize("patience_s", [30.0, 0.01])
def test_a_model_that_loads_or_is_slow_is_none_to_refuse(tmp_path, patience_s):
    graphs.identity(tmp_path / "echo.onnx", shape=("n", 4))
    refuse_unloadable(*settings_and_plan(tmp_path / "echo.onnx"), patience_s)
    assert psutil.Process(os.getpid()).children() == []


def test_a_broken_one_is_refused_in_the_words_of_a_server(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(StartupError, match=r"model broken cannot start: .*broken\.onnx cannot be loaded: "):
        refuse_unloadable(*settings_and_plan(tmp_path / "broken.onnx"))
    assert psutil.Process(os.getpid()).children() == []
