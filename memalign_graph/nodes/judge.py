"""`judge`: the verdict, made with the memory in its prompt."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.evidence.confidence import Measured, in_both_orders, measure_confidence
from memalign_graph.evidence.deciding import Decision, Said
from memalign_graph.evidence.past import decide_case
from memalign_graph.io import IO
from memalign_graph.judgment import Decide
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.memory.recall import known_vector
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
    ask,
    max_input_tokens,
)
from memalign_graph.nodes.base import (
    Memories,
    Models,
    OperationNode,
    Run,
    State,
    Update,
    example_of,
)
from memalign_graph.pairwise import settle_orders, swap_outputs
from memalign_graph.prompts.judge import (
    DEFAULT_MAX_GUIDELINE_TOKENS,
    JudgePrompt,
    answer_schema,
    judge_prompt,
    read_answer,
    read_broken,
)
from memalign_graph.scales import Pairwise, Value
from memalign_graph.state import Assembled, ExampleView, Retrieved
from memalign_graph.types import Criterion, Example, Guideline, Judgment, RecalledExample


class JudgeView(ExampleView, Retrieved, Assembled, total=False):
    """What the node reads of the state."""


@dataclass(frozen=True)
class _Verdict:
    prompt: JudgePrompt
    value: Value
    rationale: str
    broken: list[str]
    model: str
    warnings: list[str]
    measured: Measured = field(default_factory=Measured)


class Judge:
    """One criterion's judge: what `judge` nodes call, of one criterion or of a panel."""

    def __init__(
        self,
        criterion: Criterion,
        *,
        model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
        embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
        max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
        swap: bool = False,
        cite_guidelines: bool = False,
        keep_judgments: timedelta | None = None,
        confidence: bool = False,
        samples: int = 0,
        decide: Decide = "verdict",
    ) -> None:
        """Make a judge; see `create_judge_node`."""
        self._criterion = criterion
        self._models = Models(model)
        self._memories = Memories(criterion, embeddings)
        self._max_guideline_tokens = max_guideline_tokens
        self._swaps = swap
        self._cites = cite_guidelines
        self._keeps = keep_judgments
        self._measures = confidence
        self._samples = samples
        self._decides = decide
        self._schema = answer_schema(criterion)
        self._citing_schema = answer_schema(criterion, cites=True)

    async def judge(self, io: IO, state: State, run: Run) -> Judgment:
        """Judge the example in a state, with the memory that lies beside it."""
        example = example_of(state)
        verdict = await self._decide(io, state, example, run.max_concurrency)
        measured = verdict.measured
        said = Said(verdict.value, measured.probabilities, measured.source)
        decision = Decision.of(said)
        if self._measures or self._decides == "evidence":
            decision = await decide_case(
                io,
                self._memories.get(run, state["judge_settings"]),
                said,
                self._decides,
                vector=known_vector(state.get("recall_vector")),
            )
        judgment = Judgment(
            criterion=self._criterion.name,
            example_id=example.id,
            value=decision.value,
            confidence=decision.confidence,
            confidence_source=decision.confidence_source,
            calibrated_on=decision.calibrated_on,
            probabilities=measured.probabilities,
            evidence=decision.evidence,
            rationale=verdict.rationale,
            guideline_ids=[one.id for one in verdict.prompt.guidelines],
            broken_guideline_ids=verdict.broken,
            episode_ids=[one.id for one in verdict.prompt.episodes],
            memory_version=state.get("recall_version", ""),
            thread_id=run.thread_id,
            model=verdict.model,
            warnings=[*state.get("recall_warnings", []), *verdict.warnings],
        )
        if self._keeps is None:
            return judgment
        warning = await keep_judgment(
            io,
            self._memories.get(run, state["judge_settings"]),
            judgment,
            example,
            vector=state.get("recall_vector"),
            keep_for=self._keeps,
        )
        warnings = [*judgment.warnings, *([warning] if warning else [])]
        return judgment.model_copy(update={"warnings": warnings})

    async def _decide(self, io: IO, state: State, example: Example, limit: int) -> _Verdict:
        scale = self._criterion.scale
        if not (self._swaps and isinstance(scale, Pairwise)):
            return await self._ask(io, state, example, limit)
        orders = [self._ask(io, state, one, limit) for one in (example, swap_outputs(example))]
        both: list[_Verdict] = await io.gather(orders, min(len(orders), limit))
        straight, swapped = both
        value, rationale, warning = settle_orders(
            scale, (straight.value, straight.rationale), (swapped.value, swapped.rationale)
        )
        measured = in_both_orders(straight.measured, swapped.measured)
        warnings = [*straight.warnings, measured.warning, warning]
        return replace(
            straight,
            value=value,
            rationale=rationale,
            broken=straight.broken if warning is None else [],
            measured=measured,
            warnings=list(dict.fromkeys(one for one in warnings if one)),
        )

    async def _ask(self, io: IO, state: State, example: Example, limit: int) -> _Verdict:
        guidelines = [Guideline.model_validate(one) for one in state.get("guidelines", [])]
        cites = self._cites and bool(guidelines)
        bound = self._models.bound(
            self._citing_schema if cites else self._schema,
            state.get("judge_settings", {}).get("model"),
        )
        prompt = judge_prompt(
            self._criterion,
            example,
            guidelines=guidelines,
            recalled=[RecalledExample.model_validate(one) for one in state.get("recalled", [])],
            nearness=state.get("recall_nearness"),
            max_guideline_tokens=self._max_guideline_tokens,
            max_input_tokens=max_input_tokens(bound.chat),
        )

        def read(answer: dict[str, Any], _last: bool) -> Any:  # noqa: FBT001 - as `ask` calls it
            broken = read_broken(answer, prompt.guidelines) if cites else []
            return (*read_answer(answer, self._criterion), broken)

        (value, rationale, broken), reply = await ask(
            io, bound.structured, prompt.messages, read, purpose="judge"
        )
        model = reply.model or bound.structured.name
        verdict = _Verdict(prompt, value, rationale, broken, model, prompt.warnings)
        if not self._measures:
            return verdict
        measured = await measure_confidence(
            io,
            bound.chat,
            self._criterion,
            prompt.messages,
            value,
            samples=self._samples,
            limit=limit,
        )
        warnings = [*verdict.warnings, *([measured.warning] if measured.warning else [])]
        return replace(verdict, measured=measured, warnings=warnings)


