"""What `hybrid tune` prints at its end: how to serve by the result."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hybrid.cli import serve, tune
from hybrid.planner.measures import Setting

NUMBERS = "--workers 2 --threads 1 --max-batch 4 --max-wait-ms 0.5"


@pytest.mark.parametrize(
    ("batching", "url", "ending"),
    [
        ("max_wait_s = 0.002", None, ""),
        # Without it the server would refuse to start: 8 rows are more than a full batch.
        ("early_trigger = 8", None, " --early-trigger 4"),
        ("", "http://127.0.0.1:8000", " --early-trigger 4"),
    ],
)
def test_the_line_to_serve_by_undoes_the_models_own_early_trigger(tmp_path: Path, batching, url, ending) -> None:
    (tmp_path / "model.toml").write_text(f"[simulated]\n[batching]\n{batching}\n")
    outcome = SimpleNamespace(found=SimpleNamespace(setting=Setting("simulated", 2, 1, 4, 0.5)))
    wanted = SimpleNamespace(model=str(tmp_path), url=url, save=None)
    assert list(tune._use(outcome, wanted)) == [f"hybrid serve {tmp_path} {NUMBERS}{ending}"]


def test_serve_takes_every_option_of_the_line() -> None:
    options = {name for parameter in serve.serve.params for name in parameter.opts}
    assert options >= {*(word for word in NUMBERS.split() if word.startswith("--")), "--early-trigger", "--engine"}
