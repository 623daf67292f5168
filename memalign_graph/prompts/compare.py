"""The prompt that finds duplicate and contradictory guidelines."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from memalign_graph.prompts.fences import list_in, numbered, render_criterion, strict_object_schema
from memalign_graph.types import Criterion

_PAIR = 2

_SYSTEM = """\
You keep the rules in order by which a judge applies one criterion. Several people wrote them, so \
that some say the same and some may contradict each other.

{criterion}

Find in the numbered rules
- duplicates: rules that demand the same of the same cases, in other words. A rule that demands \
more, or less, or speaks of other cases is no duplicate.
- contradictions: pairs of rules of which one demands what the other forbids, so that no case can \
meet both.
Compare what the rules demand, not how they sound: "always apologise" and "never apologise" are \
near in words and opposite in meaning; most rules that sound alike are neither.

Answer with a JSON object: "duplicates" is a list of groups of numbers, in each the best worded \
first; "contradictions" is a list of pairs of numbers. Empty lists where there are none."""

# Without an example of numbers, which a small model would repeat.
_CLOSING = """\
Answer with a JSON object that has "duplicates" and "contradictions", each a list of lists of \
numbers, empty where there are none."""


class Relations(NamedTuple):
    """Related rules, by their index in the list."""

    duplicates: list[list[int]]
    contradictions: list[tuple[int, int]]


def relations_schema(count: int) -> dict[str, Any]:
    rule = {"type": "integer", "minimum": 1, "maximum": count}
    groups = {"type": "array", "items": {"type": "array", "items": rule}, "maxItems": count}
    return strict_object_schema(
        {"duplicates": groups, "contradictions": groups},
        title="guideline_relations",
        description="Which rules say the same, and which contradict each other.",
    )


def relations_prompt(criterion: Criterion, texts: Sequence[str]) -> list[BaseMessage]:
    lines = "\n".join(numbered(texts))
    return [
        SystemMessage(_SYSTEM.format(criterion=render_criterion(criterion))),
        HumanMessage(f"The rules:\n{lines}\n\n{_CLOSING}"),
    ]


def read_relations(answer: dict[str, Any], count: int) -> Relations:
    groups = _read_groups(answer, "duplicates", count)
    pairs = _read_groups(answer, "contradictions", count)
    if any(len(pair) > _PAIR for pair in pairs):
        raise ValueError('a group in "contradictions" has more than two numbers: give pairs')
    opposed = dict.fromkeys((min(pair), max(pair)) for pair in pairs if len(pair) == _PAIR)

    def agrees(group: list[int]) -> bool:
        return opposed.keys().isdisjoint(combinations(sorted(group), _PAIR))

    return Relations(
        [item for item in groups if len(item) >= _PAIR and agrees(item)], list(opposed)
    )


def _read_groups(answer: dict[str, Any], name: str, count: int) -> list[list[int]]:
    groups = list_in(answer, name)
    for group in groups:
        if not isinstance(group, list) or any(type(number) is not int for number in group):
            raise ValueError("a group is no list of numbers")
        for number in group:
            if not 1 <= number <= count:
                raise ValueError(f"{number} is no rule: they are numbered from 1 to {count}")
    return [list(dict.fromkeys(number - 1 for number in group)) for group in groups]
