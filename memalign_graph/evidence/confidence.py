"""The values a judge chooses from, and how sure it is of its verdict.

After a written rationale the value's token is nearly certain, right or wrong, and a judge that
gives its value first judges worse. So the judge is asked again for a letter alone: servers cache
the shared prompt, and the answer is one token. Models without log-probabilities may be sampled.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.globals import get_llm_cache
from langchain_core.messages import BaseMessage, HumanMessage

from memalign_graph.agreement import is_ordered, values_agree
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.models import (
    BaseChatModel,
    inner_models,
    is_small_model,
    map_models,
    model_name_of,
    reply_key,
)
from memalign_graph.prompts.judge import answer_schema, letters_of, parse_answer
from memalign_graph.replies import ChatReply, StructuredModel, refusal_in
from memalign_graph.scales import Boolean, Numeric, Scale, Value
from memalign_graph.settings import ChecksMode
from memalign_graph.tracing import PURPOSE, TracedIO
from memalign_graph.types import ConfidenceSource, Criterion, Evidence, Probabilities

logger = logging.getLogger(__name__)

MAX_VALUES = 20
"""The most values whose probabilities are measured, and the alternatives of a small model."""

_MAX_ALTERNATIVES = 5  # of other models: OpenAI's refuse more from GPT-5 on

_MAX_LETTERS = 11
_FEW_VALUES = 5  # of a scale with more numbers: a small model distinguishes no more
_HALF = 0.5 - 1e-9  # allows for rounding
_MIN_KNOWN_SHARE = 0.9  # of the probability, on the letters of values

_MAX_TOKENS = 16
"""The limit of an answer that is not a letter. A small model, which is slow, gets one token."""

_MAX_WITHOUT_LOGPROBS = 3
"""After so many replies in a row without log-probabilities a model is not asked for them."""

_WITHOUT_LOGPROBS_S = 600.0
"""After this time it is asked again: the server may have been at fault."""

_without_logprobs: dict[str, tuple[int, float]] = {}
"""Replies in a row without log-probabilities by the model's key, and when the last one came."""

_LETTER_INSTRUCTION = "\n\nThis time answer with one letter alone, and nothing before or after it:"

_TEMPERATURE = 0.7
"""For sampling a model whose own temperature is 0, at which all samples are equal
(X. Wang et al., Self-consistency improves chain of thought reasoning, 2022)."""


@dataclass(frozen=True)
class ConfidenceMeasurement:
    """The judge's probability of each value; on a continuous scale, of its verdict alone."""

    probabilities: Probabilities | None = None
    source: ConfidenceSource | None = None
    warning: str | None = None  # the reason if it was not measured as asked for


@dataclass(frozen=True)
class RawVerdict:
    """The judge's own value of a case."""

    value: Value
    probabilities: Mapping[str, float] | None = None
    source: ConfidenceSource | None = None


@dataclass(frozen=True)
class Decision:
    """The value of a judgment, with its confidence and evidence."""

    value: Value
    confidence: float | None = None
    confidence_source: ConfidenceSource | None = None
    calibrated_on: int | None = None
    evidence: Evidence | None = None


def permitted_values(scale: Scale) -> list[Value]:
    """Return the values of a finite scale; empty if there are too many."""
    if isinstance(scale, Numeric):
        low, high = math.ceil(scale.minimum), math.floor(scale.maximum)
        is_short = scale.integer and high - low < MAX_VALUES
        return list(range(low, high + 1)) if is_short else []
    values = (True, False) if isinstance(scale, Boolean) else scale.choices
    return list(values) if len(values) <= MAX_VALUES else []


def value_choices(scale: Scale) -> list[Value]:
    """Return the values that a small model chooses from; empty if there are too many."""
    values = permitted_values(scale)
    if isinstance(scale, Numeric) and not 0 < len(values) <= _MAX_LETTERS:
        step = (scale.maximum - scale.minimum) / (_FEW_VALUES - 1)
        numbers = [scale.minimum + step * n for n in range(_FEW_VALUES)]
        values = [scale.validate_value(round(n) if scale.integer else n) for n in numbers]
    return values


