"""How sure the judge is: asked of the model beside its verdict, in a call of its own.

The judge reasons first and then gives its value, after which the value's token is all but certain:
of 50 real cases judged without memory 44 had more than 0.99, right or wrong. Asked for the value
first, it tells right from wrong better, and judges worse. So it is asked once more, for the value
alone: the prompt is the same up to the last sentence, which servers keep, and the answer a few
tokens.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from memalign_graph.errors import ChatModelError
from memalign_graph.evidence.logprobs import (
    MAX_VALUES,
    permitted_values,
    read_tokens,
    value_probabilities,
)
from memalign_graph.evidence.samples import sample_verdicts
from memalign_graph.io import IO
from memalign_graph.models import BaseChatModel, with_schema
from memalign_graph.prompts.judge import answer_schema
from memalign_graph.scales import Value
from memalign_graph.types import ConfidenceSource, Criterion, Probabilities

logger = logging.getLogger(__name__)

_TOP = 20
"""How many alternatives of a token are asked for where the model's own `top_logprobs` is not set:
the most that OpenAI gives."""

_ALONE = (
    '\n\nThis time leave the rationale out: answer with a JSON object that has the "value" alone.'
)


@dataclass(frozen=True)
class Measured:
    """How likely the judge holds each value."""

    probabilities: Probabilities | None = None
    """By the value as the scale renders it; of a continuous scale the verdict's alone. None where
    it could not be measured."""

    source: ConfidenceSource | None = None
    """What it was measured by."""

    warning: str | None = None
    """Why it was not measured as asked for, in a sentence."""


def value_schema(criterion: Criterion) -> dict[str, Any]:
    """Return the JSON Schema of an answer that is the value alone."""
    schema = answer_schema(criterion)
    value = {"value": schema["properties"]["value"]}
    return {**schema, "properties": value, "required": list(value)}


async def measure_confidence(
    io: IO,
    chat: BaseChatModel,
    criterion: Criterion,
    messages: Sequence[BaseMessage],
    verdict: Value,
    *,
    samples: int,
    limit: int,
) -> Measured:
    """Measure how sure a judge is of its verdict."""
    measured = await _by_logprobs(io, chat, criterion, messages)
    if measured.probabilities is None and samples:
        sampled = await sample_verdicts(
            io, chat, criterion, messages, verdict, samples=samples, limit=limit
        )
        told = [one for one in (measured.warning, sampled.warning) if one]
        source: ConfidenceSource | None = None if sampled.probabilities is None else "samples"
        measured = Measured(sampled.probabilities, source, " ".join(told) or None)
    elif measured.probabilities is None:
        more = "give samples=5 or so to ask it several times"
        measured = Measured(warning=f"{(measured.warning or '').rstrip('.')}; {more}.")
    if measured.warning is not None:
        logger.warning("Judging %r: %s", criterion.name, measured.warning)
    return measured


def in_both_orders(straight: Measured, swapped: Measured) -> Measured:
    """Bring together what was measured with two outputs in both orders."""
    one, other = straight.probabilities, swapped.probabilities
    if one is None or other is None:
        return Measured(warning=straight.warning or swapped.warning)
    back = {"A": "B", "B": "A"}
    mean = {name: (share + other[back.get(name, name)]) / 2 for name, share in one.items()}
    source = straight.source if straight.source == swapped.source else "samples"
    return Measured(mean, source, straight.warning or swapped.warning)


async def _by_logprobs(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> Measured:
    if permitted_values(criterion.scale) is None:
        return Measured(
            warning=f"No confidence by log-probabilities: the scale has over {MAX_VALUES} values."
        )
    telling = _with_logprobs(chat)
    if telling is None:
        return Measured(
            warning=(
                f"No confidence by log-probabilities: {type(chat).__name__} has no `logprobs` and "
                "`top_logprobs`."
            )
        )
    model = with_schema(telling, value_schema(criterion))
    try:
        reply = await io.chat(model, value_alone(messages))
    except ChatModelError as error:
        return Measured(warning=f"No confidence by log-probabilities: {error}")
    tokens = read_tokens(reply.logprobs)
    probabilities = value_probabilities(tokens, criterion.scale)
    if probabilities is not None:
        return Measured(probabilities, "logprobs")
    if reply.answer is None:
        why = f"{model.name} gave no answer that can be used: {reply.problem or 'it is none'}"
    elif not tokens:
        why = f"{model.name} answered without them"
    else:
        why = f"a permitted value is not among the alternatives that {model.name} gave"
    return Measured(warning=f"No confidence by log-probabilities: {why.rstrip('.')}.")


def value_alone(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Ask for the value alone."""
    *before, last = messages
    return [*before, HumanMessage(f"{last.text}{_ALONE}")]


def _with_logprobs(chat: BaseChatModel) -> BaseChatModel | None:
    fields = type(chat).model_fields
    if "logprobs" not in fields or "top_logprobs" not in fields:
        return None
    top = getattr(chat, "top_logprobs", None) or _TOP
    return chat.model_copy(update={"logprobs": True, "top_logprobs": top})
