"""What a search found, as JSON, words, a page and a drawing."""

import re
from html.parser import HTMLParser

import pytest
from tune_world import World

from hybrid.tune.chart import Mark, Series, chart, log_ticks, ticks
from hybrid.tune.html import Context, report_html
from hybrid.tune.report import overrides_of, rejections, sentences, tune_json, why
from hybrid.tune.search import search
from hybrid.tune.seeds import Bounds
from hybrid.tune.values import Outcome, Terms

PLAN = {
    "model": "<rows>",
    "engine": "one",
    "instances": 2,
    "cores": [[]],
    "reasons": {"engine": "so & so", "instances": "two CPUs", "cores": "none"},
}


def two_cpus(setting, rows):
    return (1.2 if setting.instances == 2 else 1.0) * (0.002 + 0.0075 * (0.35 + 0.65 / setting.threads) * rows)


@pytest.fixture(scope="module", params=["latency", "throughput"])
def outcome(request):
    terms = Terms(request.param, 0.2 if request.param == "latency" else None)
    found = World(two_cpus).drive(search(Bounds(("one",), 2), terms, 240.0))
    return Outcome(found, PLAN, 123.4, resumed_n=2)


def test_the_json_has_its_fixed_keys_and_plain_values(outcome):
    found = tune_json(outcome)
    assert found.keys() >= {"best", "trials", "knee", "space", "measured"}
    assert found["best"].items() >= PLAN.items()
    assert found["best"]["rps"] == round(outcome.found.rps, 3)
    assert found["best"]["p99_ms"] > 0
    assert found["space"] == outcome.found.space_n
    assert 0 < found["measured"] <= 10
    assert len(found["trials"]) == len(outcome.found.trials)
    assert all(trial["requests"] > 0 for trial in found["trials"])
    assert all((trial["clients"] is None) != (trial["offered_rps"] is None) for trial in found["trials"])


def test_the_words_have_the_figures(outcome):
    text = "\n".join(sentences(outcome))
    assert f"{outcome.found.rps:.4g} requests/s" in text
    assert f"{outcome.found.gain_over_default:.2f}x the requests/s of the framework default (one, 1 x 2 threads" in text
    assert tune_json(outcome)["best"]["default"] == "one, 1 x 2 threads, batch 8"
    assert "2 trials were taken from an earlier run" in text
    assert ("p99 <= 200 ms" in text) == (outcome.found.slo_s is not None)
    assert f"serves {outcome.found.rps:.4g} requests/s" in why(outcome)


def test_the_profile_fixes_what_the_setting_says(outcome):
    setting, fixed = outcome.found.setting, overrides_of(outcome.found.setting)
    assert (fixed.instances, fixed.threads_per_instance) == (setting.instances, setting.threads)
    assert (fixed.max_batch, fixed.max_wait_ms) == (setting.max_batch, setting.max_wait_ms)
    assert fixed.early_trigger == setting.max_batch  # whatever the model's settings have


class Page(HTMLParser):
    """Checks that every tag that is opened is closed, and keeps the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags = [], "", []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_says_it_all(outcome):
    context = Context("hybrid tune '<rows>'", "today", (("CPU", "a & b"),), ("hybrid serve",))
    page = Page(report_html(outcome, context))
    for words in ("<rows>", "a & b", "so & so", "hybrid serve", "hybrid tune '<rows>'", f"{outcome.found.rps:.4g}/s"):
        assert words in page.text
    assert {"svg", "polyline", "circle"} <= set(page.tags)
    for _, _, text in rejections(outcome.found.trials):
        assert text in page.text
    assert not {"script", "link", "img"} & set(page.tags)
    assert page.tags.count("tr") > len(outcome.found.trials)


def test_a_chart_puts_points_where_they_belong():
    drawn = chart([Series("p99", "#000", ((10, 10.0), (20, 100.0)))], [Mark(15, "half way", "#111", True)], "x", "y")
    (x1, y1), (x2, y2) = (tuple(map(float, p.split(","))) for p in re.search(r'points="(\S+) (\S+)"', drawn).groups())
    assert x1 < x2
    assert y1 > y2  # up is more
    middle = float(re.search(r'x1="([\d.]+)" y1="34"', drawn)[1])
    assert middle == pytest.approx((x1 + x2) / 2, abs=0.2)
    assert chart([Series("p99", "#000", ())], [], "x", "y") == ""


def test_a_mark_beyond_the_points_is_on_the_chart():
    drawn = chart([Series("p99", "#000", ((10, 10.0),))], [Mark(40, "best", "#111", True)], "x", "y")
    assert float(re.search(r'x1="([\d.]+)" y1="34"', drawn)[1]) < 860


def test_ticks_are_round():
    assert ticks(100.0) == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    assert ticks(0.7)[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert log_ticks(8.0, 120.0) == [10.0, 20.0, 50.0, 100.0]
    assert log_ticks(0.5, 50_000.0) == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