def choose_value(probabilities: Probabilities, values: Sequence[Value], scale: Scale) -> Value:
    """Choose the median of ordered values, otherwise the most probable one."""
    shares = [probabilities[scale.render(value)] for value in values]
    if is_ordered(scale):
        return next(
            v for v, total in zip(values, accumulate(shares), strict=True) if total >= _HALF
        )
    return values[shares.index(max(shares))]


def log_odds(share: float) -> float:
    """Return the log-odds of a probability, within bounds; NaN of NaN."""
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(inside / (1 - inside))


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
    shares = token_probabilities(logprobs, letters_of(names))
    total = sum(share or 0.0 for share in shares)
    if not total or (None in shares and total < _MIN_KNOWN_SHARE):
        return None
    return {name: (share or 0.0) / total for name, share in zip(names, shares, strict=True)}


class _AcceptAnyText:
    """An output parser that accepts all but a refusal: the first token counts."""

    def parse_result(self, result: Sequence[Any]) -> dict[str, Any] | None:
        return None if refusal_in(result[0].message) else {}


def logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return a chat model that is asked for log-probabilities; None if it lacks the options."""
    names = {"logprobs", "top_logprobs", "max_tokens"}
    for model in inner_models(chat):
        # The Responses API has other options.
        if getattr(model, "use_responses_api", None) or names - type(model).model_fields.keys():
            return None

    def with_logprobs(inner: Any) -> BaseChatModel:
        top = inner.top_logprobs or (MAX_VALUES if is_small_model(chat) else _MAX_ALTERNATIVES)
        return inner.model_copy(update={"logprobs": True, "top_logprobs": top})  # type: ignore[no-any-return] # a chat model

    model = map_models(chat, with_logprobs)
    max_tokens = 1 if is_small_model(chat) else _MAX_TOKENS
    key = digest([reply_key(model), max_tokens])
    bound = map_models(model, lambda inner: inner.bind(max_tokens=max_tokens))
    return StructuredModel(bound, _AcceptAnyText(), model_name_of(chat), key, is_json=False)


def usable_logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return the `logprob_model`; None if it has recently given no log-probabilities."""
    model = logprob_model(chat)
    count, last = _without_logprobs.get(model.key, (0, 0.0)) if model else (0, 0.0)
    is_silent = count >= _MAX_WITHOUT_LOGPROBS and time.monotonic() - last < _WITHOUT_LOGPROBS_S
    return None if is_silent else model


def asks_checks(checks: ChecksMode, chat: BaseChatModel) -> bool:
    """Return whether a model is asked checks; `auto`: small ones with log-probabilities."""
    if checks != "auto":
        return checks
    return is_small_model(chat) and usable_logprob_model(chat) is not None


async def ask_with_logprobs(
    io: IO, model: StructuredModel, messages: Sequence[BaseMessage]
) -> ChatReply:
    """Ask for log-probabilities, and record whether the model gave them."""
    try:
        reply = await io.chat(model, messages)
    except ChatModelError as error:
        if "logprobs" not in str(error):
            raise
        reply = ChatReply(answer=None, text=str(error), problem=str(error))
    if reply.logprobs:
        _without_logprobs.pop(model.key, None)
    elif reply.text and not reply.is_refusal:
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


async def measure_confidence(
    io: IO,
    chat: BaseChatModel,
    criterion: Criterion,
    messages: Sequence[BaseMessage],
    verdict: Value,
    *,
    samples: int,
    limit: int,
) -> ConfidenceMeasurement:
    """Measure a judge's confidence in its verdict: by log-probabilities, or by samples."""
    io = TracedIO(io, lambda: {PURPOSE: "confidence"})
    measured = await _letter_measurement(io, chat, criterion, messages)
    if measured.probabilities is not None:
        return measured
    warning = f"No confidence by log-probabilities: {(measured.warning or '').rstrip('.')}."
    if not samples:
        warning = f"{warning} Set samples=5 to measure it by several answers."
        return ConfidenceMeasurement(warning=warning)
    sample = partial(_sample_answer, io, chat, criterion, messages)
    answers = await io.gather(list(map(sample, range(samples))), limit)
    measured = _vote_shares(answers, criterion.scale, verdict)
    return replace(measured, warning=f"{warning} {measured.warning or ''}".rstrip())


