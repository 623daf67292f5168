"""Remembering and revising feedback."""

from datetime import UTC, datetime
from itertools import permutations
from types import MappingProxyType
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Categorical,
    Episode,
    Example,
    Feedback,
    InvalidInputError,
    JudgeMemory,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.judgments import utc_now
from tests.builders import make_judgment
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.support import CRITERION, comment, hashed, learn, op

VERDICT = make_judgment(rationale="Fine.")


def test_feedback_may_be_given_as_its_fields(memory: JudgeMemory) -> None:
    fields = {"inputs": {"q": [1]}, "outputs": "a", "reference_outputs": "b", "value": "no"}
    episode = memory.remember(MappingProxyType(fields))
    assert isinstance(episode, Episode)
    assert (episode.value, episode.example.reference_outputs) == (False, "b")


def test_experts_are_distinguished_by_name_or_feedback_id(memory: JudgeMemory) -> None:
    same = [comment(id="1"), comment(id="2"), comment()]
    feedback = [*same, comment(rationale="Last word."), comment(author="ann")]
    answered = memory.remember(feedback)
    assert [item.rationale for item in answered[2:4]] == ["Last word."] * 2
    episodes = memory.episodes()
    assert [(item.feedback_id, item.author) for item in episodes].count((None, None)) == 1
    assert len(episodes) == 4
    assert len({item.example_id for item in episodes}) == 1


