"""Operational laws and batch times: what limits, and whether batching helps."""

import pytest
from msgspec.structs import replace

from hybrid.load.bottleneck import BatchTime, Line, Station, Window, fit, judge
from hybrid.load.observed import max_batch, window
from hybrid.telemetry import snapshot as snap
from hybrid.telemetry.histogram import Hist

FLAT = [BatchTime(1, 0.010), BatchTime(2, 0.0101), BatchTime(4, 0.0103), BatchTime(8, 0.0107)]
LINEAR = [BatchTime(1, 0.010), BatchTime(2, 0.020), BatchTime(4, 0.040)]


def seen(pre=0.0, model=0.0, front=0.0, **more):
    stations = (Station("preprocess", 2, pre), Station("model", 1, model), Station("front end", 1, front))
    defaults = {"seconds": 10.0, "requests_n": 1000, "stations": stations, "batches_n": 1000, "rows_n": 1000}
    return Window(**(defaults | {"total_s": 100.0} | more))


@pytest.mark.parametrize(
    ("busy", "name"),
    [
        ({"pre": 19.0, "model": 6.0, "front": 2.0}, "preprocess"),  # 95 % of two processes
        ({"pre": 12.0, "model": 9.0, "front": 2.0}, "model"),  # the largest sum of seconds is not the bottleneck
        ({"pre": 1.0, "model": 3.0, "front": 8.0}, "front end"),
    ],
)
def test_the_bottleneck_is_the_highest_utilisation(busy, name):
    assert judge(seen(**busy), FLAT, 8).bottleneck == name


def test_the_limit_is_servers_over_demand():
    verdict = judge(seen(pre=16.0), FLAT, 8)
    assert verdict.utilisation == pytest.approx(0.8)
    assert verdict.limit_rps == pytest.approx(2 / 0.016)


def test_the_queue_is_named_only_when_batches_are_held_back():
    waiting = seen(model=2.0, queue_s=90.0)
    assert judge(waiting, FLAT, 8).bottleneck == "model"
    assert judge(replace(waiting, held_n=900), FLAT, 8).bottleneck == "queue"
    assert judge(replace(seen(model=9.0, queue_s=90.0), held_n=900), FLAT, 8).bottleneck == "model"


def test_batching_helps_a_model_with_a_fixed_cost_only():
    flat, linear = judge(seen(model=9.5), FLAT, 8), judge(seen(model=9.5), LINEAR, 8)
    assert flat.batching_helps is True
    assert flat.gain == pytest.approx(7.5, rel=0.05)
    assert linear.batching_helps is False
    assert linear.gain == pytest.approx(1.0, rel=0.01)
    assert "add workers" in linear.advice


def test_batching_does_not_help_where_the_model_waits_for_preprocess():
    verdict = judge(seen(pre=19.5, model=5.0), FLAT, 8)
    assert verdict.batching_helps is False
    assert "larger batches would only wait" in verdict.advice


def test_the_advice_compares_with_the_batches_that_were_reached():
    little = judge(seen(model=9.5), FLAT, 8).advice
    full = judge(seen(model=9.5, batches_n=125), FLAT, 8).advice
    assert "of the 1.0 rows reached" in little
    assert "already gives what it can" in full


def test_without_observations_nothing_is_claimed():
    nothing = Window(seconds=1.0, requests_n=0, stations=())
    verdict = judge(nothing, (), 1)
    assert (verdict.bottleneck, verdict.batching_helps) == (None, None)
    assert judge(seen(model=9.0), [BatchTime(1, 0.01)], 8).gain is None


def test_what_was_not_seen_is_not_denied():
    one_size, alone = (judge(seen(model=9.0), [BatchTime(1, 0.01)], rows) for rows in (8, 1))
    assert (one_size.batching_helps, alone.batching_helps) == (None, None)
    assert "not known" in one_size.advice
    assert "runs every row alone" in alone.advice
    assert judge(seen(pre=19.5), [BatchTime(1, 0.01)], 8).batching_helps is False  # for that it is known


def test_the_fit_finds_a_line_and_never_a_negative_part():
    exact = fit([BatchTime(b, 0.004 + 0.001 * b) for b in (1, 2, 4, 8)])
    assert exact.fixed_s == pytest.approx(0.004)
    assert exact.per_row_s == pytest.approx(0.001)
    steep = fit([BatchTime(1, 0.001), BatchTime(2, 0.003), BatchTime(4, 0.009)])
    assert steep.fixed_s == 0.0
    assert steep.per_row_s > 0.0
    assert fit([BatchTime(1, 0.002), BatchTime(4, 0.001)]).per_row_s == 0.0
    assert fit([BatchTime(1, 0.01), BatchTime(1, 0.011)]) is None
    assert fit([]) is None
    assert Line(0.0, 0.01).gain(8) == pytest.approx(1.0)


def model(ok_n, exec_s, post_s, batches_n, name="simulated:echo"):
    return snap.Model(
        name=name,
        version="1",
        state="ready",
        outcomes=snap.Outcomes(ok_n=ok_n),
        stages=snap.Stages(exec=Hist(sum_s=exec_s), post=Hist(sum_s=post_s), queue=Hist(sum_s=1.0)),
        classes=(snap.SizeClass(key="all", batches_n=batches_n, items_n=ok_n, released=snap.Released(max_wait_n=3)),),
        in_force=snap.InForce(max_batch=8, max_wait_s=0.0),
    )


def snapshot(t_mono_s, *models, busy_s=0.0, boot_id="a", **front):
    return snap.Snapshot(
        boot_id=boot_id,
        seq=1,
        t_mono_s=t_mono_s,
        t_wall_s=0.0,
        period_s=1.0,
        node="n",
        version="0",
        state="ready",
        host=snap.Host(usable_cpus=2, cpu_s=t_mono_s),
        front=snap.Front(**front),
        models=models,
        workers=tuple(
            snap.Worker(id=f"w{i}", model="simulated:echo", state="ready", busy_s=busy_s / 2) for i in (0, 1)
        ),
        memory=(snap.Mem(owner="server", role="server", now=100), snap.Mem(owner="w0", role="worker", now=50)),
    )


def test_a_window_is_what_happened_between_two_snapshots():
    before = snapshot(10.0, model(100, 1.0, 0.5, 50), busy_s=4.0)
    after = snapshot(14.0, model(300, 3.0, 0.6, 100), busy_s=10.0, pre_items_n=200, pre_busy_s=2.0, pre_threads=2)
    found = window(before, after, "echo", 1.5)
    assert (found.seconds, found.requests_n, found.batches_n, found.rows_n, found.held_n) == (4.0, 200, 50, 200, 0)
    assert found.stations == (Station("preprocess", 2, 2.0), Station("model", 2, 6.0), Station("front end", 1, 1.5))
    assert found.mean_batch == 4.0
    assert found.memory_bytes == 150
    assert max_batch(after, "simulated:echo") == 8


def test_post_is_named_where_it_takes_longer_than_the_model():
    before = snapshot(10.0, model(0, 0.0, 0.0, 0))
    after = snapshot(14.0, model(300, 1.0, 2.0, 100), busy_s=3.0)
    assert window(before, after, "echo", None).stations == (Station("post", 2, 3.0),)


def test_two_snapshots_of_different_lives_have_nothing_in_between():
    before, after = snapshot(10.0, model(1, 0, 0, 1)), snapshot(11.0, model(2, 0, 0, 2), boot_id="b")
    assert window(before, after, "echo", None) is None
    assert window(before, before, "other", None) is None