async def _letter_measurement(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> ConfidenceMeasurement:
    """Ask for the letter of the value with the same prompt."""
    scale, values = criterion.scale, permitted_values(criterion.scale)
    if not values:
        return ConfidenceMeasurement(warning=f"the scale has over {MAX_VALUES} values")
    if (model := usable_logprob_model(chat)) is None:
        why = f"as it is set, {type(chat).__name__} takes no `logprobs` with `max_tokens`"
        if logprob_model(chat):
            why = f"{model_name_of(chat)} gave none {_MAX_WITHOUT_LOGPROBS} times in a row"
        return ConfidenceMeasurement(warning=why)
    *before, last = messages
    names = list(map(scale.render, values))
    lines = [f"{last.text}{_LETTER_INSTRUCTION}", *map("{}) {}".format, letters_of(names), names)]
    return await ask_letter(io, model, scale, [*before, HumanMessage("\n".join(lines))], values)


def average_orders(
    straight: ConfidenceMeasurement, swapped: ConfidenceMeasurement
) -> ConfidenceMeasurement:
    """Average the measurements of a pair in both orders."""
    if straight.probabilities is None or swapped.probabilities is None:
        return ConfidenceMeasurement(warning=straight.warning or swapped.warning)
    back = {"A": "B", "B": "A"}
    mean = {
        name: (share + swapped.probabilities[back.get(name, name)]) / 2
        for name, share in straight.probabilities.items()
    }
    return ConfidenceMeasurement(mean, straight.source, straight.warning or swapped.warning)


class _NumberedCache(BaseCache):
    """Caches each sample of a prompt under its own key; otherwise all would equal the verdict."""

    def __init__(self, cache: BaseCache, number: int) -> None:
        self._cache = cache
        self._suffix = f"---sample {number}"

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return self._cache.lookup(prompt, llm_string + self._suffix)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self._cache.update(prompt, llm_string + self._suffix, return_val)

    def clear(self, **kwargs: Any) -> None:
        self._cache.clear(**kwargs)


async def _sample_answer(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage], number: int
) -> Value | MemAlignError:
    """Ask for the verdict once more."""

    def varied(model: BaseChatModel) -> BaseChatModel:
        cache = model.cache if isinstance(model.cache, BaseCache) else get_llm_cache()
        update: dict[str, Any] = {}
        if cache is not None and model.cache is not False:
            update["cache"] = _NumberedCache(cache, number)
        if getattr(model, "temperature", None) == 0:
            update["temperature"] = _TEMPERATURE
        if isinstance(seed := getattr(model, "seed", None), int):
            update["seed"] = seed + number + 1
        return model.model_copy(update=update)

    model = with_schema(map_models(chat, varied), answer_schema(criterion))
    try:
        (value, _), _ = await ask_with_retry(
            io, model, messages, lambda answer, _: parse_answer(answer, criterion)
        )
    except (ChatModelError, ModelAnswerError) as error:
        return error
    return value


def _vote_shares(
    answers: Sequence[Value | MemAlignError], scale: Scale, verdict: Value
) -> ConfidenceMeasurement:
    values = [answer for answer in answers if not isinstance(answer, MemAlignError)]
    failed = [answer for answer in answers if isinstance(answer, MemAlignError)]
    if not values:
        warning = f"No confidence by samples: none was an answer. {failed[0]}"
        return ConfidenceMeasurement(warning=warning)
    # On a scale of too many values the share of those that agree with the verdict counts.
    shares = {
        scale.render(name): sum(values_agree(scale, value, name) for value in values) / len(values)
        for name in permitted_values(scale) or [verdict]
    }
    warning = f"Only {len(values)} of {len(answers)} samples were answers."
    return ConfidenceMeasurement(shares, "samples", f"{warning} {failed[0]}" if failed else None)
