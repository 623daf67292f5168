"""Read and write a memory's log of facts in its store.

Only `batch` calls are used. Reads and writes are never in one batch, so that a store never has to
write within a read transaction.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp

from memalign_graph.errors import InvalidInputError, MemAlignError, StoreError
from memalign_graph.identity import check_json
from memalign_graph.io import IO
from memalign_graph.memory.checks import measure_guidelines
from memalign_graph.memory.facts import (
    FACT,
    Fact,
    Item,
    MemoryLayout,
    Namespace,
    item_of,
    new_id,
    packed,
    read_fact,
    timestamp_us,
    unpacked,
)
from memalign_graph.memory.index import Vector, decode_vector, encode_vector
from memalign_graph.memory.memory_state import ActiveGuidelines, EpisodeRow
from memalign_graph.memory.view import (
    CLOCK_SKEW_US,
    MemoryView,
    discard_view,
    evict_views,
    get_view,
)
from memalign_graph.models import Embedder
from memalign_graph.types import Criterion, Episode, Guideline

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_LIMIT = 1_000_000_000
"""A search limit above any memory's size: pages could miss items that move between them."""

BATCH_ITEMS = 1_000
"""Items per batch: SQLite limits the variables of a statement."""

HEAD = "head"

_LEGACY_HEAD = "tip"  # in memories of version 0.1

_WAIT_TIMEOUT_S = 20.0
"""How long to wait for a caller that does the same work: its event loop may wait for us."""

_PAUSE_S = 0.005

_MAX_AGE_S = 1.0
"""How old a view may be in the later steps of a run: a read takes two round trips to a database."""


