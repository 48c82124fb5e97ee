"""The command line as a user meets it: real processes, exit codes, one line on stderr."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PLAN_KEYS = {
    "model", "device", "engine", "instances", "threads_per_instance", "max_batch", "max_wait_ms", "early_trigger",
    "batching", "queue_rows", "reasons",
}  # fmt: skip


def hybrid(
    *arguments: str, cwd: Path = REPO, prefix: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    code = "from hybrid.cli.main import main; main()"
    return subprocess.run(
        [*prefix, sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **environ},
        check=False,
    )


def refused(*arguments: str, **more: str) -> str:
    """The one line that a refused command prints; checks that it is one line, on stderr, with exit code 2."""
    done = hybrid(*arguments, **more)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("hybrid: error: ")
    return line


def test_version_and_help() -> None:
    version = hybrid("--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("hybrid 0.")
    help_text = hybrid("--help")
    assert help_text.returncode == 0
    assert all(verb in help_text.stdout for verb in ("serve", "plan", "models", "machine"))


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["machine", "--quick"], ["nonsense"]], ids=" ".join)
def test_what_needs_no_model_loads_neither_numpy_nor_an_engine(arguments: list[str]) -> None:
    code = (
        "import sys; from hybrid.cli.main import run; run(sys.argv[1:]); "
        "loaded = {'numpy', 'onnxruntime', 'rich', 'uvloop', 'PIL', 'tokenizers'} & set(sys.modules); "
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_plan_of_one_model_is_one_object() -> None:
    done = hybrid("plan", "--json", "simulated:null")
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads(done.stdout)
    assert set(plan) >= PLAN_KEYS
    assert (plan["model"], plan["device"], plan["max_batch"]) == ("simulated:null", "simulated", 64)
    numbers = {key for key, value in plan.items() if isinstance(value, int | float)}
    assert numbers <= set(plan["reasons"])


def test_plan_of_several_models_is_a_list() -> None:
    done = hybrid("plan", "--json", "simulated:null", "simulated:echo")
    assert [plan["model"] for plan in json.loads(done.stdout)] == ["simulated:null", "simulated:echo"]


def test_plan_as_text_fits_a_terminal() -> None:
    done = hybrid("plan", "simulated:null")
    assert (done.returncode, done.stderr) == (0, "")
    assert "simulated:null on a simulated device" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_plan_with_a_profile_file(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('[model."simulated:null"]\nmax_batch = 5\n')
    plan = json.loads(hybrid("plan", "--json", "--profile", str(profile), "simulated:null").stdout)
    assert plan["max_batch"] == 5
    assert "profile mine" in plan["reasons"]["max_batch"]


def test_plan_of_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text('name = "slow"\n[simulated]\nfixed_ms = 5\n[batching]\nmax_batch = 7\n')
    plan = json.loads(hybrid("plan", "--json", str(tmp_path)).stdout)
    assert (plan["model"], plan["max_batch"]) == ("slow", 7)


def test_models() -> None:
    rows = json.loads(hybrid("models", "--json").stdout)
    assert {"minilm", "nsfw", "simulated:null"} <= {row["name"] for row in rows}
    text = hybrid("models").stdout
    assert text.startswith("NAME")
    assert "simulated:null" in text


def test_machine() -> None:
    facts = json.loads(hybrid("machine", "--quick", "--json").stdout)
    assert set(facts) >= {"usable_cpus", "memory_limit_bytes", "isa", "numa_nodes", "gpus"}
    assert 1 <= facts["usable_cpus"] <= (os.cpu_count() or 1)
    assert "usable of" in hybrid("machine", "--quick").stdout


@pytest.mark.skipif(shutil.which("taskset") is None or not hasattr(os, "sched_getaffinity"), reason="needs taskset")
def test_affinity_mask_counts() -> None:
    cpu = max(os.sched_getaffinity(0))
    facts = json.loads(hybrid("machine", "--quick", "--json", prefix=("taskset", "-c", str(cpu))).stdout)
    assert (facts["usable_cpus"], facts["cpu_ids"]) == (1, [cpu])
    if facts["online_cpus"] > 1:
        assert "affinity" in facts["usable_cpus_reason"]


@pytest.mark.slow
def test_refusals_are_one_line() -> None:
    assert "unknown model `simulatd`" in refused("plan", "simulatd")
    assert "no such file" in refused("plan", "./no/such/model.onnx")
    assert "did you mean `cpu-small`?" in refused("plan", "--profile", "cpu-smal", "simulated:null")
    assert "two models are called" in refused("plan", "simulated:null", "simulated:null")


def test_usage_errors_are_one_line() -> None:
    assert "unknown command `plam`; did you mean `plan`?" in refused("plam")
    assert "missing command" in refused()
    assert "--jsn" in refused("plan", "--jsn")


def test_wrong_key_in_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text("[simulated]\n[batching]\nmax_bach = 3\n")
    line = refused("plan", str(tmp_path))
    assert "model.toml: unknown key `batching.max_bach`; did you mean `batching.max_batch`?" in line


def test_debug_shows_the_traceback() -> None:
    done = hybrid("plan", "simulatd", HYBRID_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hybrid: error: ")


def test_reader_that_leaves_early_gets_no_traceback() -> None:
    command = f"{sys.executable} -c 'from hybrid.cli.main import main; main()' plan simulated:null | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=REPO, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_are_no_fault(closed: str) -> None:
    command = f'exec "$0" -c "from hybrid.cli.main import main; main()" models {closed}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_that_is_full_is_one_line() -> None:
    for verb in ("models", "plan simulated:null"):
        command = f'exec "$0" -c "from hybrid.cli.main import main; main()" {verb} > /dev/full'
        done = subprocess.run(
            ["bash", "-c", command, sys.executable], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert done.stderr == "hybrid: error: the output cannot be written: No space left on device\n"


def test_files_of_the_working_directory_are_no_modules_of_the_children(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('not this one')")
    command = [sys.executable, "-P", "-m", "hybrid", "serve", "simulated:null", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = []
        try:
            for line in server.stdout:
                said.append(line)
                if "ready on" in line or "RuntimeError" in line:
                    break
        finally:
            server.terminate()
    assert "ready on" in said[-1], "".join(said)
