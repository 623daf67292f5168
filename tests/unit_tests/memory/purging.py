"""Helpers for purge tests: feedback with planted words, and where they remain."""

import inspect
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, SearchOp

from memalign_graph import Criterion, Episode, Feedback, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import learning
from memalign_graph.memory.purge import Purged
from tests.builders import make_judgment
from tests.unit_tests.memory.support import (
    CRITERION,
    NO_LIMIT,
    comment,
    dump,
    hashed,
    learn,
    learn_from,
    op,
)

MARK = "zqx"
"""All planted words hold this, and nothing else does."""

PLACES = ("in", "out", "ref", "why", "old", "said", "ann", "id", "asks")
WORDS = tuple(f"{MARK}{place}" for place in PLACES)
"""Planted in inputs, outputs, reference, rationale, an earlier rationale, the judge's rationale,
the author's name, the feedback's id and guidelines' questions."""


def planted(rationale: str = "zqxwhy", **fields: Any) -> Feedback:
    """Feedback full of planted words."""
    return comment(
        **{
            "inputs": {"first": "A line.\nzqxin-7 begins the next", "then": ["more of it", 7]},
            "rationale": f"It is because of {rationale} that it must not be so.",
            "outputs": "An answer with zqxout in it.",
            "reference_outputs": "What it should say: zqxref.",
            "author": "zqxann",
            "id": "zqxid",
            "value": False,
            "judgment": make_judgment(rationale="The judge quotes zqxsaid."),
            **fields,
        }
    )


def fill(
    store: BaseStore, *, criterion: Criterion = CRITERION, embeddings: Any = hashed
) -> tuple[JudgeMemory, Episode]:
    """Fill a memory with all kinds of traces of planted feedback."""
    memory = JudgeMemory(store, criterion, embeddings=embeddings)
    retained, other = memory.remember(
        [comment("kept", "Words of it.", author="bob"), comment("other")]
    )
    learn_from(memory, op("add", other, text="Untouched."))
    episode = memory.remember(planted("zqxold"))
    learn(memory, op("add", episode, text="Rule of zqxold alone."), author="zqxann")
    episode = memory.remember(planted())
    learn(
        memory,
        op("add", episode, text="Rule of zqxwhy alone.", question="Does it name zqxasks?"),
        op("add", episode, text="Untouched.", question="A question that only zqxasks."),
        op("add", episode, retained, text="Rule of zqxwhy and others."),
        op("add", episode, text="Another that is merged, zqxout."),
        op("add", episode, text="Old rule of zqxin-7."),
        op("add", retained, text="A rule that quotes ZQXSAID, though of another."),
        author="zqxann",
    )
    guidelines = {guideline.text: guideline for guideline in memory.guidelines()}
    merged = guidelines["Another that is merged, zqxout."]
    superseded = guidelines["Old rule of zqxin-7."]
    reworded = guidelines["Rule of zqxwhy alone."]
    untouched = guidelines["Untouched."]
    learn(
        memory,
        op("merge", guideline_id=merged.id, superseded_by=reworded.id),
        op(
            "retire",
            episode,
            guideline_id=superseded.id,
            superseded_by=untouched.id,
            reason="Since zqxwhy counts.",
        ),
    )
    memory.edit_guideline(reworded.id, "By hand: zqxwhy alone.", author="zqxann")
    memory.add_guideline("By hand, of nothing in particular.", author="bob")
    answers = {"asked": {episode.example_id: 0.9, other.example_id: 0.1}}
    run_sync(learning.record_check_answers(SYNC, memory.access, answers))
    drafts = {"waiting": {"id": "waiting", "answer": {"text": "zqxwhy"}}}
    run_sync(memory.access.put(SYNC, memory.access.layout.of("drafts"), drafts))
    return memory, episode


def purge(memory: JudgeMemory, *args: Any, **selection: Any) -> Purged:
    purged = memory.forget(*args, purge=True, **selection).purged
    assert purged is not None
    return purged


def everything_in(store: BaseStore) -> list[Any]:
    [items] = store.batch([SearchOp((), limit=NO_LIMIT)])
    return list(items)  # type: ignore[arg-type]


def left_in(items: list[Any], mark: str = MARK) -> list[str]:
    """The places that still contain a planted word."""
    return sorted(
        f"{'/'.join(item.namespace)}: {texts}"
        for item in items
        if mark in (texts := f"{item.key} {dump(item.value)}").casefold()
    )


async def keep_deleted(*owners: Any) -> None:
    """Turn off SQLite's secure_delete, so that deleted bytes stay in the file."""
    for owner in owners:
        connection = getattr(owner, "conn", owner)
        if "sqlite" not in type(connection).__module__:
            continue
        done = connection.execute("PRAGMA secure_delete=OFF")
        if inspect.isawaitable(done):
            await done


def untold(warnings: list[str], store: BaseStore) -> list[str]:
    """The warnings of a purge except the one about Postgres."""
    if "postgres" not in type(store).__module__:
        return warnings
    assert len(warnings) == 2
    return [
        warning for warning in warnings if "(PostgreSQL: VACUUM FULL, and backups)" not in warning
    ]


def holding(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if MARK.encode() in path.read_bytes().lower()
    )


class Parent(TypedDict, total=False):
    question: str


def small_graph(saver: BaseCheckpointSaver[Any]) -> Any:
    """An unrelated graph that stores its question."""
    builder = StateGraph(Parent)
    builder.add_node("keep", lambda state: state)
    builder.add_edge(START, "keep")
    return builder.compile(checkpointer=saver)


def ask(saver: BaseCheckpointSaver[Any], name: str, question: object) -> None:
    """Store a question in a thread of that graph."""
    small_graph(saver).invoke({"question": question}, {"configurable": {"thread_id": name}})


def threads_in(saver: BaseCheckpointSaver[Any]) -> set[str]:
    return {checkpoint.config["configurable"]["thread_id"] for checkpoint in saver.list(None)}


def quoted(memory: JudgeMemory) -> Feedback:
    """Remember planted feedback; returns that of another expert, whose judgment quotes it."""
    episode = memory.remember(comment("one", "It is zqxwhy.", author="zqxann"))
    judgment = make_judgment(rationale="As one said, zqxwhy counts.", episode_ids=[episode.id])
    return comment("two", author="bob", judgment=judgment)
