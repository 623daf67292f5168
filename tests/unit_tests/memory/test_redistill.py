"""Redistilling after a lost source, and consolidation of guidelines."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from memalign_graph import (
    ChatModelError,
    Guideline,
    InvalidInputError,
    JudgeMemory,
    ModelAnswerError,
)
from memalign_graph.alignment.merge import find_relations
from memalign_graph.io import SYNC, run_sync
from memalign_graph.prompts.fences import estimate_tokens
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.purging import left_in
from tests.unit_tests.memory.stores import asks, interleave
from tests.unit_tests.memory.support import EVERY_STORE, Bench, comment, op

PLANTED = "zqplanted"


def worded(text: str) -> dict[str, Any]:
    return {"operations": [{"text": text, "action": "add"}]}


def with_model(bench: Bench, **options: Any) -> JudgeMemory:
    return bench.memory(model=bench.server.chat_model(**options))


async def two_sources(bench: Bench) -> list[Any]:
    """A guideline from two pieces of feedback, the first with planted words."""
    episodes = await bench.remember(
        comment("one", f"{PLANTED} why", author=f"{PLANTED} ann", id=f"{PLANTED} id"),
        comment("one", "It must say sorry for the delay.", author="bob"),
    )
    await bench.learn(op("add", *episodes, text=f"Say sorry to {PLANTED}."))
    bench.server.chats.clear()
    return episodes


async def forget_first(bench: Bench, how: str, episode: Any, memory: JudgeMemory) -> Any:
    if how == "revise":
        changed = {"rationale": "Something else."}
        return await bench.do("revise", episode.id, changed, memory=memory)
    return await bench.do("forget", episode.id, purge=how == "purge", memory=memory)


@EVERY_STORE
@pytest.mark.parametrize("how", ["forget", "revise", "purge"])
async def test_guideline_is_redistilled_from_its_remaining_source(bench: Bench, how: str) -> None:
    one, two = await two_sources(bench)
    [before] = await bench.do("guidelines")
    bench.server.script(worded("Say sorry for a delay."))
    done = await forget_first(bench, how, one, with_model(bench))
    [request] = [json.dumps(chat.body) for chat in bench.server.chats]
    assert PLANTED not in request.casefold()
    assert "It must say sorry for the delay." in request
    [after] = await bench.do("guidelines")
    assert (after.text, after.status) == ("Say sorry for a delay.", "standing")
    assert after.episode_ids == [two.id]
    if how == "purge":
        assert [(gone.id, gone.text) for gone in done.guidelines_removed] == [(before.id, "")]
        assert left_in(await bench.items(), PLANTED) == []
    else:
        assert (after.id, after.position) == (before.id, before.position)
    if how == "forget":
        assert (done.guidelines_reduced, done.guidelines_removed) == ([after], [])
    assert await bench.items("drafts") == []
    statuses = {episode.id: episode.status for episode in await bench.do("episodes")}
    assert statuses[two.id] == "distilled"


async def test_one_rule_is_asked_for_though_reasons_differ(bench: Bench) -> None:
    """A model that is asked for a rule for each reason writes more rules than are allowed."""
    reasons = ("Too cold.", "It must say sorry.", "Too long.")
    one, *_ = episodes = await bench.remember(*map(comment, "123", reasons))
    await bench.learn(op("add", *episodes, text="Be warm, brief and sorry."))
    rule = {"text": "Say sorry in a few words.", "action": "add", "feedback": ["F1", "F2"]}
    bench.server.script({"operations": [rule]})
    await bench.do("forget", one.id, memory=with_model(bench))
    [request] = bench.server.chats
    assert not re.search("each different reason|at least one", request.text)
    [after] = await bench.do("guidelines")
    assert (after.text, after.status) == ("Say sorry in a few words.", "standing")


FAILURES: list[tuple[list[Any], type[Exception]]] = [
    ([error(401)], ChatModelError),
    (["prose", "prose"], ModelAnswerError),
]


@pytest.mark.parametrize("how", ["forget", "revise", "purge"])
@pytest.mark.parametrize(("replies", "failure"), FAILURES)
async def test_failing_model_leaves_the_feedback_forgotten_and_the_rest_pending(
    bench: Bench, how: str, replies: list[Any], failure: type[Exception]
) -> None:
    one, two = await two_sources(bench)
    memory = with_model(bench, max_retries=0)
    bench.server.script(*replies)
    with pytest.raises(failure) as caught:
        await forget_first(bench, how, one, memory)
    notes = "".join(getattr(caught.value, "__notes__", []))
    assert ("Checkpoints were not searched" in notes) is (how == "purge")
    assert one.word not in {episode.word for episode in memory.episodes()}
    pending = [(guideline.status, guideline.episode_ids) for guideline in memory.guidelines()]
    assert pending == ([] if how == "purge" else [("pending", [two.id])])


@pytest.mark.parametrize("reply", [error(400, "Refused."), "prose"])
async def test_failing_guideline_is_tried_three_times(bench: Bench, reply: Any) -> None:
    episode, two, three = await bench.remember(comment("one"), comment("two"), comment("three"))
    await bench.learn(op("add", episode, two, text="A."), op("add", episode, three, text="B."))
    memory = with_model(bench, max_retries=0)

    def answer(chat: ChatRequest) -> Any:
        return reply if "three" in chat.text else worded("Anew.")

    bench.server.responder = answer
    with pytest.raises((ChatModelError, ModelAnswerError)):
        await bench.do("forget", episode.id, memory=memory)
    assert await bench.guidelines() == {"Anew.": {two.id}, "B.": {three.id}}
    for _ in range(2):
        with pytest.raises((ChatModelError, ModelAnswerError)):
            await bench.do("consolidate", memory=memory)
    bench.server.chats.clear()
    bench.server.responder = lambda _: {"duplicates": [], "contradictions": []}
    await bench.do("consolidate", memory=memory)
    assert "guideline_operations" not in {chat.schema_name for chat in bench.server.chats}
    statuses = {guideline.text: guideline.status for guideline in await bench.do("guidelines")}
    assert statuses == {"Anew.": "standing", "B.": "pending"}


async def test_received_answer_is_not_requested_again(bench: Bench) -> None:
    episode, two, three = await bench.remember(comment("one"), comment("two"), comment("three"))
    await bench.learn(op("add", episode, two, text="A."), op("add", episode, three, text="B."))
    memory = with_model(bench, max_retries=0)
    replies: dict[bool, Any] = {False: worded("The first of them."), True: error(500)}

    def reply(chat: ChatRequest) -> Any:
        if chat.schema_name == "guideline_relations":
            return {"duplicates": [], "contradictions": []}
        return replies["three" in chat.text]

    bench.server.responder = reply
    with pytest.raises(ChatModelError):
        await bench.do("forget", episode.id, memory=memory)
    assert (await bench.guidelines())["The first of them."] == {two.id}
    replies[True] = worded("The second of them.")
    await bench.do("consolidate", memory=with_model(bench, max_retries=0))
    names = [chat.schema_name for chat in bench.server.chats]
    assert names == ["guideline_operations"] * 3 + ["guideline_relations"]
    assert await bench.guidelines() == {
        "The first of them.": {two.id}, "The second of them.": {three.id},
    }  # fmt: skip
    assert await bench.items("drafts") == []


@pytest.mark.parametrize("purge", [False, True])
async def test_unneeded_model_is_not_resolved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, purge: bool
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory = bench.memory(model="openai:gpt-4.1-mini")
    episode, two = memory.remember([comment("one"), comment("two")])
    memory.revise(two.id, {"rationale": "Another word."})
    assert memory.forget(episode.id, purge=purge).episode_ids == [episode.id]


START = datetime(2025, 1, 1, tzinfo=UTC)
WINDOW = 8_200


def relations(
    duplicates: list[list[int]] | None = None, contradictions: list[list[int]] | None = None
) -> dict[str, Any]:
    return {"duplicates": duplicates or [], "contradictions": contradictions or []}


async def consolidate(bench: Bench, *replies: Any) -> dict[str, Any]:
    bench.server.script(*replies)
    done: dict[str, Any] = await bench.do("consolidate", memory=with_model(bench))
    return done


async def rules(bench: Bench, *texts: str) -> tuple[list[Any], list[Guideline]]:
    """Guidelines of one source each, in order of time."""
    feedback = [
        comment(f"case {place}", given_at=START + timedelta(days=place))
        for place in range(len(texts))
    ]
    episodes = await bench.remember(*feedback)
    changes = [op("add", item, text=text) for item, text in zip(episodes, texts, strict=True)]
    await bench.learn(*changes)
    return episodes, await bench.do("guidelines")


@EVERY_STORE
async def test_duplicates_are_merged_into_the_oldest_with_the_sources_of_both(bench: Bench) -> None:
    texts = ("Say sorry.", "One must apologise.", "Be brief.")
    [one, two, three], [first, _, other] = await rules(bench, *texts)
    done = await consolidate(bench, relations([[2, 1]]))
    assert await bench.guidelines() == {"Say sorry.": {one.id, two.id}, "Be brief.": {three.id}}
    assert [guideline.id for guideline in await bench.do("guidelines")] == [first.id, other.id]
    assert [entry["action"] for entry in done["guidelines"]] == ["merge"]
    assert done["memory_version"] == await bench.do("version")
    assert (await bench.do("history"))[0].reason == "consolidate"
    assert await bench.items("drafts") == []
    assert (await consolidate(bench, relations()))["guidelines"] == []


@pytest.mark.parametrize("texts", [(), ("Alone.",)])
async def test_no_model_call_without_a_pair(bench: Bench, texts: tuple[str, ...]) -> None:
    await rules(bench, *texts)
    done = await consolidate(bench)
    assert (done["guidelines"], bench.server.chats) == ([], [])
    assert done["memory_version"] == await bench.do("version")
    with pytest.raises(InvalidInputError, match=r"^model: consolidating needs a chat model. Use"):
        await bench.do("consolidate")


async def test_guideline_is_redistilled_before_it_is_compared(bench: Bench) -> None:
    episode, two, three = await bench.remember(comment("one"), comment("two"), comment("three"))
    await bench.learn(op("add", episode, two, text="Of both."), op("add", three, text="Say sorry."))
    await bench.do("forget", episode.id)
    wording = {"operations": [{"text": "One must apologise.", "action": "add"}]}
    await consolidate(bench, wording, relations([[1, 2]]))
    [guideline] = await bench.do("guidelines")
    assert guideline.text == "One must apologise."
    assert set(guideline.episode_ids) == {two.id, three.id}


@pytest.mark.parametrize("touched", [0, 1])
@pytest.mark.parametrize("kind", ["duplicates", "contradictions"])
@pytest.mark.parametrize("change", ["forget", "edit"])
async def test_change_during_consolidation_counts(
    bench: Bench, change: str, kind: str, touched: int
) -> None:
    episodes, both = await rules(bench, "A.", "B.")
    bench.server.script(relations(**{kind: [[1, 2]]}))

    def other() -> None:
        if change == "forget":
            bench.memory().forget(episodes[touched].id)
        else:
            bench.memory().edit_guideline(both[touched].id, "C.")

    done = interleave(with_model(bench)._consolidate, asks, other)
    left = ["A.", "B."]
    if change == "forget":
        del left[touched]
    else:
        left[touched] = "C."
        # The older guideline loses a contradiction, and the newer one is merged into it.
        loser = left[0 if kind == "contradictions" else 1]
        assert (
            len([each for each in done["warnings"] if each.startswith(f"{loser!r} stays: ")]) == 1
        )
    assert [guideline.text for guideline in await bench.do("guidelines")] == left


def numbered_subjects(request: ChatRequest) -> dict[int, str]:
    """The subjects of a request's guidelines, by number."""
    found = r"^(\d+)\. .*?subject (\d+)"
    matches = re.findall(found, request.messages[-1]["content"], re.MULTILINE)
    return {int(number): subject for number, subject in matches}


