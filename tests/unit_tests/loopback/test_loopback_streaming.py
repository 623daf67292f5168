"""Answers in pieces."""

from typing import Any, TypedDict

import openai
import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph

from tests.loopback import (
    LoopbackServer,
    refusal,
    truncated,
    with_logprobs,
)
from tests.unit_tests.loopback.schemas import VERDICT, YES_OR_NO, Ask


@pytest.mark.parametrize("always", [False, True])
async def test_streamed_prose(server: LoopbackServer, *, always: bool) -> None:
    server.script("One, two, three.", "One, two, three.")
    # `streaming=False` said aloud would turn streaming off even for `stream`.
    asked = {"streaming": True} if always else {}
    model = server.chat_model(stream_usage=True, **asked)
    pieces = list(model.stream("Count."))
    assert "".join(str(piece.content) for piece in pieces) == "One, two, three."
    assert len([piece for piece in pieces if piece.content]) > 1
    message = await model.ainvoke("Count.")
    assert message.content == "One, two, three."
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == 4
    assert [request.streaming for request in server.chats] == [True, always]


async def test_streamed_structure(server: LoopbackServer, ask: Ask) -> None:
    server.script(VERDICT, refusal("No."), truncated('{"ra'), with_logprobs("{}", ["{}"]))
    model = server.chat_model(streaming=True, logprobs=True)
    assert (await ask(model))["parsed"] == VERDICT
    assert (await ask(model))["raw"].additional_kwargs["refusal"] == "No."
    with pytest.raises(openai.LengthFinishReasonError):
        await ask(model)
    logprobs = (await ask(model))["raw"].response_metadata["logprobs"]
    assert [token["token"] for token in logprobs["content"]] == ["{}"]


class Asked(TypedDict):
    text: str


async def test_langgraph_streams_messages(server: LoopbackServer) -> None:
    def judge(state: Asked) -> Asked:
        model = server.chat_model()
        structured = model.with_structured_output(YES_OR_NO, method="json_schema")
        structured.invoke([HumanMessage(state["text"])])
        return state

    builder = StateGraph(Asked)
    builder.add_node("judge", judge)
    builder.add_edge(START, "judge")
    builder.add_edge("judge", END)
    graph = builder.compile()
    chunks: list[Any] = list(graph.stream({"text": "Judge."}, stream_mode="messages"))
    assert server.chats[0].streaming
    assert '"value": true' in "".join(str(chunk[0].content) for chunk in chunks)
