"""Gates across conversation turns and in nested graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel

from memalign_graph import GateVerdict, InvalidInputError, MemAlignContext, create_quality_gate_node
from memalign_graph.conversation import critique_message, fallback_messages, read_turn
from tests.conftest import CASE, COLD, CRITERION, DOWN, EVERY_WAY, Bench, Graph, judgings, thread
from tests.integration_tests.gates.support import (
    LENGTH,
    QUESTION,
    REASON,
    Builder,
    Counted,
    Kept,
    WithCritique,
    Writer,
    always,
    asked,
    ended,
    gate_of,
    gate_on,
    gated,
    gather,
    inputs,
    judge_rule,
    models,
    outputs,
    texts,
    wired,
    writing,
)
from tests.loopback import ChatRequest, Rule

APPROVE = {"decisions": [{"type": "approve"}]}
AGAIN = "The cup is broken."
LATER = "A colleague will write to you today."


class FailsOnce(InMemoryStore):
    def batch(self, ops: Any) -> Any:
        error, self.error = getattr(self, "error", ConnectionError("down")), None
        if error is not None:
            raise error
        return super().batch(ops)

    async def abatch(self, ops: Any) -> Any:
        return self.batch(ops)


class Failing(Writer):
    """A writer whose model fails once."""

    def __init__(self, *drafts: str, at: int) -> None:
        super().__init__(*drafts)
        self.at = at

    def __call__(self, state: Any) -> dict[str, Any]:
        update = super().__call__(state)
        if len(self.seen) == self.at:
            raise ConnectionError("The writer's model is down.")
        return update


BROKEN_OFF: dict[str, tuple[Callable[[], Writer], str]] = {
    "revising": (lambda: Failing(at=2), AGAIN),
    "the-same-again": (lambda: Failing(at=2), QUESTION),
    "after-an-empty-draft": (lambda: Failing("Wait.", "", at=3), AGAIN),
    "before-empty-drafts": (lambda: Failing("Wait.", "", "", at=2), AGAIN),
    "too-many-steps": (Writer, AGAIN),
}


@pytest.mark.parametrize("case", list(BROKEN_OFF))
async def test_turn_after_a_failed_turn_has_all_its_revisions(bench: Bench, case: str) -> None:
    make, question = BROKEN_OFF[case]
    writer = make()
    graph = gated(bench, writer, max_revisions=2)
    bench.server.rules = always(False)
    with pytest.raises((ConnectionError, GraphRecursionError)):
        await bench.invoke(graph.with_config(recursion_limit=6), asked())
    before = len(writer.seen)
    result = await bench.invoke(graph, asked(question))
    assert ended(result) == ("exhausted", 2)
    assert len(writer.seen) - before == 3


async def test_each_question_starts_a_turn_of_a_hand_added_node(bench: Bench) -> None:
    graph = wired(bench, Failing(at=2), Counted, max_revisions=1)
    bench.server.rules = always(False)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    result = await bench.invoke(graph, asked(AGAIN))
    assert ended(result) == ("exhausted", 1)
    assert result["quality_gate"]["turn"] == result["messages"][3].id
    assert len(judgings(bench.server)) == 3


async def test_continued_run_keeps_its_remaining_revisions(bench: Bench) -> None:
    graph = gated(bench, Failing(at=2), max_revisions=1)
    bench.server.rules = always(False)
    with pytest.raises(ConnectionError):
        await bench.invoke(graph, asked())
    result = await bench.invoke(graph, None)
    assert result["quality_gate"]["status"] == "exhausted"
    assert len(judgings(bench.server)) == 2


async def test_revisions_count_across_replies(bench: Bench) -> None:
    """Also if the judged conversation grows with each draft."""

    def write(state: Any) -> dict[str, Any]:
        if len(state["messages"]) == 1:
            return {"messages": [AIMessage("Which order?")]}
        reply = interrupt("Which order?")
        return {"messages": [HumanMessage(reply), AIMessage(f"Order {reply} is on its way.")]}

    def conversation(state: Any) -> dict[str, Any]:
        *message_texts, answer = texts(state["messages"])
        return {"inputs": {"said": message_texts}, "outputs": answer}

    for example in (None, conversation):
        bench.server.chats.clear()
        graph = gated(bench, write, review="always", max_revisions=2, example=example)
        await bench.invoke(graph, asked(), str(example))
        for reply in (COLD, "12", "Still cold.", "13", {"value": False}):
            result = await bench.resume(graph, reply, str(example))
        assert "__interrupt__" not in result
        assert result["quality_gate"]["status"] == "exhausted"
        assert len(judgings(bench.server)) == 3


async def test_context_is_not_carried_to_the_next_turn(bench: Bench) -> None:
    """Also if the gate is the first node of its graph."""
    builder = writing(Writer())
    gate_on(bench, builder, after=None, revise=None, review="always")
    builder.add_edge("__start__", "quality_gate")
    graph = bench.compile(builder)
    state = {"messages": [("human", QUESTION), ("ai", "Wait.")]}
    context = {"memalign": {"namespace": ["team-a"]}}
    await bench.invoke(graph, state, context=context)
    await bench.resume(graph, COLD, context=context)
    await bench.invoke(graph, state)
    await bench.resume(graph, COLD)
    assert len(await bench.episodes()) == len(await bench.episodes(namespace=("team-a",))) == 1


async def test_what_the_user_adds_in_a_turn_is_judged(bench: Bench) -> None:
    builder = writing(Writer("Which order?"))
    builder.add_node("ask", lambda _: {"messages": [HumanMessage(interrupt("Which?"))]})
    builder.add_node("answer", Writer("A7 is in Rome."))
    builder.add_edge("write", "ask")
    builder.add_edge("ask", "answer")
    graph = bench.compile(gate_on(bench, builder, after="answer", revise="answer"))
    await bench.invoke(graph, asked())
    await bench.resume(graph, "A7")
    assert inputs(bench.server) == [f"1. user: {QUESTION}\n2. assistant: Which order?\n3. user: A7"]


async def test_resume_with_one_setting_keeps_the_turns_namespace(bench: Bench) -> None:
    graph = gated(bench, Writer())
    settings = {"namespace": ["team-a"], "review": "always"}
    await bench.invoke(graph, asked(), context={"memalign": settings})
    result = await bench.resume(graph, COLD, context={"memalign": {"review": "never"}})
    assert result["quality_gate"]["decided_by"] == "judge"
    assert COLD["rationale"] in judgings(bench.server)[-1].text
    assert len(await bench.episodes(namespace=("team-a",))) == 1
    assert await bench.episodes() == []


@EVERY_WAY
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_approval_applies_to_the_shown_answer(bench: Bench, durability: Any) -> None:
    graph = gated(bench, Writer("So sorry!"), review="always", revise=None, fallback=LATER)
    stopped = await bench.invoke(graph, asked(), durability=durability)
    changed = {"messages": [AIMessage("Rude.", id=stopped["messages"][-1].id)]}
    command: Any = Command(resume={"decisions": [{"type": "approve"}]}, update=changed)
    result = await bench.invoke(graph, command, durability=durability)
    gate = result["quality_gate"]
    assert (gate["status"], gate["let_through"], gate["value"]) == ("exhausted", False, None)
    assert "changed while an expert was asked" in gate["critique"]
    assert texts(result["messages"]) == [QUESTION, LATER]
    [episode] = await bench.episodes()
    assert (episode.example.outputs, episode.value) == ("So sorry!", True)


async def test_state_sets_no_revisions_of_a_hand_added_node(bench: Bench) -> None:
    bench.server.rules = always(False)
    graph = wired(bench, Writer(), Counted, max_revisions=1)
    planted = {"status": "revise", "revisions": -9, "settings": {"namespace": ["team-b"]}}
    result = await bench.invoke(graph, {**asked(), "quality_gate": planted})
    assert ended(result) == ("exhausted", 1)
    namespaces = bench.store.list_namespaces()
    assert {namespace[0] for namespace in namespaces} == {"memalign"}


class KeptModel(BaseModel):
    messages: Annotated[list[Any], add_messages] = []
    quality_gate: GateVerdict | None = None


class Gathered(MessagesState):
    quality_gate: Annotated[list[GateVerdict], gather]


def routed(state: Any, ends: Any, writer: Writer) -> Builder:
    """A graph whose first node a router chooses, perhaps past the gates or to the first one."""
    first = {"Thanks!": "chat", "So sorry!": "quality_gate"}

    def route(state: Any) -> str:
        messages = state["messages"] if isinstance(state, dict) else state.messages
        return first.get(messages[-1].text, "write")

    builder: Builder = StateGraph(state)
    builder.add_node("write", writer)
    builder.add_node("chat", lambda _: {"messages": [AIMessage("You are welcome.")]})
    builder.add_edge("chat", END)
    return builder.add_conditional_edges(START, route, ends)


ROUTERS = pytest.mark.parametrize(
    "ends", [None, ["chat", "write", "quality_gate"]], ids=["unlabelled", "labelled"]
)


@ROUTERS
@pytest.mark.parametrize("state", [MessagesState, Kept, KeptModel, Gathered])
async def test_turn_that_is_routed_past_the_gates_has_no_verdict(
    bench: Bench, state: Any, ends: Any
) -> None:
    builder = gate_on(bench, routed(state, ends, Writer()), accept="length")
    graph = bench.compile(gate_on(bench, builder, LENGTH, after=None, name="length"))
    to_gate = {"messages": [("human", AGAIN), ("ai", "So sorry!")]}
    for question, judged in ((asked(), True), (asked("Thanks!"), False), (to_gate, True)):
        bench.server.chats.clear()
        result = await bench.invoke(graph, question)
        assert len(judgings(bench.server)) == 2 * judged
        verdicts = [result["length"], gate_of(result)]
        if state is Gathered:
            assert verdicts.pop()[-1]["turn"] != result["messages"][-2].id or judged
        assert all(verdict["let_through"] if judged else not verdict for verdict in verdicts)


class DefaultModel(BaseModel):
    messages: Annotated[list[Any], add_messages]
    quality_gate: dict[str, Any] = {"status": "none"}


async def test_verdict_wins_over_the_default_of_its_key(bench: Bench) -> None:
    graph = bench.compile(gate_on(bench, routed(DefaultModel, None, Writer())))
    result = await bench.invoke(graph, {"messages": [("human", AGAIN), ("ai", "So sorry!")]})
    assert ended(result) == ("accepted", 0)


async def test_turn_that_begins_at_the_gate_has_its_own_id(bench: Bench) -> None:
    graph = bench.compile(gate_on(bench, routed(MessagesState, None, Writer()), max_revisions=1))
    await bench.invoke(graph, asked())
    bench.server.rules = always(False)
    result = await bench.invoke(graph, {"messages": [("human", AGAIN), ("ai", "So sorry!")]})
    assert ended(result) == ("exhausted", 1)
    assert result["quality_gate"]["turn"] == result["messages"][2].id
    assert len(judgings(bench.server)) == 3


@pytest.mark.every_way("memory-sync", "memory-async")
async def test_answer_counts_where_the_question_or_the_answer_needed_a_retry(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), review="always", max_revisions=0)
    policy = RetryPolicy(0, max_attempts=2, jitter=False)
    graph = bench.compile(builder.set_node_defaults(retry_policy=policy))
    graph.store = FailsOnce()
    assert "__interrupt__" in await bench.invoke(graph, asked())
    bench.server.script_embeddings(DOWN)
    result = await bench.resume(graph, {"value": True, "rationale": "Good."})
    assert (result["quality_gate"]["decided_by"], ended(result)) == ("expert", ("accepted", 0))
    assert len(judgings(bench.server)) == 1


@pytest.mark.every_way("memory-sync", "memory-async")
async def test_request_is_kept_as_the_turn_redacted_it(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), review="always", max_revisions=0)

    def redact(state: Any) -> dict[str, Any]:
        return {"messages": [HumanMessage("I am [X].", id=state["messages"][0].id)]}

    builder.add_node("redact", redact)
    builder.edges = {*builder.edges - {(START, "write")}, (START, "redact"), ("redact", "write")}
    graph = bench.compile(builder)
    await bench.invoke(graph, asked("I am Bob."))
    await bench.resume(graph, APPROVE)
    assert (await bench.state(graph)).values["_quality_gate_loop"]["asked"] == "I am [X]."


async def test_graph_with_a_default_timeout(bench: Bench) -> None:
    async def write(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("So sorry!")]}

    builder = writing(write).set_node_defaults(timeout=60)
    result = await bench.compile(gate_on(bench, builder)).ainvoke(asked(), thread("t"))
    assert result["quality_gate"]["status"] == "accepted"


@pytest.mark.parametrize("keyed", [{}, {"state": WithCritique, "critique_key": "critique"}])
async def test_fallback_replaces_the_turns_drafts_and_critiques(bench: Bench, keyed: Any) -> None:
    bench.server.rules = always(False)
    graph = gated(bench, Writer(), max_revisions=1, fallback=LATER, **keyed)
    result = await bench.invoke(graph, asked())
    assert texts(result["messages"]) == [QUESTION, LATER]
    assert (result["messages"][-1].type, result.get("critique", "")) == ("ai", "")
    assert (ended(result), result["quality_gate"]["let_through"]) == (("exhausted", 1), False)
    bench.server.rules = []
    result = await bench.invoke(graph, asked("And now?"))
    assert result["quality_gate"]["status"] == "accepted"
    assert texts(result["messages"]) == [QUESTION, LATER, "And now?", "Draft 3."]


@pytest.mark.parametrize("is_sent_back", [False, True])
async def test_another_nodes_message_is_no_draft(bench: Bench, *, is_sent_back: bool) -> None:
    """Critiques have a key of their own, and the first gate sends one draft back or none."""
    asks_tone = CRITERION.instructions

    def objects(chat: ChatRequest) -> bool:
        return asks_tone in chat.text and "Draft 1." in chat.text and is_sent_back

    bench.server.rules = [Rule(objects, value=False), judge_rule(asks_tone, True), *always(False)]
    builder: Builder = StateGraph(WithCritique)
    found = [CALLING, ToolMessage("Lost.", tool_call_id="1"), AIMessage("It was lost.")]
    builder.add_node("research", lambda _: {"messages": found})
    builder.add_node("write", Writer())
    builder.add_edge(START, "research")
    builder.add_edge("research", "write")
    keyed: dict[str, Any] = {"critique_key": "critique", "fallback": LATER}
    gate_on(bench, builder, name="tone", accept="short", **keyed)
    gate_on(bench, builder, LENGTH, after=None, revise=None, name="short", **keyed)
    result = await bench.invoke(bench.compile(builder), asked())
    assert texts(result["messages"]) == [QUESTION, "", "Lost.", "It was lost.", LATER]
    seen = outputs(bench.server)
    assert len(seen) == (3 if is_sent_back else 2)
    assert all("It was lost." in judged for judged in seen)
    assert ["Draft 1." in judged for judged in seen[1:]] == (
        [False] * 2 if is_sent_back else [True]
    )


async def test_fallback_does_not_replace_an_answer_that_continues_unjudged(bench: Bench) -> None:
    bench.server.rules = [Rule(lambda _: True, reply=DOWN)]
    graph = gated(bench, Writer("So sorry!"), on_judge_error="open", fallback=LATER)
    result = await bench.invoke(graph, asked())
    assert texts(result["messages"]) == [QUESTION, "So sorry!"]


CALL = {"name": "find", "args": {}, "id": "1", "type": "tool_call"}
MARK = {"__is_handoff_back": True}
CALLING = AIMessage("", tool_calls=[CALL])
HANDS_BACK = [
    AIMessage("Transferring back to boss", tool_calls=[CALL], response_metadata=MARK),
    ToolMessage("Done.", tool_call_id="1", response_metadata=MARK),
]
DRAFTS = [AIMessage("Wait."), AIMessage("So sorry!")]
CRITIQUE = critique_message("Too cold.", "another_gate")
TURNS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing": ([], []),
    "a tool": ([CALLING, ToolMessage("In Rome.", tool_call_id="1")], []),
    "the user's": ([DRAFTS[0], HumanMessage("4711"), DRAFTS[1]], ["Wait.", "4711"]),
    "a handoff back": ([DRAFTS[0], *HANDS_BACK], []),
    "another gate's draft": ([DRAFTS[0], CRITIQUE, DRAFTS[1]], []),
    "a note after each draft": (
        [
            DRAFTS[0],
            SystemMessage("7 tokens"),
            CRITIQUE,
            DRAFTS[1],
            ChatMessage(content="Saved", role="log"),
        ],
        ["7 tokens", "Saved"],
    ),
    "no draft": (DRAFTS, ["Wait."]),
}


@pytest.mark.parametrize("case", list(TURNS))
def test_fallback_keeps_what_is_no_answer_of_the_turn(case: str) -> None:
    written, remaining = TURNS[case]
    history = [HumanMessage("Hi"), AIMessage("Yes?")]
    messages: Any = add_messages([], [*history, HumanMessage(QUESTION), *written])
    turn = read_turn(messages, {"asked_id": messages[2].id})
    left: Any = add_messages(messages, fallback_messages(turn, LATER))  # type: ignore[arg-type] # messages
    assert texts(left) == ["Hi", "Yes?", QUESTION, *remaining, LATER]


async def test_turn_started_by_goto_does_not_inherit_a_namespace(bench: Bench) -> None:
    graph = gated(bench, Writer(), review="always", max_revisions=1)
    context = {"memalign": {"namespace": ["team-a"]}}
    await bench.invoke(graph, asked(), context=context)
    await bench.resume(graph, {"value": True})
    goto: Any = Command(update=asked(AGAIN), goto="write")
    for unnamed in (None, {"memalign": {"k": 3}}):
        with pytest.raises(InvalidInputError, match=r"context: this run names no.*team-a"):
            await bench.invoke(graph, goto, context=unnamed)
    other = {"memalign": {"namespace": ["team-b"]}}
    await bench.invoke(graph, goto, context=other)
    await bench.resume(graph, {"value": True}, context=other)
    assert len(await bench.episodes(namespace=("team-a",))) == 1
    assert len(await bench.episodes(namespace=("team-b",))) == 1


TEAM = ("team-a",)


def inside(bench: Bench, writer: Any, **options: Any) -> Graph:
    """A gated graph without its own store or checkpointer."""
    return gate_on(bench, writing(writer), **options).compile()


async def test_interrupt_context_and_events_of_a_nested_gate(bench: Bench) -> None:
    writer = Writer()
    middle = writing(inside(bench, writer, review="always", max_revisions=1)).compile()
    graph = bench.compile(writing(middle))
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    parts = await bench.stream(
        graph,
        asked(),
        stream_mode="custom",
        subgraphs=True,
        context={"memalign": {"namespace": list(TEAM)}},
    )
    assert [event["status"] for _, event in parts] == ["judging", "asking"]
    assert COLD["rationale"] in judgings(bench.server)[0].text
    state = await bench.state(graph)
    assert (state.next, len(state.interrupts)) == (("write",), 1)
    assert "neither a value" in await bench.refuse(graph, " ")
    assert "__interrupt__" in await bench.resume(graph, {"value": False, "rationale": REASON})
    result = await bench.resume(graph, {"value": True})
    assert REASON in result["messages"][2].text
    assert result["messages"][-1].text == "Draft 2."
    assert len(judgings(bench.server)) == len(writer.seen) == 2
    assert len(await bench.episodes(namespace=TEAM)) == 3


async def test_message_of_a_nested_writer_begins_no_turn(bench: Bench) -> None:
    def write(state: Any) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [HumanMessage(f"Found {number}"), AIMessage(f"Draft {number}")]}

    graph = bench.compile(writing(inside(bench, write, review="always", max_revisions=1)))
    await bench.invoke(graph, asked(), context={"memalign": {"namespace": list(TEAM)}})
    for reply in (COLD, {"value": False}):
        result = await bench.resume(graph, reply)
    assert "__interrupt__" not in result
    assert len(judgings(bench.server)) == len(await bench.episodes(namespace=TEAM)) == 2
    assert await bench.episodes() == []


async def test_gates_in_a_row_count_the_whole_turn(bench: Bench) -> None:
    """The first gate has accepted an answer before the second one sends it back."""
    builder = writing(Writer("Cold 1.", "Long 2.", "Cold 3."))
    gate_on(bench, builder, name="tone", accept="length", max_revisions=1)
    gate_on(bench, builder, LENGTH, after=None, name="length")
    bench.server.rules = [judge_rule("\nCold", False), judge_rule(LENGTH.instructions, False)]
    result = await bench.invoke(bench.compile(builder), asked())
    assert (result["tone"]["status"], result["tone"]["revisions"]) == ("exhausted", 1)
    assert len(result["messages"]) == 6


async def test_gates_of_one_name_in_parent_and_subgraph_count_separately(bench: Bench) -> None:
    writer = Writer()
    builder = writing(inside(bench, writer, max_revisions=1))
    gate_on(bench, builder, LENGTH, max_revisions=1)
    graph = bench.compile(builder).with_config(recursion_limit=12)
    bench.server.rules = [judge_rule(LENGTH.instructions, False), *always(True)]
    result = await bench.invoke(graph, asked())
    assert result["quality_gate"]["judgment"]["criterion"] == LENGTH.name
    assert ended(result) == ("exhausted", 1)
    assert len(writer.seen) == 2


@pytest.mark.parametrize("by_hand", [True, False])
async def test_subgraph_gate_resets_in_each_turn(bench: Bench, *, by_hand: bool) -> None:
    """Verdicts stay in the subgraph; critiques are in the parent's messages."""
    writer = Writer()
    options: dict[str, Any] = {"max_revisions": 1, "sees": "answer"}
    if by_hand:
        worker = wired(bench, writer, Counted, **options)
        worker.store = worker.checkpointer = None
    else:
        worker = inside(bench, writer, **options)
    graph = bench.compile(writing(worker))
    bench.server.rules = always(False)
    for question in (QUESTION, "The cup is broken.", "The cup is broken."):
        await bench.invoke(graph, asked(question))
    assert len(writer.seen) == len(judgings(bench.server)) == 6
    assert inputs(bench.server)[::2] == [QUESTION, "The cup is broken.", "The cup is broken."]


