"""`judge_cases`: what the judge says of cases in memory, as if no expert had spoken of them yet.

Evidence weighs the judge by what it said of a case before the expert's word on it was known. A case
that was reviewed has that; one that was learned in bulk has not, and is judged here: with the
guidelines and the similar cases that a new one like it would be judged with.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.drafts import KeepReplies
from memalign_graph.errors import ModelAnswerError
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing, key_of
from memalign_graph.memory.judged import note_judgments, unjudged_cases
from memalign_graph.memory.recall import recall_besides
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update
from memalign_graph.nodes.judge import Judge
from memalign_graph.nodes.measured import measured_node, progress
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.state import Received
from memalign_graph.types import Criterion, Example, Guideline, Judgment

JudgeCasesView = Received
"""What the node reads of the state."""


def create_judge_cases_node(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    use_guidelines: bool = True,
    use_episodes: bool = True,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    swap: bool = False,
    confidence: bool = False,
    samples: int = 0,
) -> OperationNode:
    """Create the node that judges the cases in memory that experts valued and no judge has judged.

    Each is judged once, whatever the number of its experts, as if it were new: without the episodes
    on it, and without the guidelines that rest on it alone. The judgment is kept on its episodes,
    without its rationale; they stay as they are otherwise. A case that gets no answer that can be
    used is left without.

    Args:
        criterion: The criterion.
        model: The judge's chat model, or a `"provider:name"` string; the run's settings go before
            it.
        embeddings: What the memory embeds with.
        use_guidelines: Whether the judge is given guidelines.
        use_episodes: Whether the judge is shown similar cases.
        max_guideline_tokens: How much of its prompt guidelines may take.
        swap: Whether two outputs are judged in both orders.
        confidence: Whether to measure how sure the judge is.
        samples: How many answers to ask for where the model gives no log-probabilities.

    Returns:
        The node; it reads `Received` and writes `JudgedCases`.
    """
    memories = Memories(criterion, embeddings)
    judge = Judge(
        criterion,
        model=model,
        embeddings=embeddings,
        max_guideline_tokens=max_guideline_tokens,
        swap=swap,
        confidence=confidence,
        samples=samples,
    )

    async def judge_cases(io: IO, state: State, run: Run) -> Update:
        settings = state["judge_settings"]
        access = memories.get(run, settings)
        view = await access.refresh(io)
        await index_missing(io, access, view)
        cases = unjudged_cases(view.rows(), criterion.scale)
        judging = _Judging(
            access=access,
            judge=judge,
            # Cases are judged side by side: all of them together keep to the limit.
            run=replace(run, max_concurrency=max(run.max_concurrency // max(len(cases), 1), 1)),
            settings=settings,
            k=settings["k"] if use_episodes else 0,
            guidelines=(await access.all_guidelines(io)) if use_guidelines else [],
            tell=lambda done: progress(run, "judge", done, len(cases)),
        )
        judging.tell(0)
        found = await access.episodes(io, (ids[0] for ids in cases.values()))
        asked = {one.example_id: one.example for one in found.values()}
        outcomes: list[Judgment | ModelAnswerError] = await io.gather(
            [judging.judge_case(io, one) for one in asked.values()], run.max_concurrency
        )
        done = dict(zip(asked, outcomes, strict=True))
        # Without its words: they may repeat other cases', which a purge of those would miss.
        judgments = {
            key: one.model_copy(update={"rationale": ""})
            for key, one in done.items()
            if isinstance(one, Judgment)
        }
        failures = [one for one in outcomes if isinstance(one, ModelAnswerError)]
        await note_judgments(io, access, judgments)
        return {
            "judged": {
                "cases": len(judgments),
                "warnings": _warnings(list(judgments.values()), failures),
            }
        }

    return measured_node("judge_cases", judge_cases)


@dataclass(frozen=True)
class _Judging:
    """How the cases of one run are judged."""

    access: MemoryAccess
    judge: Judge
    run: Run
    settings: Mapping[str, Any]
    k: int
    guidelines: Sequence[Guideline]
    tell: Callable[[int], None]
    _done: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def judge_case(self, io: IO, example: Example) -> Judgment | ModelAnswerError:
        """Judge one case as if it were new; what can't be judged is returned."""
        own = frozenset(self.access.view.episodes_at(key_of(self.access, example)))
        found = await recall_besides(io, self.access, example, self.k, own)
        standing = [one for one in self.guidelines if not _rests_on(one, own)]
        state = {
            "judge_example": example.to_json(),
            "judge_settings": self.settings,
            "recalled": [one.to_json() for one in found.examples],
            "recall_version": found.version,
            "recall_nearness": dict(found.nearness),
            "recall_warnings": [found.warning] if found.warning else [],
            "guidelines": [one.to_json() for one in standing],
        }
        judged: Judgment | ModelAnswerError
        try:
            judged = await self.judge.judge(KeepReplies(io, self.access), state, self.run)
        except ModelAnswerError as error:
            judged = error
        with self._lock:
            self._done.append(example.id)
            self.tell(len(self._done))
        return judged


def _rests_on(guideline: Guideline, episode_ids: frozenset[str]) -> bool:
    """Tell whether a guideline would not be there without some episodes."""
    return bool(guideline.episode_ids) and episode_ids.issuperset(guideline.episode_ids)


def _warnings(judgments: Sequence[Judgment], failures: Sequence[ModelAnswerError]) -> list[str]:
    told = []
    if failures:
        told.append(
            f"{len(failures)} case(s) could not be judged, and are weighed without a verdict: the "
            f"next alignment asks again. The first: {failures[0]}"
        )
    counts = Counter(warning for one in judgments for warning in one.warnings)
    told += [f"{count} case(s) were judged so: {warning}" for warning, count in counts.items()]
    return told
