"""How sure the judge is: asked of the model beside its verdict, in a call of its own.

The judge reasons first and then gives its value, after which the value's token is all but certain,
right or wrong; asked for the value first, it judges worse. So it is asked once more, for a letter
alone: the prompt is the same up to the last sentence, which servers keep, and the answer a token.
Where the model gives no log-probabilities it may be asked for several answers.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.globals import get_llm_cache
from langchain_core.messages import BaseMessage, HumanMessage

from memalign_graph.agreement import agree
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError
from memalign_graph.identity import digest
from memalign_graph.io import IO, ChatReply, StructuredModel
from memalign_graph.models import (
    BaseChatModel,
    ask,
    is_small,
    model_key,
    model_name_of,
    with_schema,
)
from memalign_graph.prompts.judge import answer_schema, read_answer
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.settings import ChecksMode
from memalign_graph.tracing import PURPOSE, Told
from memalign_graph.types import ConfidenceSource, Criterion, Evidence, Probabilities

logger = logging.getLogger(__name__)

MAX_VALUES = 20
"""The most values a scale may have: servers tell of that many alternatives to a token at most."""

_ALONE = "\n\nThis time answer with one letter alone, and nothing before or after it:"

_MAX_TOKENS = 16
"""What ends an answer that is no letter; of a small model, whose every token takes time, one."""

_TEMPERATURE = 0.7
"""What samples are drawn with where the model's own temperature is 0, under which all are alike
(X. Wang et al., Self-consistency improves chain of thought reasoning, 2022)."""


@dataclass(frozen=True)
class ConfidenceMeasurement:
    """How likely the judge holds each value; of a continuous scale its verdict alone."""

    probabilities: Probabilities | None = None
    source: ConfidenceSource | None = None
    warning: str | None = None  # why it was not measured as asked for


@dataclass(frozen=True)
class RawVerdict:
    """What the judge said of a case."""

    verdict: Value
    probabilities: Mapping[str, float] | None = None
    source: ConfidenceSource | None = None
    checks: Mapping[str, float] = field(default_factory=dict)  # by `asked_id`


@dataclass(frozen=True)
class Decision:
    """What becomes of it."""

    value: Value
    confidence: float | None = None
    confidence_source: ConfidenceSource | None = None
    calibrated_on: int | None = None
    evidence: Evidence | None = None


def verdict_only(said: RawVerdict) -> Decision:
    return Decision(said.verdict)


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
    """Measure how sure a judge is of its verdict."""
    io = Told(io, lambda: {PURPOSE: "confidence"})
    values = permitted_values(criterion.scale)
    measured = ConfidenceMeasurement(warning=f"the scale has over {MAX_VALUES} values")
    if values:
        *before, last = messages
        names = map(criterion.scale.render, values)
        lines = [f"{letter}) {name}" for letter, name in zip(ascii_uppercase, names, strict=False)]
        again = [*before, HumanMessage("\n".join([f"{last.text}{_ALONE}", *lines]))]
        model, kind = logprob_model(chat), type(chat).__name__
        measured = ConfidenceMeasurement(warning=f"{kind} has no `logprobs` and `top_logprobs`")
        if model is not None:
            measured = await ask_letter(io, model, criterion.scale, again, values)
    if measured.probabilities is not None:
        return measured
    why = f"No confidence by log-probabilities: {(measured.warning or '').rstrip('.')}"
    if samples:
        ask_once = _sampling(io, chat, criterion, messages)
        answers = await io.gather(
            [ask_once(number) for number in range(samples)], max(min(samples, limit), 1)
        )
        measured = _counted(answers, criterion.scale, verdict)
        warning = f"{why}. {measured.warning or ''}".rstrip()
    else:
        warning = f"{why}; give samples=5 or so to ask it several times."
    logger.warning("Judging %r: %s", criterion.name, warning)
    return replace(measured, warning=warning)


def average_orders(
    straight: ConfidenceMeasurement, swapped: ConfidenceMeasurement
) -> ConfidenceMeasurement:
    """Bring together what was measured with two outputs in both orders."""
    one, other = straight.probabilities, swapped.probabilities
    if one is None or other is None:
        return ConfidenceMeasurement(warning=straight.warning or swapped.warning)
    back = {"A": "B", "B": "A"}
    mean = {name: (share + other[back.get(name, name)]) / 2 for name, share in one.items()}
    source = straight.source if straight.source == swapped.source else "samples"
    return ConfidenceMeasurement(mean, source, straight.warning or swapped.warning)


def permitted_values(scale: Scale) -> list[Value]:
    """Return the values of a finite scale; none of one with too many."""
    if isinstance(scale, Numeric):
        low, high = math.ceil(scale.minimum), math.floor(scale.maximum)
        few = scale.integer and high - low < MAX_VALUES
        return list(range(low, high + 1)) if few else []
    values = (True, False) if isinstance(scale, Boolean) else scale.choices
    return list(values) if len(values) <= MAX_VALUES else []


_MOST_MARKS = 11
_FEW_MARKS = 5  # of a scale with more numbers: told apart better than more are


def marks(scale: Scale) -> list[Value]:
    """Return the values that a small model chooses from; none where there are too many."""
    values = permitted_values(scale)
    if isinstance(scale, Numeric) and not 0 < len(values) <= _MOST_MARKS:
        step = (scale.maximum - scale.minimum) / (_FEW_MARKS - 1)
        numbers = [scale.minimum + step * n for n in range(_FEW_MARKS)]
        values = [scale.validate_value(round(n) if scale.integer else n) for n in numbers]
    return values


def value_of(probabilities: Probabilities, values: Sequence[Value], scale: Scale) -> Value:
    """Choose by how likely values are: the median where they have an order, else the likeliest."""
    shares = [probabilities[scale.render(value)] for value in values]
    if isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered):
        return values[next(n for n, so_far in enumerate(accumulate(shares)) if so_far >= _HALF)]
    return values[shares.index(max(shares))]


_HALF = 0.5 - 1e-9


def token_probabilities(logprobs: Any, tokens: Sequence[str]) -> list[float | None]:
    """Read how likely the first token was each of some; None for those that are not told of.

    Servers write log-probabilities in several ways: what is not as OpenAI writes it tells nothing.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    first = next((entry for entry in _entries(content) if entry["token"].strip()), {})
    alternatives: dict[str, float] = {}
    for entry in _entries([*_entries(first.get("top_logprobs")), first]):
        log = entry.get("logprob")
        inside = max(min(log, 0.0), -9999.0) if isinstance(log, int | float) else math.nan
        if not math.isnan(inside):
            odd = math.exp(inside)
            alternatives[entry["token"]] = max(odd, alternatives.get(entry["token"], 0.0))
    odds = dict.fromkeys((text.strip() for text in alternatives), 0.0)
    for text, odd in alternatives.items():
        odds[text.strip()] += odd
    return [odds.get(token) for token in tokens]


