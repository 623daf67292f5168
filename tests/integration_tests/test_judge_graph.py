"""The judge graph: prompts, limits and the run's context."""

import json
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    InvalidInputError,
    JudgeMemory,
    Judgment,
    MemAlignContext,
    Numeric,
    Pairwise,
    create_review_graph,
)
from memalign_graph.prompts.fences import estimate_tokens
from tests.conftest import CASE, COLD, CRITERION, EVERY_WAY, OTHER, Bench, judgings, system_of
from tests.loopback import ChatRequest, Rule
from tests.unit_tests.memory.stores import in_memory


async def test_graph_returns_only_the_judgment(bench: Bench) -> None:
    result = await bench.invoke(bench.judge_graph(), CASE)
    assert set(result) == {"judgment"}
    [chat] = bench.server.chats
    assert chat.schema is not None
    assert list(chat.schema["properties"]) == ["rationale", "value"]
    judgment = Judgment.model_validate(result["judgment"])
    assert (judgment.value, judgment.criterion, judgment.thread_id) == (True, "support_tone", "t")
    assert judgment.model == "gpt-4.1-mini"
    assert judgment.warnings == []


@EVERY_WAY
@pytest.mark.parametrize(
    ("scale", "first", "expected", "learned"),
    [
        (Boolean(), True, True, False),
        (Categorical(choices=("Poor", "Good")), "good", "Good", "Poor"),
        (Numeric(minimum=1, maximum=5, integer=True), "3", 3, 1),
        (Pairwise(), "b", "B", "tie"),
    ],
    ids=["boolean", "categorical", "numeric", "pairwise"],
)
async def test_every_scale_judges_and_learns(
    bench: Bench, scale: Any, first: Any, expected: Any, learned: Any
) -> None:
    criterion = Criterion(name="quality", instructions="How good is it?", scale=scale)
    graph = bench.review_graph(criterion)
    bench.server.rules = [Rule(lambda _: True, value=first)]
    result = await bench.invoke(graph, CASE)
    assert result["judgment"]["value"] == expected
    assert type(result["judgment"]["value"]) is type(expected)
    resumed = await bench.resume(graph, {"value": str(learned).upper()})
    assert resumed["feedback"]["value"] == learned
    bench.server.rules = []
    await bench.invoke(graph, OTHER, "u")
    *_, earlier, answered, _ = bench.server.chats[-1].messages
    assert CASE["outputs"] in earlier["content"]
    answer = json.dumps({"rationale": "", "value": learned})
    assert answered == {"role": "assistant", "content": answer}


@EVERY_WAY
async def test_feedback_is_in_the_next_prompt(bench: Bench) -> None:
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    result = await bench.invoke(graph, OTHER, "u")
    assert result["judgment"]["memory_version"] == first["learned"]["memory_version"]
    assert result["judgment"]["memory_version"] != first["judgment"]["memory_version"]
    before, after = bench.server.chats[0], bench.server.chats[-1]
    [guideline] = await bench.guidelines()
    [episode] = await bench.episodes()
    assert guideline.text not in before.text
    assert guideline.text in system_of(after)
    roles = [message["role"] for message in after.messages]
    assert roles == ["system", "user", "assistant", "user"]
    _, earlier, answered, messages = after.messages
    assert CASE["outputs"] in earlier["content"]
    assert json.loads(answered["content"]) == {"rationale": COLD["rationale"], "value": False}
    assert CASE["outputs"] not in messages["content"]
    assert OTHER["outputs"] in messages["content"]
    for chat in (before, after):
        assert f'Criterion "support_tone":\n{CRITERION.instructions}' in system_of(chat)
        assert not any(case["outputs"] in system_of(chat) for case in (CASE, OTHER))
    judgment = result["judgment"]
    assert judgment["guideline_ids"] == [guideline.id]
    assert judgment["episode_ids"] == [episode.id]


async def test_guideline_that_lost_a_source_is_used_until_it_is_redistilled(bench: Bench) -> None:
    ann, bob = ({**CASE, **COLD, "author": name} for name in ("ann", "bob"))
    episode, two = await bench.remember(ann, bob)
    bench.teach("Say sorry.", episode, two)
    bench.memory().forget(episode.id)
    [guideline] = await bench.guidelines()
    assert guideline.status == "pending"
    judgment = (await bench.invoke(bench.judge_graph(), OTHER))["judgment"]
    assert (judgment["guideline_ids"], judgment["warnings"]) == ([guideline.id], [])
    assert "Say sorry." in system_of(bench.server.chats[-1])


async def test_run_reads_nothing_of_an_earlier_one_on_its_thread(bench: Bench) -> None:
    graph = bench.judge_graph(use_episodes=False)
    for case in ({**CASE, "reference_outputs": "A word of zebras."}, OTHER):
        await bench.invoke(graph, case)
    before, after = bench.server.chats
    assert "zebras" in before.text
    assert "zebras" not in after.text + system_of(before)
    assert system_of(before) == system_of(after), "a prefix that servers cache"


async def test_invalid_input_raises_one_sentence_without_a_model_call(bench: Bench) -> None:
    graph = bench.judge_graph()
    graph.checkpointer = None  # a checkpointer would refuse to keep some of these first
    cases: list[tuple[str, Any]] = [
        ("inputs", {"inputs": "", "outputs": "x"}),
        ("outputs", {"inputs": "x"}),
        ("outputs", {"inputs": "x", "outputs": {"at": object()}}),
    ]
    for field, case in cases:
        with pytest.raises(InvalidInputError) as caught:
            await bench.invoke(graph, case, None)
        assert str(caught.value).startswith(field)
        assert "\n" not in str(caught.value)
    assert bench.server.chats == []


