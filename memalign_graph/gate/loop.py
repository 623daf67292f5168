"""How far an answer is on its way through a gate: what has to outlive one pass, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from memalign_graph.context import MemAlignContext, own_context
from memalign_graph.nodes.base import Run

_KEPT_SETTINGS = ("namespace", "k", "model", "review")


class Loop(TypedDict, total=False):
    """What a gate keeps while an answer is being revised; JSON values only."""

    began: bool
    """Whether it was begun with the turn, so that nothing in it is from an earlier one."""

    status: str
    """The status of the gate's last verdict."""

    revisions: int
    """How often an answer has been sent back."""

    settings: dict[str, Any] | None
    """The settings of the run that judged last, or of the turn: a context is gone after an
    interrupt."""

    asked_id: str | None
    """The message that an agent's turn began with."""

    inputs: Any
    """What was asked in this turn, as the gate first saw it."""

    sent_back: list[str]
    """The messages of a turn that were sent back, and the critiques of them."""

    spoke: bool
    """Whether an agent's model has spoken since the turn began, or since it was sent back."""


def times_sent_back(loop: Mapping[str, Any] | None) -> int:
    """Tell how often an answer has been sent back."""
    return int(loop["revisions"]) if loop and loop.get("status") == "revise" else 0


def begin_turn(run: Run, messages: Any) -> Loop:
    """Make what a gate keeps at the beginning of a turn."""
    own = own_context(run.context)
    settings = None if own is None else own.model_dump(mode="json", exclude_unset=True)
    last = messages[-1] if isinstance(messages, Sequence) and messages else None
    # What a caller brings is no gate's word, whatever it says of itself; in a graph within another
    # it may be, since that other may have a gate of its own.
    asked_id = None if run.is_nested else getattr(last, "id", None)
    return {"began": True, "settings": settings, "asked_id": asked_id}


def kept_context(loop: Mapping[str, Any] | None) -> MemAlignContext | None:
    """Return the context of the turn, which is gone after an interrupt."""
    known = loop or {}
    settings = known.get("settings")
    if settings is None or not (known.get("began") or known.get("status") == "revise"):
        return None
    given = {key: settings[key] for key in _KEPT_SETTINGS if settings.get(key) is not None}
    return MemAlignContext(**given)
