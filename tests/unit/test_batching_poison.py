from batching_world import World

from hybrid.batching.poison import PoisonList
from hybrid.batching.queue import Outcome
from hybrid.messages import FailureKind


def test_refused_from_the_second_offence_on():
    poison = PoisonList(ttl_s=60.0, after=2)
    assert not poison
    poison.remember(b"a", 0.0)
    assert poison
    assert not poison.refused(b"a", 1.0)
    poison.remember(b"a", 2.0)
    assert poison.refused(b"a", 3.0)
    assert not poison.refused(b"b", 3.0)


def test_several_offences_at_once_count_as_many():
    poison = PoisonList()
    poison.remember(b"a", 0.0, 2)
    assert poison.refused(b"a", 0.0)


def test_success_acquits_of_what_is_not_refused_yet():
    poison = PoisonList(after=2)
    poison.remember(b"a", 0.0)
    poison.remember(b"b", 0.0, 2)
    for digest in (b"a", b"b", b"never seen", b""):
        poison.acquit(digest)
    poison.remember(b"a", 1.0)
    assert not poison.refused(b"a", 1.0)
    assert poison.refused(b"b", 1.0), "what is refused cannot have succeeded since"


def test_forgotten_after_the_time_since_the_last_offence():
    poison = PoisonList(ttl_s=60.0, after=2)
    poison.remember(b"a", 0.0)
    poison.remember(b"a", 50.0)
    assert poison.refused(b"a", 110.0)
    assert not poison.refused(b"a", 110.1)
    assert not poison


def test_offences_that_are_far_apart_do_not_add_up():
    """Also when nobody asked in between."""
    poison = PoisonList(ttl_s=60.0, after=2)
    poison.remember(b"a", 0.0)
    poison.remember(b"a", 1000.0)
    assert not poison.refused(b"a", 1000.0)


def test_bounded():
    poison = PoisonList(after=1)
    for index in range(5000):
        poison.remember(b"%d" % index, 0.0)
    refused = [index for index in range(5000) if poison.refused(b"%d" % index, 1.0)]
    assert refused == list(range(5000 - 1024, 5000))


def test_memory_that_is_short_for_a_while_makes_nobody_suspicious():
    world = World(fingerprint=lambda payload: payload)
    world.memory_rows = 0
    for _ in range(3):
        ticket = world.submit(payload=b"comes again")
        world.settle()
        assert ticket.failure is FailureKind.MEMORY
    world.memory_rows = 10**9
    ticket = world.submit(payload=b"comes again")
    world.settle()
    assert ticket.outcome is Outcome.OK
