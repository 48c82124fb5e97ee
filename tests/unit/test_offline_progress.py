"""Progress in words: rates over the last seconds, totals that are known or estimated, and when a line is due."""

import pytest

from hybrid.offline import progress
from hybrid.offline.progress import Lines, Rate, as_text, choose, readable_s, total_rows
from hybrid.offline.report import Counts


def counts(done: int = 0, elapsed_s: float = 0.0, **more: int | None) -> Counts:
    values = {"start": 0, "faults_n": 0, "rows_n": 1000, "position": 0, "size": 0} | more
    return Counts(done_n=done, elapsed_s=elapsed_s, **values)  # type: ignore[arg-type]


def test_a_line_says_how_far_how_fast_and_how_long():
    assert as_text(counts(250, faults_n=2), 312.4, 2.4) == "250 of 1,000 rows (25 %), 312 rows/s, 2 s left, 2 errors"
    assert as_text(counts(250, rows_n=None), 10.0, None) == "250 rows, 10 rows/s"
    assert as_text(counts(0, rows_n=0), 0.0, None) == "0 of 0 rows (100 %), 0 rows/s"
    estimate = counts(250, rows_n=None, position=50, size=100)
    assert as_text(estimate, 10.0, 25.0) == "250 of about 500 rows (50 %), 10 rows/s, 25 s left"


def test_a_total_is_never_below_what_is_done():
    assert total_rows(counts(250, rows_n=None, position=101, size=100)) == 250
    assert total_rows(counts(0, rows_n=None, position=50, size=100)) is None


def test_the_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.observe(counts(0, 0.0)) == (0.0, None)
    assert rate.observe(counts(100, 10.0)) == (10.0, 90.0)
    for second in range(11, 40):
        speed, left_s = rate.observe(counts(100 + 20 * (second - 10), float(second)))
    assert speed == pytest.approx(20.0)
    assert left_s == pytest.approx((1000 - 680) / 20)


def test_rows_of_earlier_runs_are_not_speed():
    assert Rate().observe(counts(900, 2.0, start=800)) == (50.0, 2.0)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (12000, "3 h 20 min")])
def test_durations(seconds, text):
    assert readable_s(seconds) == text


def test_lines_come_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = Lines()
    for second in range(25):
        now[0] = float(second)
        lines.show(counts(second, now[0]))
    lines.close()
    assert capsys.readouterr().err.splitlines() == [
        "0 of 1,000 rows (0 %), 0 rows/s",
        "10 of 1,000 rows (1 %), 1 rows/s, 16 min 30 s left",
        "20 of 1,000 rows (2 %), 1 rows/s, 16 min 20 s left",
    ]


def test_who_wants_none_gets_none(capsys):
    shown = choose(quiet=True)
    shown.show(counts(5, 1.0))
    shown.close()
    assert capsys.readouterr().err == ""
    assert isinstance(choose(quiet=False), Lines)  # standard error is no terminal here