@pytest.mark.parametrize(
    "feedback",
    [
        "text",
        [{"inputs": "q"}],
        [comment(), 3],
        {"rationale": "x"},
        [comment("fine", value=True), comment("off the scale", value="perhaps")],
        {"inputs": "q", "outputs": "a", "rationale": "x", "thread_id": "a\x00b"},
        *(
            {"inputs": "q", "outputs": "a", "judgment": {**VERDICT.to_json(), **fields}}
            for fields in ({"rationale": "a\x00b"}, {"confidence": float("nan")})
        ),
    ],
)
def test_invalid_feedback_stores_nothing(memory: JudgeMemory, feedback: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.remember(feedback)
    assert "\n" not in str(caught.value)
    assert memory.episodes() == []


def test_agreement_is_not_distilled(memory: JudgeMemory) -> None:
    agreed, refused = memory.remember(
        [comment(f"{value}", None, value=value, judgment=VERDICT) for value in (True, False)]
    )
    assert (agreed.status, refused.status) == ("distilled", "pending")


def test_value_alone_completes_a_comment_without_one(memory: JudgeMemory) -> None:
    first = memory.remember(comment("one", "Too cold.", author="ann"))
    learn(memory, op("add", first, text="Be warm."))
    episode = memory.remember(comment("one", None, value=False, author="ann"))
    assert (episode.rationale, episode.value, episode.status) == ("Too cold.", False, "distilled")
    assert [guideline.episode_ids for guideline in memory.guidelines()] == [[episode.id]]


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("is_imported", [False, True])
def test_newer_feedback_without_a_judgment_keeps_the_judges_verdict(
    memory: JudgeMemory, *, value: bool, is_imported: bool
) -> None:
    newer = comment(value=value, given_at=datetime(2026, 1, 2, tzinfo=UTC))
    elsewhere = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    elsewhere.remember(newer)
    memory.remember(
        newer.model_copy(
            update={
                "value": False,
                "rationale": None,
                "judgment": VERDICT,
                "given_at": datetime(2026, 1, 1, tzinfo=UTC),
            }
        )
    )
    older = memory.export_jsonl()
    if is_imported:
        memory.import_jsonl(elsewhere.export_jsonl())
        elsewhere.import_jsonl(older)
        assert elsewhere.version() == memory.version()
    else:
        memory.remember(newer)
    [episode] = memory.episodes()
    assert (episode.value, episode.rationale) == (value, newer.rationale)
    assert (episode.judgment, episode.other_verdicts) == (VERDICT, {})


def test_same_feedback_in_another_thread_adds_the_thread(memory: JudgeMemory) -> None:
    first = memory.remember(comment(thread_id="t1"))
    learn(memory, op("add", first, text="Be warm."))
    again = memory.remember(comment(thread_id="t2"))
    assert again.thread_ids == ["t1", "t2"]
    assert again.status == "distilled"
    [guideline] = memory.guidelines()
    assert (guideline.status, guideline.episode_ids) == ("standing", [first.id])


@pytest.mark.parametrize("later", ["Too cold.", "Another word."])
def test_external_feedback_id_is_stored(memory: JudgeMemory, later: str) -> None:
    first = memory.remember(comment(author="ann"))
    memory.remember(comment(author="ann", id="7"))
    memory.remember(comment(rationale=later, author="ann"))
    assert [episode.feedback_id for episode in memory.episodes()] == ["7"]
    assert memory.forget(feedback_ids="7").episode_ids == [first.id]


def test_examples_are_copied(memory: JudgeMemory) -> None:
    inputs: Any = {"q": "as it was"}
    memory.remember(comment(inputs))
    version = memory.version()
    inputs["q"] = "changed"
    read: Any = memory.episodes()[0].example.inputs
    read["q"] = "changed"
    [episode] = memory.episodes()
    assert episode.example.inputs == {"q": "as it was"}
    assert episode.example.id == episode.example_id
    assert memory.version() == version


def test_example_of_maximum_depth(memory: JudgeMemory) -> None:
    deep: Any = "deep"
    for _ in range(90):
        deep = [deep]
    with pytest.raises(ValueError, match="inputs"):
        Example(inputs=[deep], outputs="a")
    episode = memory.remember(comment(deep))
    memory.remember(comment(deep, "Another word."))
    memory.forget(episode.id)


def one_of(memory: JudgeMemory) -> Episode:
    feedback = comment("one", "Too cold.", value=True, author="ann", id="7", thread_id="first")
    episode = memory.remember(feedback)
    learn(memory, op("add", episode, text="The old rule."))
    return episode


REVISED: list[tuple[Any, tuple[Any, Any]]] = [
    ({"value": "no"}, (False, "Too cold.")),
    ({"value": "no", "given_at": "2020-01-01"}, (False, "Too cold.")),
    ({"rationale": "Too long."}, (True, "Too long.")),
    ({"value": None, "rationale": "Too long."}, (None, "Too long.")),
    (Feedback(inputs="one", outputs="a", rationale="Too long."), (True, "Too long.")),  # type: ignore[call-arg]
    (Feedback(inputs="one", outputs="a", value=False, author="ann"), (False, "Too cold.")),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("change", "expected"), REVISED)
def test_revise_changes_only_the_given_fields(
    memory: JudgeMemory, change: Any, expected: tuple[Any, Any]
) -> None:
    item = one_of(memory)
    after = memory.revise(item.id, change)
    assert (after.value, after.rationale) == expected
    assert (after.id, after.author, after.feedback_id) == (item.id, "ann", "7")
    assert (after.created_at, after.status) == (item.created_at, "pending")
    assert after.updated_at > item.updated_at
    assert after.given_at >= item.given_at
    assert memory.episodes() == [after]
    assert memory.guidelines() == []


def test_equal_revision_changes_nothing_and_adds_its_thread(memory: JudgeMemory) -> None:
    item = one_of(memory)
    version = memory.version()
    for fields in ({}, {"value": "yes"}, {"rationale": "Too cold. "}):
        assert memory.revise(item.id, fields).word == item.word
    assert memory.version() == version
    after = memory.revise(item.id, {"rationale": "Too long.", "thread_id": "second"})
    assert after.thread_ids == ["first", "second"]


def test_repeating_the_old_feedback_does_not_undo_a_revision(memory: JudgeMemory) -> None:
    first = comment("one", "Too cold.", author="ann", given_at=datetime(2024, 1, 1, tzinfo=UTC))
    episode = memory.remember(first)
    after = memory.revise(episode.id, {"rationale": "Too long."})
    assert memory.remember(first) == after


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("given_at", [{}, {"given_at": "2024-01-01"}])
def test_forgotten_rows_of_a_table_stay_forgotten(
    memory: JudgeMemory, given_at: dict[str, str], *, purge: bool
) -> None:
    rows = [comment("one", None, value=True, **given_at), comment("one", "Too cold.", **given_at)]
    kept = memory.remember(comment("two"))
    memory.remember(rows)
    memory.remember(rows)
    version = memory.version()
    assert [commit.reason for commit in memory.history()] == ["remember"] * 2
    older = rows[1].model_copy(update={"given_at": utc_now()})  # than the forgetting
    memory.forget(where=lambda episode: episode.id != kept.id, purge=purge)
    forgetful = [memory]
    if not purge:  # an export has no hashes of what was purged
        forgetful.append(JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed))
        forgetful[1].import_jsonl(memory.export_jsonl())
    for each in forgetful:
        each.remember([*rows, older])
        assert [episode.id for episode in each.episodes()] == [kept.id]
        corrected = each.remember([comment("one", "Too long.", given_at="2024-01-02")])
        assert corrected[0].rationale == "Too long."
    memory.forget(corrected[0].id)
    assert len(memory.remember([rows[1].model_copy(update={"given_at": utc_now()})])) == 1
    memory.rollback(version)
    assert len(memory.remember(rows)) == (0 if purge else 2)