def compare(request: ChatRequest) -> dict[str, Any]:
    """A model that finds guidelines on the same subject to be duplicates."""
    subjects = numbered_subjects(request)
    pairs = combinations(subjects, 2)
    return relations([[a, b] for a, b in pairs if subjects[a] == subjects[b]])


async def fill(bench: Bench, count: int) -> Any:
    """Guidelines in which pairs that are far apart share a subject."""
    episodes = await bench.remember(*(comment(f"case {number}") for number in range(count)))
    words = [f"matter{number // 2} " * 50 for number in range(count)]
    texts = [f"On subject {at // 2}, {some}({at})." for at, some in enumerate(words)]
    order = sorted(range(count), key=lambda number: (number % 2, number))
    await bench.learn(*(op("add", episodes[number], text=texts[number]) for number in order))
    bench.server.responder = compare
    return episodes


SMALL = {"profile": {"max_input_tokens": WINDOW}, "max_retries": 0}


async def test_similar_guidelines_are_compared_within_the_window_and_only_once(
    bench: Bench,
) -> None:
    episodes = await fill(bench, 40)
    texts = [guideline.text for guideline in await bench.do("guidelines")]
    calls = 0

    def failing(request: ChatRequest) -> Any:
        nonlocal calls
        calls += 1
        return error(500) if calls == 3 else compare(request)

    bench.server.responder = failing
    contents = await bench.contents()
    with pytest.raises(ChatModelError):
        with_model(bench, **SMALL).consolidate()
    assert await bench.contents() == contents
    answered, first = len(await bench.items("drafts")), len(bench.server.chats)
    assert answered >= 2
    with_model(bench, **SMALL).consolidate()
    chats = bench.server.chats
    assert 2 < len({chat.text for chat in chats}) <= 40
    assert len(chats) - first == len({chat.text for chat in chats}) - answered
    assert {chat.schema_name for chat in chats} == {"guideline_relations"}
    assert max(estimate_tokens(chat.text) for chat in chats) < WINDOW
    assert await bench.items("drafts") == []
    guidelines = await bench.do("guidelines")
    assert [guideline.text for guideline in guidelines] == texts[:20]
    for number, guideline in enumerate(guidelines):
        assert set(guideline.episode_ids) == {episodes[2 * number].id, episodes[2 * number + 1].id}


def test_guideline_is_compared_with_the_ten_nearest_if_not_all_fit(bench: Bench) -> None:
    texts = [f"On subject {number}, {'matter ' * 200}" for number in range(60)]
    bench.server.responder = compare
    chat = bench.server.chat_model(**SMALL)
    run_sync(find_relations(SYNC, bench.memory().access, chat, texts, [7]))
    [request] = bench.server.chats
    subjects = {*numbered_subjects(request).values()}
    assert len(subjects) == 11
    assert "7" in subjects
