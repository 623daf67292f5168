"""What nodes share: the run they find themselves in, and a judge's clients and memory."""

import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from memalign_graph import models
from memalign_graph.errors import InvalidInputError, MemAlignError, MemAlignWarning
from memalign_graph.evidence.logprobs import asks_checks
from memalign_graph.io import ASYNC, IO, SYNC, BoundedIO, StructuredModel, run_sync
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, MemoryLayout
from memalign_graph.prompts.judge import answer_schema
from memalign_graph.settings import Judge, ResolvedSettings, mode_of, resolve_context
from memalign_graph.tracing import CRITERION, MEMORY_VERSION, TracedIO
from memalign_graph.types import Example, Feedback, Judgment

State = Mapping[str, Any]
StateUpdate = dict[str, Any]

DEFAULT_MAX_CONCURRENCY = 32
"""How much is under way at a time where the run's config does not tell."""

# LangGraph has no public names for these two; without the first every run looks as if it had no
# checkpointer, and without the second a resumed gate tells once more that it is judging.
_CHECKPOINTER = "__pregel_checkpointer"
_RESUMING = "__pregel_resuming"


@dataclass(frozen=True)
class Run:
    """The run a node is part of; of itself, none of a graph's."""

    store: BaseStore
    context: Any = None  # the graph's context; None after an interrupt
    thread_id: str | None = None  # the thread; None without a checkpointer
    is_nested: bool = False  # whether the graph is a node of another, or called by one
    resuming: bool = False
    """Whether this is the first step of a run that goes on with one that ended in the middle."""
    max_concurrency: int = 1
    write: Callable[[Any], None] = lambda _event: None  # streams a custom event

    def warn_without_checkpointer(self, graph: str) -> None:
        """Warn where an expert is to be asked and nobody can answer."""
        if self.thread_id is None:
            warnings.warn(
                f"The {graph} graph runs without a checkpointer: it stops to ask, but the reply "
                "can't be taken. Compile it with "
                "`.compile(store=..., checkpointer=InMemorySaver())` and give a `thread_id`.",
                MemAlignWarning,
                stacklevel=3,
            )


def current_run() -> Run:
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
    config = get_config()
    configurable = config.get("configurable", {})
    # The runtime tells a thread also where there is no checkpointer to keep it.
    kept = configurable.get(_CHECKPOINTER) is not None
    info = runtime.execution_info
    return Run(
        store=runtime.store,
        context=runtime.context,
        thread_id=info.thread_id if kept and info is not None else None,
        is_nested=info is not None and "|" in info.checkpoint_ns,  # between its levels
        resuming=bool(configurable.get(_RESUMING)),
        max_concurrency=config.get("max_concurrency") or DEFAULT_MAX_CONCURRENCY,
        write=runtime.stream_writer,
    )


_Bound = tuple[models.BaseChatModel, dict[str, Any], StructuredModel]
"""A chat model bound to a schema; both stand with it, so that their ids are not given again."""


class Clients:
    """Chat models and an embedder, made once for an event loop, however many judges share them."""

    def __init__(self, embeddings: models.EmbeddingsLike) -> None:
        self.embedder = models.Embedder(embeddings)
        self._chats: dict[object, models.OncePerLoop[models.BaseChatModel]] = {}
        self._bound: models.OncePerLoop[dict[tuple[int, int], _Bound]] = models.OncePerLoop(dict)

    def chat(
        self, model: models.BaseChatModel | str, *, small: bool | None = None
    ) -> models.BaseChatModel:
        """Return a chat model, declared small or not; a string is resolved at its first use."""

        def resolve() -> models.BaseChatModel:
            chat = models.resolve_chat_model(model)
            return chat if small is None else models.declare_small(chat, small=small)

        key = (model if isinstance(model, str) else id(model), small)
        # A criterion's judge in another thread may ask for the same.
        return self._chats.setdefault(key, models.OncePerLoop(resolve)).get()

    def judge_model(self, judge: Judge, model: str | None = None) -> models.BaseChatModel:
        """Return the model that judges; `model` is one that the run's context names instead."""
        return self.chat(model or judge.model, small=None if model else judge.small_model)

    def distill_model(self, judge: Judge, model: str | None = None) -> models.BaseChatModel:
        """Return the model that distills: one of its own, or the one that judges."""
        if judge.distill_model is not None:
            return self.chat(judge.distill_model)
        return self.judge_model(judge, model)

    def structured(self, chat: models.BaseChatModel, schema: dict[str, Any]) -> StructuredModel:
        """Return a chat model bound to a schema, one that lives as long as the graph."""
        key, known = (id(chat), id(schema)), self._bound.get()
        if key not in known:
            known[key] = (chat, schema, models.with_schema(chat, schema))
        return known[key][2]