@pytest.mark.parametrize("is_table", [True, False])
@pytest.mark.parametrize("order", [*permutations([1, 2, 3])])
def test_newest_of_an_experts_comments_counts_in_any_order(
    memory: JudgeMemory, order: tuple[int, ...], *, is_table: bool
) -> None:
    for month in order:
        given_at = datetime(2024, month, 1, tzinfo=UTC)
        row = comment("one", "Cold." if month == 2 else "Kind.", value=month != 2)
        rows = [row.model_copy(update={"given_at": given_at})]
        run_sync(remember(SYNC, memory.access, rows, is_table=is_table))
    [episode] = memory.episodes()
    assert (episode.value, episode.given_at.month) == (True, 3)
    memory.remember(comment("one", "Kind.", value=True))
    assert memory.episodes() == [episode]


def test_comment_on_a_value_that_the_scale_has_lost_is_revised(memory: JudgeMemory) -> None:
    def scaled(*choices: str) -> JudgeMemory:
        criterion = CRITERION.model_copy(update={"scale": Categorical(choices=choices)})
        return JudgeMemory(memory.access.store, criterion, embeddings=hashed)

    episode = scaled("good", "ok", "bad").remember(comment(value="ok"))
    after = scaled("good", "bad").revise(episode.id, {"rationale": "Too long."})
    assert (after.value, after.rationale) == ("ok", "Too long.")


ANOTHERS = r"^feedback: it has another author or example "
UNKNOWN = r"^episode_id: (expected an episode's id|'tone' has no episode)"
REFUSED: list[tuple[Any, str]] = [
    ({"author": "bob", "rationale": "x"}, ANOTHERS),
    ({"author": None, "rationale": "x"}, ANOTHERS),
    ({"inputs": "other", "outputs": "a", "rationale": "x"}, ANOTHERS),
    (comment("other", "x", author="ann"), ANOTHERS),
    (comment("one", "x", author="bob"), ANOTHERS),
    ({"value": "perhaps"}, "value: 'perhaps' is not on the scale"),
    ({"value": None, "rationale": "  "}, "feedback needs a value or a rationale"),
    ({"verdict": True}, "verdict: is not a known field"),
    ({"rationale": "a\x00b"}, "rationale has a NUL"),
    (None, "feedback"),
    ("Too long.", "feedback"),
]


def test_invalid_revision_changes_nothing(memory: JudgeMemory) -> None:
    item = one_of(memory)
    before = everything_in(memory.access.store)
    attempts: list[tuple[Any, Any, str]] = [(item.id, *attempt) for attempt in REFUSED]
    attempts += [(key, {"value": False}, UNKNOWN) for key in ("nope", "", None, 5, ["x"])]
    for episode_id, values, problem in attempts:
        with pytest.raises(InvalidInputError, match=problem) as caught:
            memory.revise(episode_id, values)
        assert "\n" not in str(caught.value)
    assert everything_in(memory.access.store) == before
