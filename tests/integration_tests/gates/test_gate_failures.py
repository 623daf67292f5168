"""A judge that fails: the gate says so, and lets nothing be called accepted."""

import logging
from typing import Any

import pytest
from langgraph.graph import END
from langgraph.store.memory import InMemoryStore

from memalign_graph import EmbeddingError, Example, InvalidInputError, StoreError
from tests.conftest import CASE, COLD, Bench, judgings
from tests.integration_tests.gates.support import (
    DOWN,
    QUESTION,
    Writer,
    asked,
    gate_on,
    gated,
    verdict,
    writing,
)
from tests.loopback import (
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
    "too-long": (context_length_exceeded(),),
    "hung-up": (disconnect(),),
    "no-json": (raw("<html>Bad gateway</html>", content_type="text/html"),),
    "prose": ("Well, it is accepted.", "It passes!"),
    "off-scale": (verdict("accepted"), verdict("perhaps")),
    "no-value": ({"rationale": "Fine."}, {"rationale": "Fine."}),
    "refused": (refusal(), refusal()),
    "truncated": (truncated('{"rationale": "'), truncated('{"value": true')),
}


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_nothing_is_called_accepted_unjudged(
    bench: Bench, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    caplog.set_level(logging.WARNING, logger="memalign_graph")
    for mode, opens in (("closed", False), ("open", True)):
        publish, boss = Writer("Published."), Writer("A person will call you.")
        builder = writing(Writer())
        for name, node in (("publish", publish), ("boss", boss)):
            builder.add_node(name, node)
            builder.add_edge(name, END)
        ways: dict[str, Any] = {"accept": "publish", "escalate": "boss", "name": "tone"}
        graph = bench.compile(gate_on(bench, builder, on_judge_error=mode, **ways))
        bench.server.script(*FAULTS[fault])
        caplog.clear()
        events = await bench.stream(graph, asked(), mode, stream_mode="custom")
        gate = (await bench.state(graph, mode)).values["tone"]
        assert (gate["status"], gate["passed"], gate["let_through"]) == (
            "judge_error",
            False,
            opens,
        )
        assert (gate["value"], gate["decided_by"], gate["judgment"]) == (None, None, None)
        assert gate["example_id"] == Example(inputs=QUESTION, outputs="Draft 1.").id
        assert gate["critique"] == ""
        assert "\n" not in gate["error"]
        assert (len(publish.seen), len(boss.seen)) == (opens, not opens)
        assert (events[-1]["status"], events[-1]["error"]) == ("judge_error", gate["error"])
        [record] = [one for one in caplog.records if one.name.startswith("memalign_graph.gate")]
        for said in ("'tone'", f"the gate is {mode}", gate["error"]):
            assert said in record.getMessage()


async def test_what_else_is_a_judge_error_and_what_is_none(bench: Bench) -> None:
    nowhere = bench.server.chat_model(base_url="http://127.0.0.1:1/v1", max_retries=0)
    given = await bench.invoke(gated(bench, Writer(), model=nowhere), asked())
    assert given["quality_gate"]["status"] == "judge_error"
    assert "is the server up, and its base_url right?" in given["quality_gate"]["error"]
    assert len(given["messages"]) == 2
    await bench.remember({**CASE, **COLD})
    bench.server.script_embeddings(DOWN)
    gate = (await bench.invoke(gated(bench, Writer()), asked(), "u"))["quality_gate"]
    assert gate["status"] == "judge_error"
    assert "embeddings" in gate["error"]
    assert judgings(bench.server) == []
    bench.server.script("Well.", verdict(True))  # it answers when it is asked again
    gate = (await bench.invoke(gated(bench, Writer()), asked(), "v"))["quality_gate"]
    assert (gate["status"], gate["error"]) == ("accepted", None)


async def test_failing_to_learn_is_no_judge_error_and_ends_the_turn(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always", on_judge_error="open", max_revisions=0)
    await bench.invoke(graph, asked())
    bench.server.script(DOWN)
    gate = (await bench.resume(graph, COLD))["quality_gate"]
    [episode] = await bench.episodes()
    assert (gate["status"], episode.status) == ("exhausted", "pending")
    assert gate["learned"]["episode_ids"] == []
    assert f"Feedback {episode.id} is stored" in gate["learned"]["warnings"][0]


async def test_a_distiller_that_can_not_be_resolved_loses_no_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    options: dict[str, Any] = {"review": "always", "distill_model": "openai:gpt-own"}
    graph = gated(bench, Writer(), max_revisions=0, **options)
    await bench.invoke(graph, asked())
    gate = (await bench.resume(graph, COLD))["quality_gate"]
    [episode] = await bench.episodes()
    assert (gate["status"], gate["decided_by"], episode.status) == (
        "exhausted",
        "expert",
        "pending",
    )
    assert "OPENAI_API_KEY" in gate["learned"]["warnings"][0]


async def test_feedback_that_can_not_be_stored_is_no_judge_error_and_can_be_gone_on_with(
    bench: Bench,
) -> None:
    graph = gated(bench, Writer(), review="always", on_judge_error="open", max_revisions=0)
    await bench.invoke(graph, asked())
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError):
        await bench.resume(graph, COLD)
    state = await bench.state(graph)
    assert (state.next, state.values["quality_gate"]) == (("quality_gate",), {})
    given = await bench.invoke(graph, None)
    [episode] = await bench.episodes()
    assert episode.status == "distilled"
    assert given["quality_gate"]["status"] == "exhausted"
    assert given["quality_gate"]["learned"]["episode_ids"] == [episode.id]
    assert len(judgings(bench.server)) == 1


class Broken(InMemoryStore):
    def batch(self, ops: Any) -> Any:
        raise ConnectionError("The store is down.")


def threshold(_value: Any) -> bool:
    raise KeyError("threshold")


NO_JUDGE_ERRORS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "k": (InMemoryStore(), {}, {"k": -1}, InvalidInputError, "context: k"),
    "model": (InMemoryStore(), {}, {"model": "nobody:knows"}, InvalidInputError, "model"),
    "no-store": (None, {}, {}, InvalidInputError, "store: the graph has none"),
    "store-down": (Broken(), {}, {}, StoreError, "The store is down."),
    "rule": (InMemoryStore(), {"passes": threshold}, {}, KeyError, "threshold"),
}


@pytest.mark.parametrize("case", list(NO_JUDGE_ERRORS))
async def test_what_the_caller_has_to_mend_fails_the_run_also_where_the_gate_is_open(
    bench: Bench, case: str
) -> None:
    store, options, memalign, kind, sentence = NO_JUDGE_ERRORS[case]
    builder = gate_on(bench, writing(Writer()), on_judge_error="open", **options)
    graph = builder.compile(store=store, checkpointer=bench.saver)
    with pytest.raises(kind, match=sentence):
        await bench.invoke(graph, asked(), context={"memalign": memalign})
    assert not (await bench.state(graph)).values["quality_gate"]
