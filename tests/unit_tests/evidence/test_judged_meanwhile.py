"""Judgments kept on cases at the very moment that another writer changes them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from memalign_graph import Episode, JudgeMemory, Judgment
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.learning import learn
from memalign_graph.memory.operations import note_judgments, unjudged_cases
from memalign_graph.memory.standing import EpisodeRow, JudgedRow
from memalign_graph.scales import Boolean
from tests.unit_tests.memory.support import (
    CRITERION,
    Operation,
    commits,
    dump,
    hashed,
    in_memory,
    interleaved,
    op,
    said,
)


@pytest.fixture
def pair() -> tuple[JudgeMemory, JudgeMemory]:
    """The same memory through two stores, as in two processes."""
    opener = in_memory()
    here, there = (JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in "12")
    return here, there


def judgment(episode: Episode, *, value: Any = True) -> Judgment:
    return Judgment(
        criterion="tone",
        example_id=episode.example_id,
        value=value,
        rationale="Seen.",
        memory_version="",
    )


def noting(memory: JudgeMemory, *episodes: Episode) -> Operation:
    judgments = {one.example_id: judgment(one) for one in episodes}
    return lambda io: note_judgments(io, memory.access, judgments)


def learning(memory: JudgeMemory, *episodes: Episode) -> Operation:
    words = {one.id: one.word for one in episodes}
    rules = [op("add", *episodes, text="Say sorry.")]
    return lambda io: learn(io, memory.access, rules, words)


def test_what_is_learned_from_while_it_is_noted_stays_learned(pair: Any) -> None:
    here, there = pair
    one = here.remember(said("one"))
    there.version()
    interleaved(noting(here, one), commits, lambda: run(learning(there, one)(BLOCKING)))
    for memory in pair:
        [episode] = memory.episodes()
        assert episode.status == "distilled"
        assert episode.judgment is not None
        [rule] = memory.guidelines()
        assert rule.episode_ids == [one.id]
    assert here.version() == there.version()


def test_what_is_noted_while_it_is_learned_from_is_learned_once(pair: Any) -> None:
    here, there = pair
    one = here.remember(said("one"))
    there.version()
    interleaved(learning(here, one), commits, lambda: run(noting(there, one)(BLOCKING)))
    for memory in pair:
        [episode] = memory.episodes()
        # Its judgment may be lost: then the next alignment asks for it again.
        assert episode.status == "distilled"
        [rule] = memory.guidelines()
        assert rule.episode_ids == [one.id]


@pytest.mark.parametrize("how", ["forget", "purge"])
def test_what_is_taken_back_stays_away(pair: Any, how: str) -> None:
    here, there = pair
    one, two = here.remember([said("one", "Secretly cold."), said("two")])
    there.version()
    interleaved(noting(here, one, two), commits, lambda: there.forget(one.id, purge=how == "purge"))
    for memory in pair:
        [episode] = memory.episodes()
        assert episode.id == two.id
        assert episode.judgment is not None
    if how == "purge":
        store = here.access.store
        assert "Secretly" not in dump([item.value for item in store.search((), limit=1_000)])


def test_what_is_said_anew_is_kept(pair: Any) -> None:
    here, there = pair
    one = here.remember(said("one", "Word 1."))
    there.version()
    interleaved(noting(here, one), commits, lambda: there.revise(one.id, {"rationale": "Word 2."}))
    for memory in pair:
        [episode] = memory.episodes()
        assert (episode.rationale, episode.status) == ("Word 2.", "pending")


def test_of_two_judgments_one_is_kept_by_both(pair: Any) -> None:
    here, there = pair
    one = here.remember(said("one"))
    there.version()
    other = {one.example_id: judgment(one, value=False)}
    interleaved(
        noting(here, one),
        commits,
        lambda: run(note_judgments(BLOCKING, there.access, other)),
    )
    assert here.version() == there.version()
    assert here.episodes() == there.episodes()
    assert here.episodes()[0].judgment is not None


def test_an_episode_that_has_a_judgment_keeps_it(pair: Any) -> None:
    here, _ = pair
    [one] = here.remember([said("one", judgment=judgment_on(said("one")))])
    here.remember(said("one", "Mine.", author="bob"))
    run(noting(here, one)(BLOCKING))
    values = {each.author: each.judgment.value for each in here.episodes()}
    assert values == {None: False, "bob": True}


def judgment_on(feedback: Any) -> Judgment:
    return Judgment(
        criterion="tone",
        example_id=feedback.example.id,
        value=False,
        rationale="Cold.",
        memory_version="",
    )


def test_nothing_to_keep_is_no_commit(pair: Any) -> None:
    here, _ = pair
    here.remember(said("one"))
    version, past = here.version(), len(here.history())
    run(note_judgments(BLOCKING, here.access, {}))
    assert (here.version(), len(here.history())) == (version, past)


CASES: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "a value": ([{"value": True}], True),
    "words alone": ([{"rationale": "Cold."}], False),
    "a value off the scale": ([{"value": 7}], False),
    "words, and another's value": ([{"rationale": "Cold."}, {"value": True}], True),
    "judged": ([{"value": True, "verdict": False}], False),
    "judged for one of two": ([{"value": True}, {"value": True, "verdict": False}], False),
    "judged on another scale": ([{"value": True, "verdict": "warm"}], False),
    "judged on another scale for one": ([{"value": True}, {"value": 1, "verdict": "warm"}], True),
}


@pytest.mark.parametrize(("given", "wanted"), CASES.values(), ids=CASES)
def test_which_cases_are_judged(given: list[dict[str, Any]], wanted: bool) -> None:  # noqa: FBT001 - a parameter
    rows = [
        EpisodeRow(
            id=str(number),
            key="",
            word="",
            content={},
            vector_key="k",
            example_id="e",
            value=one.get("value"),
            given_at=datetime.now(UTC),
            judged=JudgedRow(one["verdict"], None, None) if "verdict" in one else None,
        )
        for number, one in enumerate(given)
    ]
    found = unjudged_cases(rows, Boolean())
    assert found == ({"e": [row.id for row in rows]} if wanted else {})
