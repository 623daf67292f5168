"""The keys of a parent's state that a gate reads and writes, checked before anything is built."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from langgraph.channels import LastValue
from langgraph.constants import END, START
from typing_extensions import TypedDict

from memalign_graph.errors import InvalidInputError
from memalign_graph.gate.critique import critique_message
from memalign_graph.gate.loop import Loop
from memalign_graph.gate.verdict import GateVerdict
from memalign_graph.graphs.options import Graph
from memalign_graph.nodes.base import Update

BEGINNING = ".before_turn"
"""What the name of the node that begins a gate's turn ends with."""

_NOT_IN_NAMES = (":", "|")


def loop_key(name: str) -> str:
    """Name the key where a gate keeps what outlives one pass."""
    return f"_{name}_loop"


def is_loop_key(key: str) -> bool:
    """Tell whether a key is one of `loop_key`."""
    return key.startswith("_") and key.endswith("_loop")


def latest(_old: Any, new: Any) -> Any:
    """Keep what was written last: gates that run side by side, under `Send`, share one key."""
    return new


@dataclass(frozen=True)
class GateKeys:
    """Where a gate's verdict, its critique and what it keeps lie in the state."""

    verdict: str
    """The last verdict: the gate's name."""

    messages: str
    """The conversation."""

    critique: str | None
    """The critique as text; None to add it to the messages."""

    verdicts: str | None
    """Every verdict, in a list; None if they are not gathered."""

    def __post_init__(self) -> None:
        names = {
            "name": self.verdict,
            "messages_key": self.messages,
            "critique_key": self.critique,
            "verdicts_key": self.verdicts,
        }
        optional = ("critique_key", "verdicts_key")
        given = {k: name for k, name in names.items() if name is not None or k not in optional}
        for option, name in given.items():
            if not isinstance(name, str) or not name.strip():
                raise InvalidInputError(f"{option}: give the name of a key, which is text.")
            if list(given.values()).count(name) > 1:
                raise InvalidInputError(
                    f"{option}: {name!r} is two things at once: choose another."
                )
        if any(sign in self.verdict for sign in _NOT_IN_NAMES) or self.verdict in (START, END):
            signs = " and ".join(_NOT_IN_NAMES)
            raise InvalidInputError(f"name: {self.verdict!r} can't be a node's: leave out {signs}.")

    @property
    def loop(self) -> str:
        """What the gate keeps from pass to pass: not returned, so that no other gate meets it."""
        return loop_key(self.verdict)

    @property
    def beginning(self) -> str:
        """The node that begins a turn."""
        return f"{self.verdict}{BEGINNING}"

    def check(self, builder: Graph, *, revises: bool) -> None:
        """Check the keys against a parent's state."""
        hints = _hints(builder.state_schema, builder)
        if not hints:
            raise InvalidInputError(
                "builder: the state needs keys with names: a TypedDict, a dataclass or a pydantic "
                "model."
            )
        if self.loop in {*hints, self.messages, self.critique, self.verdicts}:
            raise InvalidInputError(
                f"name: the gate needs the key {self.loop!r} for itself, and the state has it "
                "already: choose another name."
            )
        if _is_list(hints.get(self.verdict)):
            raise InvalidInputError(
                f"name: the key {self.verdict!r} of the state is a list, but holds one verdict: "
                "give the list as `verdicts_key`."
            )
        if revises and self.critique is not None and self.critique not in builder.channels:
            raise InvalidInputError(
                f"critique_key: the state has no key {self.critique!r}, so that no writer could "
                "read it: add it to the state."
            )
        if not revises or self.critique is not None:
            return
        channel = builder.channels.get(self.messages)
        if channel is None:
            raise InvalidInputError(
                f"critique_key: the state has no {self.messages!r} where a critique could go: name "
                "a key for it."
            )
        if isinstance(channel, LastValue):
            raise InvalidInputError(
                f"messages_key: a critique would replace what is in {self.messages!r}: give the "
                "key a reducer, such as add_messages, or name a `critique_key`."
            )

    def extend(self, builder: Graph) -> tuple[type[Any], type[Any] | None]:
        """Add the gate's keys to a parent's state."""
        state = _hints(builder.state_schema, builder)
        returned = _hints(builder.output_schema, builder)
        added: dict[str, Any] = {self.verdict: Annotated[dict[str, Any], latest]}
        if self.critique is not None:
            added[self.critique] = Annotated[str, latest]
        if self.verdicts is not None:
            added[self.verdicts] = Annotated[list[dict[str, Any]], add]
        shown = {**added, **state, **returned}
        private = {self.loop: Annotated[dict[str, Any], latest]}
        output: type[Any] = TypedDict("GatedOutput", shown)  # type: ignore[misc] # a parent's hints
        seen: type[Any] = TypedDict("GateView", {**shown, **private})  # type: ignore[misc] # likewise
        return seen, output if returned.keys() >= state.keys() else None

    def update(
        self, verdict: GateVerdict, loop: Loop, *, was_revising: bool, keeps: bool
    ) -> Update:
        """Write a verdict into the state."""
        update: Update = {self.verdict: verdict}
        revises = verdict["status"] == "revise"
        if self.critique is not None:
            # A turn that has ended leaves no critique for the next one's writer; another gate's,
            # which may stand there, is not this one's to clear.
            if revises or was_revising:
                update[self.critique] = verdict["critique"] if revises else ""
        elif revises:
            update[self.messages] = [critique_message(verdict["critique"], self.verdict)]
        if self.verdicts is not None:
            update[self.verdicts] = [verdict]
        return {**update, self.loop: loop} if keeps else update


def read_key(state: Any, key: str) -> Any:
    """Read a key of a state, whatever its class."""
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)


def _hints(schema: Any, builder: Graph) -> dict[str, Any]:
    """Return a schema's keys with their types, but for those that LangGraph itself fills."""
    if not isinstance(schema, type):
        return {}
    hints = get_type_hints(schema, include_extras=True)
    return {key: hint for key, hint in hints.items() if key not in builder.managed}


def _is_list(hint: Any) -> bool:
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return base is list or get_origin(base) is list
