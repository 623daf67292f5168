"""Measure the judge's confidence in a second call.

After a written rationale the value's token is nearly certain, right or wrong, and a judge that
gives its value first judges worse. So the judge is asked again for a letter alone: servers cache
the shared prompt, and the answer is one token. Models without log-probabilities may be sampled.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.globals import get_llm_cache
from langchain_core.messages import BaseMessage, HumanMessage

from memalign_graph.agreement import values_agree
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError
from memalign_graph.evidence.logprobs import ask_letter, logprob_model
from memalign_graph.evidence.verdicts import MAX_VALUES, ConfidenceMeasurement, permitted_values
from memalign_graph.io import IO
from memalign_graph.models import BaseChatModel, map_models
from memalign_graph.prompts.judge import answer_schema, parse_answer
from memalign_graph.scales import Scale, Value
from memalign_graph.tracing import PURPOSE, TracedIO
from memalign_graph.types import Criterion

logger = logging.getLogger(__name__)

_LETTER_INSTRUCTION = "\n\nThis time answer with one letter alone, and nothing before or after it:"

_TEMPERATURE = 0.7
"""For sampling a model whose own temperature is 0, at which all samples are equal
(X. Wang et al., Self-consistency improves chain of thought reasoning, 2022)."""


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
    warning = f"No confidence by log-probabilities: {(measured.warning or '').rstrip('.')}"
    if samples:
        answers = await _sample_answers(io, chat, criterion, messages, samples, limit)
        measured = _vote_shares(answers, criterion.scale, verdict)
        warning = f"{warning}. {measured.warning or ''}".rstrip()
    else:
        warning = f"{warning}; give samples=5 or so to ask it several times."
    logger.warning("Judging %r: %s", criterion.name, warning)
    return replace(measured, warning=warning)


async def _letter_measurement(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> ConfidenceMeasurement:
    """Ask for the letter of the value with the same prompt."""
    scale, values = criterion.scale, permitted_values(criterion.scale)
    if not values:
        return ConfidenceMeasurement(warning=f"the scale has over {MAX_VALUES} values")
    model, kind = logprob_model(chat), type(chat).__name__
    if model is None:
        return ConfidenceMeasurement(warning=f"{kind} has no `logprobs` and `top_logprobs`")
    *before, last = messages
    letters = zip(ascii_uppercase, map(scale.render, values), strict=False)
    lines = [
        f"{last.text}{_LETTER_INSTRUCTION}",
        *(f"{letter}) {name}" for letter, name in letters),
    ]
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
    source = straight.source if straight.source == swapped.source else "samples"
    return ConfidenceMeasurement(mean, source, straight.warning or swapped.warning)


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


async def _sample_answers(
    io: IO,
    chat: BaseChatModel,
    criterion: Criterion,
    messages: Sequence[BaseMessage],
    samples: int,
    limit: int,
) -> list[Value | MemAlignError]:
    """Ask for the verdict several more times."""

    def varied(model: BaseChatModel, number: int) -> BaseChatModel:
        cache = model.cache if isinstance(model.cache, BaseCache) else get_llm_cache()
        update: dict[str, Any] = {}
        if cache is not None and model.cache is not False:
            update["cache"] = _NumberedCache(cache, number)
        if getattr(model, "temperature", None) == 0:
            update["temperature"] = _TEMPERATURE
        return model.model_copy(update=update)

    def parse(answer: dict[str, Any], _last: bool) -> Value:  # noqa: FBT001 - as it is called
        return parse_answer(answer, criterion)[0]

    async def sample(number: int) -> Value | MemAlignError:
        sampled = map_models(chat, lambda inner: varied(inner, number))
        model = with_schema(sampled, answer_schema(criterion))
        try:
            return (await ask_with_retry(io, model, messages, parse, purpose="judge"))[0]
        except (ChatModelError, ModelAnswerError) as error:
            return error

    return list(await io.gather(list(map(sample, range(samples))), max(min(samples, limit), 1)))


def _vote_shares(
    answers: Sequence[Value | MemAlignError], scale: Scale, verdict: Value
) -> ConfidenceMeasurement:
    values = [answer for answer in answers if not isinstance(answer, MemAlignError)]
    failed = [answer for answer in answers if isinstance(answer, MemAlignError)]
    if not values:
        warning = f"No confidence by samples: none was an answer. {failed[0]}"
        return ConfidenceMeasurement(warning=warning)
    warning = f"Only {len(values)} of {len(answers)} samples were answers. " if failed else ""
    counts = Counter(scale.render(value) for value in values)
    names = [scale.render(value) for value in permitted_values(scale)]
    if not names:
        names = [scale.render(verdict)]
        counts = Counter({names[0]: sum(values_agree(scale, value, verdict) for value in values)})
    shares = {name: counts[name] / len(values) for name in names}
    return ConfidenceMeasurement(shares, "samples", f"{warning}{failed[0]}" if failed else None)
