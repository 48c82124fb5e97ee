"""A search from its beginning to its end: questions go to the journal or to the server, answers back to the search.

Owns the order of things, the budget of time, and what is restored at the end. Must never know how progress is shown.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from hybrid.config import ModelSettings
from hybrid.errors import HybridError
from hybrid.load.payloads import PayloadSettings
from hybrid.load.target import Target, local
from hybrid.probing.agreement import disagreement
from hybrid.tune.book import Steps
from hybrid.tune.journal import Journal
from hybrid.tune.search import search
from hybrid.tune.seeds import DEVICE_BATCHES, Bounds
from hybrid.tune.trial import Lab
from hybrid.tune.values import Answer, Ask, Found, Outcome, Seen, Terms

Show = Callable[[Ask, Seen | None], None]
_DEVICE_INSTANCES: Final = 2


def run_search(
    lab: Lab, bounds: Bounds, terms: Terms, journal: Journal, limits: tuple[float, int], show: Show
) -> Outcome:
    """Search on a server; `limits` are the budget in seconds and the most settings to test.

    `show` is called with a question when it begins, and with its answer when it is there.

    Raises:
        ConfigError, StartupError: as `search`, and when the server is gone.
    """
    budget_s, most = limits
    began_s = time.monotonic()
    steps = search(bounds, terms, budget_s, most)
    found = _drive(steps, lab, journal, began_s + budget_s, show)
    return Outcome(found, lab.plan(found.setting), time.monotonic() - began_s, journal.resumed_n)


def bounds_of(lab: Lab, engines: tuple[str, ...], cpus: int, largest: int) -> Bounds:
    """Return what may be tried on a server, by asking it: the batch in its plan is a choice and no limit.

    `largest` is the largest batch to try on a CPU; elsewhere memory decides.

    Raises:
        StartupError: the server is gone, or refuses to change its plan.
    """
    device = str(lab.served.plan["device"])
    own_device = device != "cpu"
    largest = lab.largest(DEVICE_BATCHES[-1] if own_device else largest)
    instances = 1 if device == "simulated" else _DEVICE_INSTANCES
    return Bounds(engines, cpus, max(1, largest), device, own_device, instances)


def alike(lab: Lab, engines: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the engines whose answers are those of the first one that answers, and why each other one is left out.

    The fastest engine is no good if it computes something else; a server's plan leaves such engines out, too.
    """
    if len(engines) == 1:
        return engines, ()
    samples: dict[str, dict[str, list[float]]] = {}
    notes = []
    for engine in engines:
        try:
            sample = lab.sample(engine)
        except HybridError as error:
            notes.append(f"{engine} was left out: {error}")
            continue
        first = next(iter(samples), engine)
        differs = disagreement(samples.get(first, sample), sample)
        if differs:
            notes.append(f"{engine} was left out: compared with {first}, {differs}")
        else:
            samples[engine] = sample
    return tuple(samples) or engines[:1], tuple(notes)


@contextlib.contextmanager
def own_lab(model: str, settings: ModelSettings, admin_token: str) -> Iterator[Lab]:
    """Serve a model here while it is measured.

    Raises:
        StartupError: the server does not start.
    """
    image = settings.preprocess.image
    payloads = PayloadSettings(image_inputs=(image.input,) if image is not None else ())
    with local(model) as target:
        yield Lab(target, settings.name, payloads, admin_token)


@contextlib.contextmanager
def running_lab(url: str, model: str, admin_token: str, api_key: str = "") -> Iterator[Lab]:
    """Measure on a server that runs already, and leave it as it was, however this ends.

    Raises:
        ConfigError, StartupError: it does not answer, or does not serve the model.
    """
    target = Target(url, api_key=api_key)
    lab = Lab(target, model, PayloadSettings(headers=target.headers), admin_token)
    try:
        yield lab
    finally:
        try:
            lab.restore()
        except KeyboardInterrupt:  # whoever is in a hurry gets the plan back all the same
            lab.restore()
            raise


def _drive(steps: Steps[Found], lab: Lab, journal: Journal, ends_s: float, show: Show) -> Found:
    try:
        ask = next(steps)
        while True:
            show(ask, None)
            seen = journal.known(ask)
            if seen is None:
                seen = lab.measure(ask)
                journal.add(ask, seen)
            show(ask, seen)
            ask = steps.send(Answer(seen, ends_s - time.monotonic()))
    except StopIteration as end:
        found = end.value
        assert isinstance(found, Found)
        return found
