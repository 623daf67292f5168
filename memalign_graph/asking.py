"""Asking a chat model for a checked answer: once, and once more with what was wrong."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from memalign_graph.effects import Chat, Operation
from memalign_graph.errors import ModelAnswerError
from memalign_graph.identity import check_json
from memalign_graph.models import StructuredModel
from memalign_graph.replies import ChatReply

T = TypeVar("T")

_SHOWN_CHARS = 2_000


def ask(
    model: StructuredModel,
    messages: Sequence[BaseMessage],
    read: Callable[[dict[str, Any], bool], T],
    *,
    purpose: str,
) -> Operation[tuple[T, ChatReply]]:
    """Ask for an answer; if it can't be used, show the model why and ask once more."""
    reply: ChatReply = yield Chat(model, messages)
    result, problem = _check(reply, read, last=False)
    if problem is not None:
        again = [*messages, AIMessage(_shown(reply.text)), HumanMessage(_complaint(problem))]
        reply = yield Chat(model, again)
        result, problem = _check(reply, read, last=True)
    if result is None:
        raise ModelAnswerError(
            f"The chat model {model.name} gave no answer that can be used to {purpose}, also when "
            f"asked again: {(problem or '').rstrip('.')}. It wrote: {_quote(reply.text)}"
        )
    return result[0], reply


def _check(
    reply: ChatReply, read: Callable[[dict[str, Any], bool], T], *, last: bool
) -> tuple[tuple[T] | None, str | None]:
    if reply.answer is None:
        return None, reply.problem or "it is no answer"
    try:
        # A store may refuse what a model can write, such as a NUL: better it writes it again.
        check_json(reply.answer, "the answer")
        return (read(reply.answer, last),), None
    except ValueError as error:
        return None, str(error)


def _complaint(problem: str) -> str:
    return (
        f"That answer can't be used: {problem.rstrip('.')}. Answer again, with nothing but the "
        "JSON object that was asked for."
    )


def _shown(text: str) -> str:
    return text[:_SHOWN_CHARS].encode(errors="replace").decode() or "(nothing)"


def _quote(text: str, limit: int = 200) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= limit else f"{flat[:limit]}…")
