"""Where a memory's items lie in a store, and in which form."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_label
from memalign_graph.memory.facts import Item

DEFAULT_NAMESPACE = ("memalign",)
"""The namespace where none is given."""

_RESERVED_ROOT = "langgraph"

Namespace = tuple[str, ...]

ItemKind = Literal["facts", "words", "head", "drafts", "judgments", "batches", "reviews", "vectors"]
"""What lies where.

- `facts`: one item a fact, by its id.
- `words`: one item a word of an expert on an example, by a key made of its content.
- `head`: one item, which names the fact that was the last to be written.
- `drafts`: one item an answer of a model that is not committed yet; gone once it is.
- `judgments`: one item a judgment that is kept for feedback, by its id.
- `batches`: one item a file of prompts outside of the store.
- `reviews`, `vectors`: what the days of the log of reviews, and the embedders, lie under.
"""


@dataclass(frozen=True)
class MemoryLayout:
    """The namespaces of one criterion's memory: `(*namespace, criterion, kind)`."""

    root: Namespace
    """The caller's namespace and the criterion's name."""

    def of(self, kind: ItemKind) -> Namespace:
        return (*self.root, kind)

    def reviews_on(self, day: int, *, asked: bool) -> Namespace:
        """One item a judgment about which an expert was asked on this day, or was not."""
        return (*self.root, "reviews", f"{day}-{'asked' if asked else 'not-asked'}")

    def vectors(self, embedder: str) -> Namespace:
        """One item a text embedded by this embedder, by `vectors.vector_key`."""
        label = hashlib.sha256(embedder.encode()).hexdigest()[:16]
        return (*self.root, "vectors", label)


def check_namespace(namespace: Sequence[str] | str) -> Namespace:
    if isinstance(namespace, str):
        namespace = (namespace,)
    if not isinstance(namespace, Sequence) or not namespace:
        raise InvalidInputError("namespace: give at least one label, such as ('memalign',).")
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidInputError(f"namespace: the label {label!r} is no string.")
        try:
            check_label(label, "a label of the namespace")
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
    if namespace[0] == _RESERVED_ROOT:
        raise InvalidInputError(
            "namespace: LangGraph keeps the first label 'langgraph' to itself: choose another."
        )
    return tuple(namespace)


_PACKED = "packed"
"""What names the fields of an item that are JSON in text: Postgres forgets the order of keys."""


def packed(item: Item | None) -> Item | None:
    """Write as text what a store that keeps values, and not JSON, would give back otherwise."""
    names = [name for name, part in (item or {}).items() if _is_changed(part)]
    if item is None or not names:
        return item
    texts = {name: json.dumps(item[name], ensure_ascii=False) for name in names}
    return {**item, **texts, _PACKED: names}


def unpacked(item: Item) -> Item:
    parts = dict(item)
    for name in parts.pop(_PACKED, ()):
        parts[name] = json.loads(parts[name])
    return parts


def _is_changed(part: Any) -> bool:
    """Tell whether JSONB of Postgres changes a value: its order of keys, or a float to a number."""
    match part:
        case dict():
            return len(part) > 1 or any(map(_is_changed, part.values()))
        case list():
            return any(map(_is_changed, part))
        case float():
            return json.dumps(part) == "-0.0" or (part.is_integer() and "e" in json.dumps(part))
        case _:
            return False
