"""Purges beside writers, judgments and other purges, and purges that were cut off."""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.memory import feedback, learning
from memalign_graph.memory.purge import Selection
from memalign_graph.memory.purge import purge as erase
from memalign_graph.memory.recall import recall
from tests.builders import keep_reviewed, make_judgment
from tests.unit_tests.memory.driver import memories
from tests.unit_tests.memory.purging import (
    MARK,
    ask,
    everything_in,
    left_in,
    planted,
    quoted,
    threads_in,
)
from tests.unit_tests.memory.stores import (
    CutOffError,
    commits,
    in_memory,
    interleave,
)
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    comment,
    hashed,
    hashes,
    op,
)

WAYS: dict[str, dict[str, Any]] = {
    "feedback id": {"feedback_ids": "zqxid"},
    "author": {"author": "zqxann"},
    "filter": {"where": lambda episode: MARK in f"{episode.author}"},
}


@pytest.mark.parametrize("ahead_s", [0, 60])
@pytest.mark.parametrize(("kind", "after"), [("words", False), ("facts", False), ("facts", True)])
def test_quote_stored_during_the_purge_is_removed(
    monkeypatch: pytest.MonkeyPatch, kind: str, ahead_s: int, *, after: bool
) -> None:
    opener = in_memory()
    here, there = memories(opener, 2)
    answer, now_ns = quoted(here), time.time_ns
    there.version()

    def purges() -> None:
        monkeypatch.undo()
        there.forget(author="zqxann", purge=True)

    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + ahead_s * 10**9)
    interleave(
        lambda io: feedback.remember(io, here.access, [answer]),
        lambda asked: (
            isinstance(asked, list) and isinstance(asked[0], PutOp) and kind in asked[0].namespace
        ),
        purges,
        after=after,
    )
    assert left_in(everything_in(there.access.store)) == []
    for memory in (here, there, *memories(opener, 1)):
        assert MARK not in memory.export_jsonl()
        assert [episode.author for episode in memory.episodes()] == ["bob"]


def test_quote_stored_after_the_last_read_of_a_purge_is_removed() -> None:
    here, there = memories(in_memory(), 2)
    answer, reads = quoted(here), count(1)
    interleave(
        lambda io: erase(io, here.access, Selection(author="zqxann"), None),
        lambda asked: "'words'" in repr(asked) and next(reads) == 2,
        lambda: there.remember(answer),
        after=True,
    )
    assert left_in(everything_in(here.access.store)) == []
    assert MARK not in there.export_jsonl()


def test_quote_of_a_write_that_was_cut_off_is_purged() -> None:
    here, there = memories(in_memory(), 2)
    answer = quoted(here)
    there.version()

    def crash() -> None:
        raise OSError

    with pytest.raises(OSError):
        interleave(lambda io: feedback.remember(io, here.access, [answer]), commits, crash)
    there.forget(author="zqxann", purge=True)
    assert left_in(everything_in(there.access.store)) == []


class SlowSaver(InMemorySaver):
    """A checkpointer that adds feedback while it lists threads."""

    def __init__(self, say: Callable[[], object]) -> None:
        super().__init__()
        self.say: Callable[[], object] | None = say

    def list(self, *args: Any, **options: Any) -> Any:
        if self.say is not None:
            say, self.say = self.say, None
            say()
        return super().list(*args, **options)


@pytest.mark.parametrize("case", ["one", "another"])
def test_feedback_given_while_threads_are_read_is_purged(case: str) -> None:
    store = InMemoryStore()
    memory, other = (JudgeMemory(store, CRITERION, embeddings=hashed) for _ in range(2))
    memory.remember(comment("one", "First zqxwhy.", author="zqxann"))
    late = comment(case, "Second zqxwhy.", author="zqxann")
    saver = SlowSaver(lambda: other.remember(late))
    memory.forget(author="zqxann", purge=True, checkpointer=saver)
    assert memory.episodes() == []
    assert left_in(everything_in(store)) == []
    assert other.episodes() == []
    assert MARK not in repr(vars(other.access.view)).casefold()


def test_feedback_given_after_the_last_read_of_a_purge_is_purged() -> None:
    here, there = memories(in_memory(InMemoryStore()), 2)
    here.remember(comment("one", "First zqxwhy.", author="ann"))
    reads = count(1)
    interleave(
        lambda io: erase(io, here.access, Selection(author="ann"), None),
        lambda asked: "'words'" in repr(asked) and next(reads) == 2,
        lambda: there.remember(comment("one", "Second zqxwhy.", author="ann")),
        after=True,
    )
    assert here.episodes() == there.episodes() == []
    assert left_in(everything_in(here.access.store), "zqxwhy") == []


