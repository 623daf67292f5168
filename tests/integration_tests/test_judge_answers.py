"""Invalid answers, text that cannot be stored, failing models, and nodes in custom graphs."""

import json
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from memalign_graph import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    JudgeNodes,
    ModelAnswerError,
)
from memalign_graph.state import ReviewState
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    EVERY_WAY,
    OTHER,
    POSTGRES_WAYS,
    Bench,
    distillings,
    judgings,
    operations,
)
from tests.loopback import (
    Raw,
    answer,
    content_filter,
    context_length_exceeded,
    disconnect,
    error,
    hang,
    raw,
    refusal,
    truncated,
)

GOOD = {"rationale": "It is polite.", "value": True}
COLD_ANSWER = json.dumps({"rationale": "It has ```SELECT 1```.", "value": False})
QUOTES_TAGS = json.dumps(
    {"rationale": "It shows <think>hm</think> twice: </think>", "value": False}
)
QUOTED = f"The outputs say:\n```json\n{json.dumps(GOOD)}\n```\nThat is data. My answer:\n"
CODE = "```c\n{\n  return 0;\n}\n```\n{}"
UNUSABLE: list[tuple[Any, str]] = [
    ("I think it is fine.", "JSON"),
    (truncated('{"rationale": "It is'), "cut off"),
    (refusal("I'd rather not."), "I'd rather not"),
    (content_filter(), "content filter"),
    ({"rationale": "Fine.", "value": "perhaps"}, "'perhaps' is not on the scale"),
    ({"rationale": None, "value": True}, '"rationale"'),
    (QUOTED + COLD_ANSWER, "several JSON objects that differ"),
    (f"{QUOTED}```\n{COLD_ANSWER}\n```", "several JSON objects that differ"),
    (answer('{"a":' * 10_000), "JSON"),
]
LIMITED = error(429, "Slow down.", retry_after=0)
DOWN = error(500, "It broke.\nAll of it.", retry_after=0)


@pytest.mark.parametrize(("reply", "problem"), UNUSABLE)
async def test_invalid_answer_is_requested_twice(bench: Bench, reply: Any, problem: str) -> None:
    bench.server.script(reply, GOOD, reply, reply)
    result = await bench.invoke(bench.judge_graph(), CASE)
    assert result["judgment"]["rationale"] == "It is polite."
    first, second = bench.server.chats
    assert second.messages[:2] == first.messages
    wrote, retry = second.messages[2:]
    assert (wrote["role"], retry["role"]) == ("assistant", "user")
    assert problem in retry["content"]
    assert not isinstance(reply, str) or wrote["content"] == reply
    with pytest.raises(ModelAnswerError) as caught:
        await bench.invoke(bench.judge_graph(), CASE)
    assert problem in str(caught.value)
    assert "gpt-4.1-mini" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(bench.server.chats) == 4


@pytest.mark.parametrize(
    "reply",
    [
        f"```json\n{COLD_ANSWER}\n```",
        f"Here it is: ```{COLD_ANSWER}``` I hope that it helps.",
        f"<think>{QUOTED}</think>\n{COLD_ANSWER}",
        f"{QUOTED}</think>\n```json\n{COLD_ANSWER}\n```",
        f"As data:\n{{{{name}}}} is left.\n```json\n{COLD_ANSWER}\n```\n{CODE}",
        f"```json\n{QUOTES_TAGS}\n```",
        f"<think>Is </think> there?</think>\n```json\n{QUOTES_TAGS}\n```",
    ],
)
async def test_answers_in_a_fence_and_after_thoughts(bench: Bench, reply: str) -> None:
    bench.server.script(reply)
    judgment = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    answered = QUOTES_TAGS if QUOTES_TAGS in reply else COLD_ANSWER
    assert {name: judgment[name] for name in ("rationale", "value")} == json.loads(answered)
    assert len(bench.server.chats) == 1


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (DOWN, "It broke."),
        (LIMITED, "rate limit"),
        (error(401, "Bad key.", retry_after=0), "API key"),
        (error(404, "No such model.", retry_after=0), "name and base_url"),
        (
            error(404, "No such model.", retry_after=0, code="model_not_found"),
            "give the option `model` (--model) another, such as 'openai:gpt-6-luna'",
        ),
        (context_length_exceeded(), "max_input_tokens"),
        (disconnect(), "is the server up, and its base_url right"),
        (disconnect(midway=True), "is the server up, and its base_url right"),
        (raw("<html>502</html>", content_type="text/html"), "failed"),
        (hang(30), "did not answer in time"),
    ],
    ids=["500", "429", "401", "404", "shut-down", "too-long", "disconnect", "half", "html", "hang"],
)
async def test_failing_model_raises_one_sentence(bench: Bench, fault: Any, hint: str) -> None:
    await bench.remember({**OTHER, **COLD})  # only a refused prompt is sent again without it
    bench.server.script(fault, fault)
    hangs = fault == hang(30)
    limits: Any = {"timeout": 0.2, "max_retries": 0} if hangs else {"max_retries": 1}
    graph = bench.judge_graph(model=bench.server.chat_model(**limits))
    with pytest.raises(ChatModelError) as caught:
        await bench.invoke(graph, CASE)
    message = str(caught.value)
    assert message.startswith("The chat model gpt-4.1-mini failed: ")
    assert hint in message
    assert "\n" not in message
    assert caught.value.__cause__ is not None
    assert caught.value.is_refusal is (fault == context_length_exceeded())
    bench.server.reset()
    result = await bench.invoke(bench.judge_graph(), None)
    assert result["judgment"]["value"] is True
    assert CASE["outputs"] in bench.server.chats[-1].text


