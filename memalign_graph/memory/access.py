"""A memory's way to its store: reading, refreshing the view, embedding and committing.

Written once for sync and async (see `effects`). Only `batch` calls are used, reads and writes in
batches of their own, so that a store never holds a read transaction it then wants to write in.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from pydantic import BaseModel, ValidationError

from memalign_graph.effects import Batch, Embed, Operation
from memalign_graph.errors import InvalidInputError, MemAlignError, explain
from memalign_graph.identity import check_json
from memalign_graph.memory.layout import MemoryLayout, Namespace
from memalign_graph.memory.records import (
    Change,
    Commit,
    Item,
    ItemKind,
    clock,
    commit_id,
    revision_of,
)
from memalign_graph.memory.retrieval_text import retrieval_text
from memalign_graph.memory.vectors import Vector, decode_vector, encode_vector, normalised
from memalign_graph.memory.view import MemoryView, Update, view_of
from memalign_graph.models import Embedder
from memalign_graph.types import Criterion, Episode, Guideline

logger = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_EVERYTHING = 1_000_000_000
"""A search limit above any memory's size: never pages, since items move between them."""

_EMBED_TEXTS = 256
"""How many texts go into one embedding request."""

_BATCH_ITEMS = 1_000
"""How many items one batch reads or, of vectors, writes: SQLite bounds a statement's variables."""


@dataclass(frozen=True)
class Edit:
    """One item before and after a change; None where it is not there."""

    kind: ItemKind
    before: Episode | Guideline | None
    after: Episode | Guideline | None

    def to_change(self) -> Change:
        """Return the edit as a commit records it."""
        item = self.after or self.before
        if item is None:
            raise ValueError("an edit has a before or an after.")
        return Change(
            kind=self.kind,
            id=item.id,
            revision=None if self.after is None else revision_of(self.after.to_json()),
            before=None if self.before is None else self.before.to_json(),
        )


