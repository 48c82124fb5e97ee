"""What `hybrid tune` prints at its end: how to serve by the result."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hybrid.cli import serve, tune
from hybrid.planner.measures import Setting

NUMBERS = "--workers 2 --threads 1 --max-batch 4 --max-wait-ms 0.5 --early-trigger 4"


@pytest.mark.parametrize(("engine", "ending"), [("simulated", ""), ("openvino", " --engine openvino")])
def test_the_line_to_serve_by_fixes_all_that_the_trials_fixed(tmp_path: Path, engine, ending) -> None:
    """Also the early trigger: one that a profile or the model has may be more than this full batch, and is refused."""
    outcome = SimpleNamespace(found=SimpleNamespace(setting=Setting(engine, 2, 1, 4, 0.5)))
    wanted = SimpleNamespace(model=str(tmp_path), url=None, save=None)
    assert list(tune._use(outcome, wanted)) == [f"hybrid serve {tmp_path} {NUMBERS}{ending}"]


def test_serve_takes_every_option_of_the_line() -> None:
    options = {name for parameter in serve.serve.params for name in parameter.opts}
    assert options >= {*(word for word in NUMBERS.split() if word.startswith("--")), "--engine"}
