"""How the benchmark of fixed batches lets the parts of a batch begin together."""

from types import SimpleNamespace

import pytest

from bench import planner_fixed
from hybrid.probing.messages import Timed


class Late:
    """A crew of two, whose inputs need `ready_s` before a batch can begin; notes the leads that it was given."""

    def __init__(self, ready_s):
        self.ready_s = ready_s
        self.leads_s = []

    def ask(self, command, kind, patience_s):
        self.leads_s.append(command.begin_at)
        if command.begin_at < self.ready_s:
            return [Timed(((1.0, 1.5),)), Timed(())]
        return [Timed(((1.0, 1.5),)), Timed(((1.1, 1.7),))]


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    monkeypatch.setattr(planner_fixed, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.parametrize("ready_s", [0.0, 0.002, 0.04, 1.9])
def test_inputs_that_take_long_are_waited_for(ready_s):
    runner = planner_fixed._Runner(Late(ready_s), 32)
    assert [runner.once() for _ in range(20)] == pytest.approx([0.7] * 20)


def test_a_lead_is_shortened_only_by_a_run_on_time():
    crew = Late(0.04)
    runner = planner_fixed._Runner(crew, 32)
    for _ in range(5):
        runner.once()
    for before, after in zip(crew.leads_s, crew.leads_s[1:], strict=False):
        assert (after > before) is (before < crew.ready_s)
    crew.ready_s = 0.0
    for _ in range(10):
        runner.once()
    assert crew.leads_s[-1] == crew.leads_s[0]


def test_a_crew_that_is_never_ready_is_given_up_at_leads_that_are_bounded():
    crew = Late(9.0)
    with pytest.raises(RuntimeError, match="32 rows: never ready in time"):
        planner_fixed._Runner(crew, 32).once()
    assert max(crew.leads_s) == 2.0
