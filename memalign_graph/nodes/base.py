"""What all nodes share: an operation made into a node, and the run it finds itself in."""

import warnings
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError, MemAlignError, MemAlignWarning
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.changes import remember
from memalign_graph.memory.layout import MemoryLayout, check_namespace
from memalign_graph.memory.recall import known_vector
from memalign_graph.models import (
    Embedder,
    EmbeddingsLike,
    OncePerLoop,
    StructuredModel,
    resolve_chat_model,
    with_schema,
)
from memalign_graph.reading import read_example
from memalign_graph.types import Criterion, Episode, Example, Feedback

State = Mapping[str, Any]
"""What a node is given."""

Update = dict[str, Any]
"""What a node returns."""

DEFAULT_MAX_CONCURRENCY = 32
"""How much is under way at a time where the run's config does not tell."""

_BOUND_MODELS = 8

_CHECKPOINTER = "__pregel_checkpointer"
"""Where LangGraph keeps the checkpointer of a run in its config; it has no public name."""


_RESUMING = "__pregel_resuming"
"""Where it keeps whether a step was left over from an earlier run; likewise."""

_LEVELS = "|"
"""What LangGraph puts between the levels of a checkpoint's namespace."""


@dataclass(frozen=True)
class Run:
    """The run a node is part of."""

    store: BaseStore
    """The graph's store."""

    context: Any
    """The graph's context; None after an interrupt."""

    thread_id: str | None
    """The thread; None without a checkpointer."""

    is_nested: bool
    """Whether the graph is a node of another, or called by one."""

    resuming: bool
    """Whether this is the first step of a run that goes on with one that ended in the middle."""

    max_concurrency: int
    """How much may be under way at a time."""

    write: Callable[[Any], None]
    """Streams a custom event."""


NodeOperation = Callable[[IO, State, Run], Coroutine[Any, Any, Update]]
"""What a node carries out."""


class OperationNode(Runnable[Any, Any]):
    """A node that carries out an operation, with blocking calls or awaited ones."""

    def __init__(self, name: str, operation: NodeOperation) -> None:
        self.name = name
        self._operation = operation

    def invoke(self, input: State, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: A002, ARG002 - Runnable's own names
        """Run the node with blocking calls."""
        return run(self._named(BLOCKING, input))

    async def ainvoke(
        self,
        input: State,  # noqa: A002 - Runnable's own name
        config: RunnableConfig | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> Update:
        """Run the node with awaited calls."""
        return await self._named(AWAITING, input)

    async def _named(self, io: IO, state: State) -> Update:
        try:
            return await self._operation(io, state, current_run())
        except MemAlignError as error:
            error.node = error.node or self.name
            raise


def current_run() -> Run:
    """Return the run of the node that calls."""
    runtime: Any = get_runtime()
    if runtime is None:
        raise InvalidInputError(
            "store: there is no graph around this, and so none: call it within a graph that was "
            "compiled with a store, or by an agent made with `create_agent(..., store=...)`."
        )
    if runtime.store is None:
        raise InvalidInputError(
            "store: the graph has none to keep its memory in: compile it with "
            "`.compile(store=InMemoryStore())` or with a store that lasts; an agent is made with "
            "`create_agent(..., store=...)`."
        )
    configurable = get_config().get("configurable", {})
    # The runtime tells a thread also where there is no checkpointer to keep it.
    kept = configurable.get(_CHECKPOINTER) is not None
    info = runtime.execution_info
    return Run(
        store=runtime.store,
        context=runtime.context,
        thread_id=info.thread_id if kept and info is not None else None,
        resuming=bool(configurable.get(_RESUMING)),
        is_nested=info is not None and _LEVELS in info.checkpoint_ns,
        max_concurrency=get_config().get("max_concurrency") or DEFAULT_MAX_CONCURRENCY,
        write=runtime.stream_writer,
    )


class Models:
    """Chat models as a node calls them: resolved at first use, and kept."""

    def __init__(self, own: BaseChatModel | str) -> None:
        self._own = own
        self._resolved: dict[str | None, OncePerLoop[BaseChatModel]] = {}
        self._bound: dict[tuple[int, int], BoundModel] = {}

    def get(self, override: str | None = None) -> BaseChatModel:
        """Return the chat model to call."""
        key = None if override == self._own else override
        if key not in self._resolved:
            named = self._own if key is None else key
            self._resolved[key] = OncePerLoop(lambda: resolve_chat_model(named))
        return self._resolved[key].get()

    def bound(self, schema: dict[str, Any], override: str | None = None) -> "BoundModel":
        """Return the chat model to call, bound to a schema."""
        chat = self.get(override)
        key = (id(chat), id(schema))
        bound = self._bound.get(key)
        if bound is None or bound.chat is not chat:
            if len(self._bound) >= _BOUND_MODELS:
                self._bound.clear()  # of event loops that have ended
            bound = BoundModel(chat, with_schema(chat, schema))
            self._bound[key] = bound
        return bound


@dataclass(frozen=True)
class BoundModel:
    """A chat model, and the same bound to a schema."""

    chat: BaseChatModel
    """The model."""

    structured: StructuredModel
    """The same, answering in the shape of the schema."""


class Memories:
    """The memories a node works on: one criterion's, in the store and namespace of each run."""

    def __init__(self, criterion: Criterion, embeddings: EmbeddingsLike) -> None:
        self._criterion = criterion
        self._embedder = Embedder(embeddings)

    def get(self, run: Run, settings: Mapping[str, Any]) -> MemoryAccess:
        """Return the memory of a run."""
        return MemoryAccess(
            store=run.store,
            criterion=self._criterion,
            layout=MemoryLayout((*check_namespace(settings["namespace"]), self._criterion.name)),
            embedder=self._embedder,
        )


def example_of(state: Mapping[str, Any]) -> Example:
    """Read the example a node works on."""
    kept = state.get("judge_example")
    return read_example(
        kept or {name: state[name] for name in Example.model_fields if name in state}
    )


async def store_feedback(io: IO, access: MemoryAccess, feedback: Feedback, state: State) -> Episode:
    """Store a reviewer's feedback, with the embedding that retrieval left in the state."""
    vector = known_vector(state.get("recall_vector"))
    known = {} if vector is None else {feedback.example.id: vector}
    stored = await remember(io, access, [feedback], known_vectors=known)
    return stored.episodes[0]


def warn_without_checkpointer(run: Run, graph: str) -> None:
    """Warn where an expert is to be asked and nobody can answer."""
    if run.thread_id is None:
        warnings.warn(
            f"The {graph} graph runs without a checkpointer: it stops to ask, but the reply can't "
            "be taken. Compile it with `.compile(store=..., checkpointer=InMemorySaver())` and "
            "give a `thread_id`.",
            MemAlignWarning,
            stacklevel=3,
        )