def create_judge_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    swap: bool = False,
    cite_guidelines: bool = False,
    keep_judgments: timedelta | None = None,
    confidence: bool = False,
    samples: int = 0,
    decide: Decide = "verdict",
) -> OperationNode:
    """Create the node that judges.

    Args:
        criterion: The criterion.
        model: A chat model or a `"provider:name"` string; the run's settings go before it.
        embeddings: What the memory embeds with; nothing is embedded here.
        max_guideline_tokens: How much of the prompt guidelines may take, in tokens.
        swap: True to judge two outputs in both orders, with two calls of the model.
        cite_guidelines: Whether the judge also names the guidelines that the outputs break; the
            node then writes `broken_guidelines`, too.
        keep_judgments: How long judgments are kept for feedback that comes later; None for not.
        confidence: Whether to measure how sure the judge is, with one more short call.
        samples: How many answers to ask for where the model gives no log-probabilities.
        decide: `verdict`, or `evidence` to weigh the verdict against the most similar cases.

    Returns:
        The node; it reads `JudgeView`, writes `judgment`, and clears the `feedback` and `learned`
        that an earlier judgment on the same thread may have left.
    """
    judge = Judge(
        criterion,
        model=model,
        embeddings=embeddings,
        max_guideline_tokens=max_guideline_tokens,
        swap=swap,
        cite_guidelines=cite_guidelines,
        keep_judgments=keep_judgments,
        confidence=confidence,
        samples=samples,
        decide=decide,
    )

    async def judge_example(io: IO, state: State, run: Run) -> Update:
        judgment = await judge.judge(io, state, run)
        update: Update = {"judgment": judgment.to_json(), "feedback": None, "learned": None}
        if cite_guidelines:
            broken = judgment.broken_guideline_ids
            known = {one["id"]: one for one in state.get("guidelines", [])}
            update["broken_guidelines"] = [known[key] for key in broken]
        return update

    return OperationNode("judge", judge_example)
