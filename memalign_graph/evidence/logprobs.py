"""Log-probabilities of an answer's first token: asking for them and parsing them."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from langchain_core.messages import BaseMessage

from memalign_graph.errors import ChatModelError
from memalign_graph.evidence.verdicts import MAX_VALUES, ConfidenceMeasurement
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.models import (
    BaseChatModel,
    inner_models,
    is_small_model,
    map_models,
    model_key,
    model_name_of,
)
from memalign_graph.replies import ChatReply, StructuredModel
from memalign_graph.scales import Scale, Value
from memalign_graph.settings import ChecksMode
from memalign_graph.types import Probabilities

logger = logging.getLogger(__name__)

_MAX_TOKENS = 16
"""The limit of an answer that is not a letter. A small model, which is slow, gets one token."""


def token_probabilities(logprobs: Any, tokens: Sequence[str]) -> list[float | None]:
    """Return the probability that the first token is each of some; None if it is unknown.

    Only OpenAI's format of log-probabilities is parsed.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    first = next((entry for entry in _entries(content) if entry["token"].strip()), {})
    by_token: dict[str, float] = {}
    for entry in _entries([*_entries(first.get("top_logprobs")), first]):
        log = entry.get("logprob")
        inside = max(min(log, 0.0), -9999.0) if isinstance(log, int | float) else math.nan
        if not math.isnan(inside):
            share = math.exp(inside)
            by_token[entry["token"]] = max(share, by_token.get(entry["token"], 0.0))
    by_text: defaultdict[str, float] = defaultdict(float)
    for token, share in by_token.items():
        by_text[token.strip()] += share
    return [by_text.get(token) for token in tokens]


def _entries(items: Any) -> list[Mapping[str, Any]]:
    entries = items if isinstance(items, list) else []
    return [e for e in entries if isinstance(e, Mapping) and isinstance(e.get("token"), str)]


def letter_probabilities(logprobs: Any, names: Sequence[str]) -> Probabilities | None:
    """Return the probability of each value's letter as the first token, renormalized.

    A letter that is not among the alternatives counts as 0 if the others have nearly all.
    """
    shares = token_probabilities(logprobs, ascii_uppercase[: len(names)])
    total = sum(share or 0.0 for share in shares)
    if not total or (None in shares and total < _MIN_KNOWN_SHARE):
        return None
    return {name: (share or 0.0) / total for name, share in zip(names, shares, strict=True)}


_MIN_KNOWN_SHARE = 0.9  # of the probability


class _AcceptAnyText:
    """An output parser that accepts all but a refusal: the first token counts."""

    def parse_result(self, result: Sequence[Any]) -> dict[str, Any] | None:
        return None if result[0].message.additional_kwargs.get("refusal") else {}


def logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return a chat model that is asked for log-probabilities; None if its class has no options."""
    names = {"logprobs", "top_logprobs"}
    if not all(names <= type(inner).model_fields.keys() for inner in inner_models(chat)):
        return None

    def with_logprobs(inner: Any) -> BaseChatModel:
        top = inner.top_logprobs or MAX_VALUES
        return inner.model_copy(update={"logprobs": True, "top_logprobs": top})  # type: ignore[no-any-return] # a chat model

    model = map_models(chat, with_logprobs)
    max_tokens = 1 if is_small_model(chat) else _MAX_TOKENS
    key = digest([model_key(model), max_tokens])
    bound = map_models(model, lambda inner: inner.bind(max_tokens=max_tokens))
    return StructuredModel(bound, _AcceptAnyText(), model_name_of(chat), key, is_json=False)


_MAX_WITHOUT_LOGPROBS = 3
"""After so many replies in a row without log-probabilities a model is not asked for them."""

_WITHOUT_LOGPROBS_S = 600.0
"""After this time it is asked again: the server may have been at fault."""

_without_logprobs: dict[str, tuple[int, float]] = {}
"""Replies in a row without log-probabilities by the model's key, and when the last one came."""


def usable_logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return the `logprob_model`; None if it has recently given no log-probabilities."""
    model = logprob_model(chat)
    count, last = _without_logprobs.get(model.key, (0, 0.0)) if model else (0, 0.0)
    is_silent = count >= _MAX_WITHOUT_LOGPROBS and time.monotonic() - last < _WITHOUT_LOGPROBS_S
    return None if is_silent else model


def asks_checks(checks: ChecksMode, chat: BaseChatModel) -> bool:
    """Return whether a model is asked checks; `auto`: small ones with log-probabilities."""
    return (
        is_small_model(chat) and usable_logprob_model(chat) is not None
        if checks == "auto"
        else checks
    )


async def ask_with_logprobs(
    io: IO, model: StructuredModel, messages: Sequence[BaseMessage]
) -> ChatReply:
    """Ask for log-probabilities, and record whether the model gave them."""
    reply = await io.chat(model, messages)
    if reply.logprobs:
        _without_logprobs.pop(model.key, None)
    elif reply.text and reply.problem is None:  # an unusable reply does not count
        count = _without_logprobs.get(model.key, (0, 0.0))[0] + 1
        _without_logprobs[model.key] = count, time.monotonic()
        if count == _MAX_WITHOUT_LOGPROBS:
            logger.warning(
                "%s gives no log-probabilities. For %d minutes it is not asked for them again, and "
                "its checks answer yes or no without a probability.",
                model.name,
                _WITHOUT_LOGPROBS_S // 60,
            )
    return reply


async def ask_letter(
    io: IO,
    model: StructuredModel,
    scale: Scale,
    messages: Sequence[BaseMessage],
    values: Sequence[Value],
) -> ConfidenceMeasurement:
    """Measure the probabilities of values by asking for the letter of one."""
    try:
        reply = await ask_with_logprobs(io, model, messages)
    except ChatModelError as error:
        return ConfidenceMeasurement(warning=str(error))
    probabilities = letter_probabilities(reply.logprobs, list(map(scale.render, values)))
    if probabilities is not None:
        await io.mark_usable(reply)
        return ConfidenceMeasurement(probabilities, "logprobs")
    why = f"a permitted value is not among the alternatives that {model.name} gave"
    if reply.problem is not None:
        why = f"{model.name} gave no answer that can be used: {reply.problem}"
    elif not reply.logprobs:
        why = f"{model.name} answered without them"
    return ConfidenceMeasurement(warning=why)
