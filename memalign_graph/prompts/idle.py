"""Whether a proposed guideline teaches anything: small models like to repeat what they see."""

import json
import re
from collections.abc import Mapping, Sequence

from memalign_graph.memory.learning import GuidelineOperation, plain_words
from memalign_graph.types import Criterion, Episode, Guideline

_ANY_RULE = (
    "the and are not for value should must case output outputs criterion guideline then when that "
    "with this whether"
)

SHAPE = "the rule"
"""What stands for a guideline where the shape of an answer is shown."""

_WORD = re.compile(r"\w+")

_CONTENT_CHARS = 3
"""The length from which a word counts as one that could say something."""

_SENTENCE_WORDS = 5
"""A text of fewer words is an expert's shorthand, and left alone."""

_RUN_WORDS = 6
"""So many words in a row that the prompt has, too, are no coincidence."""

_OF_THE_EXPERT = re.compile(r"\bexpert(['\u2019]s|s['\u2019]) (value|reason)\b", re.IGNORECASE)
"""The labels that the prompt puts on what experts say; a rule never needs them."""


def why_idle(
    operation: GuidelineOperation,
    *,
    criterion: Criterion,
    guidelines: Mapping[str, Guideline],
    episodes: Sequence[Episode],
    asked: str,
) -> str | None:
    """Say why an operation teaches nothing, if so."""
    if operation.text is None:
        return None
    words = plain_words(operation.text)
    for handle, guideline in guidelines.items():
        if operation.guideline_id == guideline.id and words == plain_words(guideline.text):
            return (
                f"it gives {handle} the words it has: if the expert says something else, add that "
                "as a guideline of its own"
            )
    long_enough = len(_WORD.findall(operation.text)) >= _SENTENCE_WORDS
    repeated = _repeats_prompt(operation.text, episodes, asked)
    if repeated is not None:
        return repeated
    outputs = [one.example.outputs for one in episodes if one.id in operation.episode_ids]
    texts = [one if isinstance(one, str) else json.dumps(one) for one in outputs]
    if any(words == plain_words(text) for text in texts):
        return "it repeats the output that was judged: write the expert's reason as a rule"
    repeats_scale = words.removeprefix("the value is ") == plain_words(criterion.scale.describe())
    says_more = _content_words(operation.text) - _said_already(criterion)
    if repeats_scale or (long_enough and not says_more):
        return "it says no more than the criterion: write the expert's reason as a rule"
    return None


def _repeats_prompt(text: str, episodes: Sequence[Episode], asked: str) -> str | None:
    words = plain_words(text)
    long_enough = len(_WORD.findall(text)) >= _SENTENCE_WORDS
    said = " ".join(one.rationale or "" for one in episodes)
    if (
        words == SHAPE
        or (long_enough and words in plain_words(asked))
        or word_runs(text) & word_runs(asked) - word_runs(said)
        or not _content_words(text) - _content_words(_ANY_RULE)
    ):
        return (
            "it repeats the shape of the answer, or what was asked for: write the expert's reason "
            "as a rule"
        )
    if _OF_THE_EXPERT.search(text):
        return (
            "it speaks of an expert's value or reason, and a new case has none yet: write what to "
            "look for in the case itself"
        )
    return None


def _said_already(criterion: Criterion) -> set[str]:
    """Return the words that make no rule: the criterion's, the scale's, and those of any rule."""
    return _content_words(f"{criterion.instructions} {criterion.scale.describe()} {_ANY_RULE}")


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Return what two texts share only where one repeats the other: runs of several words."""
    words = _WORD.findall(text.casefold())
    return {tuple(words[at : at + _RUN_WORDS]) for at in range(len(words) - _RUN_WORDS + 1)}


def _content_words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.casefold()) if len(word) >= _CONTENT_CHARS}
