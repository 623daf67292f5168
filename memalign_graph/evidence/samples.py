"""Agreement of several answers: how sure a judge is where its model gives no log-probabilities."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.globals import get_llm_cache
from langchain_core.messages import BaseMessage

from memalign_graph.agreement import agree
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError
from memalign_graph.evidence.logprobs import permitted_values
from memalign_graph.io import IO
from memalign_graph.models import BaseChatModel, StructuredModel, ask, with_schema
from memalign_graph.prompts.judge import answer_schema, read_answer
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Probabilities

_TEMPERATURE = 0.7
"""What samples are drawn with where the model's own temperature is 0, under which all are alike.

Source: X. Wang et al., Self-consistency improves chain of thought reasoning, 2022.
"""


@dataclass(frozen=True)
class Sampled:
    """What several answers to one prompt say."""

    probabilities: Probabilities | None
    """The share of each value of a finite scale, of a continuous one of those that agree with the
    verdict; None where none was an answer."""

    warning: str | None
    """What was missing, in a sentence."""


class NumberedCache(BaseCache):
    """A LangChain cache that keeps several answers to one prompt apart.

    Else all samples would be the first one, which is also the verdict.
    """

    def __init__(self, cache: BaseCache, number: int) -> None:
        """Keep one of several answers in a cache."""
        self._cache = cache
        self._number = number

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Find the answer; see `BaseCache.lookup`."""
        return self._cache.lookup(prompt, self._named(llm_string))

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Async twin of `lookup`."""
        return await self._cache.alookup(prompt, self._named(llm_string))

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Keep the answer; see `BaseCache.update`."""
        self._cache.update(prompt, self._named(llm_string), return_val)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Async twin of `update`."""
        await self._cache.aupdate(prompt, self._named(llm_string), return_val)

    def clear(self, **kwargs: Any) -> None:
        """Clear the whole cache; see `BaseCache.clear`."""
        self._cache.clear(**kwargs)

    def _named(self, llm_string: str) -> str:
        return f"{llm_string}---sample {self._number}"


async def sample_verdicts(
    io: IO,
    chat: BaseChatModel,
    criterion: Criterion,
    messages: Sequence[BaseMessage],
    verdict: Value,
    *,
    samples: int,
    limit: int,
) -> Sampled:
    """Ask for several answers, and count."""
    asked = [_sample(io, one, criterion, messages) for one in _models(chat, criterion, samples)]
    answers: list[Value | MemAlignError] = await io.gather(asked, max(min(samples, limit), 1))
    values = [one for one in answers if not isinstance(one, MemAlignError)]
    failed = [one for one in answers if isinstance(one, MemAlignError)]
    if not values:
        return Sampled(None, f"No confidence by samples: none was an answer. {failed[0]}")
    warning = None
    if failed:
        warning = f"Only {len(values)} of {samples} samples were answers. {failed[0]}"
    return Sampled(_shares(criterion.scale, values, verdict), warning)


def _models(chat: BaseChatModel, criterion: Criterion, samples: int) -> list[StructuredModel]:
    varied: dict[str, Any] = {}
    if getattr(chat, "temperature", None) == 0:
        varied["temperature"] = _TEMPERATURE
    schema = answer_schema(criterion)
    cache = chat.cache if isinstance(chat.cache, BaseCache) else get_llm_cache()
    if cache is None or chat.cache is False:
        return [with_schema(chat.model_copy(update=varied), schema)] * samples
    return [
        with_schema(chat.model_copy(update={**varied, "cache": NumberedCache(cache, n)}), schema)
        for n in range(samples)
    ]


async def _sample(
    io: IO, model: StructuredModel, criterion: Criterion, messages: Sequence[BaseMessage]
) -> Value | MemAlignError:
    def read(answer: dict[str, Any], _last: bool) -> Value:  # noqa: FBT001 - as `ask` calls it
        return read_answer(answer, criterion)[0]

    try:
        value, _ = await ask(io, model, messages, read, purpose="judge")
    except (ChatModelError, ModelAnswerError) as error:
        return error
    return value


def _shares(scale: Scale, values: Sequence[Value], verdict: Value) -> Probabilities:
    permitted = permitted_values(scale)
    if permitted is None:
        agreeing = sum(agree(scale, value, verdict) for value in values)
        return {scale.render(verdict): agreeing / len(values)}
    counts = Counter(scale.render(value) for value in values)
    return {name: counts[name] / len(values) for name in map(scale.render, permitted)}
