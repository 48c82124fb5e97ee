"""For tests with real processes: the test that leaves one behind is the one that fails."""

import leaks
import pytest


@pytest.fixture(autouse=True)
def no_process_left_behind():
    before = set(leaks.descendants())
    yield
    left = leaks.left_processes(before)
    leaks.end_processes(before)  # or the tests after it, which count processes too, fail for it
    assert not left, "processes left behind by this test:\n" + "\n".join(left)