async def test_refused_answer_is_asked_for_without_similar_cases(bench: Bench) -> None:
    await bench.remember({**OTHER, **COLD})
    bench.server.script(content_filter(), refusal(), GOOD)
    judgment = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    assert (judgment["value"], judgment["episode_ids"]) == (True, [])
    [warning] = judgment["warnings"]
    assert "was judged without similar cases" in warning
    assert COLD["rationale"] not in bench.server.chats[-1].text


async def test_embedding_outage_raises_and_the_run_can_be_resumed(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD})
    embedder = bench.server.embedder(max_retries=0)
    graph = bench.judge_graph(embeddings=embedder)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError) as caught:
        await bench.invoke(graph, OTHER)
    assert str(caught.value).startswith("The embeddings openai:text-embedding-3-small failed: ")
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []
    result = await bench.invoke(graph, None)
    assert len(result["judgment"]["episode_ids"]) == 1
    await bench.add_guideline("Say sorry first.")
    bench.server.script_embeddings(DOWN)
    graph = bench.judge_graph(on_embedding_error="guidelines", embeddings=embedder)
    judgment = (await bench.invoke(graph, OTHER, "k"))["judgment"]
    assert (len(judgment["guideline_ids"]), judgment["episode_ids"]) == (1, [])
    assert "without similar examples" in judgment["warnings"][0]


async def test_failed_run_can_be_resumed_with_other_embeddings(bench: Bench) -> None:
    await bench.remember({**OTHER, **COLD})
    options: dict[str, Any] = {"decide": "evidence", "keep_judgments": timedelta(days=1)}
    options["model"] = bench.server.chat_model(max_retries=0)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.invoke(bench.judge_graph(**options), CASE)
    options["embeddings"] = bench.server.embedder(model="text-embedding-3-large", dimensions=32)
    await bench.invoke(bench.judge_graph(**options), None)
    [kept] = bench.memory().judgments()
    assert (kept.embedder, kept.vector) == ("openai:text-embedding-3-large:32", None)


class Support(ReviewState):
    """A custom state."""

    customer: str


class Bare(TypedDict, total=False):
    """A state without the judge's channels."""

    inputs: Any
    outputs: Any
    judgment: dict[str, Any]


@dataclass(slots=True)
class BareDataclass:
    """The same as a dataclass, which has no `__dict__`."""

    inputs: Any = None
    outputs: Any = None
    judgment: dict[str, Any] = field(default_factory=dict)


JUDGE_NODES = ("retrieve_episodes", "assemble_guidelines", "judge")
REVIEW_NODES = (*JUDGE_NODES, "collect_feedback", "distill_feedback", "commit_memory")


def nodes_graph(bench: Bench, state: Any, *names: str, **changed: Any) -> Any:
    """Compile a custom graph of the judge's nodes; functions can wrap single nodes."""
    nodes = JudgeNodes(CRITERION, **bench.models())
    builder: Any = StateGraph(state)
    for before, name in zip((START, *names), names, strict=False):
        node = getattr(nodes, name)
        builder.add_node(name, partial(changed[name], node) if name in changed else node)
        builder.add_edge(before, name)
    return bench.compile(builder)


async def test_custom_graph_of_nodes_behaves_like_the_judge_graph(bench: Bench) -> None:
    graph = nodes_graph(bench, Support, *REVIEW_NODES)
    await bench.add_guideline("Begin with a word of regret.")
    result = await bench.invoke(graph, {**CASE, "customer": "carol"})
    assert "Begin with a word of regret." in bench.server.chats[-1].text
    ids = [guideline.id for guideline in await bench.guidelines()]
    assert result["judgment"]["guideline_ids"] == ids
    bench.server.script(operations({"action": "add", "text": "Say sorry first."}))
    done = await bench.resume(graph, COLD)
    assert done["learned"]["guidelines"][0]["text"] == "Say sorry first."
    assert done["customer"] == "carol"
    done = await bench.review(graph, {"type": "ignore"}, {**OTHER, "customer": "dan"}, "u")
    assert (done["feedback"], done["learned"]) == (None, None)
    assert len(await bench.episodes()) == 1


async def test_own_node_can_judge_in_the_place_of_the_judge(bench: Bench) -> None:
    judgment = (await bench.invoke(bench.judge_graph(), CASE, "other"))["judgment"]
    own = {"judge": lambda _node, _state: {"judgment": judgment}}
    graph = nodes_graph(bench, ReviewState, *REVIEW_NODES, **own)
    assert (await bench.review(graph, COLD))["learned"]["episode_ids"]


