"""A judge that fails: the gate says so, and lets nothing be called accepted."""

import logging
from typing import Any

import pytest
from langgraph.graph import END
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, InvalidInputError, ModelAnswerError
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    Bench,
    Graph,
    distillings,
    judgings,
)
from tests.integration_tests.gates.support import (
    DOWN,
    IN_MEMORY,
    Told,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    verdict,
    writing,
)
from tests.loopback import (
    content_filter,
    context_length_exceeded,
    disconnect,
    error,
    raw,
    refusal,
    truncated,
)

FAULTS: dict[str, tuple[Any, ...]] = {
    "down": (DOWN,),
    "no-key": (error(401),),
    "no-model": (error(404),),
    "too-long": (context_length_exceeded(),),
    "hung-up": (disconnect(),),
    "half-way": (disconnect(midway=True),),
    "no-json": (raw("<html>Bad gateway</html>", content_type="text/html"),),
    "prose": ("Well, it is accepted.", "It passes!"),
    "off-scale": (verdict("accepted"), verdict("perhaps")),
    "no-value": ({"rationale": "Fine."}, {"rationale": "Fine."}),
    "null": (verdict(None), verdict(None)),
    "refused": (refusal(), refusal()),
    "filtered": (content_filter(), content_filter()),
    "truncated": (truncated('{"rationale": "'), truncated('{"value": true')),
}


def escalating(bench: Bench, **options: Any) -> tuple[Graph, Writer, Writer]:
    publish, boss = Writer("Published."), Writer("A person will call you.")
    builder = writing(Writer())
    builder.add_node("publish", publish)
    builder.add_node("boss", boss)
    builder.add_edge("publish", END)
    builder.add_edge("boss", END)
    given: dict[str, Any] = {"accept": "publish", "escalate": "boss", **options}
    graph = bench.compile(gate_on(bench, builder, CRITERION, **given))
    return graph, publish, boss


@IN_MEMORY
@pytest.mark.parametrize("fault", list(FAULTS))
async def test_closed_gate_lets_nothing_through_unjudged(bench: Bench, fault: str) -> None:
    graph, publish, boss = escalating(bench)
    bench.server.script(*FAULTS[fault])
    given = await bench.invoke(graph, asked())
    gate = given["quality_gate"]
    assert gate["status"] == "judge_error"
    assert (gate["passed"], gate["let_through"], gate["critique"]) == (False, False, "")
    assert (gate["value"], gate["decided_by"], gate["judgment"]) == (None, None, None)
    assert gate["error"]
    assert "\n" not in gate["error"]
    assert (len(publish.seen), len(boss.seen)) == (0, 1)


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_open_gate_lets_it_on_but_does_not_call_it_accepted(bench: Bench, fault: str) -> None:
    graph, publish, boss = escalating(bench, on_judge_error="open")
    bench.server.script(*FAULTS[fault])
    gate = (await bench.invoke(graph, asked()))["quality_gate"]
    assert (gate["status"], gate["passed"], gate["let_through"]) == ("judge_error", False, True)
    assert gate["error"]
    assert (len(publish.seen), len(boss.seen)) == (1, 0)


async def test_closed_gate_without_escalation_ends(bench: Bench) -> None:
    bench.server.script(DOWN)
    writer = Writer()
    given = await bench.invoke(gated(bench, writer), asked())
    assert given["quality_gate"]["status"] == "judge_error"
    assert len(writer.seen) == 1
    assert len(given["messages"]) == 2


@IN_MEMORY
async def test_dead_endpoint_is_a_judge_error(bench: Bench) -> None:
    nowhere = bench.server.chat_model(base_url="http://127.0.0.1:1/v1", max_retries=0)
    gate = (await bench.invoke(gated(bench, Writer(), model=nowhere), asked()))["quality_gate"]
    assert gate["status"] == "judge_error"
    assert "is the server up, and its base_url right?" in gate["error"]


async def test_embedding_failure_is_a_judge_error(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD})
    bench.server.script_embeddings(DOWN)
    gate = (await bench.invoke(gated(bench, Writer()), asked()))["quality_gate"]
    assert gate["status"] == "judge_error"
    assert "embeddings" in gate["error"]
    assert judgings(bench.server) == []


async def test_embedding_failure_that_is_to_be_borne_is_told_in_the_judgment(
    bench: Bench,
) -> None:
    await bench.remember({**CASE, **COLD})
    bench.server.script_embeddings(DOWN)
    bench.server.script(verdict(True))
    graph = gated(bench, Writer(), on_embedding_error="guidelines")
    gate = (await bench.invoke(graph, asked()))["quality_gate"]
    assert gate["status"] == "accepted"
    [warning] = gate["judgment"]["warnings"]
    assert "embeddings" in warning


async def test_judge_that_answers_when_asked_again_has_not_failed(bench: Bench) -> None:
    bench.server.script("Well.", verdict(True))
    gate = (await bench.invoke(gated(bench, Writer()), asked()))["quality_gate"]
    assert (gate["status"], gate["error"]) == ("accepted", None)
    assert len(judgings(bench.server)) == 2


@pytest.mark.parametrize("on_judge_error", ["open", "closed"])
async def test_failure_is_logged_and_streamed(
    bench: Bench, caplog: pytest.LogCaptureFixture, on_judge_error: str
) -> None:
    caplog.set_level(logging.WARNING, logger="memalign_graph")
    bench.server.script(DOWN)
    graph = gated(bench, Writer(), on_judge_error=on_judge_error, name="tone")
    events = await bench.stream(graph, asked(), stream_mode="custom")
    error_told = events[-1]["error"]
    assert (events[-1]["status"], events[-1]["gate"]) == ("judge_error", "tone")
    [record] = [one for one in caplog.records if one.name.startswith("memalign_graph.gate")]
    assert record.levelno == logging.WARNING
    for said in ("'tone'", on_judge_error, error_told):
        assert said in record.getMessage()


