"""For tests with real processes: the test that leaves one behind is the one that fails."""

import leaks
import pytest
from server import Server


@pytest.fixture(autouse=True)
def no_process_left_behind():
    before, servers = set(leaks.descendants()), set(Server.open)
    yield
    left = leaks.left_processes(before)
    leaks.end_processes(before)  # or the tests after it, which count processes too, fail for it
    for server in Server.open - servers:
        server.stop()  # or its pipes and its folder are found open within a test after it, which fails for them
    assert not left, "processes left behind by this test:\n" + "\n".join(left)