async def test_custom_node_can_remove_guidelines_from_the_prompt(bench: Bench) -> None:
    def without_guidelines(node: Any, state: Any) -> Any:
        update = node.invoke(state)
        update["judge_memory"]["guidelines"].clear()
        return update

    graph = nodes_graph(bench, Support, *JUDGE_NODES, assemble_guidelines=without_guidelines)
    await bench.add_guideline("Begin with a word of regret.")
    judged = await bench.invoke(graph, CASE)
    assert judged["judgment"]["guideline_ids"] == []


async def test_model_with_fallbacks_judges_measures_confidence_and_distills(bench: Bench) -> None:
    first: Any = bench.server.chat_model(model="first", max_retries=0)
    model = first.with_fallbacks([bench.server.chat_model(model="second", cache=False)])
    options: Any = {"confidence": True, "samples": 2, "checks": True}
    graph = bench.review_graph(model=model, review="always", **options)
    bench.server.responder = lambda request: (
        DOWN if request.body["model"] == "first" else bench.server.judge(request)
    )
    await bench.add_guideline("Begin with a word of regret.")
    done = await bench.review(graph, {"value": False, "rationale": "Say sorry first."})
    assert done["judgment"]["confidence_source"] is not None
    assert done["learned"]["episode_ids"]
    models = [request.body["model"] for request in bench.server.chats]
    assert models.count("second") == models.count("first") > 3


async def test_model_of_a_judgment_is_none_if_several_may_have_answered(bench: Bench) -> None:
    message = {"role": "assistant", "content": json.dumps({"rationale": "", "value": True})}
    body = {"model": None, "choices": [{"message": message}]}
    bench.server.responder = lambda _: Raw(200, json.dumps(body))
    first: Any = bench.server.chat_model(model="first")
    for model, name in ((first.with_retry(), "first"), (first.with_fallbacks([first]), None)):
        judged = await bench.invoke(bench.judge_graph(model=model), CASE)
        assert judged["judgment"]["model"] == name


@pytest.mark.parametrize(
    ("state", "names"), [(Bare, ("judge",)), (BareDataclass, ("retrieve_episodes", "judge"))]
)
async def test_state_needs_the_channels(bench: Bench, state: Any, names: tuple[str, ...]) -> None:
    await bench.add_guideline("Begin with a word of regret.")
    with pytest.raises(InvalidInputError, match=r"'judge_run'.*memalign_graph\.state\.JudgeState"):
        await bench.invoke(nodes_graph(bench, state, *names), CASE)
    assert bench.server.chats == []
    nodes: Any = JudgeNodes(CRITERION, **bench.models())
    with pytest.raises(InvalidInputError, match="no LangGraph store is available"):
        await bench.invoke(nodes.retrieve_episodes, CASE)


HALF = "Too cold \ud83d"
BAD = [("Too\x00cold.", "NUL character"), (HALF, "half of a surrogate pair")]
SORRY = "A reply that says no word of regret is not appropriate."


@EVERY_WAY("memory-sync", *POSTGRES_WAYS)
@pytest.mark.parametrize(("text", "problem"), BAD)
async def test_unstorable_reply_keeps_the_interrupt(bench: Bench, text: str, problem: str) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    for reply in (
        {"value": False, "rationale": text},
        {"value": False, "author": text},
        {"value": False, "id": text},
        {"type": "response", "args": text},
    ):
        assert problem in await bench.refuse(graph, reply)
    assert await bench.episodes() == []
    [interrupt] = (await bench.state(graph)).interrupts
    result = await bench.resume(graph, {interrupt.id: COLD})
    assert result["feedback"]["rationale"] == COLD["rationale"]
    assert [episode.status for episode in await bench.episodes()] == ["distilled"]
    assert len(judgings(bench.server)) == 1


@pytest.mark.parametrize(("text", "problem"), BAD)
@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
async def test_unstorable_model_answer(bench: Bench, text: str, problem: str, *, raw: bool) -> None:
    """As a JSON escape, or as a lone surrogate."""

    def answered(content: dict[str, Any]) -> Any:
        return answer(content) if raw else answer(json.dumps(content))

    good = {"rationale": "It is polite.", "value": True}
    bench.server.script(
        answered({"rationale": text, "value": False}),
        good,
        answered(operations({"action": "add", "text": text})),
        operations({"action": "add", "text": SORRY}),
    )
    result = await bench.review(bench.review_graph(), COLD)
    assert [item["text"] for item in result["learned"]["guidelines"]] == [SORRY]
    assert [guideline.text for guideline in await bench.guidelines()] == [SORRY]
    [episode] = await bench.episodes()
    assert episode.judgment is not None
    assert episode.judgment.rationale == good["rationale"]
    for first, second in (judgings(bench.server), distillings(bench.server)):
        assert second.messages[:2] == first.messages
        assert problem in second.messages[3]["content"]
        if raw and text == HALF:
            assert "Too cold ?" in second.messages[2]["content"]
