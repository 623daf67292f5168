# ruff: noqa: S608 - what is put into statements is our own, or a literal
"""Nearest neighbours by pgvector, in the Postgres database of a store.

The table is derived from the vectors that the store holds: a row goes when its item goes.
"""

import asyncio
import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Literal, get_args

from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError, StoreError, needs_extra
from memalign_graph.io import IO, explained, first_line, run
from memalign_graph.memory.index.vectors import Vector, VectorIndex

logger = logging.getLogger(__name__)

VectorIndexKind = Literal["memory", "pgvector"]

EXACT = 50_000
"""Up to how many vectors of a memory each is compared; beyond it an HNSW index is searched."""

_LOOKED_AT = 100
"""How many candidates HNSW keeps at least (`hnsw.ef_search`)."""

_OLDEST = (0, 8)
"""The version of pgvector that looks on (`hnsw.iterative_scan`) until there are enough."""

_TABLE = "memalign_vectors"

# A row of up to 2,000 dimensions stays on its page: else each comparison would fetch it.
_MAKE = f"""
CREATE TABLE IF NOT EXISTS {_TABLE} (
    prefix text NOT NULL,
    key text NOT NULL,
    vector vector NOT NULL,
    PRIMARY KEY (prefix, key),
    FOREIGN KEY (prefix, key) REFERENCES store (prefix, key) ON DELETE CASCADE
) WITH (toast_tuple_target = 8160)
"""

Statement = tuple[str, Any]
"""SQL, and its parameters; a list of such carries it out for each."""


