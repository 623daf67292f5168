"""Helpers for tests of agents: a scripted model, and gates."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool

from memalign_graph import Criterion, QualityGateMiddleware
from tests.conftest import CRITERION, Bench, Graph
from tests.integration_tests.gates.support import QUESTION, REASON, models
from tests.loopback import Answer, ChatRequest, LoopbackServer, Reply, Rule
from tests.loopback.replies import as_reply

APPROVE = {"decisions": [{"type": "approve"}]}
_OURS = ("judgment", "guideline_operations")


class Calls:
    """A model answer with tool calls, which may all have one id."""

    def __init__(
        self,
        *calls: tuple[str, dict[str, Any]],
        text: str | None = None,
        call_id: str | None = None,
    ) -> None:
        self.calls, self.text, self.call_id = calls, text, call_id

    def to_reply(self, turn: int) -> Answer:
        calls = [
            {
                "index": index,
                "id": f"call_{turn}_{index}" if self.call_id is None else self.call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(self.calls)
        ]
        return Answer(self.text, finish_reason="tool_calls", tool_calls=calls)


AgentReply = str | dict[str, Any] | Calls | Reply
"""What an agent's model answers: text, JSON, calls of tools, or a fault."""


def calls(name: str, **arguments: Any) -> Calls:
    return Calls((name, arguments))


class AgentModel:
    """Scripts the agent's model; the judge answers by the server's rules."""

    def __init__(self, server: LoopbackServer, *replies: AgentReply) -> None:
        self._server = server
        self._replies = deque(replies)
        self.requests: list[ChatRequest] = []
        server.responder = self

    def then(self, *replies: AgentReply) -> None:
        self._replies.extend(replies)

    @property
    def left(self) -> int:
        return len(self._replies)

    def __call__(self, request: ChatRequest) -> Reply:
        if request.schema_name in _OURS:
            return self._server.judge(request)
        self.requests.append(request)
        reply = self._replies.popleft()
        if isinstance(reply, Calls):
            return reply.to_reply(len(self.requests))
        return as_reply(reply)


def fails(*words: str, value: Any = False, rationale: str = REASON) -> list[Rule]:
    """A judge that rejects outputs with one of these words."""

    def objects(chat: ChatRequest) -> bool:
        displayed = chat.text.rpartition("<outputs>")[2]
        return any(text in displayed for text in words)

    return [Rule(objects, value=value, rationale=rationale)]


def gate(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> QualityGateMiddleware:
    """A gate with the bench's models, without retries."""
    return QualityGateMiddleware(criterion, **models(bench, **options))


def agent(bench: Bench, *middleware: Any, tools: Sequence[Any] = (), **options: Any) -> Graph:
    """An agent with this bench's store and checkpointer."""
    arguments = {"store": bench.store, "checkpointer": bench.saver, **options}
    made: Graph = create_agent(
        bench.server.chat_model(max_retries=0),
        list(tools),
        middleware=list(middleware),
        **arguments,
    )
    return made


def ask(text: str = QUESTION) -> dict[str, Any]:
    return {"messages": [("human", text)]}


def messages_of(result: dict[str, Any]) -> list[tuple[str, str]]:
    messages: list[BaseMessage] = result["messages"]
    return [(message.type, message.text) for message in messages]


APART: dict[str, Any] = {"store": None, "checkpointer": None}
"""Options of an agent within another."""


def as_tool(inner: Graph) -> BaseTool:
    """An agent as a tool of another agent."""

    def helper(question: str) -> str:
        """Ask a colleague."""
        result = inner.invoke({"messages": [HumanMessage(question)]})
        return str(result["messages"][-1].text)

    return StructuredTool.from_function(helper)


def track(order: str) -> str:
    """Where an order is."""
    return f"{order} is in Rome."
