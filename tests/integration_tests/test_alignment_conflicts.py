"""Contradictions put to an expert in one interrupt; several experts on one case."""

from typing import Any

import pytest

from memalign_graph import MemAlignWarning
from memalign_graph.agreement import krippendorff_alpha
from memalign_graph.io import run_sync
from tests.conftest import EVERY_WAY, Bench, Graph
from tests.integration_tests.alignment_model import (
    Model,
    add,
    guideline_per_comment,
    retire,
    revise,
)
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    builder,
    by_text,
    comment,
    record,
    settle,
    sources,
)
from tests.loopback import ChatRequest

OLD_A, NEW_A = "On #a always name it.", "On #a never name it."
OLD_B, NEW_B = "On #b always thank them.", "On #b never thank them."
OTHER = "On #c be brief."
FEEDBACK = [comment(at, text) for at, text in enumerate((OLD_A, OLD_B, NEW_A, NEW_B, OTHER), 1)]


async def ask(bench: Bench, **options: Any) -> tuple[Graph, Any]:
    """Align until the interrupt; returns it."""
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, conflicts="ask", **options)
    [interrupt] = (await bench.invoke(graph, {"feedback": FEEDBACK}))["__interrupt__"]
    return graph, interrupt


async def edit_or_remove(bench: Bench, key: str, text: str | None) -> None:
    """Reword a guideline by hand; without a text, remove it."""
    if text is None:
        await bench.call(bench.memory(), "remove_guideline", key)
    else:
        await bench.call(bench.memory(), "edit_guideline", key, text)


@EVERY_WAY
async def test_all_conflicts_are_in_one_interrupt(bench: Bench) -> None:
    graph, interrupt = await ask(bench, batch_size=1)
    requests = interrupt.value["action_requests"]
    names = [request["args"]["conflict"] for request in requests]
    assert [name.partition("-")[0] for name in names] == ["C1", "C2"]
    first, second = (request["description"] for request in requests)
    assert first.index(OLD_A) < first.index(NEW_A)
    assert f"The newer feedback supports: {NEW_A}" in first
    assert OLD_B in second
    assert interrupt.response_schema["required"] == names
    # Nothing is committed while it waits.
    assert await bench.guidelines() == []
    assert {episode.status for episode in await bench.episodes()} == {"pending"}
    chats, texts = len(bench.server.chats), len(bench.server.embeddings)
    report = (await bench.resume(graph, "newer"))["report"]
    assert set(by_text(report["guidelines"]["added"])) == {NEW_A, NEW_B, OTHER}
    assert list(report["decisions"]) == names
    # No model is called again.
    assert len(bench.server.chats) == chats == report["cost"]["chat_calls"]
    assert len(bench.server.embeddings) == texts
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_conflicts_within_one_batch_are_settled_by_decisions(bench: Bench) -> None:
    graph, interrupt = await ask(bench)
    # An answer to another run leaves the question open.
    reason = await bench.refuse(graph, {"C1-12345678": "first"})
    assert "decide on C1-" in reason
    [still] = (await bench.state(graph)).interrupts
    assert still.value == interrupt.value
    assert await bench.guidelines() == []
    decisions = [{"type": "approve"}, {"type": "reject", "message": "Both hold."}]
    await bench.resume(graph, {"decisions": decisions})
    assert {each.text for each in await bench.guidelines()} == {NEW_A, OLD_B, NEW_B, OTHER}


async def test_decision_that_another_one_overrules_is_named(bench: Bench) -> None:
    chain = {"duplicates": [], "contradictions": [[1, 2], [2, 3]]}
    bench.server.responder = Model(distil=guideline_per_comment, compare=lambda _: chain)
    graph = alignment(bench, conflicts="ask")
    await bench.invoke(graph, {"feedback": [FEEDBACK[0], FEEDBACK[1], FEEDBACK[4]]})
    report = await settle(bench, graph, "second", "second")
    assert {guideline.text for guideline in await bench.guidelines()} == {OLD_A, OTHER}
    [warning] = report["warnings"]
    assert f"{OLD_A!r} stays, because {OLD_B!r}" in warning


async def test_proposed_replacement_of_a_guideline_is_put_to_the_expert(bench: Bench) -> None:
    """Also if the comparison finds duplicates."""
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, conflicts="ask")
    await align(bench, [comment(1, OLD_A)], graph)
    bench.server.responder = Model(
        distil=lambda _: {"operations": [retire("G1", "On #a leave its name out.")]}
    )
    await bench.invoke(graph, {"feedback": [record(2)]}, "u")
    await settle(bench, graph, "first", on="u")
    assert sources(await bench.guidelines()) == {OLD_A: 1}


@pytest.mark.parametrize("keep", ["first", "second"])
async def test_decision_keeps_guidelines_that_were_edited(bench: Bench, keep: str) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, conflicts="ask")
    await align(bench, [comment(1, OLD_A)], graph)
    await bench.invoke(graph, {"feedback": [comment(2, NEW_A)]}, "u")
    [old], edited = await bench.guidelines(), "On #a name it if asked."
    await bench.call(bench.memory(), "edit_guideline", old.id, edited)
    report = await settle(bench, graph, keep, on="u")
    assert {guideline.text for guideline in await bench.guidelines()} == {edited, NEW_A}
    [warning] = report["warnings"]
    assert warning.startswith(f"{NEW_A if keep == 'first' else edited!r} stays: its text,")


