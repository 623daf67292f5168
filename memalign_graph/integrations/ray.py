"""Judge a Ray dataset with many workers, each of which loads the memory once (extra `ray`)."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from langgraph.store.base import BaseStore

from memalign_graph.bulk import namespace_labels, prepare_memory
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.graphs import create_judge_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.local import open_store
from memalign_graph.memory.history import pin_memory
from memalign_graph.memory.judge_memory import JudgeMemory

_COLUMNS = ("value", "rationale", "confidence", "memory_version", "judgment", "error")
_ARROW_TYPES = {"boolean": "bool", "integer": "int64", "number": "float64"}


def judge_dataset(dataset: Any, judge: Any, *, store: Any, **options: Any) -> Any:
    """Judge the rows of a dataset with the present version of the memory.

    Args:
        dataset: Rows with `inputs`, `outputs` and optionally `reference_outputs`.
        judge: A `Judge` whose models are strings, or a function that makes a `Judge`.
        store: A path or URL for `open_store`, or a function that opens a store.
        **options: `namespace` of the memory; `max_concurrency`, the rows that a worker judges
            concurrently (32); `concurrency`, the number of workers (1), or the fewest and the most;
            others of Ray's `map_batches`, such as `batch_size`, the rows that a killed worker
            repeats at most (256).

    Returns:
        The dataset with the columns `value`, `rationale`, `confidence`, `memory_version`,
        `judgment` (all of it as JSON) and `error`, the reason why a row has no judgment.

    Raises:
        InvalidInputError: If the judge keeps judgments, or the dataset has a result's column.
    """
    _check_columns(dataset.columns(fetch_if_missing=False) or ())
    place = (store, options.pop("namespace", None))
    config = {"max_concurrency": options.pop("max_concurrency", 32)}
    workers = (judge, *place, config, _Worker(judge, *place, config).version)
    from ray.data import ActorPoolStrategy

    count = options.pop("concurrency", 1)
    fewest, most = (count, count) if isinstance(count, int) else count
    pool = ActorPoolStrategy(min_size=fewest, max_size=most)
    options = {"batch_size": 256, "compute": pool, **options, "batch_format": "pyarrow"}
    blocks = dataset.repartition(target_num_rows_per_block=options["batch_size"])
    return blocks.map_batches(_Worker, fn_constructor_args=workers, **options)


class _Worker:
    """A judge with one version of the memory, in a process of its own."""

    def __init__(
        self, judge: Any, store: Any, namespace: Any, config: Any, version: Any = None
    ) -> None:
        made = judge() if callable(judge) else judge
        if made.keep_judgments is not None:
            raise InvalidInputError("keep_judgments: leave it out: the dataset keeps judgments.")
        labels = namespace_labels(made, namespace)
        opened = store() if callable(store) else open_store(store)
        with nullcontext(opened) if isinstance(opened, BaseStore) else opened as base:
            memory = JudgeMemory(base, made.criterion, namespace=labels, embeddings=made.embeddings)
            self.version = version or run_sync(prepare_memory(SYNC, made, memory.access))
            pin = run_sync(pin_memory(SYNC, memory.access, **self.version))
        value = _ARROW_TYPES.get(made.criterion.scale.value_schema().get("type", ""), "string")
        self._types = {"value": value, "confidence": "float64"}
        self._graph = create_judge_graph(made.criterion, **made.options).compile(store=pin.store)
        self._options: Any = {"config": config, "context": {"namespace": labels}}
        self._runner = asyncio.Runner()  # a client's connections end with their loop

    def __call__(self, batch: Any) -> Any:
        _check_columns(batch.column_names)  # Ray may not know them before
        import pyarrow as pa

        judged = self._graph.abatch(batch.to_pylist(), return_exceptions=True, **self._options)
        rows = list(map(_row, self._runner.run(judged)))
        for name in _COLUMNS:
            column = pa.array([row.get(name) for row in rows], self._types.get(name, "string"))
            batch = batch.append_column(name, column)
        return batch


def _check_columns(names: Sequence[str]) -> None:
    if taken := {*names}.intersection(_COLUMNS):
        raise InvalidInputError(f"dataset: it has a column {min(taken)!r} already. Rename it.")


def _row(judged: Any) -> dict[str, Any]:
    if isinstance(judged, MemAlignError):
        return {"error": str(judged)}
    if isinstance(judged, BaseException):
        raise judged
    return {**judged["judgment"], "judgment": json.dumps(judged["judgment"], ensure_ascii=False)}