class RemoteIndex(VectorIndex):
    """What a process knows of vectors that lie elsewhere; it is asked for none.

    It contains no key, so that a view takes each text that a fact touched for missing, and it is
    looked for in the table: others remove rows, too.
    """

    def __init__(self, embedder: str) -> None:
        super().__init__(embedder)
        self.dimension: int | None = None
        self.gone: set[str] = set()
        """The keys whose episodes were taken back."""
        self.is_approximate = False
        """Whether there is an HNSW index."""

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Note the dimension of vectors."""
        self.check(vectors.values(), like=vectors.values())
        self.dimension = self._dimension(vectors.values())

    def remove(self, keys: set[str]) -> None:
        """Note whose rows are to be removed."""
        self.gone = self.gone | keys

    def _dimension(self, like: Iterable[Vector]) -> int | None:
        return self.dimension or super()._dimension(like)


@dataclass(frozen=True)
class VectorTable:
    """The rows of one memory's vectors by one embedder, named as their items in the store are."""

    store: BaseStore
    prefix: str

    async def make(self, io: IO) -> None:
        """Make the table where it is not there, or say why that can't be."""
        from psycopg import errors

        version = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        there, known = await self._do(
            io, ("SELECT to_regclass(%s) IS NOT NULL", [_TABLE]), (version, ())
        )
        if there == [(True,)]:
            return
        alone = ("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [_TABLE])
        reason = "it is older"
        try:
            if not known:
                extend = ("CREATE EXTENSION IF NOT EXISTS vector", ())
                *_, known = await self._do(io, alone, extend, (version, ()))
        except StoreError as error:
            refused = errors.FeatureNotSupported, errors.InsufficientPrivilege
            if not isinstance(error.__cause__, refused):
                raise
            reason = first_line(error.__cause__)
        if not known or tuple(map(int, known[0][0].split(".")[:2])) < _OLDEST:
            raise InvalidInputError(
                "vector_index: 'pgvector' needs the extension vector, 0.8 or later, in the "
                f"store's database ({reason}): have it made there, or give 'memory'."
            )
        await self._do(io, alone, (_MAKE, ()))

    async def keys(
        self, io: IO, wanted: Sequence[str] | None
    ) -> tuple[set[str], int | None] | None:
        """Tell which of some rows there are, or all, and their dimension; None without a table."""
        where = "prefix = %s"
        given: list[Any] = [self.prefix]
        if wanted is not None:
            where += " AND key = ANY(%s)"
            given.append(list(wanted))
        # Whoever removes rows has done so, or will see the facts that were read before.
        found = await self._try(
            io,
            ("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [self.prefix]),
            (f"SELECT key FROM {_TABLE} WHERE {where}", given),
            (f"SELECT vector_dims(vector) FROM {_TABLE} WHERE {where} LIMIT 1", given),
        )
        if found is None:
            return None
        _, rows, dimensions = found
        return {key for (key,) in rows}, dimensions[0][0] if dimensions else None

    async def add(self, io: IO, vectors: Mapping[str, Vector]) -> None:
        """Add rows; one whose item is gone meanwhile is left aside."""
        insert = f"INSERT INTO {_TABLE} SELECT prefix, key, %s::vector FROM store"
        # In one order for all.
        rows = [(vectors[key], self.prefix, key) for key in sorted(vectors)]
        where = "WHERE prefix = %s AND key = %s FOR KEY SHARE ON CONFLICT DO NOTHING"
        await self._do(io, (f"{insert} {where}", rows))

    async def remove(self, io: IO, keys: Iterable[str], head: Sequence[str], fact: str) -> bool:
        """Remove rows, if a fact is the last that was written, as its head tells."""
        delete = f"DELETE FROM {_TABLE} WHERE prefix = %s AND key = ANY(%s)"
        last = "(SELECT value->>'id' FROM store WHERE prefix = %s AND key = %s) = %s"
        found = await self._try(
            io,
            ("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self.prefix]),
            (f"SELECT {last}", [*head, fact]),
            (f"{delete} AND {last}", [self.prefix, sorted(keys), *head, fact]),
        )
        return found is None or bool(found[1][0][0])

    async def search(
        self, io: IO, vector: Vector, k: int, *, is_approximate: bool
    ) -> list[tuple[str, float]]:
        """Find the nearest, most similar first; none without a table."""
        # As a literal, so that the planner sees which rows the index of this memory is of.
        rows, setting = f"{_TABLE} WHERE prefix = {self._literal}", []
        if is_approximate:
            half = f"halfvec({len(vector)})"
            order = f"vector::{half} <#> %(vector)s::vector::{half}"
            rows = f"(SELECT key, vector FROM {rows} ORDER BY {order} LIMIT %(k)s) AS near"
            local = "set_config('hnsw.' || %s, %s, true)"
            looked_at = str(min(max(k, _LOOKED_AT), 1_000))
            values = ["iterative_scan", "strict_order", "ef_search", looked_at]
            setting = [(f"SELECT {local}, {local}", values)]
        nearest = f"SELECT key, vector <#> %(vector)s FROM {rows} ORDER BY 2 LIMIT %(k)s"
        found = await self._try(io, *setting, (nearest, {"vector": vector, "k": k}))
        return [(key, -distance) for key, distance in found[-1]] if found else []

    async def has_index(self, io: IO) -> bool:
        """Tell whether there is an HNSW index that can be searched."""
        return await self._state(io) == (True, False)

    async def make_index(self, io: IO, dimension: int) -> None:
        """Make an HNSW index of these rows, unless another does; the others go on meanwhile."""
        state = await self._state(io)
        if state is not None and any(state):
            return
        logger.warning("Making an HNSW index of %s: this may take minutes.", self.prefix)
        columns = f"((vector::halfvec({dimension})) halfvec_ip_ops) WHERE prefix = {self._literal}"
        try:
            # What was cut off is left behind, and not to be used.
            await self._do(io, (f"DROP INDEX CONCURRENTLY IF EXISTS {self._index}", ()))
            make = f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {self._index} ON {_TABLE}"
            await self._do(io, (f"{make} USING hnsw {columns}", ()))
        except StoreError as error:
            text = "There is no HNSW index of %s, which is searched vector by vector: %s"
            logger.warning(text, self.prefix, error)

    async def _state(self, io: IO) -> tuple[bool, bool] | None:
        """Tell whether the index is whole, and whether it is being made."""
        making = "SELECT FROM pg_stat_progress_create_index AS one WHERE one.index_relid"
        look = f"SELECT indisvalid, EXISTS ({making} = indexrelid) FROM pg_index WHERE indexrelid"
        [found] = await self._do(io, (f"{look} = to_regclass(%s)", [self._index]))
        return found[0] if found else None

    @property
    def _index(self) -> str:
        return f"memalign_hnsw_{hashlib.sha256(self.prefix.encode()).hexdigest()[:16]}"

    @property
    def _literal(self) -> str:
        from psycopg.sql import Literal

        return Literal(self.prefix).as_string(None).replace("%", "%%")

    async def _try(self, io: IO, *statements: Statement) -> list[list[Any]] | None:
        """Carry out statements; None where somebody dropped the table, which is made anew later."""
        from psycopg import errors

        try:
            return await self._do(io, *statements)
        except StoreError as error:
            if isinstance(error.__cause__, errors.UndefinedTable):
                return None
            raise

    async def _do(self, io: IO, *statements: Statement) -> list[list[Any]]:
        """Carry out statements, several in one transaction; returns the rows of each."""
        store: Any = self.store

        def work() -> Coroutine[Any, Any, list[list[Any]]]:
            return _carry_out(store, statements)

        waiting = asyncio.run_coroutine_threadsafe
        with explained(store):
            if hasattr(store, "loop"):
                return await io.call(lambda: waiting(work(), store.loop).result(), work)
            return await io.call(lambda: run(work()), lambda: asyncio.to_thread(run, work()))


def check_kind(kind: object, store: BaseStore) -> None:
    """Check that a store can hold an index of vectors."""
    if kind not in get_args(VectorIndexKind):
        raise InvalidInputError(
            f"vector_index: {kind!r} is not known: give 'memory' or 'pgvector'."
        )
    if kind == "memory":
        return
    with needs_extra("postgres", "vector_index='pgvector'"):
        from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
    if not isinstance(store, PostgresStore | AsyncPostgresStore):
        raise InvalidInputError(
            "vector_index: 'pgvector' looks for similar cases in the store's database: give a "
            f"PostgresStore or an AsyncPostgresStore, not {type(store).__name__}, or 'memory'."
        )


async def _carry_out(store: Any, statements: Sequence[Statement]) -> list[list[Any]]:
    """Carry out statements by a store's connection; waits for nothing where that one blocks."""
    from psycopg.rows import tuple_row

    connection, found = store.conn, []
    async with AsyncExitStack() as stack:
        if hasattr(connection, "getconn"):  # a pool
            connection = await stack.enter_async_context(_entered(connection.connection()))
        else:
            await stack.enter_async_context(_entered(store.lock))
        if len(statements) > 1:
            await stack.enter_async_context(_entered(connection.transaction()))
        lending = connection.cursor(binary=True, row_factory=tuple_row)
        cursor = await stack.enter_async_context(_entered(lending))
        cursor.adapters.register_dumper("numpy.ndarray", _dumper())
        for sql, given in statements:
            is_many = isinstance(given, list) and given and isinstance(given[0], tuple)
            await _done((cursor.executemany if is_many else cursor.execute)(sql, given))
            if store.pipe and not sql.startswith("SELECT"):
                await _done(store.pipe.sync())  # else an error would be the next one's
            found.append(await _done(cursor.fetchall()) if sql.startswith("SELECT") else [])
    return found


async def _done(result: Any) -> Any:
    """Return what a call that blocks or waits gives."""
    return await result if isawaitable(result) else result


@asynccontextmanager
async def _entered(context: Any) -> AsyncIterator[Any]:
    """Enter a context that blocks or waits."""
    if hasattr(context, "__aenter__"):
        async with context as entered:
            yield entered
    else:
        with context as entered:
            yield entered


def _dumper() -> Any:
    """Write vectors as pgvector reads them: their dimension, and big-endian float32."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class VectorDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: Vector) -> bytes:
            return struct.pack(">HH", len(obj), 0) + bytes(obj.astype(">f4").tobytes())

    return VectorDumper