def letter_probabilities(logprobs: Any, names: Sequence[str]) -> Probabilities | None:
    """Read how likely the first token was each value's letter, renormalised over those alone.

    A letter that is not among the alternatives counts as 0 where the others leave it little.
    """
    shares = token_probabilities(logprobs, ascii_uppercase[: len(names)])
    total = sum(share or 0.0 for share in shares)
    if not total or (None in shares and total < _MIN_KNOWN_SHARE):
        return None
    return {name: (share or 0.0) / total for name, share in zip(names, shares, strict=True)}


_MIN_KNOWN_SHARE = 0.9  # of the probability, on the letters that are known


def _entries(given: Any) -> list[Mapping[str, Any]]:
    entries = given if isinstance(given, list) else []
    return [e for e in entries if isinstance(e, Mapping) and isinstance(e.get("token"), str)]


class _AnyAnswer:
    """Tells a refusal from an answer; whatever else that is, its first token counts."""

    def parse_result(self, result: Sequence[Any]) -> dict[str, Any] | None:
        return None if result[0].message.additional_kwargs.get("refusal") else {}


def logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return a chat model that is asked for a token with its alternatives; None if it has none."""
    if not {"logprobs", "top_logprobs"} <= type(chat).model_fields.keys():
        return None
    top = getattr(chat, "top_logprobs", None) or MAX_VALUES
    model = chat.model_copy(update={"logprobs": True, "top_logprobs": top})
    most = 1 if is_small(chat) else _MAX_TOKENS
    key = digest([model_key(model), most])
    bound = model.bind(max_tokens=most)
    return StructuredModel(bound, _AnyAnswer(), model_name_of(chat), key, is_json=False)


_MAX_SILENT = 3
"""Replies in a row without log-probabilities, after which a model is taken to give none."""
_SILENT_S = 600.0
"""How long it is then not asked for them: the server may have been at fault."""

_silent: dict[str, tuple[int, float]] = {}
"""Replies in a row without log-probabilities by the model's key, and when the last one came."""


def usable_logprob_model(chat: BaseChatModel) -> StructuredModel | None:
    """Return what `logprob_model` does, but for models that lately gave no alternatives."""
    model = logprob_model(chat)
    if model is None:
        return None
    count, last = _silent.get(model.key, (0, 0.0))
    is_silent = count >= _MAX_SILENT and time.monotonic() - last < _SILENT_S
    return None if is_silent else model


