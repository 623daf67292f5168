"""Contradictions put to an expert, all in one interrupt."""

import warnings
from typing import Any

import pytest
from langgraph.types import Command

from memalign_graph import ChatModelError, MemAlignWarning
from tests.conftest import Bench, Graph
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    Model,
    align,
    alignment,
    asked,
    builder,
    by_text,
    commits,
    each_its_words,
    record,
    records,
    retire,
    retired,
    said,
    sources,
)
from tests.loopback import error

OLD_A, NEW_A = "On #a always name it.", "On #a never name it."
OLD_B, NEW_B = "On #b always thank them.", "On #b never thank them."
OTHER = "On #c be brief."
GIVEN = [said(1, OLD_A), said(2, OLD_B), said(3, NEW_A), said(4, NEW_B), said(5, OTHER)]


async def ask(bench: Bench, **options: Any) -> tuple[Graph, Any]:
    """Align until the expert is asked; returns what is asked."""
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, conflicts="ask", batch_size=1, **options)
    given = await bench.invoke(graph, {"feedback": GIVEN})
    [interrupt] = given["__interrupt__"]
    return graph, interrupt


async def test_all_conflicts_are_asked_about_at_once(bench: Bench) -> None:
    _, interrupt = await ask(bench)
    assert set(interrupt.value) == {"action_requests", "review_configs"}
    requests = interrupt.value["action_requests"]
    assert [one["name"] for one in requests] == ["settle_conflict"] * 2
    assert [one["args"] for one in requests] == [
        {"conflict": "C1", "keep": "second"},
        {"conflict": "C2", "keep": "second"},
    ]
    first, second = (one["description"] for one in requests)
    assert OLD_A in first
    assert NEW_A in first
    assert first.index(OLD_A) < first.index(NEW_A)
    assert f"The newer word is behind: {NEW_A}" in first
    assert OLD_B in second
    [config] = interrupt.value["review_configs"]
    assert config["action_name"] == "settle_conflict"
    assert config["allowed_decisions"] == ["approve", "edit", "reject"]
    schema = interrupt.response_schema
    assert schema["required"] == ["C1", "C2"]
    assert schema["properties"]["C1"]["enum"] == ["first", "second", "both"]
    # Nothing is committed while it waits.
    assert await bench.guidelines() == []
    assert {one.status for one in await bench.episodes()} == {"pending"}


NEWER = {NEW_A, NEW_B, OTHER}
REPLIES: dict[str, tuple[Any, set[str]]] = {
    "by-conflict": ({"C1": "first", "C2": "second"}, {OLD_A, NEW_B, OTHER}),
    "newer-everywhere": ("newer", NEWER),
    "approve-and-reject": (
        {"decisions": [{"type": "approve"}, {"type": "reject", "message": "Both hold."}]},
        {NEW_A, OLD_B, NEW_B, OTHER},
    ),
    "agent-inbox": (
        [
            {"type": "accept", "args": None},
            {"type": "edit", "args": {"action": "settle_conflict", "args": {"keep": "first"}}},
        ],
        {NEW_A, OLD_B, OTHER},
    ),
    "agent-inbox-ignore": (
        [{"type": "ignore", "args": None}, {"type": "ignore"}],
        {OLD_A, NEW_A, OLD_B, NEW_B, OTHER},
    ),
}


@BOTH_WAYS
@pytest.mark.parametrize("reply", list(REPLIES))
async def test_reply_settles_the_conflicts(bench: Bench, reply: str) -> None:
    given, standing = REPLIES[reply]
    graph, _ = await ask(bench)
    chats = len(bench.server.chats)
    texts = len(bench.server.embeddings)
    report = (await bench.resume(graph, given))["report"]
    assert {one.text for one in await bench.guidelines()} == standing
    assert set(by_text(report["guidelines"]["added"])) == standing
    assert set(report["decisions"]) == {"C1", "C2"}
    assert [one["id"] for one in report["conflicts"]] == ["C1", "C2"]
    # No model is called again.
    assert len(bench.server.chats) == chats == report["cost"]["chat_calls"]
    assert len(bench.server.embeddings) == texts
    assert {one.status for one in await bench.episodes()} == {"distilled"}


INVALID: dict[str, tuple[Any, str]] = {
    "left-open": ({"C1": "first"}, "leaves C2 open"),
    "unknown-choice": ({"C1": "third", "C2": "first"}, "'third' for C1"),
    "prose": ("Take the better one.", "'Take the better one.'"),
    "too-few": ({"decisions": [{"type": "approve"}]}, "there are 2 conflicts"),
}


@BOTH_WAYS
async def test_invalid_replies_leave_the_question_open(bench: Bench) -> None:
    graph, interrupt = await ask(bench)
    chats = len(bench.server.chats)
    for given, problem in INVALID.values():
        reason = await bench.refuse(graph, given)
        assert problem in reason
        assert "reply with an object such as {'C1': 'second'}" in reason
    [still] = (await bench.state(graph)).interrupts
    assert still.value == interrupt.value
    assert await bench.guidelines() == []
    await bench.resume(graph, "newer")
    assert {one.text for one in await bench.guidelines()} == NEWER
    assert len(bench.server.chats) == chats


@BOTH_WAYS
async def test_without_a_conflict_nobody_is_asked(bench: Bench) -> None:
    bench.server.responder = Model()
    report = await align(bench, records(6, topics=3), alignment(bench, conflicts="ask"))
    assert len(report["guidelines"]["added"]) == 3
    assert (report["conflicts"], report["decisions"]) == ([], None)
    assert (await align(bench, records(6, topics=3), alignment(bench, conflicts="ask")))[
        "feedback"
    ]["unchanged"] == 6


