"""A case that memory holds, judged again with other guidelines, or as if it were not there."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import ask_once
from memalign_graph.effects import Operation
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.recall import Recall, recall_besides
from memalign_graph.models import max_input_tokens, with_schema
from memalign_graph.pairwise import settle_orders, swap_outputs
from memalign_graph.prompts.judge import answer_schema, judge_prompt, read_answer
from memalign_graph.scales import Pairwise, Value
from memalign_graph.types import Example, Guideline


@dataclass(frozen=True)
class SeenJudge:
    """How the judge of a memory judges, as its graph does."""

    chat: BaseChatModel
    """The judge's model."""

    k: int
    """How many similar examples it is shown."""

    use_guidelines: bool
    """Whether it is given guidelines."""

    max_guideline_tokens: int
    """How much of its prompt they may take."""

    swap: bool = field(default=False, kw_only=True)
    """Whether two outputs are judged in both orders."""


@dataclass(frozen=True)
class SeenVerdict:
    """What it said."""

    value: Value
    """The verdict."""

    rationale: str
    """Why."""

    guideline_ids: list[str]
    """The guidelines in the prompt, in its order."""


def judge_seen(
    access: MemoryAccess,
    judge: SeenJudge,
    example: Example,
    guidelines: Sequence[Guideline],
    besides: AbstractSet[str],
) -> Operation[SeenVerdict]:
    """Judge an example that memory holds.

    Args:
        access: The memory, its view refreshed.
        judge: How it is judged.
        example: The example.
        guidelines: The guidelines to judge it by.
        besides: The episodes that are not shown, such as those on the example itself.

    Returns:
        The verdict.

    Raises:
        ModelAnswerError: If the model gives no answer that can be used.
        ChatModelError: If a call fails.
    """
    found = yield from recall_besides(access, example, judge.k, besides)
    straight = yield from _ask(access, judge, example, guidelines, found)
    scale = access.criterion.scale
    if not (judge.swap and isinstance(scale, Pairwise)):
        return straight
    other = yield from _ask(access, judge, swap_outputs(example), guidelines, found)
    value, rationale, _ = settle_orders(
        scale, (straight.value, straight.rationale), (other.value, other.rationale)
    )
    return replace(straight, value=value, rationale=rationale)


def _ask(
    access: MemoryAccess,
    judge: SeenJudge,
    example: Example,
    guidelines: Sequence[Guideline],
    found: Recall,
) -> Operation[SeenVerdict]:
    prompt = judge_prompt(
        access.criterion,
        example,
        guidelines=guidelines if judge.use_guidelines else [],
        recalled=found.examples,
        nearness=found.nearness,
        max_guideline_tokens=judge.max_guideline_tokens,
        max_input_tokens=max_input_tokens(judge.chat),
    )

    def read(answer: dict[str, Any], _last: bool) -> tuple[Value, str]:  # noqa: FBT001 - as `ask` calls it
        return read_answer(answer, access.criterion)

    bound = with_schema(judge.chat, answer_schema(access.criterion))
    value, rationale = yield from ask_once(access, bound, prompt.messages, read, purpose="judge")
    return SeenVerdict(value, rationale, [one.id for one in prompt.guidelines])
