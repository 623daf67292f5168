"""A case that memory holds, judged again with other guidelines, or as if it were not there."""

from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import KeepReplies, ask_once
from memalign_graph.evidence.confidence import Measured, in_both_orders, measure_confidence
from memalign_graph.evidence.deciding import Said
from memalign_graph.evidence.past import decide_case
from memalign_graph.io import IO
from memalign_graph.judgment import Decide
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import key_of
from memalign_graph.memory.recall import Recall, recall_besides
from memalign_graph.memory.view import MemoryView
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

    decide: Decide = field(default="verdict", kw_only=True)
    """What the value comes from."""

    confidence: bool = field(default=False, kw_only=True)
    """Whether the judge's graph measures how sure it is, which the evidence weighs."""

    samples: int = field(default=0, kw_only=True)
    """How many answers that may take."""


@dataclass(frozen=True)
class SeenVerdict:
    """What it said."""

    value: Value
    """The verdict, or with `decide="evidence"` what was decided."""

    rationale: str
    """Why."""

    guideline_ids: list[str]
    """The guidelines in the prompt, in its order."""


async def judge_seen(
    io: IO,
    access: MemoryAccess,
    judge: SeenJudge,
    example: Example,
    guidelines: Sequence[Guideline],
    besides: AbstractSet[str],
) -> SeenVerdict:
    """Judge an example that memory holds."""
    found = await recall_besides(io, access, example, judge.k, besides)
    verdict, measured = await _in_orders(io, access, judge, example, guidelines, found)
    if judge.decide == "verdict":
        return verdict
    own = key_of(access, example)
    decision = await decide_case(
        io,
        access,
        Said(verdict.value, measured.probabilities, measured.source),
        judge.decide,
        vector=access.view.index.get(own),
        besides=_Silent(access.view, own, besides),
    )
    return replace(verdict, value=decision.value)


@dataclass(frozen=True)
class _Silent(Container[str]):
    """The vector keys of the cases that do not vote."""

    view: MemoryView
    own: str
    besides: AbstractSet[str]

    def __contains__(self, key: object) -> bool:
        return key == self.own or set(self.view.episodes_at(str(key))) <= self.besides


async def _in_orders(
    io: IO,
    access: MemoryAccess,
    judge: SeenJudge,
    example: Example,
    guidelines: Sequence[Guideline],
    found: Recall,
) -> tuple[SeenVerdict, Measured]:
    straight, sure = await _ask(io, access, judge, example, guidelines, found)
    scale = access.criterion.scale
    if not (judge.swap and isinstance(scale, Pairwise)):
        return straight, sure
    other, other_sure = await _ask(io, access, judge, swap_outputs(example), guidelines, found)
    value, rationale, _ = settle_orders(
        scale, (straight.value, straight.rationale), (other.value, other.rationale)
    )
    return replace(straight, value=value, rationale=rationale), in_both_orders(sure, other_sure)


async def _ask(
    io: IO,
    access: MemoryAccess,
    judge: SeenJudge,
    example: Example,
    guidelines: Sequence[Guideline],
    found: Recall,
) -> tuple[SeenVerdict, Measured]:
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
    value, rationale = await ask_once(io, access, bound, prompt.messages, read, purpose="judge")
    verdict = SeenVerdict(value, rationale, [one.id for one in prompt.guidelines])
    if not (judge.confidence and judge.decide == "evidence"):
        return verdict, Measured()
    measured = await measure_confidence(
        KeepReplies(io, access),
        judge.chat,
        access.criterion,
        prompt.messages,
        value,
        samples=judge.samples,
        limit=1,
    )
    return verdict, measured
