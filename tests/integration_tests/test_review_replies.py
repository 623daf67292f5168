"""The review interrupt: its description, and learning from replies."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import Judgment, StoreError, create_feedback_graph, create_panel_graph
from memalign_graph.memory.access import MemoryAccess
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    Bench,
    judgings,
    operations,
    thread,
)
from tests.loopback import ChatRequest

WORDS = "Too cold."


async def test_form_shows_the_case_the_verdict_and_the_memory_used(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD)
    result = await bench.invoke(graph, {**OTHER, "reference_outputs": "Say sorry."}, "u")
    [interrupt], judgment = result["__interrupt__"], result["judgment"]
    [action] = interrupt.value["action_requests"]
    verdict = {name: judgment[name] for name in ("value", "rationale")}
    assert action["args"] == {**verdict, "judgment_id": judgment["id"]}
    schema = interrupt.response_schema
    assert schema["properties"]["judgment_id"]["const"] == judgment["id"]
    [guideline] = await bench.guidelines()
    for text in (
        *(*OTHER.values(), "Say sorry.", judgment["rationale"], "The judge says: true"),
        *(guideline.text, CASE["outputs"], COLD["rationale"]),
    ):
        assert str(text) in action["description"]


SAID = {"value": False, "rationale": WORDS, "author": "ann"}


@EVERY_WAY
@pytest.mark.parametrize(
    ("reply", "expected"), [(SAID, SAID), ({"type": "approve"}, {"value": True})]
)
async def test_reply_becomes_one_piece_of_feedback(
    bench: Bench, reply: dict[str, Any], expected: dict[str, Any]
) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    await bench.resume(graph, {})  # no reply at all
    off_scale = {"value": "perhaps"}
    assert "'perhaps' is not on the scale" in await bench.refuse(graph, off_scale)
    [interrupt] = (await bench.state(graph)).interrupts
    assert await bench.episodes() == []
    result = await bench.resume(graph, {interrupt.id: reply})
    feedback = result["feedback"]
    stored_fields = {name: feedback[name] for name in SAID}
    assert {name: value for name, value in stored_fields.items() if value is not None} == expected
    assert feedback["example"] == {**CASE, "reference_outputs": None}
    assert feedback["judgment"] == result["judgment"]
    [episode] = await bench.episodes()
    for name in ("value", "rationale"):
        assert getattr(episode, name) == stored_fields[name]
    assert result["learned"]["episode_ids"] == [episode.id]
    assert episode.status == "distilled"
    assert len(judgings(bench.server)) == 1


SORRY = "A reply that says no word of regret is not appropriate."
SORRY_FIRST = "A reply that does not say sorry first is not appropriate."
REASON = "A reply gives a reason for a delay."


async def contents(bench: Bench) -> tuple[Any, Any]:
    return await bench.episodes(), await bench.guidelines()


async def test_learning_is_reported_and_stored(bench: Bench) -> None:
    graph = bench.review_graph()
    result = await bench.invoke(graph, CASE)
    assert set(result) == {"judgment", "feedback", "learned", "__interrupt__"}
    assert (result["feedback"], result["learned"]) == (None, None)
    bench.server.script(operations({"action": "add", "text": SORRY}))
    resumed = await bench.resume(graph, COLD)
    assert set(resumed) == {"judgment", "feedback", "learned"}
    [episode], [guideline] = await contents(bench)
    assert resumed["learned"]["episode_ids"] == [episode.id]
    assert resumed["learned"]["guidelines"] == [
        {"action": "add", "guideline_id": guideline.id, "text": SORRY, "episode_ids": [episode.id]}
    ]
    assert (guideline.text, guideline.episode_ids) == (SORRY, [episode.id])
    assert (episode.status, episode.thread_ids) == ("distilled", ["t"])
    assert episode.judgment is not None
    assert episode.judgment.id == resumed["judgment"]["id"] == result["judgment"]["id"]
    assert [chat.schema_name for chat in bench.server.chats] == ["judgment", "guideline_operations"]


async def test_approval_makes_no_model_call_and_embeds_nothing_again(bench: Bench) -> None:
    await bench.remember({**OTHER, "value": True})
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    calls = len(bench.server.chats), len(bench.server.embeddings)
    result = await bench.resume(graph, {"type": "approve"})
    assert (len(bench.server.chats), len(bench.server.embeddings)) == calls
    assert result["learned"]["guidelines"] == []
    episodes = await bench.episodes()
    [episode] = [item for item in episodes if item.example.inputs == CASE["inputs"]]
    assert (episode.status, episode.value) == ("distilled", True)
    await bench.review(graph, COLD, on="u")
    assert len(bench.server.embeddings) == calls[1], "the case is embedded already"


@pytest.mark.parametrize("node", ["distill_feedback", "commit_memory"])
async def test_rerunning_a_finished_node_changes_nothing(bench: Bench, node: str) -> None:
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    before = await contents(bench)
    chats = len(bench.server.chats)
    config: Any = {"configurable": {"thread_id": "t"}}
    again = await bench.invoke(graph, None)
    assert again["learned"]["episode_ids"] == first["learned"]["episode_ids"]
    past = [state for state in graph.get_state_history(config) if state.next == (node,)]
    again = graph.invoke(None, past[0].config)
    assert await contents(bench) == before
    assert len(bench.server.chats) == chats
    assert again["learned"]["episode_ids"] == first["learned"]["episode_ids"]
    assert again["learned"]["memory_version"] == first["learned"]["memory_version"]


async def test_guidelines_are_revised_and_retired_by_handle(bench: Bench) -> None:
    graph = bench.review_graph()
    bench.server.script({"rationale": "Fine.", "value": True})
    added = [{"action": "add", "text": text} for text in (SORRY, REASON)]
    bench.server.script(operations(*added))
    await bench.review(graph, COLD, on="a")
    [first] = await bench.episodes()
    sorry, reason = await bench.guidelines()
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(
        operations(
            {"action": "revise", "guideline": "g1", "text": SORRY_FIRST},
            {"action": "retire", "guideline": "G2"},
        )
    )
    result = await bench.review(graph, {"rationale": "Say sorry first."}, OTHER, "b")
    [second] = [episode for episode in await bench.episodes() if episode.id != first.id]
    [guideline] = await bench.guidelines()
    assert (guideline.id, guideline.text) == (sorry.id, SORRY_FIRST)
    assert guideline.episode_ids == [first.id, second.id]
    assert [(item["action"], item["guideline_id"]) for item in result["learned"]["guidelines"]] == [
        ("revise", sorry.id),
        ("retire", reason.id),
    ]


NEVER = "A reply never says sorry."
RETIRED, REPLACED = {"action": "retire"}, {"action": "retire", "text": NEVER}
REVISED = {"action": "revise", "text": NEVER}


@pytest.mark.parametrize(
    ("experts", "change", "left"),
    [
        (["cy"], RETIRED, []),
        (["cy"], REVISED, [NEVER]),
        (["ann"], RETIRED, [SORRY]),
        (["ann"], REPLACED, [SORRY, NEVER]),
        (["ann"], REVISED, [SORRY, NEVER]),
        (["ann", "cy"], REVISED, [SORRY, NEVER]),
        (["ann", "bob"], RETIRED, [SORRY]),
    ],
)
async def test_one_comment_changes_no_guideline_that_other_experts_support(
    bench: Bench, experts: list[str], change: dict[str, str], left: list[str]
) -> None:
    episodes = await bench.remember(
        *({**CASE, "inputs": f"Case of {name}", **COLD, "author": name} for name in experts)
    )
    bench.teach(SORRY, *episodes)
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(operations({"guideline": "G1", **change}))
    reply = {"rationale": "Never say sorry.", "author": "cy"}
    result = await bench.review(bench.review_graph(), reply, OTHER, "b")
    assert [guideline.text for guideline in await bench.guidelines()] == left
    warnings = result["learned"]["warnings"]
    stays = SORRY in left
    assert ["other experts support it" in warning for warning in warnings] == [True] * stays


@pytest.mark.parametrize("change", [RETIRED, REVISED])
async def test_comment_on_an_edited_guideline_waits(bench: Bench, change: dict[str, str]) -> None:
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(operations({"action": "add", "text": SORRY}))
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    [guideline] = await bench.guidelines()

    def edit_and_distill(chat: ChatRequest) -> Any:
        if chat.schema_name == "judgment":
            return {"rationale": "Fine.", "value": True}
        bench.memory().edit_guideline(guideline.id, REASON)
        return operations({"guideline": "G1", **change})

    bench.server.responder = edit_and_distill
    await bench.review(graph, {"rationale": "Never say sorry."}, OTHER, "b")
    assert [guideline.text for guideline in await bench.guidelines()] == [REASON]
    assert [episode.status for episode in await bench.episodes()] == ["distilled", "pending"]


async def test_comment_retires_a_guideline_that_the_same_review_rewords(bench: Bench) -> None:
    first, second = await bench.remember(
        *({**CASE, "inputs": f"Case {number}", **COLD, "author": "cy"} for number in range(2))
    )
    bench.teach(SORRY, first, second)
    bench.memory().forget(first.id)
    bench.server.script({"rationale": "Fine.", "value": True})
    bench.server.script(operations({"guideline": "G1", **RETIRED}))
    bench.server.script(operations({"action": "add", "text": REASON}))
    reply = {"rationale": "Never say sorry.", "author": "cy"}
    result = await bench.review(bench.review_graph(), reply, OTHER, "b")
    assert await bench.guidelines() == []
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}
    assert result["learned"]["memory_version"] == bench.memory().version()


async def test_redistilling_after_a_purge_retires_no_guideline_of_other_experts(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [{**CASE, "inputs": f"Case {number}"} for number in range(4)]
    gone, along, *supporters = await bench.remember(
        *({**case, **COLD, "author": f"expert {index}"} for index, case in enumerate(cases))
    )
    bench.teach(REASON, gone, along)
    bench.teach(SORRY, *supporters)
    bench.server.script(operations({"action": "retire", "guideline": "G1"}))
    await bench.memory(model=bench.server.chat_model()).aforget(gone.id, purge=True)
    assert [guideline.text for guideline in await bench.guidelines()] == [SORRY]
    assert "other experts support it" in caplog.text


async def test_purge_keeps_feedback_of_other_batches_apart(bench: Bench) -> None:
    """A later purge distills again what was read together with the purged feedback."""
    gone, *others = await bench.remember(
        *({**CASE, **COLD, "inputs": f"Case {number}"} for number in range(61))
    )
    bench.teach(REASON, gone, *others)
    bench.server.script(*[operations({"action": "add", "text": SORRY})] * 2)
    await bench.memory(model=bench.server.chat_model()).aforget(gone.id, purge=True)
    facts, _ = bench.memory().access.view.facts()
    assert [len(prompt) for prompt in facts[-2].prompts + facts[-1].prompts] == [50, 10]


async def test_comments_cut_for_a_new_wording_are_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    long = {**CASE, "value": False, "rationale": "Too cold. " * 2_000}
    first, second = await bench.remember(*({**long, "author": name} for name in ("ann", "bob")))
    bench.teach(WORDS, first, second)
    small = bench.server.chat_model(profile={"max_input_tokens": 4_096})
    await bench.memory(model=small).aforget(first.id)
    assert caplog.text.count("parts of their longest texts were left out") == 1


@pytest.mark.parametrize("kind", ["review", "panel", "feedback"])
@pytest.mark.parametrize(
    ("named", "expected"),
    [({}, ("bob", None)), ({"author": "ann"}, ("ann", None)), ({"id": "row 1"}, (None, "row 1"))],
)
async def test_reply_without_an_author_is_by_the_signed_in_user(
    bench: Bench, kind: str, named: dict[str, str], expected: Any
) -> None:
    reply = COLD | named
    options = bench.models(keep_judgments=timedelta(days=1))
    if kind == "panel":
        graph = bench.compile(create_panel_graph([CRITERION], review="always", **options))
        answer: Any = Command(resume={CRITERION.name: reply})
    else:
        graph = bench.review_graph(**options)
        answer = Command(resume=reply)
    result = await graph.ainvoke(CASE, thread("t"))
    if kind == "feedback":
        graph = bench.compile(create_feedback_graph(CRITERION, **options))
        answer = {"judgment_id": result["judgment"]["id"], "reply": reply}
    # As an Agent Server passes on its user.
    user = {"langgraph_auth_user": SimpleNamespace(identity="bob")}
    await graph.ainvoke(answer, {"configurable": {"thread_id": "t", **user}})
    [episode] = await bench.episodes()
    assert (episode.author, episode.feedback_id) == expected


@pytest.mark.parametrize(("identity", "is_authenticated"), [("studio", False), (None, True)])
async def test_reply_of_a_user_without_a_sign_in_or_identity_is_anonymous(
    bench: Bench, identity: str | None, *, is_authenticated: bool
) -> None:
    """As LangSmith's Studio, and an API key of LangSmith that is no user's."""
    graph = bench.review_graph()
    await graph.ainvoke(CASE, thread("t"))
    user = SimpleNamespace(identity=identity, is_authenticated=is_authenticated)
    config: Any = {"configurable": {"thread_id": "t", "langgraph_auth_user": user}}
    await graph.ainvoke(Command(resume=COLD), config)
    assert [episode.author for episode in await bench.episodes()] == [None]


@pytest.mark.parametrize("change", ["revised", "forgotten", "said again"])
async def test_reply_that_was_stored_before_gives_way_to_what_the_expert_said_since(
    bench: Bench, change: str
) -> None:
    """As the review page stores answers, before the run on an Agent Server begins."""
    graph = bench.review_graph()
    judgment = Judgment.model_validate((await bench.invoke(graph, CASE))["judgment"])
    read_at = datetime.now(UTC)
    reply = {"value": False, "rationale": WORDS, "author": "ann"}
    [stored] = await bench.remember({**CASE, **reply, "judgment": judgment})
    if change == "revised":
        await bench.call(bench.memory(), "revise", stored.id, {"rationale": "Say sorry first."})
    else:
        await bench.call(bench.memory(), "forget", stored.id)
    if change == "said again":
        read_at = datetime.now(UTC)
    result = await bench.resume(graph, {**reply, "given_at": read_at.isoformat()})
    said = [episode.rationale for episode in await bench.episodes()]
    assert said == {"revised": ["Say sorry first."], "forgotten": [], "said again": [WORDS]}[change]
    assert (result["learned"] is None) is (change == "forgotten")


@pytest.mark.parametrize("kind", ["review", "panel", "question"])
async def test_reply_to_a_run_whose_store_failed_gives_way_to_the_next_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    graph = bench.review_graph(clarify=kind == "question")
    if kind == "panel":
        graph = bench.compile(create_panel_graph([CRITERION], review="always", **bench.models()))
    await bench.invoke(graph, CASE)
    if kind == "question":
        bench.server.script({"question": "What is cold in it?"})
        await bench.resume(graph, "Cold.")

    def reply(*, value: bool, author: str) -> Any:
        said = {"value": value, "rationale": WORDS, "author": author}
        return {CRITERION.name: said} if kind == "panel" else said

    async def fail(*_: Any) -> None:
        raise StoreError("The store failed.")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryAccess, "refresh", fail)
        with pytest.raises(StoreError):
            await bench.resume(graph, reply(value=True, author="ann"))
    await bench.resume(graph, reply(value=False, author="bob"))
    [episode] = await bench.episodes()
    assert (episode.author, episode.value) == ("bob", False)


async def test_reply_cannot_be_dated_later_than_now(bench: Bench) -> None:
    reply = {"value": False, "given_at": "2999-01-01T00:00:00+00:00"}
    feedback = (await bench.review(bench.review_graph(), reply))["feedback"]
    assert datetime.fromisoformat(feedback["given_at"]) <= datetime.now(UTC)