@BOTH_WAYS
async def test_one_batch_is_compared_too(bench: Bench) -> None:
    """The expert is to be asked of every contradiction, also of one that a distiller overlooks."""
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, conflicts="ask")
    await align(bench, [said(1, OLD_A)], graph)
    given = await bench.invoke(graph, {"feedback": [said(2, NEW_A)]}, "u")
    assert "__interrupt__" in given
    await bench.resume(graph, {"C1": "first"}, "u")
    assert sources(await bench.guidelines()) == {OLD_A: 1}


@BOTH_WAYS
@pytest.mark.parametrize("instead", ["On #a leave its name out.", "On #b leave the name out."])
async def test_distillers_wish_to_replace_a_rule_is_put_to_the_expert(
    bench: Bench, instead: str
) -> None:
    """Also where the comparison takes the two for the same."""
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, conflicts="ask")
    await align(bench, [said(1, OLD_A)], graph)
    bench.server.responder = Model(distil=lambda _: {"operations": [retire("G1", instead)]})
    await bench.invoke(graph, {"feedback": [record(2)]}, "u")
    await bench.resume(graph, {"C1": "first"}, "u")
    assert sources(await bench.guidelines()) == {OLD_A: 1}


@BOTH_WAYS
async def test_expert_may_give_up_what_was_written_by_hand(bench: Bench) -> None:
    await bench.add_guideline(OLD_A)
    graph, interrupt = await ask(bench)
    [first, _] = interrupt.value["action_requests"]
    assert first["args"]["keep"] == "first"
    # The rule in the same words has a source now; by hand it is all the same.
    assert f"The newer word is behind: {OLD_A}" in first["description"]
    report = (await bench.resume(graph, {"C1": "second", "C2": "newer"}))["report"]
    assert {one.text for one in await bench.guidelines()} == NEWER
    assert {one.reason for one in await retired(bench)} == {"An expert chose the other one."}
    assert list(by_text(report["guidelines"]["retired"])) == [OLD_A]


@BOTH_WAYS
async def test_what_an_expert_let_stand_is_not_asked_again(bench: Bench) -> None:
    """Two that stood before, and that nothing new touches, are left as they are."""
    graph, _ = await ask(bench)
    await bench.resume(graph, {"C1": "both", "C2": "both"})
    report = await align(bench, [said(9, "On #d be kind.")], graph, "u")
    assert report["conflicts"] == []
    assert len(await bench.guidelines()) == 6


@BOTH_WAYS
async def test_report_after_a_long_wait_tells_of_this_run_alone(bench: Bench) -> None:
    await bench.add_guideline("On #z keep it short.")
    await bench.add_guideline("On #y use their name.")
    [removed, kept] = await bench.guidelines()
    graph, _ = await ask(bench)
    memory = bench.memory()
    if bench.awaits:
        await memory.aremove_guideline(removed.id)
        await memory.aedit_guideline(kept.id, "On #y use their first name.")
    else:
        memory.remove_guideline(removed.id)
        memory.edit_guideline(kept.id, "On #y use their first name.")
    await bench.add_guideline("On #x sign with your own.")
    report = (await bench.resume(graph, "newer"))["report"]
    assert set(by_text(report["guidelines"]["added"])) == NEWER
    assert report["guidelines"]["revised"] == report["guidelines"]["retired"] == []


@BOTH_WAYS
async def test_another_run_does_not_wait_for_the_answer(bench: Bench) -> None:
    """A second alignment of the memory on another thread while the first waits for its expert."""
    graph, _ = await ask(bench)
    report = await align(bench, [], alignment(bench, batch_size=1), "u")
    assert {one.text for one in await bench.guidelines()} == NEWER
    assert len(report["guidelines"]["added"]) == 3
    before = await commits(bench)
    late = (await bench.resume(graph, "newer"))["report"]
    assert {one.text for one in await bench.guidelines()} == NEWER
    assert await commits(bench) == before
    assert late["memory_version_after"] == report["memory_version_after"]


async def test_without_a_checkpointer_there_is_a_warning(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = builder(bench, conflicts="ask", batch_size=1).compile(store=bench.store)
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        given = graph.invoke({"feedback": GIVEN})
    assert len(given["__interrupt__"]) == 1
    assert await bench.guidelines() == []
    # The answers that were paid for are found by a graph that can be resumed.
    chats = len(bench.server.chats)
    graph = alignment(bench, conflicts="ask", batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "__interrupt__" in graph.invoke(
            {"feedback": GIVEN}, {"configurable": {"thread_id": "u"}}
        )
    assert len(bench.server.chats) == chats


@BOTH_WAYS
async def test_interrupt_outlasts_failures_before_it(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(
        bench, conflicts="ask", batch_size=1, model=bench.server.chat_model(max_retries=0)
    )
    down = error(500, retry_after=0)
    bench.server.responder = Model(distil=each_its_words, compare=lambda _: down)
    with pytest.raises(ChatModelError):
        await align(bench, GIVEN, graph)
    assert (await bench.state(graph)).interrupts == ()
    bench.server.responder = Model(distil=each_its_words)
    assert "__interrupt__" in await bench.invoke(graph, None)
    assert len(asked(bench, COMPARE)) == 2
    given = await bench.invoke(graph, Command(resume="newer"))
    assert len(given["report"]["conflicts"]) == 2
