"""ARCHITECTURE.md names modules that exist, and all of them."""

import re

from documents import ARCHITECTURE, ROOT, quoted, rows, section

from hybrid.batching import state

PACKAGE = ROOT / "hybrid"
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
#: Name of a package or top-level module -> its row.
CODE_MAP = {
    name.removeprefix("hybrid."): row for row in rows(section(ARCHITECTURE, "Code map")) for name in quoted(row[0])
}


def modules(package: str) -> set[str]:
    return {path.stem for path in (PACKAGE / package).glob("*.py")} - {"__init__"}


def test_the_code_map_has_every_package_and_module():
    top = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert CODE_MAP.keys() == PACKAGES | top


def test_the_code_map_names_the_modules_of_each_package():
    named = {p: {word for word in quoted(CODE_MAP[p][1]) if re.fullmatch(r"[a-z_]+", word)} for p in PACKAGES}
    assert named == {package: modules(package) for package in PACKAGES}


def test_every_dotted_name_is_a_module():
    dotted = {word for word in quoted(ARCHITECTURE) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", word)}
    inside = {word.removeprefix("hybrid.") for word in dotted if word.split(".")[0] in PACKAGES | {"hybrid"}}
    assert {"batching.state", "app"} <= inside
    paths = {word: PACKAGE / word.replace(".", "/") for word in inside}
    assert not [word for word, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").is_file()]


def test_the_moves_are_those_of_the_state_machine():
    diagram = re.search(r"^ *QUEUED(.*?)┘$", state.__doc__ or "", re.MULTILINE | re.DOTALL)
    assert diagram
    assert diagram[0].strip() in section(ARCHITECTURE, "What may happen to a request")
    moves = {event for _, event in state._MOVES}
    assert moves == set(re.findall(r"─([a-z]+)─", diagram[0]))
