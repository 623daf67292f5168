"""Namespaces and forms of a memory's items in a store."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_label
from memalign_graph.memory.facts import Item

DEFAULT_NAMESPACE = ("memalign",)
_RESERVED_ROOT = "langgraph"

Namespace = tuple[str, ...]

ItemKind = Literal["facts", "words", "head", "drafts", "judgments", "batches", "reviews", "vectors"]
"""The kinds of items.

- `facts`: one item per fact, by its id.
- `words`: one record per piece of feedback, by a hash of its content.
- `head`: one item with the id of the fact that was written last.
- `drafts`: one item per reply of a model that is not committed yet.
- `judgments`: one item per judgment that is kept for feedback, by its id.
- `batches`: one item per file of prompts outside of the store.
- `reviews`, `vectors`: the prefix of the review log's days, and of the embedders.
"""


@dataclass(frozen=True)
class MemoryLayout:
    """The namespaces of one criterion's memory: `(*namespace, criterion, kind)`."""

    root: Namespace
    """The caller's namespace and the criterion's name."""

    def of(self, kind: ItemKind) -> Namespace:
        return (*self.root, kind)

    def reviews_on(self, day: int, *, asked: bool) -> Namespace:
        """One item per judgment of a day: those that an expert was asked about, or the others."""
        return (*self.root, "reviews", f"{day}-{'asked' if asked else 'not-asked'}")

    def vectors(self, embedder: str) -> Namespace:
        """One item per text that an embedder embedded, by `vector_key`."""
        label = hashlib.sha256(embedder.encode()).hexdigest()[:16]
        return (*self.root, "vectors", label)


def check_namespace(namespace: Sequence[str] | str) -> Namespace:
    if isinstance(namespace, str):
        namespace = (namespace,)
    if not isinstance(namespace, Sequence) or not namespace:
        raise InvalidInputError("namespace: give at least one label, such as ('memalign',).")
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidInputError(f"namespace: the label {label!r} is not a string.")
        try:
            check_label(label, "a label of the namespace")
        except ValueError as error:
            raise InvalidInputError(str(error)) from error
    if namespace[0] == _RESERVED_ROOT:
        raise InvalidInputError(
            "namespace: LangGraph reserves the first label 'langgraph'. Use another one."
        )
    return tuple(namespace)


_PACKED = "packed"
"""The key that names an item's fields stored as JSON text: Postgres loses the order of keys."""


def packed(item: Item | None) -> Item | None:
    """Store as JSON text the fields that Postgres would change."""
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
    """Return whether JSONB changes a value: the order of keys, or a float to an integer."""
    match part:
        case dict():
            return len(part) > 1 or any(map(_is_changed, part.values()))
        case list():
            return any(map(_is_changed, part))
        case float():
            return json.dumps(part) == "-0.0" or (part.is_integer() and "e" in json.dumps(part))
        case _:
            return False
