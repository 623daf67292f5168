"""How sure the judge is: asked of the model beside its verdict, in a call of its own.

The judge reasons first and then gives its value, after which the value's token is all but certain,
right or wrong; asked for the value first, it judges worse. So it is asked once more, for a letter
alone: the prompt is the same up to the last sentence, which servers keep, and the answer a token.
Where the model gives no log-probabilities it may be asked for several answers.
"""

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
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
"""What samples are drawn with where the model's own temperature is 0, under which all are alike
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
    """Measure how sure a judge is of its verdict."""
    io = TracedIO(io, lambda: {PURPOSE: "confidence"})
    values = permitted_values(criterion.scale)
    measured = ConfidenceMeasurement(warning=f"the scale has over {MAX_VALUES} values")
    if values:
        *before, last = messages
        names = map(criterion.scale.render, values)
        lines = [f"{letter}) {name}" for letter, name in zip(ascii_uppercase, names, strict=False)]
        again = [*before, HumanMessage("\n".join([f"{last.text}{_LETTER_INSTRUCTION}", *lines]))]
        model, kind = logprob_model(chat), type(chat).__name__
        measured = ConfidenceMeasurement(warning=f"{kind} has no `logprobs` and `top_logprobs`")
        if model is not None:
            measured = await ask_letter(io, model, criterion.scale, again, values)
    if measured.probabilities is not None:
        return measured
    why = f"No confidence by log-probabilities: {(measured.warning or '').rstrip('.')}"
    if samples:
        ask_once = _make_sampler(io, chat, criterion, messages)
        answers = await io.gather(
            [ask_once(number) for number in range(samples)], max(min(samples, limit), 1)
        )
        measured = _vote_shares(answers, criterion.scale, verdict)
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


def _make_sampler(
    io: IO, chat: BaseChatModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> Callable[[int], Coroutine[Any, Any, Value | MemAlignError]]:
    """Return what asks once more, each number an answer of its own."""

    def varied(model: BaseChatModel, number: int) -> BaseChatModel:
        cache = model.cache if isinstance(model.cache, BaseCache) else get_llm_cache()
        update: dict[str, Any] = {}
        if cache is not None and model.cache is not False:
            update["cache"] = _NumberedCache(cache, number)
        if getattr(model, "temperature", None) == 0:
            update["temperature"] = _TEMPERATURE
        return model.model_copy(update=update)

    def read(answer: dict[str, Any], _last: bool) -> Value:  # noqa: FBT001 - as `ask` calls it
        return parse_answer(answer, criterion)[0]

    async def sample(number: int) -> Value | MemAlignError:
        sampled = map_models(chat, lambda inner: varied(inner, number))
        model = with_schema(sampled, answer_schema(criterion))
        try:
            return (await ask_with_retry(io, model, messages, read, purpose="judge"))[0]
        except (ChatModelError, ModelAnswerError) as error:
            return error

    return sample


def _vote_shares(
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
        counts = Counter({names[0]: sum(values_agree(scale, value, verdict) for value in values)})
    return ConfidenceMeasurement(
        {name: counts[name] / len(values) for name in names}, "samples", warning
    )
