"""What the judge makes of bad answers, and of models that fail."""

from typing import Any

import pytest

from memalign_graph import ChatModelError, EmbeddingError, ModelAnswerError
from tests.conftest import CASE, COLD, OTHER, Bench
from tests.loopback import (
    LoopbackServer,
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
UNUSABLE: list[tuple[Any, str]] = [
    ("I think it is fine.", "JSON"),
    ('{"rationale": "It is fi', '"value"'),
    (truncated('{"rationale": "It is'), "cut off"),
    (refusal("I'd rather not."), "I'd rather not"),
    (content_filter(), "content filter"),
    ({"rationale": "Fine.", "value": "perhaps"}, "'perhaps' is not on the scale"),
    ({"value": True}, '"rationale"'),
    ("[1, 2]", "JSON"),
    ({"rationale": None, "value": True}, '"rationale"'),
]
LIMITED = error(429, "Slow down.", retry_after=0)
DOWN = error(500, "It broke.\nAll of it.", retry_after=0)


@pytest.mark.parametrize(("reply", "problem"), UNUSABLE)
async def test_bad_answer_is_asked_for_once_more_and_then_raises(
    bench: Bench, reply: Any, problem: str
) -> None:
    bench.server.script(reply, GOOD, reply, reply)
    given = await bench.invoke(bench.judge_graph(), CASE)
    assert given["judgment"]["rationale"] == "It is polite."
    first, second = bench.server.chats
    assert second.messages[:2] == first.messages
    wrote, told = second.messages[2:]
    assert (wrote["role"], told["role"]) == ("assistant", "user")
    assert problem in told["content"]
    assert not isinstance(reply, str) or wrote["content"] == reply
    with pytest.raises(ModelAnswerError) as caught:
        await bench.invoke(bench.judge_graph(), CASE)
    assert problem in str(caught.value)
    assert "gpt-4.1-mini" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(bench.server.chats) == 4


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (DOWN, "It broke."),
        (LIMITED, "rate limit"),
        (error(401, "Bad key.", retry_after=0), "API key"),
        (error(404, "No such model.", retry_after=0), "name and base_url"),
        (context_length_exceeded(), "max_input_tokens"),
        (disconnect(), "is the server up"),
        (raw("<html>502</html>", content_type="text/html"), "failed"),
        (hang(30), "did not answer in time"),
    ],
    ids=["500", "429", "401", "404", "too-long", "disconnect", "html", "hang"],
)
async def test_failing_model_is_one_sentence(bench: Bench, fault: Any, hint: str) -> None:
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
    bench.server.reset()
    given = await bench.invoke(bench.judge_graph(), None)
    assert given["judgment"]["value"] is True
    assert CASE["outputs"] in bench.server.chats[-1].text


async def test_endpoint_that_is_down_is_one_sentence(bench: Bench) -> None:
    with LoopbackServer() as gone:
        model = gone.chat_model(max_retries=0)
    with pytest.raises(ChatModelError, match="is the server up, and its base_url right"):
        await bench.invoke(bench.judge_graph(model=model), CASE)


async def test_embedding_outage_raises_and_can_be_gone_on_from(bench: Bench) -> None:
    await bench.remember({**CASE, **COLD})
    embedder = bench.server.embedder(max_retries=0)
    graph = bench.judge_graph(embeddings=embedder)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError) as caught:
        await bench.invoke(graph, OTHER)
    assert str(caught.value).startswith("The embeddings openai:text-embedding-3-small failed: ")
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []
    given = await bench.invoke(graph, None)
    assert len(given["judgment"]["episode_ids"]) == 1
