"""For tests with real processes: the test that leaves one behind is the one that fails."""

import leaks
import pytest


@pytest.fixture(autouse=True)
def no_process_left_behind():
    before = set(leaks.descendants())
    yield
    left = leaks.left_processes(before)
    assert not left, "processes left behind by this test:\n" + "\n".join(left)
