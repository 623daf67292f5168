"""Read code blocks and tables from the documents."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(*parts) for parts in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def without_blocks(page: Path) -> str:
    """Return the text of a page outside of its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def file_of(page: str, title: str) -> str:
    """Return the file of this name that a page of `docs/` shows."""
    [text] = [block.text for block in blocks(ROOT / "docs" / page) if block.title == title]
    return text


def table(page: str, *header: str) -> list[list[str]]:
    """Return the rows of all tables of a page whose header starts with these cells."""
    rows: list[list[str]] = []
    head: list[str] = []
    for line in without_blocks(ROOT / page).splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
        elif tuple(head[: len(header)]) == header and cells[0].strip("-:"):
            rows.append(cells)
    assert rows, f"{page} has no such table"
    return rows


def code(cell: str) -> list[str]:
    """Return the text in backticks of a cell."""
    return re.findall(r"`([^`]+)`", cell)