@dataclass
class DataclassContext:
    memalign: dict[str, Any]
    tenant: str = "x"


class PydanticContext(BaseModel):
    memalign: MemAlignContext
    tenant: str = "x"


CONTEXTS: dict[Any, Callable[..., Any]] = {
    DataclassContext: lambda **own: DataclassContext(own),
    PydanticContext: lambda **own: PydanticContext(memalign=MemAlignContext(**own)),
    MemAlignContext: dict,
    None: lambda **own: {"tenant": "x", "memalign": own},
}
RUNS: list[tuple[dict[str, Any], bool, bool]] = [
    ({"namespace": list(TEAM), "model": "openai:gpt-4.1-nano"}, True, True),
    ({"namespace": list(TEAM), "k": 0, "review": "never"}, False, True),
    ({"review": "always"}, False, False),
    ({}, False, False),
]


@pytest.mark.parametrize("schema", CONTEXTS)
async def test_settings_of_a_parents_context_reach_the_judge(
    bench: Bench, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bench.server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench.server, "keep_alive", False)
    await bench.remember({**CASE, **COLD}, namespace=TEAM)
    guideline = await bench.add_guideline("Begins with a word of regret.", namespace=TEAM)
    builder = writing(Writer(), context_schema=schema)
    graph = bench.compile(gate_on(bench, builder, review="exhausted", max_revisions=1))
    bench.server.rules = always(False)
    for number, (own, sees_cases, sees_guidelines) in enumerate(RUNS):
        bench.server.chats.clear()
        result = await bench.invoke(graph, asked(), str(number), context=CONTEXTS[schema](**own))
        review = own.get("review")
        assert ("__interrupt__" in result) is (review != "never")
        # The settings also hold before the revisions are exhausted.
        assert len(judgings(bench.server)) == (1 if review == "always" else 2)
        for chat in judgings(bench.server):
            assert (COLD["rationale"] in chat.text) is sees_cases
            assert (guideline.text in chat.text) is sees_guidelines
            assert chat.model == ("gpt-4.1-nano" if "model" in own else "gpt-4.1-mini")


async def test_missing_edge_raises_when_the_graph_runs(bench: Bench) -> None:
    """Without the edge the gate could not count revisions, and the loop would not end."""
    nowhere: Any = writing(Writer())
    nowhere.edges.clear()
    graph = bench.compile(gate_on(bench, nowhere))
    with pytest.raises(InvalidInputError, match="builder: no edge leads from START"):
        await bench.invoke(graph, asked())
    assert bench.server.chats == []
    writer = Writer()
    builder = writing(writer)
    node: Any = create_quality_gate_node(CRITERION, **models(bench), max_revisions=1)
    builder.add_node("quality_gate", node)
    builder.add_edge("write", "quality_gate")
    builder.add_conditional_edges(
        "quality_gate",
        lambda state: "write" if state["messages"][-1].type == "human" else END,
        ["write", END],
    )
    bench.server.rules = always(False)
    with pytest.raises(InvalidInputError, match="name: the graph state has no key 'quality_gate'"):
        await bench.invoke(bench.compile(builder), asked(), "u")
    assert len(writer.seen) == 2
