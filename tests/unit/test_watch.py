"""When a change of files counts. Pure."""

from hybrid.serving.sources import FileStamp, Stamp
from hybrid.serving.watch import Changes


def stamp(size: int) -> Stamp:
    return (FileStamp("m.onnx", 1, size, 1),)


A, B, C = stamp(1), stamp(2), stamp(3)


def test_a_change_counts_once_it_has_stayed_for_one_look() -> None:
    changes = Changes()
    assert changes.look({"m": A}, {"m": A}) == ([], [])
    assert changes.look({"m": B}, {"m": A}) == ([], [])
    assert changes.look({"m": B}, {"m": A}) == (["m"], [])


def test_files_that_still_grow_do_not_count() -> None:
    changes = Changes()
    for found in (B, C, B, C):
        assert changes.look({"m": found}, {"m": A}) == ([], [])
    assert changes.look({"m": C}, {"m": A}) == (["m"], [])


def test_a_change_that_was_taken_back_does_not_count() -> None:
    changes = Changes()
    changes.look({"m": B}, {"m": A})
    assert changes.look({"m": A}, {"m": A}) == ([], [])
    assert changes.look({"m": B}, {"m": A}) == ([], [])


def test_what_was_tried_is_tried_again_only_when_it_changes() -> None:
    changes = Changes()
    changes.look({"m": B}, {"m": A})
    assert changes.look({"m": B}, {"m": A}) == (["m"], [])
    for _ in range(3):  # the manager has noted that it read B, whether or not B could be loaded
        assert changes.look({"m": B}, {"m": B}) == ([], [])
    changes.look({"m": C}, {"m": B})
    assert changes.look({"m": C}, {"m": B}) == (["m"], [])


def test_new_models_and_models_that_are_gone() -> None:
    changes = Changes()
    assert changes.look({"new": A}, {"old": A}) == ([], [])
    assert changes.look({"new": A}, {"old": A}) == (["new"], ["old"])
    assert changes.look({"new": A}, {"new": A}) == ([], [])


def test_a_model_that_is_gone_for_one_look_stays() -> None:
    changes = Changes()
    assert changes.look({}, {"m": A}) == ([], [])
    assert changes.look({"m": A}, {"m": A}) == ([], [])
    assert changes.look({}, {"m": A}) == ([], [])


def test_a_model_that_is_asleep_is_not_woken_but_forgotten_when_it_is_gone() -> None:
    changes = Changes()
    for _ in range(3):
        assert changes.look({"m": B}, {"m": A}, {"m"}) == ([], [])
    changes.look({}, {"m": A}, {"m"})
    assert changes.look({}, {"m": A}, {"m"}) == ([], ["m"])


def test_models_change_independently_of_each_other() -> None:
    changes = Changes()
    changes.look({"a": B, "b": A}, {"a": A, "b": A})
    assert changes.look({"a": B, "b": B}, {"a": A, "b": A}) == (["a"], [])
    assert changes.look({"a": B, "b": B}, {"a": B, "b": A}) == (["b"], [])