@dataclass(frozen=True)
class MemoryAccess:
    """One criterion's memory in one store, as operations reach it."""

    store: BaseStore
    criterion: Criterion
    layout: MemoryLayout
    embedder: Embedder

    @property
    def view(self) -> MemoryView:
        """What this process knows of the memory, as last refreshed."""
        return view_of(self.store, self.layout, self.embedder.id)

    def refresh(self) -> Operation[MemoryView]:
        """Bring the view up to date with the store.

        Returns:
            The view.
        """
        view = self.view
        while True:
            generation, since = view.mark()
            now_us = clock.now_us()
            if since is None:
                update = yield from self._read_whole()
            else:
                update = yield from self._read_changes(view, since)
                if not update.commits:
                    return view
            if view.apply(generation, update, now_us=now_us):
                return view

    def episodes(self, ids: Iterable[str]) -> Operation[dict[str, Episode]]:
        """Read some episodes.

        Args:
            ids: Their ids.

        Returns:
            Those that are there, by id.
        """
        return (yield from self._get(self.layout.episodes, ids, self._episode))

    def all_episodes(self) -> Operation[list[Episode]]:
        """Read all episodes.

        Returns:
            The episodes, oldest first.
        """
        [items] = yield from self._search(self.layout.episodes)
        return sorted(map(self._episode, items), key=lambda one: (one.created_at, one.id))

    def all_guidelines(self) -> Operation[list[Guideline]]:
        """Read all guidelines.

        Returns:
            The guidelines in their order.
        """
        [items] = yield from self._search(self.layout.guidelines)
        return sorted(map(self._guideline, items), key=lambda one: (one.position, one.id))

    def embed(self, texts: Mapping[str, str]) -> Operation[dict[str, Vector]]:
        """Embed texts.

        Args:
            texts: The texts by vector key.

        Returns:
            Normalised vectors by vector key.

        Raises:
            EmbeddingError: If the call fails or its vectors can't be used.
        """
        vectors: dict[str, Vector] = {}
        for keys in _chunks(list(texts), _EMBED_TEXTS):
            answer = yield Embed(self.embedder.embeddings, [texts[key] for key in keys])
            vectors.update(zip(keys, normalised(answer, len(keys), self.embedder.id), strict=True))
        return vectors

    def stored_vectors(self, keys: Iterable[str]) -> Operation[dict[str, Vector]]:
        """Read vectors from the store.

        Args:
            keys: Vector keys.

        Returns:
            Those that are there, by key.
        """
        namespace = self.layout.vectors(self.embedder.id)
        found = yield from self._get(namespace, keys, lambda item: decode_vector(item["vector"]))
        return found

    def store_vectors(self, vectors: Mapping[str, Vector]) -> Operation[None]:
        """Write vectors, before the items that need them.

        Args:
            vectors: Normalised vectors by key.

        Raises:
            EmbeddingError: If one has another dimension than those that are there.
        """
        namespace = self.layout.vectors(self.embedder.id)
        yield from self._check_dimension(vectors)
        for keys in _chunks(list(vectors), _BATCH_ITEMS):
            yield Batch(
                self.store,
                [
                    PutOp(
                        namespace,
                        key,
                        {
                            "key": key,
                            "embedder": self.embedder.id,
                            "vector": encode_vector(vectors[key]),
                        },
                        index=False,
                    )
                    for key in keys
                ],
            )

    def _check_dimension(self, vectors: Mapping[str, Vector]) -> Operation[None]:
        index = self.view.index
        if vectors and index.is_empty:
            search = SearchOp(self.layout.vectors(self.embedder.id), limit=1)
            [found] = yield Batch(self.store, [search])
            stored = [decode_vector(item.value["vector"]) for item in found]
            index.check(vectors.values(), like=stored)
        else:
            index.check(vectors.values())

    def index_missing(self, view: MemoryView) -> Operation[None]:
        """Give every episode its vector in the index: from the store, else by embedding its text.

        Args:
            view: The refreshed view.

        Raises:
            EmbeddingError: If a text has to be embedded and that fails.
        """
        missing = view.missing_texts()
        if not missing:
            return
        stored = yield from self.stored_vectors(missing)
        view.add_vectors(stored)
        rest = {key: episode for key, episode in missing.items() if key not in stored}
        if not rest:
            return
        logger.warning(
            "The memory of %r has %d example(s) without vectors of the embeddings %s: embedding "
            "them now.",
            self.criterion.name,
            len(rest),
            self.embedder.id,
        )
        episodes = yield from self.episodes(rest.values())
        texts = {
            key: retrieval_text(episodes[episode].example)[0]
            for key, episode in rest.items()
            if episode in episodes
        }
        vectors = yield from self.embed(texts)
        yield from self.store_vectors(vectors)
        view.add_vectors(vectors)

    def commit(
        self, view: MemoryView, edits: Iterable[Edit], *, reason: str, author: str | None
    ) -> Operation[Commit | None]:
        """Write changes and the commit that records them, all or nothing.

        Args:
            view: The refreshed view.
            edits: What changes; an edit that changes nothing is left out.
            reason: What makes the change.
            author: Who makes it, if known.

        Returns:
            The commit; None if nothing changes.
        """
        real = [edit for edit in edits if edit.before != edit.after]
        if not real:
            return None
        changes = [edit.to_change() for edit in real]
        at_us = max(clock.now_us(), view.newest_us + 1)
        commit = Commit(
            id=commit_id(at_us),
            at_us=at_us,
            parents=view.heads,
            author=author,
            reason=reason,
            changes=changes,
            version=view.version_after(changes),
        )
        items: list[tuple[Namespace, str, Item | None]] = [
            (
                getattr(self.layout, edit.kind),
                change.id,
                None if edit.after is None else edit.after.to_json(),
            )
            for edit, change in zip(real, changes, strict=True)
        ]
        # Last, so that whoever sees the commit sees what it speaks of in any store.
        items.append((self.layout.commits, commit.id, commit.model_dump(mode="json")))
        for _, key, item in items:
            try:
                check_json(item, f"the item {key}")
            except ValueError as error:
                raise InvalidInputError(f"{reason}: {error}") from error
        yield Batch(self.store, [PutOp(*item, index=False) for item in items])
        return commit

    def rivals(self, commit: Commit, known: frozenset[str]) -> Operation[list[Commit]]:
        """Find commits that changed the same items at the same moment as one of ours.

        Args:
            commit: Our commit, written.
            known: The commits our view knew before.

        Returns:
            Commits that are neither ours nor were known, and touch an item that ours touches.
        """
        _, since = self.view.mark()
        ids = {change.id for change in commit.changes}
        found = yield from self._commits_since(since or 0)
        return [
            other
            for other in map(self._commit, found)
            if other.id != commit.id
            and other.id not in known
            and ids & {change.id for change in other.changes}
        ]

    def _commits_since(self, since: int) -> Operation[list[Item]]:
        search = SearchOp(self.layout.commits, filter={"at_us": {"$gte": since}}, limit=_EVERYTHING)
        [found] = yield Batch(self.store, [search])
        return [item.value for item in found]

    def _read_whole(self) -> Operation[Update]:
        layout = self.layout
        commits, episodes, guidelines, vectors = yield from self._search(
            layout.commits, layout.episodes, layout.guidelines, layout.vectors(self.embedder.id)
        )
        return Update(
            commits=[self._commit(item) for item in commits],
            episodes={one.id: one for one in map(self._episode, episodes)},
            guidelines={one.id: one for one in map(self._guideline, guidelines)},
            vectors={item["key"]: decode_vector(item["vector"]) for item in vectors},
        )

    def _read_changes(self, view: MemoryView, since: int) -> Operation[Update]:
        found = yield from self._commits_since(since)
        fresh = view.unknown({item["id"] for item in found})
        commits = sorted(
            (self._commit(item) for item in found if item["id"] in fresh),
            key=lambda commit: commit.id,
        )
        update = Update(commits=commits)
        touched = [(change.kind, change.id) for commit in commits for change in commit.changes]
        episodes = {key for kind, key in touched if kind == "episodes"}
        guidelines = {key for kind, key in touched if kind == "guidelines"}
        if episodes:
            there = yield from self.episodes(episodes)
            update.episodes.update({key: there.get(key) for key in episodes})
        if guidelines:
            standing = yield from self._get(self.layout.guidelines, guidelines, self._guideline)
            update.guidelines.update({key: standing.get(key) for key in guidelines})
        return update

    def _get(
        self, namespace: Namespace, ids: Iterable[str], read: Callable[[Item], T]
    ) -> Operation[dict[str, T]]:
        found: dict[str, T] = {}
        for keys in _chunks(list(dict.fromkeys(ids)), _BATCH_ITEMS):
            items = yield Batch(self.store, [GetOp(namespace, key) for key in keys])
            for key, item in zip(keys, items, strict=True):
                if item is not None:
                    found[key] = read(item.value)
        return found

    def _search(self, *namespaces: Namespace) -> Operation[list[list[Item]]]:
        results = yield Batch(
            self.store, [SearchOp(namespace, limit=_EVERYTHING) for namespace in namespaces]
        )
        # A prefix also finds what lies below it, such as a criterion named like a kind of item.
        return [
            [item.value for item in found if tuple(item.namespace) == namespace]
            for namespace, found in zip(namespaces, results, strict=True)
        ]

    def _episode(self, item: Item) -> Episode:
        return _read(Episode, item, "episode")

    def _guideline(self, item: Item) -> Guideline:
        return _read(Guideline, item, "guideline")

    def _commit(self, item: Item) -> Commit:
        return _read(Commit, item, "commit")


def _read(model: type[M], item: Item, kind: str) -> M:
    try:
        return model.model_validate(item)
    except ValidationError as error:
        raise MemAlignError(
            f"The {kind} {item.get('id')!r} in the store can't be read: {explain(error)}"
        ) from error


def _chunks(keys: list[str], size: int) -> Iterable[list[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))
