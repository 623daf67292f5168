"""What tests of the question back share: vague words, the question, and the answer."""

from typing import Any

from tests.conftest import CASE, Bench, Graph
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike, Rule

SCHEMA = "feedback_question"
VAGUE: dict[str, Any] = {"value": False, "rationale": "Too cold.", "author": "ann"}
ASKS: dict[str, Any] = {
    "look_for": "",
    "checkable": False,
    "question": "What makes it too cold?",
    "example": 'Would "Sorry, check the page." be too cold, too?',
}
CLEAR = {"look_for": "too cold", "checkable": True, "question": "", "example": ""}
ANSWER = "Yes: a date is needed."
JOINED = (
    'Too cold.\n(Asked back: "What makes it too cold? '
    f"Would 'Sorry, check the page.' be too cold, too?\")\n{ANSWER}"
)
APPROVE = {"decisions": [{"type": "approve"}]}


def questions(server: LoopbackServer) -> list[ChatRequest]:
    """The requests for a question."""
    return [chat for chat in server.chats if chat.schema_name == SCHEMA]


def answers(reply: ReplyLike) -> list[Rule]:
    """A model with one answer to whether words make a rule."""
    return [Rule(lambda chat: chat.schema_name == SCHEMA, reply=reply)]


def action(given: dict[str, Any]) -> dict[str, Any]:
    """The one action that a run waits for."""
    [interrupt] = given["__interrupt__"]
    [one] = interrupt.value["action_requests"]
    return dict(one)


def clarifying_graph(bench: Bench, **options: Any) -> Graph:
    """A review that asks back; its model does not try again."""
    model = bench.server.chat_model(max_retries=0)
    return bench.review_graph(**{"model": model, "clarify": True, **options})


async def until_asked(
    bench: Bench, graph: Graph, said: Any = VAGUE, case: Any = CASE, on: str = "t"
) -> dict[str, Any]:
    """Judge a case, have the expert say something vague, and be asked back."""
    bench.server.rules = answers(ASKS)
    await bench.invoke(graph, case, on)
    given: dict[str, Any] = await bench.resume(graph, said, on)
    assert action(given)["name"] == "clarify_feedback"
    return given
