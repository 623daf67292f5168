"""Judge a case of memory again, without its own episodes."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.judging.case import Case, Retrieved
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.recall import recall_excluding, vector_key_of_example
from memalign_graph.runtime import NodeCall
from memalign_graph.settings import Judge
from memalign_graph.types import Example, Guideline, Judgment


def without_measuring(judge: Judge) -> Judge:
    """Return a judge that gives the same values, without options that change none."""
    return judge if judge.weighs else judge.but(confidence=False, samples=0)


async def judge_leaving_out(
    call: NodeCall,
    example: Example,
    *,
    guidelines: Sequence[Guideline],
    excluded_episode_ids: AbstractSet[str],
) -> Judgment:
    """Judge a case in memory without some episodes; replies are cached."""
    access = call.access
    recall = recall_excluding(access, example, call.k, excluded_episode_ids)
    call = replace(call, io=CachedRepliesIO(call.io, access), max_concurrency=1)
    retrieved = Retrieved.of(recall, access.view).with_guidelines(guidelines, call)
    own_key = vector_key_of_example(access, example)
    excluded_ids = _without_influence(access.view.rows(), excluded_episode_ids, own_key)
    return await run_judge(Case(call, example, retrieved, excluded_ids))


async def judge_as_new(
    call: NodeCall, example: Example, guidelines: Sequence[Guideline]
) -> Judgment:
    """Judge a case in memory without its episodes, and guidelines that only these support."""
    key = vector_key_of_example(call.access, example)
    own_ids = frozenset(row.id for row in call.access.view.rows_for_vector(key))
    others = [
        guideline
        for guideline in guidelines
        if not guideline.episode_ids or {*guideline.episode_ids} - own_ids
    ]
    return await judge_leaving_out(call, example, guidelines=others, excluded_episode_ids=own_ids)


def _without_influence(
    rows: Sequence[EpisodeRow], excluded_episode_ids: AbstractSet[str], own_key: str
) -> set[str]:
    """Return the ids of the examples that are like the case, or whose episodes are all left out."""
    retained = {
        row.example_id
        for row in rows
        if row.id not in excluded_episode_ids and row.vector_key != own_key
    }
    return {row.example_id for row in rows} - retained