class JudgeResources:
    """A judge's settings with its clients, made once a graph."""

    def __init__(self, judge: Judge, review: Any = None, clients: Clients | None = None) -> None:
        self.judge = judge
        self.criterion = judge.criterion
        self.review = review
        """When an expert is asked; None where there is none to ask."""
        self.defaults: ResolvedSettings = {
            "namespace": list(DEFAULT_NAMESPACE),
            "k": judge.k,
            "model": None,
            "review": "never" if review is None else mode_of(review),
        }
        """What a run's context can change of it."""
        self.clients = clients or Clients(judge.embeddings)
        self.schemas = [answer_schema(self.criterion, cites=cites) for cites in (False, True)]

    def memory(self, store: BaseStore, settings: ResolvedSettings) -> MemoryAccess:
        layout = MemoryLayout((*settings["namespace"], self.criterion.name))
        return MemoryAccess(store, self.criterion, layout, self.clients.embedder)


@dataclass(frozen=True)
class NodeCall:
    """What an operation works with: a judge in one run, and the state that it found."""

    io: IO
    resources: JudgeResources
    run: Run
    settings: ResolvedSettings
    access: MemoryAccess
    state: State = field(default_factory=dict)

    @property
    def chat(self) -> models.BaseChatModel:
        return self.resources.clients.judge_model(self.resources.judge, self.settings["model"])

    @property
    def distiller(self) -> models.BaseChatModel:
        return self.resources.clients.distill_model(self.resources.judge, self.settings["model"])

    @property
    def asks_checks(self) -> bool:
        """Whether guidelines are asked as checks."""
        return asks_checks(self.resources.judge.checks, self.chat)

    @property
    def example(self) -> Example:
        return Example.model_validate(require_channel(self.state, "judge_run")["example"])

    @property
    def judgment(self) -> Judgment:
        return Judgment.model_validate(self.state["judgment"])

    @property
    def feedback(self) -> Feedback:
        return Feedback.model_validate(self.state["feedback"])


def require_channel(state: State, name: str) -> dict[str, Any]:
    """Read a channel that a node before this one has written."""
    value: dict[str, Any] | None = state.get(name)
    if value is None:
        raise missing_channel(name)
    return value


def missing_channel(name: str) -> InvalidInputError:
    """Return the error that says which channel a graph's state lacks."""
    return InvalidInputError(
        f"state: the channel {name!r} is not there: derive the graph's state from "
        "memalign_graph.state.JudgeState, or from ReviewState where experts are asked, and "
        "run `retrieve_episodes` and `assemble_guidelines` before the judge."
    )


def with_trace_metadata(
    io: IO, access: MemoryAccess, state: State, tags: Sequence[str] = ()
) -> TracedIO:
    """Have chat models told of which criterion, and with which memory, they are asked."""

    def about() -> dict[str, str]:
        retrieved = state.get("judge_memory") or {}
        version = retrieved.get("version") or access.view.version
        return {CRITERION: access.criterion.name, MEMORY_VERSION: version}

    return TracedIO(io, about, tags)


@dataclass(eq=False, repr=False)
class Node(Runnable[Any, Any]):
    """An operation as a graph's node, with blocking calls or awaited ones."""

    operation: Callable[[NodeCall], Coroutine[Any, Any, StateUpdate]]
    resources: JudgeResources
    name: str = ""
    is_first: bool = False
    """Whether it resolves the run's settings, which are gone from the context after it."""
    tags: Sequence[str] = ()
    """Of what its chat models are asked."""

    def __post_init__(self) -> None:
        self.name = self.name or self.operation.__name__

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> StateUpdate:  # noqa: A002, ARG002 - Runnable's own names
        return run_sync(self._named(SYNC, input))

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - Runnable's own name
        config: RunnableConfig | None = None,  # noqa: ARG002 - read by `get_config`
        **_: Any,
    ) -> StateUpdate:
        return await self._named(ASYNC, input)

    async def _named(self, io: IO, state: Any) -> StateUpdate:
        fields = state if isinstance(state, Mapping) else vars(state)
        resources = self.resources
        try:
            now = current_run()
            if self.is_first:
                settings = resolve_context(now.context, resources.defaults, resources.judge)
            else:
                settings = require_channel(fields, "judge_run")["settings"]
            access = resources.memory(now.store, settings)
            bounded = BoundedIO(io, now.max_concurrency, awaits=io is ASYNC)
            told = with_trace_metadata(bounded, access, fields, self.tags)
            return await self.operation(NodeCall(told, resources, now, settings, access, fields))
        except MemAlignError as error:
            error.node = error.node or self.name
            raise
