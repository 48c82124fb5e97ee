"""For all tests: a run that leaves processes or shared memory behind fails, whatever its tests said."""

import leaks
import pytest


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_whoever_runs_the_tests(tmp_path_factory):
    """A profile chosen on this machine would change every plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    leaks.mark_this_run()
    processes, files = set(leaks.descendants()), leaks.shm_files()
    yield
    left = leaks.left_processes(processes)
    assert not left, "processes left behind by this test run:\n" + "\n".join(left)
    left = leaks.left_files(files)
    assert not left, f"left in {leaks.SHM} by this test run: {left}"
