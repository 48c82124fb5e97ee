"""Just enough Markdown to hold documents against the code: sections, tables, fenced blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "hybrid" / "ARCHITECTURE.md").read_text()

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", _without_blocks(rest), re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, heads and rules left out."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("|")]
    rules = {index for index, line in enumerate(lines) if set(line) <= set("|- :")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for index, line in enumerate(lines)
        if index not in rules and index + 1 not in rules
    ]


def blocks(text: str, info: str) -> list[str]:
    """The bodies of the fenced blocks with this info string."""
    return [found["body"] for found in _FENCE.finditer(text) if found["info"] == info]


def code(cell: str) -> str:
    """A cell without its back quotes."""
    return cell.replace("`", "")


def quoted(text: str) -> set[str]:
    """Everything between back quotes on one line."""
    return set(re.findall(r"`([^`\n]+)`", text))


def _without_blocks(text: str) -> str:
    """The same text with fenced lines blanked: a comment in a block is no heading."""
    return _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
