"""Datasets of Ray judged by many workers, each of which reads the memory once (extra `ray`)."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from langgraph.store.base import BaseStore

from memalign_graph.bulk import memory_now, pinned
from memalign_graph.errors import InvalidInputError, MemAlignError, needs_extra
from memalign_graph.graphs import create_judge_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, MemoryLayout, check_namespace
from memalign_graph.models import Embedder
from memalign_graph.scales import Boolean, Numeric, Scale
from memalign_graph.settings import Judge
from memalign_graph.types import Example

if TYPE_CHECKING:
    from ray.data import Dataset

StoreLike = str | Path | Callable[[], BaseStore | AbstractContextManager[BaseStore]]
"""A place for `open_store`, or a function that opens a store: a store itself can't be sent."""

_COLUMNS = ("value", "rationale", "confidence", "memory_version", "judgment", "error")


def judge_dataset(
    dataset: "Dataset",
    judge: Judge | Callable[[], Judge],
    *,
    store: StoreLike,
    namespace: Sequence[str] | str = DEFAULT_NAMESPACE,
    concurrency: int | tuple[int, int] = 1,
    max_concurrency: int = 32,
    batch_size: int = 256,
    **ray_remote_args: Any,
) -> "Dataset":
    """Judge the rows of a dataset, all with the memory as it is now, however long it takes.

    Each worker reads the memory once, as it starts, and the database is not asked again. A worker
    that is killed is started anew, and judges again the batch that it was at.

    Args:
        dataset: Rows with `inputs`, `outputs` and perhaps `reference_outputs`.
        judge: The judge, its models named by strings, or a function that makes it.
        store: Where the memory is: a path or URL for `open_store`, or a function that opens a
            store for blocking calls.
        namespace: Where the memory lies in the store.
        concurrency: How many workers there are, or the fewest and the most.
        max_concurrency: How many rows a worker judges at a time.
        batch_size: How many rows make a batch: a worker that is killed loses one at most.
        ray_remote_args: What Ray is told of each worker, such as `num_cpus`.

    Returns:
        The dataset with the columns `value`, `rationale`, `confidence`, `memory_version`,
        `judgment`, which is all of it as JSON, and `error`, which tells why a row has none.

    Raises:
        InvalidInputError: If the judge or the dataset can't be used.
        ImportError: If Ray is not installed.
    """
    with needs_extra("ray", "judge_dataset"):
        from ray import cloudpickle
        from ray.data import ActorPoolStrategy
    worker = (judge, store, check_namespace(namespace))
    try:
        cloudpickle.dumps(worker)
    except (TypeError, PicklingError) as error:
        raise InvalidInputError(
            f"judge: it can't be sent to workers ({error}): name its models by strings, such as "
            "'openai:gpt-4.1-mini', or give a function that makes the judge, and one that opens "
            "the store."
        ) from error
    made = _made(judge)
    if made.keep_judgments is not None:
        raise InvalidInputError("keep_judgments: the dataset keeps its judgments: leave it out.")
    _check_columns(dataset.columns(fetch_if_missing=False))
    with _opened(store) as opened:
        memory = run_sync(memory_now(SYNC, made, _access(made, opened, worker[2])))
    few, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    blocks = dataset.repartition(target_num_rows_per_block=batch_size)
    return blocks.map_batches(
        _Worker,
        fn_constructor_args=(*worker, memory, max_concurrency),
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ActorPoolStrategy(min_size=few, max_size=most),
        **ray_remote_args,
    )


class _Worker:
    """A judge with the memory as it was, in a process of its own."""

    def __init__(
        self, judge: Any, store: Any, namespace: Any, memory: Any, max_concurrency: int
    ) -> None:
        made = _made(judge)
        with _opened(store) as opened:
            self._memory = run_sync(pinned(SYNC, _access(made, opened, namespace), **memory))
        self._scale = made.criterion.scale
        builder = create_judge_graph(made.criterion, **made.options)
        self._graph = builder.compile(store=self._memory.store)
        self._config: Any = {"max_concurrency": max_concurrency}
        self._context = {"namespace": list(namespace)}
        # One loop for all batches: the connections of a client end with theirs.
        self._runner = asyncio.Runner()

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        _check_columns(batch.column_names)
        fields = [name for name in Example.model_fields if name in batch.column_names]
        examples = batch.select(fields).to_pylist()
        rows = [_row(judged) for judged in self._runner.run(self._judge(examples))]
        types = [_type_of(self._scale, pa), pa.string(), pa.float64(), *[pa.string()] * 3]
        for name, kind in zip(_COLUMNS, types, strict=True):
            batch = batch.append_column(name, pa.array([row.get(name) for row in rows], kind))
        return batch

    async def _judge(self, examples: list[Any]) -> list[Any]:
        return await self._graph.abatch(
            examples, self._config, context=self._context, return_exceptions=True
        )


def _row(judged: Any) -> dict[str, Any]:
    if isinstance(judged, MemAlignError):
        return {"error": str(judged)}
    if isinstance(judged, BaseException):
        raise judged
    judgment = judged["judgment"]
    return {**judgment, "judgment": json.dumps(judgment, ensure_ascii=False)}


def _type_of(scale: Scale, pa: Any) -> Any:
    if isinstance(scale, Boolean):
        return pa.bool_()
    if isinstance(scale, Numeric):
        return pa.int64() if scale.integer else pa.float64()
    return pa.string()


def _made(judge: Judge | Callable[[], Judge]) -> Judge:
    return judge if isinstance(judge, Judge) else judge()


def _access(judge: Judge, store: BaseStore, namespace: Sequence[str]) -> MemoryAccess:
    layout = MemoryLayout((*namespace, judge.criterion.name))
    return MemoryAccess(store, judge.criterion, layout, Embedder(judge.embeddings))


def _opened(store: StoreLike) -> AbstractContextManager[BaseStore]:
    if isinstance(store, str | Path):
        from memalign_graph.local import open_store

        return open_store(store)
    opened = store()
    return nullcontext(opened) if isinstance(opened, BaseStore) else opened


def _check_columns(names: Sequence[str] | None) -> None:
    """Check the columns of a dataset, if they are known."""
    if names is None:
        return
    if missing := {"inputs", "outputs"}.difference(names):
        raise InvalidInputError(
            f"dataset: it has no column {min(missing)!r}: name one so, with "
            "dataset.rename_columns(...)."
        )
    if taken := set(_COLUMNS).intersection(names):
        raise InvalidInputError(
            f"dataset: it has a column {min(taken)!r} already: call it otherwise, with "
            "dataset.rename_columns(...)."
        )
