"""Store items read as what they hold, and edits of them."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from memalign_graph.errors import InvalidInputError, MemAlignError, explain
from memalign_graph.memory.index.vectors import Vector, decode_vector
from memalign_graph.memory.records import Change, Changes, Commit, Item, ItemKind, revision_of
from memalign_graph.types import Episode, Guideline

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Edit:
    """One item before and after a change; None where it is not there."""

    kind: ItemKind
    before: Episode | Guideline | None
    after: Episode | Guideline | None

    id: str | None = None
    """The item's id, where it is there neither before nor after: another writer removed it, too."""

    @property
    def item_id(self) -> str:
        """The item's id."""
        item = self.after or self.before
        if item is None and self.id is None:
            raise ValueError("an edit has a before, an after, or an id.")
        return item.id if item is not None else str(self.id)

    def to_change(self) -> Change:
        """Return the edit as a commit records it."""
        return Change(
            kind=self.kind,
            id=self.item_id,
            revision=None if self.after is None else revision_of(self.after.to_json()),
            before=None if self.before is None else self.before.to_json(),
            after=self.after.to_json() if self.after is not None and self._is_told() else None,
        )

    def _is_told(self) -> bool:
        """Whether the commit keeps the item as it is after, too: for writers at the same moment."""
        if isinstance(self.before, Episode) and isinstance(self.after, Episode):
            return not self.before.says_the_same_as(self.after)
        return self.kind == "guidelines"


def read_episode(item: Item) -> Episode:
    """Read an episode from its item."""
    return _read(Episode, item, "episode")


def read_guideline(item: Item) -> Guideline:
    """Read a guideline from its item."""
    return _read(Guideline, item, "guideline")


def check_name(given: Any, name: str) -> str | None:
    """Check who does something."""
    if given is None:
        return None
    if not isinstance(given, str) or not given.strip():
        raise InvalidInputError(f"{name}: give a name, which is text.")
    return given.strip()


def read_commit(item: Item) -> Commit:
    """Read a commit from its item."""
    return _read(Commit, item, "commit")


def read_changes(item: Item) -> Changes:
    """Read what a commit changed from its item."""
    return _read(Changes, item, "record of changes")


def read_vector(item: Item) -> Vector:
    """Read a vector from its item."""
    try:
        vector = decode_vector(item["vector"])
    except (KeyError, TypeError, ValueError) as error:
        raise MemAlignError(
            f"The vector {item.get('key')!r} in the store can't be read: {error}"
        ) from error
    if not len(vector):
        raise MemAlignError(f"The vector {item.get('key')!r} in the store is empty.")
    return vector


def _read(model: type[M], item: Item, kind: str) -> M:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        raise MemAlignError(
            f"The {kind} {item.get('id')!r} in the store can't be read: {explain(error)}"
        ) from error