def asks_checks(checks: ChecksMode, chat: BaseChatModel) -> bool:
    """Return whether a model is asked checks; `auto` asks small ones with log-probabilities."""
    return is_small(chat) and usable_logprob_model(chat) is not None if checks == "auto" else checks


async def ask_with_logprobs(
    io: IO, model: StructuredModel, messages: Sequence[BaseMessage]
) -> ChatReply:
    """Ask for a token with its alternatives, and note whether the model gave them."""
    reply = await io.chat(model, messages)
    if reply.logprobs:
        _silent.pop(model.key, None)
    elif reply.text and reply.problem is None:  # what is no answer tells nothing of that
        count = _silent.get(model.key, (0, 0.0))[0] + 1
        _silent[model.key] = count, time.monotonic()
        if count == _MAX_SILENT:
            logger.warning(
                "%s gives no log-probabilities: for %d minutes it is not asked for an answer's "
                "token again, and its checks tell no more than yes or no.",
                model.name,
                _SILENT_S // 60,
            )
    return reply


async def ask_letter(
    io: IO,
    model: StructuredModel,
    scale: Scale,
    messages: Sequence[BaseMessage],
    values: Sequence[Value],
) -> ConfidenceMeasurement:
    """Ask a model that tells of alternatives for one of some values by its letter."""
    try:
        reply = await ask_with_logprobs(io, model, messages)
    except ChatModelError as error:
        return ConfidenceMeasurement(warning=str(error))
    probabilities = letter_probabilities(reply.logprobs, list(map(scale.render, values)))
    if probabilities is not None:
        await io.keep(reply)
        return ConfidenceMeasurement(probabilities, "logprobs")
    why = f"a permitted value is not among the alternatives that {model.name} gave"
    if reply.problem is not None:
        why = f"{model.name} gave no answer that can be used: {reply.problem}"
    elif not reply.logprobs:
        why = f"{model.name} answered without them"
    return ConfidenceMeasurement(warning=why)


class _NumberedCache(BaseCache):
    """Keeps several answers to one prompt apart; else all samples would be the verdict."""

    def __init__(self, cache: BaseCache, number: int) -> None:
        self._cache = cache
        self._suffix = f"---sample {number}"

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return self._cache.lookup(prompt, llm_string + self._suffix)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return await self._cache.alookup(prompt, llm_string + self._suffix)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self._cache.update(prompt, llm_string + self._suffix, return_val)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        await self._cache.aupdate(prompt, llm_string + self._suffix, return_val)

    def clear(self, **kwargs: Any) -> None:
        self._cache.clear(**kwargs)


def _sampling(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> Callable[[int], Coroutine[Any, Any, Value | MemAlignError]]:
    """Return what asks once more, each number an answer of its own."""
    cache = chat.cache if isinstance(chat.cache, BaseCache) else get_llm_cache()
    cache = None if chat.cache is False else cache
    varied = {"temperature": _TEMPERATURE} if getattr(chat, "temperature", None) == 0 else {}

    def read(answer: dict[str, Any], _last: bool) -> Value:  # noqa: FBT001 - as `ask` calls it
        return read_answer(answer, criterion)[0]

    async def sample(number: int) -> Value | MemAlignError:
        apart = {} if cache is None else {"cache": _NumberedCache(cache, number)}
        model = with_schema(chat.model_copy(update={**varied, **apart}), answer_schema(criterion))
        try:
            return (await ask(io, model, messages, read, purpose="judge"))[0]
        except (ChatModelError, ModelAnswerError) as error:
            return error

    return sample


def _counted(
    answers: Sequence[Value | MemAlignError], scale: Scale, verdict: Value
) -> ConfidenceMeasurement:
    values = [answer for answer in answers if not isinstance(answer, MemAlignError)]
    failed = [answer for answer in answers if isinstance(answer, MemAlignError)]
    if not values:
        return ConfidenceMeasurement(
            warning=f"No confidence by samples: none was an answer. {failed[0]}"
        )
    warning = None
    if failed:
        warning = f"Only {len(values)} of {len(answers)} samples were answers. {failed[0]}"
    counts = Counter(scale.render(value) for value in values)
    names = [scale.render(value) for value in permitted_values(scale)]
    if not names:
        names = [scale.render(verdict)]
        counts = Counter({names[0]: sum(agree(scale, value, verdict) for value in values)})
    return ConfidenceMeasurement(
        {name: counts[name] / len(values) for name in names}, "samples", warning
    )