@dataclass(frozen=True)
class MemoryAccess:
    """One criterion's memory in one store."""

    store: BaseStore
    criterion: Criterion
    layout: MemoryLayout
    embedder: Embedder

    @cached_property
    def view(self) -> MemoryView:
        """The process's view of the memory, as last refreshed; kept in use by this object."""
        return get_view(self.store, self.layout, self.embedder.id)

    def dump_vector(self, vector: Vector) -> str:
        """Encode a vector with its embedder's id: a paused run may go on with other embeddings."""
        return f"{self.embedder.id} {encode_vector(vector)}"

    def load_vector(self, dumped: str | None) -> Vector | None:
        """Decode a vector; None if it is not known to be of this embedder."""
        embedder, _, encoded = (dumped or "").rpartition(" ")
        return decode_vector(encoded) if embedder == self.embedder.id else None

    def log_warnings(self, warnings: Iterable[str]) -> list[str]:
        """Log warnings, each once, and return them."""
        unique = list(dict.fromkeys(warnings))
        for warning in unique:
            logger.warning("Memory of %r: %s", self.criterion.name, warning)
        return unique

    async def refresh_if_old(self, io: IO) -> None:
        """Refresh the view unless it was read within the last second."""
        if time.monotonic() - self.view.read_at_s > _MAX_AGE_S:
            await self.refresh(io)

    async def refresh(self, io: IO) -> MemoryView:
        view = self.view
        head = await self._head(io)
        if not view.is_loaded:  # or wait for a caller that loads it: what came since is added below
            await do_once(io, view.loading, lambda: view.is_loaded, lambda: self._read(io, head))
        if head != view.head:
            facts = await self._facts_since(io, view.latest_fact_id)
            known = view.fact_ids().union(fact.id for fact in facts or ())
            if facts is None or (head and head not in known):
                logger.warning(
                    "Memory %s: a search lacks a known fact. Was the store restored from a backup, "
                    "or cleared? Reloading the memory.",
                    "/".join(self.layout.root),
                )
                discard_view(self.store, view)
                vars(self).pop("view", None)
                return await self.refresh(io)
            await self._add(io, head, facts, {})
        view.read_at_s = time.monotonic()
        return view

    async def _read(self, io: IO, head: str | None) -> None:
        layout = self.layout
        # Records are written before the facts that name them, so they are read after them.
        facts, records, legacy, vectors = await self.search(
            io,
            layout.of("facts"),
            layout.of("words"),
            (*layout.root, _LEGACY_HEAD),
            layout.vectors(self.embedder.id),
        )
        if legacy and not facts:
            raise MemAlignError(
                f"The store holds a memory of an earlier version in {'/'.join(layout.root)}: "
                "export it with that version (`export_jsonl`), and import it into another "
                "namespace."
            )
        self.view.add((), {row.key: row for row in map(self.read_row, records)})
        stored = {item["key"]: decode_vector(item["vector"]) for item in vectors}
        read = list(map(read_fact, facts))
        missing = self.view.unknown_records(read)
        # The store may have been cleared since the head was read.
        is_part = head and head not in {fact.id for fact in read} and head == await self._head(io)
        if is_part or await self.get(io, layout.of("words"), missing):
            raise StoreError(
                f"The {type(self.store).__name__} does not return all items of a search: use a "
                "store that does, and in which no item expires."
            )
        await self._add(io, head, read, stored)

    async def _facts_since(self, io: IO, newest: str) -> list[Fact] | None:
        """Read unknown facts about as new as the newest known one, or newer; None if it is gone."""
        # The kind comes first, so that `InMemoryStore` compares the times of facts alone.
        wanted = dict[str, Any](kind=FACT)
        if newest:
            wanted["at_us"] = {"$gte": timestamp_us(newest) - CLOCK_SKEW_US}
        search = search_namespace(self.layout.of("facts"))._replace(filter=wanted)
        [items] = await self.search(io, search)
        by_id = {item["id"]: item for item in items}
        if newest and newest not in by_id:
            return None
        return [read_fact(by_id[key]) for key in by_id.keys() - self.view.fact_ids()]

    async def _add(
        self, io: IO, head: str | None, facts: list[Fact], vectors: Mapping[str, Vector]
    ) -> None:
        """Add facts to the view, with the feedback records that it lacks."""
        view = self.view
        missing = view.unknown_records(facts)
        records = await self.get(io, self.layout.of("words"), missing)
        for key in missing:
            if key not in records:
                raise MemAlignError(
                    f"The feedback record {key!r} is missing in the store: restore it from a "
                    "backup, and use a store in which no item expires."
                )
        view.add(facts, {key: self.read_row(record) for key, record in records.items()}, vectors)
        view.is_loaded, view.head = True, head
        evict_views()

    async def write(
        self,
        io: IO,
        reason: str,
        change: Mapping[str, Any],
        *,
        author: str | None = None,
        rows: Sequence[EpisodeRow] = (),
    ) -> Fact:
        """Write a fact with the fields of `change`, after the records of its feedback."""
        view, by_key = self.view, {row.key: row for row in rows}
        now_us = time.time_ns() // 1000
        at_us = max(now_us, timestamp_us(view.latest_fact_id) + 1)
        fact = Fact(
            id=new_id(at_us),
            at_us=at_us,
            clock_us=now_us if at_us > now_us + CLOCK_SKEW_US else None,
            reason=reason,
            author=author,
            said={row.id: row.key for row in rows},
            **change,
        )
        written = item_of(fact)
        records = {key: by_key[key].record() for key in view.unknown_records([fact])}
        for item in [*records.values(), written]:
            try:
                check_json(item, f"the item {item.get('id') or item['key']}")
            except ValueError as error:
                raise InvalidInputError(f"{reason}: {error}") from error
        await self.put(io, self.layout.of("words"), records)
        # The head comes last: who reads it can read the fact.
        head = PutOp(self.layout.of("head"), HEAD, {"id": fact.id}, index=False)
        try:
            put = PutOp(self.layout.of("facts"), fact.id, packed(written), index=False)
            await io.batch(self.store, [put, head])
        finally:
            view.head = ""
        view.add([fact], by_key)
        return fact

    def read_row(self, record: Item) -> EpisodeRow:
        """Read a stored record of feedback."""
        try:
            return EpisodeRow.of(record, self.embedder.id)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MemAlignError(
                f"The feedback record {record.get('key')!r} in the store can't be read: "
                f"{type(error).__name__}: {error}"
            ) from error

    async def _head(self, io: IO) -> str | None:
        """Read the id of the fact that was written last."""
        items = await self.get(io, self.layout.of("head"), [HEAD])
        return items[HEAD]["id"] if HEAD in items else None

    async def episodes(self, io: IO, ids: Iterable[str]) -> dict[str, Episode]:
        return (await self.refresh(io)).episodes(ids)

    async def all_episodes(self, io: IO) -> list[Episode]:
        return list((await self.refresh(io)).episodes().values())

    async def guidelines(self, io: IO) -> list[Guideline]:
        """Return the guidelines, with their worth, in the order a judge reads them."""
        return list(measure_guidelines(await self.refresh(io), self.criterion.scale).guidelines)

    async def pending_guidelines(self, io: IO) -> list[Guideline]:
        """Return the guidelines that have to be distilled again."""
        return [each for each in await self.guidelines(io) if each.status == "pending"]

    async def guidelines_at(self, io: IO, version: str) -> ActiveGuidelines:
        """Return the guidelines of a version if it is cached, otherwise of the newest."""
        if self.view.version != version:
            await self.refresh(io)
        return measure_guidelines(self.view, self.criterion.scale)

    async def put(self, io: IO, namespace: Namespace, items: Mapping[str, Item | None]) -> None:
        """Write items in the order of their keys, so that writers in Postgres cannot deadlock."""
        for keys in chunks(sorted(items), BATCH_ITEMS):
            ops = [PutOp(namespace, key, packed(items[key]), index=False) for key in keys]
            await io.batch(self.store, ops)

    async def get(self, io: IO, namespace: Namespace, ids: Iterable[str]) -> dict[str, Item]:
        """Read the items that exist of some keys."""
        stored: dict[str, Item] = {}
        for keys in chunks(list(dict.fromkeys(ids)), BATCH_ITEMS):
            gets = [GetOp(namespace, key, refresh_ttl=False) for key in keys]
            items = await io.batch(self.store, gets)
            stored |= {item.key: unpacked(item.value) for item in items if item is not None}
        return stored

    async def search(self, io: IO, *searches: Namespace | SearchOp) -> list[list[Item]]:
        """Read the items of some namespaces, all or those of a search, in one batch."""
        ops = [each if isinstance(each, SearchOp) else search_namespace(each) for each in searches]
        results = await io.batch(self.store, ops)
        # A prefix also matches namespaces below it, such as a criterion named like a kind.
        return [
            [unpacked(item.value) for item in items if tuple(item.namespace) == op.namespace_prefix]
            for op, items in zip(ops, results, strict=True)
        ]


async def do_once(
    io: IO, lock: Lock, is_done: Callable[[], bool], work: Callable[[], Awaitable[None]]
) -> None:
    """Do work that several callers need at once, or wait for the caller that does it."""
    give_up_s = time.monotonic() + _WAIT_TIMEOUT_S
    while not is_done():
        is_own = lock.acquire(blocking=False)
        if (
            not is_own
            and time.monotonic() < give_up_s
            and await io.call_either(_pause, lambda: asyncio.sleep(_PAUSE_S, result=True))
        ):
            continue
        try:
            # Another caller may have done it since, and then have released the lock.
            if not is_done():
                await work()
            return
        finally:
            if is_own:
                lock.release()


def _pause() -> bool:
    """Sleep; returns False instead if that would block this thread's event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(_PAUSE_S)
        return True
    return False


def chunks(keys: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def search_namespace(namespace: Namespace) -> SearchOp:
    """Search for all items in and below a namespace, without extending their `ttl`."""
    return SearchOp(namespace, limit=NO_LIMIT, refresh_ttl=False)
