"""Numbers on the command line that are none."""

import pytest

from hybrid.cli.main import run


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        ["infer", "minilm", "--text", "a", "--timeout"],
        ["serve", "--max-wait-ms"],
        ["baseline", "minilm", "--seconds"],
        ["tune", "minilm", "--slo-p99-ms"],
        ["tune", "minilm", "--budget-s"],
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_what_is_no_finite_number_is_bad_usage(
    command: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, number]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"'{command[-1]}'" in line


def test_a_wait_is_as_long_as_a_profile_may_say_and_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--max-wait-ms", "86400001"]) == 2
    assert "86400000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["serve", "--workers"], ["serve", "--max-batch"], ["batch", "m", "i", "--threads"]], ids=" ".join
)
def test_numbers_beyond_every_machine_are_bad_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "99999999999999999999"]) == 2
    assert f"'{command[-1]}'" in capsys.readouterr().err