@pytest.mark.parametrize(
    ("way", "kind"),
    [(way, kind) for way in ("remember", "revise") for kind in ("words", "facts")]
    + [("revise", "head"), ("check", "head")],
)
def test_what_is_stored_during_the_purge_is_purged(way: str, kind: str) -> None:
    here, there = memories(in_memory(InMemoryStore()), 2)
    episode = here.remember(comment("one", "First zqxwhy.", author="ann"))
    by_hand = here.add_guideline("By hand.", author="ann")

    def write(io: IO) -> Any:
        match way:
            case "remember":
                again = comment("one", "Then zqxold.", author="ann")
                return feedback.remember(io, here.access, [again])
            case "revise":
                return feedback.revise(io, here.access, episode.id, {"value": True})
            case _:
                answers = {"asked": {episode.example_id: 0.5}}
                return learning.record_check_answers(io, here.access, answers)

    interleave(
        write,
        lambda asked: isinstance(asked, Sequence) and kind in getattr(asked[0], "namespace", ()),
        lambda: there.forget(episode.id, purge=True),
        after=kind == "head",
    )
    for trace in (MARK, episode.example_id):
        assert left_in(everything_in(here.access.store), trace) == []
    assert here.episodes() == there.episodes() == []
    # A purge by ids is about cases, not about people.
    assert here.guidelines() == there.guidelines() == [by_hand]


def traces_in(memory: JudgeMemory) -> list[str]:
    """The places of planted words, and the keys of all vectors."""
    items = everything_in(memory.access.store)
    return [*left_in(items), *(item.key for item in items if "vectors" in item.namespace)]


def test_any_later_purge_completes_one_that_was_cut_off() -> None:
    here, there = memories(in_memory(), 2)
    episode, _ = here.remember([planted(), comment("two", author="bob")])
    keep_reviewed(here.access, episode.example)

    def crash() -> None:
        raise CutOffError

    with pytest.raises(CutOffError):
        interleave(
            lambda io: erase(io, here.access, Selection(author="zqxann"), None),
            commits,
            crash,
            after=True,
        )
    there.forget(author="bob", purge=True)
    assert traces_in(there) == []


@pytest.mark.parametrize("kind", ["facts", "words"])
def test_of_two_purges_at_the_same_time_none_brings_back_what_the_other_erased(kind: str) -> None:
    here, there = memories(in_memory(), 2)
    one = here.remember(comment("one", author="ann"))
    quotes = make_judgment(rationale="As in one.", episode_ids=[one.id])
    two = here.remember(comment("two", "It is zqxwhy.", author="bob", judgment=quotes))
    rules = [op("add", one, text="Of one."), op("add", two, text="Of zqxwhy.")]
    prompts, read = [[one.id], [two.id]], hashes([one, two])
    run_sync(learning.commit_lesson(SYNC, here.access, rules, read, prompts=prompts))
    there.version()
    interleave(
        lambda io: erase(io, here.access, Selection(author="ann"), None),
        lambda asked: (
            isinstance(asked, Sequence)
            and {getattr(put, "namespace", ())[-1:] for put in asked} == {(kind,)}
            and isinstance(asked[0], PutOp)
        ),
        lambda: there.forget(author="bob", purge=True),
    )
    assert traces_in(here) == []


def test_two_purges_at_the_same_time_erase_the_case_they_share() -> None:
    here, there = memories(in_memory(), 2)
    one, _ = here.remember([planted(author=author) for author in ("ann", "bob")])
    keep_reviewed(here.access, one.example)
    run_sync(learning.record_check_answers(SYNC, here.access, {"asked": {one.example_id: 0.9}}))
    ask(saver := InMemorySaver(), "case", one.example_id)
    there.version()
    interleave(
        lambda io: erase(io, here.access, Selection(author="ann"), saver),
        commits,
        lambda: there.forget(author="bob", purge=True, checkpointer=saver),
    )
    assert traces_in(here) == []
    assert left_in(everything_in(here.access.store), one.example_id) == []
    assert threads_in(saver) == set()


def test_vector_of_a_case_that_is_purged_while_it_is_embedded_is_deleted() -> None:
    here, there = memories(in_memory(), 2)
    given = [comment("one", author="ann")]
    run_sync(feedback.remember(SYNC, here.access, given, embeds=False))
    interleave(
        lambda io: recall(io, here.access, QUERY, 5),
        lambda asked: isinstance(asked, Embeddings),
        lambda: there.forget(author="ann", purge=True),
    )
    assert traces_in(here) == []
