"""For all tests: a run that leaves processes or shared memory behind fails, whatever its tests said."""

import signal

import leaks
import pytest

# A shell that starts the tests in the background has them ignore SIGINT, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_whoever_runs_the_tests(tmp_path_factory):
    """A profile chosen on this machine, or a measurement, would change every plan; and tests keep none for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HYBRID_MEASURE", "never")
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