async def test_failure_after_revisions_keeps_their_count_and_the_next_turn_begins_anew(
    bench: Bench,
) -> None:
    graph = gated(bench, Writer(), max_revisions=1)
    bench.server.script(verdict(False), DOWN)
    first = (await bench.invoke(graph, asked()))["quality_gate"]
    assert (first["status"], first["revisions"]) == ("judge_error", 1)
    bench.server.script(verdict(False), verdict(True))
    second = (await bench.invoke(graph, asked("The cup is broken.")))["quality_gate"]
    assert (second["status"], second["revisions"]) == ("accepted", 1)


async def test_critique_key_is_cleared_when_the_judge_fails(bench: Bench) -> None:
    graph = gated(bench, Writer(), state=Told, critique_key="critique")
    bench.server.script(verdict(False), DOWN)
    given = await bench.invoke(graph, asked())
    assert given["critique"] == ""


@pytest.mark.parametrize(("failure", "on_judge_error"), [("down", "open"), ("prose", "closed")])
async def test_failing_to_learn_is_no_judge_error_and_can_be_gone_on_with(
    bench: Bench, failure: str, on_judge_error: str
) -> None:
    graph = gated(bench, Writer(), review="always", on_judge_error=on_judge_error)
    await bench.invoke(graph, asked())
    replies = (DOWN,) if failure == "down" else ("Well.", "Well.")
    bench.server.script(*replies)
    with pytest.raises(ChatModelError if failure == "down" else ModelAnswerError):
        await bench.resume(graph, {"value": True, "rationale": "Fine: it is warm."})
    state = await bench.state(graph)
    assert state.next == ("quality_gate",)
    assert "status" not in state.values.get("quality_gate", {})
    [episode] = await bench.episodes()
    assert episode.status == "pending"
    given = await bench.invoke(graph, None)
    assert given["quality_gate"]["status"] == "accepted"
    assert given["quality_gate"]["learned"]["episode_ids"] == [episode.id]
    assert len(judgings(bench.server)) == 1
    assert len(distillings(bench.server)) == len(replies) + 1
    assert [one.status for one in await bench.episodes()] == ["distilled"]


async def test_failing_to_embed_what_an_expert_said_is_no_judge_error(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always", on_judge_error="open")
    await bench.invoke(graph, asked())
    bench.server.script_embeddings(DOWN)
    with pytest.raises(Exception, match="embeddings"):
        await bench.resume(graph, {"value": False})
    bench.server.rules = always(True)
    given = await bench.invoke(graph, None)
    assert given["quality_gate"]["feedback"]["value"] is False
    assert given["quality_gate"]["status"] == "revise"
    assert len(await bench.episodes()) == 1


async def test_judge_that_failed_is_not_asked_again_when_the_run_goes_on(bench: Bench) -> None:
    class Failing(Writer):
        def __call__(self, state: Any) -> dict[str, Any]:
            update = super().__call__(state)
            if len(self.seen) == 1:
                raise ConnectionError("The boss is away.")
            return update

    builder = writing(Writer())
    builder.add_node("boss", Failing("A person will call you."))
    options: dict[str, Any] = {"escalate": "boss"}
    graph = bench.compile(gate_on(bench, builder, CRITERION, **options))
    bench.server.script(DOWN)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    given = await bench.invoke(graph, None)
    assert given["quality_gate"]["status"] == "judge_error"
    assert len(judgings(bench.server)) == 1


async def test_settings_that_can_not_be_used_are_no_judge_error(bench: Bench) -> None:
    graph = gated(bench, Writer(), on_judge_error="open")
    with pytest.raises(InvalidInputError, match="context: k"):
        await bench.invoke(graph, asked(), context={"memalign": {"k": -1}})
    with pytest.raises(InvalidInputError, match="model"):
        await bench.invoke(graph, asked(), context={"memalign": {"model": "nobody:knows"}})
    assert bench.server.chats == []


async def test_missing_store_is_told(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), CRITERION, on_judge_error="open")
    graph = builder.compile(checkpointer=bench.saver)
    with pytest.raises(InvalidInputError, match="store: the graph has none"):
        await bench.invoke(graph, asked())


async def test_rule_that_raises_lets_nothing_pass(bench: Bench) -> None:
    def passes(_value: Any) -> bool:
        raise KeyError("threshold")

    with pytest.raises(KeyError, match="threshold"):
        await bench.invoke(gated(bench, Writer(), passes=passes), asked())


@pytest.mark.parametrize("on_judge_error", ["closed", "open"])
async def test_store_that_is_down_fails_the_run_also_where_the_gate_is_open(
    bench: Bench, on_judge_error: str
) -> None:
    class Broken(InMemoryStore):
        def batch(self, ops: Any) -> Any:
            raise ConnectionError("The store is down.")

        async def abatch(self, ops: Any) -> Any:
            raise ConnectionError("The store is down.")

    given: dict[str, Any] = {"on_judge_error": on_judge_error}
    builder = gate_on(bench, writing(Writer()), CRITERION, **given)
    graph = builder.compile(store=Broken(), checkpointer=bench.saver)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    assert "status" not in (await bench.state(graph)).values.get("quality_gate", {})
