"""An expert at the terminal."""

from typing import Any

from memalign_graph.demo.cases import Case
from memalign_graph.interrupts import read_review
from memalign_graph.types import Criterion, Judgment

_HELP = "Enter: the judge is right. A value, words, or both (false Too cold). s: skip."


def terminal_expert(criterion: Criterion) -> Any:
    """Make an expert that asks at the terminal, and asks again where an answer can't be used."""

    def ask(_case: Case, judgment: Judgment, description: str) -> Any:
        print(f"\n{description}\n\n{_HELP}")
        while True:
            reply = read_line(input("> "), criterion)
            try:
                read_review(reply, criterion, judgment)
            except ValueError as error:
                print(f"That can't be used: {error}")
            else:
                return reply

    return ask


def read_line(line: str, criterion: Criterion) -> Any:
    """Make a reply to the interrupt of a line typed at the terminal."""
    line = line.strip()
    if not line:
        return {"decisions": [{"type": "approve"}]}
    if line.casefold() in ("s", "skip"):
        return {"type": "ignore"}
    first, _, rest = line.partition(" ")
    try:
        value = criterion.scale.validate_value(first.rstrip(",:;."))
    except ValueError:
        return line
    return {"value": value, "rationale": rest.strip()} if rest.strip() else {"value": value}