@pytest.mark.parametrize("text", ["On #b thank them once.", None])
async def test_what_an_expert_does_while_it_waits_stands(bench: Bench, text: str | None) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, conflicts="ask")
    await align(bench, [comment(1, OLD_A), comment(2, OLD_B)], graph)
    feedback = [comment(3, NEW_A), comment(4, OLD_B, author="bob")]
    await bench.invoke(graph, {"feedback": feedback}, "u")
    _, rule = await bench.guidelines()
    await edit_or_remove(bench, rule.id, text)
    await settle(bench, graph, "second", on="u")
    assert {guideline.text for guideline in await bench.guidelines()} == {NEW_A, text} - {None}
    assert [each.author for each in await bench.episodes() if each.status == "pending"] == ["bob"]


@pytest.mark.parametrize("text", ["On #b thank them once.", None])
async def test_what_an_expert_does_while_it_distils_stands(bench: Bench, text: str | None) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    await align(bench, [comment(1, OLD_B)])
    [rule] = await bench.guidelines()

    def distil(_: ChatRequest) -> Any:
        run_sync(edit_or_remove(bench, rule.id, text))
        return {"operations": [revise("G1", "On #b thank them warmly."), add(OTHER, "F2")]}

    bench.server.responder = Model(distil=distil)
    feedback = [comment(2, OLD_B, author="bob"), comment(3, OTHER, author="cem")]
    await align(bench, feedback, alignment(bench), "u")
    assert {guideline.text for guideline in await bench.guidelines()} == {OTHER, text} - {None}
    assert [each.author for each in await bench.episodes() if each.status == "pending"] == ["bob"]


async def test_decision_on_a_guideline_that_the_same_run_rewords_counts(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, conflicts="ask", batch_size=1)
    await align(bench, [comment(1, OLD_A), comment(2, OLD_A, author="bob")], graph)
    first, _ = await bench.episodes()
    bench.memory().forget(first.id)
    reworded = "On #a always name it, please."

    def distil(request: ChatRequest) -> Any:
        answer: Any = guideline_per_comment(request)
        for operation in answer["operations"]:
            operation["text"] = operation["text"].replace(OLD_A, reworded)
        return answer

    bench.server.responder = Model(distil=distil)
    await bench.invoke(graph, {"feedback": [comment(3, NEW_A)]}, "u")
    report = await settle(bench, graph, "second", on="u")
    assert sources(await bench.guidelines()) == {NEW_A: 1}
    assert report["warnings"] == []


async def test_missing_checkpointer_causes_a_warning(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = builder(bench, conflicts="ask", batch_size=1).compile(store=bench.store)
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        result = graph.invoke({"feedback": FEEDBACK})
    assert len(result["__interrupt__"]) == 1
    assert await bench.guidelines() == []


async def test_disagreement_and_alpha_are_reported(bench: Bench) -> None:
    bench.server.responder = Model()
    given = {1: {"ann": False, "bob": True, "carl": False}, 2: {"ann": False, "bob": False}}
    feedback = [
        record(number, author=author, value=value)
        for number, values in given.items()
        for author, value in values.items()
    ]
    agreement = (await align(bench, [*feedback, record(9)]))["agreement"]
    units = [[*values.values()] for values in given.values()]
    assert agreement["alpha"] == pytest.approx(krippendorff_alpha(units, "nominal"))
    assert (agreement["level"], agreement["examples"]) == ("nominal", 2)
    [disagreement] = agreement["disagreements"]
    assert disagreement["majority"] is False
    assert {item["author"]: item["value"] for item in disagreement["given"]} == given[1]


async def test_guideline_of_more_experts_is_kept(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    await align(bench, [comment(1, OLD_A), comment(2, OLD_A, author="bob"), comment(3, OLD_B)])
    newer = [comment(4, NEW_A, author="cy"), comment(5, NEW_B, author="cy")]
    report = await align(bench, newer, alignment(bench, batch_size=1), "u")
    assert sources(await bench.guidelines()) == {OLD_A: 2, OLD_B: 1, NEW_A: 1, NEW_B: 1}
    pairs = [(conflict["first"], conflict["second"]) for conflict in report["conflicts"]]
    sides = [(first["experts"], second["experts"]) for first, second in pairs]
    assert sides == [(2, 1), (1, 1)]
    a, b = (conflict["id"] for conflict in report["conflicts"])
    first, second = report["warnings"]
    assert first.startswith(f"{a}: {OLD_A!r} and {NEW_A!r} contradict")
    assert second.startswith(f"{b}: {OLD_B!r} and {NEW_B!r} contradict")
    memory = bench.memory(model=bench.server.chat_model())
    assert memory.consolidate()["warnings"] == [first, second]
