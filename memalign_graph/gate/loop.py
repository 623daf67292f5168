"""How far an answer is on its way through a gate: what has to outlive one pass, and no more."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from memalign_graph.context import MemAlignContext, own_context
from memalign_graph.identity import digest
from memalign_graph.types import Example

_KEPT_SETTINGS = ("namespace", "k", "model")


class Loop(TypedDict, total=False):
    """What a gate keeps while an answer is being revised; JSON values only."""

    status: str
    """The status of the gate's last verdict."""

    revisions: int
    """How often an answer has been sent back."""

    inputs_id: str | None
    """What the answers are to: a hash of the example's inputs; None where there was no answer."""

    settings: dict[str, Any] | None
    """The settings of the run that judged last, or of the turn: a context is gone after an
    interrupt."""

    asked_id: str | None
    """The message that an agent's turn began with."""

    inputs: Any
    """What was asked in this turn, as the gate first saw it."""

    answer_id: str | None
    """The message that an agent's model wrote last."""


def inputs_id(example: Example) -> str:
    """Name what an answer is to.

    Args:
        example: The example.

    Returns:
        A hash of its inputs.
    """
    return digest(example.inputs)


def sent_back(loop: Mapping[str, Any] | None, example: Example | None, *, same_run: bool) -> int:
    """Tell how often an answer to this has been sent back.

    Counting goes on within a run whatever the answers are to, so that revisions are bounded; in a
    later run it goes on if that is to the same, as when an expert's reply resumes it. What an
    earlier run broke off does not count against another question.

    Args:
        loop: What the gate kept.
        example: The example; None where there is no answer.
        same_run: Whether it was kept in this run.

    Returns:
        How often.
    """
    if not loop or loop.get("status") != "revise":
        return 0
    known = loop.get("inputs_id")
    is_other = example is not None and known is not None and known != inputs_id(example)
    return 0 if is_other and not same_run else int(loop["revisions"])


def begin_turn(context: Any, asked_id: str | None) -> Loop:
    """Make what a gate keeps at the beginning of a turn.

    Args:
        context: The run's context.
        asked_id: The message that the turn begins with.

    Returns:
        What to keep.

    Raises:
        InvalidInputError: If the context has settings that can't be used.
    """
    own = own_context(context)
    settings = None if own is None else own.model_dump(mode="json", exclude_unset=True)
    return {"settings": settings, "asked_id": asked_id}


def kept_context(loop: Mapping[str, Any] | None) -> MemAlignContext | None:
    """Return the context that an answer was last judged in.

    Args:
        loop: What the gate kept.

    Returns:
        The context, without when to ask; None if nothing was judged.
    """
    settings = (loop or {}).get("settings")
    if settings is None:
        return None
    given = {key: settings[key] for key in _KEPT_SETTINGS if settings.get(key) is not None}
    return MemAlignContext(**given)