def shown_examples(chat: ChatRequest) -> int:
    return sum(message["role"] == "assistant" for message in chat.messages)


async def test_examples_that_do_not_fit_are_omitted_with_a_warning(bench: Bench) -> None:
    feedback = [{"inputs": f"{n} " * 1_500, "outputs": n, "value": False} for n in "abcde"]
    await bench.remember(*feedback)
    model = bench.server.chat_model(profile={"max_input_tokens": 9_000})
    long = {**CASE, "outputs": "word " * 3_000}
    result = await bench.invoke(bench.judge_graph(model=model), long)
    [chat] = bench.server.chats
    assert 0 < shown_examples(chat) < 5
    assert len(result["judgment"]["episode_ids"]) == shown_examples(chat)
    assert f"{5 - shown_examples(chat)} of 5 similar examples" in result["judgment"]["warnings"][-1]
    assert sum(estimate_tokens(str(turn["content"])) for turn in chat.messages) <= 9_000


async def test_relevant_guidelines_are_selected_when_not_all_fit(bench: Bench) -> None:
    graph = bench.review_graph(review="always")
    topics = ("parcels that are lost", "cups that are broken", "bills that are wrong")
    for topic in topics:
        case = {"inputs": f"About {topic}", "outputs": f"We know {topic}."}
        await bench.review(graph, {"rationale": f"Say sorry for {topic}."}, case, topic)
    guidelines = await bench.guidelines()
    by_topic = {item.text.partition("sorry for ")[2]: item.id for item in guidelines}
    narrow = bench.judge_graph(max_guideline_tokens=25)
    case = {"inputs": "About cups that are broken", "outputs": "We see cups that are broken."}
    judgment = (await bench.invoke(narrow, case, "u"))["judgment"]
    assert judgment["guideline_ids"] == [by_topic["cups that are broken."]]
    [warning] = judgment["warnings"]
    assert warning.startswith("2 of 3 guidelines did not fit")
    assert "bills that are wrong" not in bench.server.chats[-1].messages[0]["content"]


async def test_ablations_omit_their_part_of_the_memory(bench: Bench) -> None:
    await bench.review(bench.review_graph(), COLD)
    ablations: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (1, 1)),
        ({"use_guidelines": False}, (0, 1)),
        ({"use_episodes": False}, (1, 0)),
    ]
    for options, counts in ablations:
        judgment = (await bench.invoke(bench.judge_graph(**options), OTHER, "u"))["judgment"]
        assert (len(judgment["guideline_ids"]), len(judgment["episode_ids"])) == counts
        assert shown_examples(bench.server.chats[-1]) == counts[1]


async def test_k_comes_from_the_context(bench: Bench) -> None:
    await bench.remember(*({**CASE, "outputs": f"Number {n}.", "value": True} for n in range(4)))
    graph = bench.judge_graph(k=3)
    for context, expected_count in ((None, 3), ({"k": 1}, 1), (MemAlignContext(k=0), 0), ({}, 3)):
        result = await bench.invoke(graph, CASE, context=context)
        assert len(result["judgment"]["episode_ids"]) == expected_count
    bench.server.embeddings.clear()
    graph = bench.judge_graph(use_episodes=False, decide="verdict")
    result = await bench.invoke(graph, OTHER, context={"k": 5})
    assert (result["judgment"]["episode_ids"], bench.server.embeddings) == ([], [])


@EVERY_WAY
async def test_checkpoint_before_the_judge_can_be_resumed(bench: Bench) -> None:
    await bench.review(bench.review_graph(), COLD)
    graph = bench.judge_graph()
    expected = (await bench.invoke(graph, OTHER))["judgment"]["episode_ids"]
    assert expected
    await bench.invoke(graph, OTHER, "u")
    await bench.invoke(graph, OTHER, "v", interrupt_before=["judge"])
    resumed = (await bench.invoke(graph, None, "v"))["judgment"]
    assert resumed["episode_ids"] == expected
    assert bench.server.chats[-1].messages == bench.server.chats[-2].messages


SECRET: dict[str, Any] = {"inputs": "Jo SECRET asks.", "outputs": "Hi.", "author": "ann", **COLD}


@pytest.mark.parametrize("before", ["assemble_guidelines", "judge", "collect_feedback"])
async def test_paused_run_shows_nothing_that_another_worker_has_purged_since(
    bench: Bench, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(bench.store, InMemoryStore)
    [episode] = await bench.remember(SECRET)
    bench.teach("Never tell the SECRET.", episode)
    graph: Any = create_review_graph(CRITERION, **bench.models()).compile(
        store=bench.store, checkpointer=bench.saver, interrupt_before=[before]
    )
    await bench.invoke(graph, CASE)
    other = in_memory(bench.store)()
    memory = JudgeMemory(other, CRITERION, embeddings=bench.server.embedder())
    assert memory.forget(author="ann", purge=True).episode_ids == [episode.id]
    monkeypatch.setattr("memalign_graph.memory.access._MAX_AGE_S", 0.0)  # as if a second had passed
    question = await bench.invoke(graph, None)
    [chat] = judgings(bench.server)
    assert ("SECRET" in chat.text) == (before == "collect_feedback")
    assert "SECRET" not in str(question["__interrupt__"])
