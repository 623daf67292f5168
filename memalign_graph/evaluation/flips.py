"""Cases that turned wrong: right at an earlier version of a memory, wrong now.

A judge that learns can unlearn: a new guideline that corrects one case may break another one that
was right before. Source of the measure: M. Srivastava, B. Nushi, E. Kamar, S. Shah and E. Horvitz,
An empirical analysis of backward compatibility in machine learning systems, KDD 2020.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Unpack

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph.agreement import values_agree
from memalign_graph.alignment.replay import ReplayCase, replay_cases_from
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    ModelAnswerError,
    is_about_prompt,
)
from memalign_graph.evaluation.cache import discard_unusable_answers
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    JudgeUnderTest,
    open_experiment,
    parse_options,
)
from memalign_graph.evaluation.results import ALIGNED, ChangedCase
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.judging.again import judge_leaving_out, without_measuring
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.jsonl import export_jsonl, import_jsonl
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.runtime import JudgeResources, NodeCall
from memalign_graph.types import Guideline, Judgment


async def _flips(
    io: IO, memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[ChangedCase]:
    """Find the cases that memory held at a version (`since`), were right then, and no longer are.

    Each is judged as it was and as it is, its own episode included, as the deployed judge would.
    Where evidence is weighed, a case has no vote on itself, or hardly any could turn, and verdict
    and votes are weighed as they are today. The memory is only read.
    """
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            f"memory: expected a JudgeMemory, got {type(memory).__name__}. Use "
            "JudgeMemory(store, criterion, ...)."
        )
    settings, alignments = parse_options(memory.criterion, options)
    with open_experiment(memory.criterion, settings) as experiment:
        subject = JudgeUnderTest(experiment, ALIGNED, alignments[ALIGNED], "flips")
        return await find_flips(io, subject, memory, await snapshot(io, memory.access, since))


flips, aflips = sync_async_functions(_flips)


@dataclass(frozen=True)
class _Verdict:
    """The judgment of a case, and whether it agrees with the experts."""

    judgment: Judgment
    is_right: bool


@dataclass(frozen=True)
class MemoryCopy:
    """A copy of a memory, its judge, and the cases with an expert's value."""

    access: MemoryAccess
    resources: JudgeResources
    guidelines: list[Guideline]
    cases: list[ReplayCase]
    cache: BaseStore

    @classmethod
    async def of(cls, io: IO, subject: JudgeUnderTest, memory: JudgeMemory) -> "MemoryCopy":
        own = memory.access
        access = MemoryAccess(InMemoryStore(), memory.criterion, own.layout, own.embedder)
        await import_jsonl(io, access, (await export_jsonl(io, own)).split("\n"))
        await index_missing(io, access, await access.refresh(io))
        cases = replay_cases_from(await access.all_episodes(io), memory.criterion.scale)
        resources = JudgeResources(without_measuring(subject.judge))
        guidelines, cache = await access.guidelines(io), subject.experiment.cache
        return cls(access, resources, guidelines, cases, cache)

    async def verdict(
        self,
        io: IO,
        case: ReplayCase,
        guidelines: Sequence[Guideline],
        excluded_episode_ids: AbstractSet[str] = frozenset(),
    ) -> _Verdict | None:
        """Judge a case with some guidelines; None where the model gives no usable answer."""
        step = NodeCall(
            io,
            self.resources,
            Runtime(store=self.access.store),
            self.resources.defaults,
            self.access,
        )
        try:
            async with discard_unusable_answers(io, self.cache):
                judgment = await judge_leaving_out(
                    step,
                    case.example,
                    guidelines=guidelines,
                    excluded_episode_ids=excluded_episode_ids,
                )
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                raise
            return None
        scale = self.access.criterion.scale
        return _Verdict(judgment, values_agree(scale, judgment.value, case.expected))


async def find_flips(
    io: IO, subject: JudgeUnderTest, memory: JudgeMemory, then: Snapshot
) -> list[ChangedCase]:
    """Return the flips since a snapshot of the memory."""
    copy = await MemoryCopy.of(io, subject, memory)
    known = {episode.id: episode for episode in then.episodes}
    new = frozenset(
        episode.id
        for case in copy.cases
        for episode in case.episodes
        if episode.id not in known or not known[episode.id].says_the_same_as(episode)
    )
    cases = [case for case in copy.cases if not new & {one.id for one in case.episodes}]
    before = [guideline for guideline in then.guidelines if guideline.status == "standing"]
    texts, texts_before = (
        {(guideline.id, guideline.text) for guideline in guidelines}
        for guidelines in (copy.guidelines, before)
    )
    added = [rule for rule in copy.guidelines if (rule.id, rule.text) not in texts_before]
    removed = [rule for rule in before if (rule.id, rule.text) not in texts]

    async def find_flip(case: ReplayCase) -> ChangedCase | None:
        earlier = await copy.verdict(io, case, before, new)
        if earlier is None or not earlier.is_right:
            return None
        now = await copy.verdict(io, case, copy.guidelines)
        if now is None or now.is_right:
            return None
        # One after another: cases are judged concurrently.
        responsible = [
            rule
            for rule in added
            if await is_right(case, [other for other in copy.guidelines if other is not rule])
        ]
        # If no single guideline explains the flip, all changes together may.
        is_joint = not responsible and await is_right(case, before)
        return ChangedCase(
            example=case.example,
            expected=case.expected,
            before=earlier.judgment.value,
            after=now.judgment.value,
            rationale=now.judgment.rationale,
            guidelines=added if is_joint else responsible,
            removed=removed if is_joint else [],
        )

    async def is_right(case: ReplayCase, guidelines: Sequence[Guideline]) -> bool:
        verdict = await copy.verdict(io, case, guidelines)
        return verdict is not None and verdict.is_right

    found = await subject.experiment.each(io, find_flip, cases)
    return [flip for flip in found if flip is not None]
