"""The main job: judge, ask the expert, learn, and judge again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from langgraph.types import Command

from memalign_graph.demo.cases import Case, CaseFile
from memalign_graph.graphs import create_judge_graph, create_review_graph
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.types import Episode, Example, Guideline, Judgment

_K = 2
"""How many similar cases the judge is shown: a small model on a CPU reads 30 tokens a second."""

Expert = Callable[[Case, Judgment, str], Any]
"""Replies to a review: given the case, the judgment and the interrupt's description."""

Say = Callable[[str], None]
"""Shows a line of progress."""


@dataclass
class Outcome:
    """What the loop did, for the table at the end."""

    before: dict[str, Judgment] = field(default_factory=dict)
    """The judgment of each case before this run's feedback, by case id."""

    after: dict[str, Judgment] = field(default_factory=dict)
    """The judgment of each unseen case after it."""

    replies: dict[str, Any] = field(default_factory=dict)
    """What the expert replied, by case id."""

    guidelines: list[Guideline] = field(default_factory=list)
    """The guidelines in memory at the end."""

    episodes: dict[str, tuple[str, Episode]] = field(default_factory=dict)
    """The episodes in memory with the ids of the cases they are on, by episode id."""


def scripted_expert(case: Case, judgment: Judgment, _description: str) -> Any:
    """Reply as the case file says: approve where the judge is right, else correct it."""
    if judgment.value == case.expert.value:
        return {"decisions": [{"type": "approve"}]}
    return case.expert.model_dump(exclude_none=True)


def run_loop(
    cases: CaseFile,
    *,
    model: Any,
    embeddings: Any,
    store: BaseStore,
    checkpointer: BaseCheckpointSaver[str],
    expert: Expert,
    say: Say,
) -> Outcome:
    """Run the whole loop on a set of cases."""
    review = create_review_graph(cases.criterion, model=model, embeddings=embeddings, k=_K).compile(
        store=store, checkpointer=checkpointer
    )
    judge = create_judge_graph(cases.criterion, model=model, embeddings=embeddings, k=_K).compile(
        store=store
    )
    outcome = Outcome()
    waiting: list[tuple[Case, RunnableConfig, str]] = []
    total = len(cases.taught) + len(cases.unseen)
    for number, case in enumerate(cases.taught, start=1):
        thread: RunnableConfig = {"configurable": {"thread_id": uuid4().hex}}
        say(f"judging case {number} of {total}: {case.id}")
        result = review.invoke({"inputs": case.inputs, "outputs": case.outputs}, thread)
        outcome.before[case.id] = Judgment.model_validate(result["judgment"])
        [interrupt] = result["__interrupt__"]
        waiting.append((case, thread, interrupt.value["action_requests"][0]["description"]))
    for number, case in enumerate(cases.unseen, start=len(cases.taught) + 1):
        say(f"judging case {number} of {total}: {case.id}")
        outcome.before[case.id] = _judge(judge, case)
    for case, thread, description in waiting:
        reply = expert(case, outcome.before[case.id], description)
        outcome.replies[case.id] = reply
        say(f"the expert on {case.id}: {_short(reply)}")
        result = review.invoke(Command(resume=reply), thread)
        for line in _learned_lines(result):
            say(f"  {line}")
    for number, case in enumerate(cases.unseen, start=1):
        say(f"judging unseen case {number} of {len(cases.unseen)} again: {case.id}")
        outcome.after[case.id] = _judge(judge, case)
    memory = JudgeMemory(store, cases.criterion, embeddings=embeddings)
    outcome.guidelines = memory.guidelines()
    outcome.episodes = _episodes(memory, cases)
    return outcome


def _judge(graph: Any, case: Case) -> Judgment:
    result = graph.invoke({"inputs": case.inputs, "outputs": case.outputs})
    return Judgment.model_validate(result["judgment"])


def _episodes(memory: JudgeMemory, cases: CaseFile) -> dict[str, tuple[str, Episode]]:
    names = {Example(inputs=case.inputs, outputs=case.outputs).id: case.id for case in cases.taught}
    return {
        episode.id: (names.get(episode.example_id, episode.id), episode)
        for episode in memory.episodes()
    }


def _learned_lines(result: dict[str, Any]) -> list[str]:
    learned = result["learned"]
    if learned is None:
        return ["skipped: nothing is stored"]
    lines = [f"{one['action']}: {one['text']}" for one in learned["guidelines"]]
    known = learned["memory_version"] == result["judgment"]["memory_version"]
    return lines or ["known already" if known else "no new guideline: kept as a case"]


def _short(reply: Any) -> str:
    if isinstance(reply, dict) and "decisions" in reply:
        return "the judge is right"
    if isinstance(reply, dict) and reply.get("type") == "ignore":
        return "no word"
    if isinstance(reply, dict):
        parts = [str(reply[name]) for name in ("value", "rationale") if reply.get(name) is not None]
        return " - ".join(parts)
    return str(reply)
