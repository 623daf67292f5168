"""Models' answers kept in the store until they are committed.

An alignment of many calls can be cut off, or one of its calls can fail. Made again, it finds the
answers it has already paid for: the same prompt has the same answer.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from memalign_graph.asking import ask
from memalign_graph.effects import Operation
from memalign_graph.identity import digest
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.models import StructuredModel

T = TypeVar("T")


def ask_once(
    access: MemoryAccess,
    model: StructuredModel,
    messages: Sequence[BaseMessage],
    read: Callable[[dict[str, Any], bool], T],
    *,
    purpose: str,
) -> Operation[T]:
    """Ask for an answer, or take the one that is waiting to be committed.

    Args:
        access: The memory the answer is for.
        model: The model, bound to a schema.
        messages: The prompt.
        read: Checks the answer, as for `ask`.
        purpose: What the answer is for, as for `ask`.

    Returns:
        What `read` made of the answer.

    Raises:
        ModelAnswerError: If the second answer can't be used either.
        ChatModelError: If a call fails.
    """
    key = digest([model.name, *([one.type, one.text] for one in messages)])
    drafts = access.layout.drafts
    waiting = yield from access.get(drafts, [key], lambda item: item["answer"])
    if key in waiting:
        try:
            return read(waiting[key], True)
        except ValueError:
            pass  # written by another version of this package: asked for again
    result, reply = yield from ask(model, messages, read, purpose=purpose)
    yield from access.put(drafts, {key: {"id": key, "answer": reply.answer}})
    return result
