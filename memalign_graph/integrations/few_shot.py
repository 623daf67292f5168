"""Episodes as the few-shot examples of openevals' and agentevals' own judges."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NotRequired

from typing_extensions import TypedDict

from memalign_graph.agreement import agree, majority_value, on_scale
from memalign_graph.errors import InvalidInputError
from memalign_graph.prompts.fences import as_text, defuse
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Episode

_TAG = re.compile(r"<(?=\s*/?\s*(?:example|input|output|reasoning|score)\b)", re.IGNORECASE)
"""What openevals puts around the parts of an example."""


class FewShotExample(TypedDict):
    """An example as openevals and agentevals show it to their judges."""

    inputs: str
    """What the application was given."""

    outputs: str
    """What it answered."""

    score: Value
    """What experts say of it."""

    reasoning: NotRequired[str]
    """Why, in their words; not there where nobody said."""


def few_shot_examples(episodes: Iterable[Episode], criterion: Criterion) -> list[FewShotExample]:
    """Make few-shot examples of episodes, for `create_llm_as_judge(few_shot_examples=...)`.

    Several experts' episodes on one example become one: with the majority's value, in an order the
    median, and the words of those who agree with it. Left out is an example without a value that is
    on the scale, because a few-shot example shows a score. What would end an example in openevals'
    prompt loses its angle bracket.

    openevals' judges score true or false, from 0 to 1 with `continuous=True`, or one of some
    numbers with `choices=[...]`: give the option that fits the scale. On a scale of words the score
    is a word, for a judge with a `schema` of its own.

    Args:
        episodes: The episodes, such as `memory.episodes()`, or those of what `memory.recall` finds.
        criterion: What they are about.

    Returns:
        The examples, in the episodes' order.

    Raises:
        InvalidInputError: If something that is no episode is among them.
    """
    if not isinstance(criterion, Criterion):
        raise InvalidInputError(
            "criterion: give a Criterion(name=..., instructions=...), not a value of type "
            f"{type(criterion).__name__}."
        )
    by_example: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not isinstance(episode, Episode):
            raise InvalidInputError(
                "episodes: give Episodes, such as memory.episodes(), not a value of type "
                f"{type(episode).__name__}."
            )
        value = on_scale(episode.value, criterion.scale)
        if value is not None:
            by_example[episode.example_id].append(episode.model_copy(update={"value": value}))
    return [_example(group, criterion.scale) for group in by_example.values()]


def _example(episodes: list[Episode], scale: Scale) -> FewShotExample:
    value: Any = majority_value(episodes, scale)
    words = [
        one.rationale
        for one in episodes
        if one.rationale is not None and one.value is not None and agree(scale, one.value, value)
    ]
    example = episodes[0].example
    made = FewShotExample(
        inputs=_shown(example.inputs), outputs=_shown(example.outputs), score=value
    )
    if words:
        made["reasoning"] = _shown("\n".join(dict.fromkeys(words)))
    return made


def _shown(value: Any) -> str:
    return _TAG.sub("&lt;", defuse(as_text(value)))
