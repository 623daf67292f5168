"""What nodes share: the current run, and a judge's clients and memory."""

import itertools
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore

from memalign_graph import models
from memalign_graph.asking import Purpose, with_schema
from memalign_graph.errors import InvalidInputError, MemAlignError, MemAlignWarning
from memalign_graph.evidence.confidence import asks_checks
from memalign_graph.io import IO, AsyncIO, SyncIO, run_sync
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import DEFAULT_NAMESPACE, MemoryLayout
from memalign_graph.models import BaseChatModel, ChatModelLike, OncePerLoop
from memalign_graph.prompts.judge import PROMPT_VERSION, answer_schema
from memalign_graph.replies import StructuredModel
from memalign_graph.settings import Judge, ResolvedSettings, fields_of, mode_of, resolve_context
from memalign_graph.tracing import CRITERION, MEMORY_VERSION, TracedIO
from memalign_graph.types import Example, Feedback, Judgment, stored_example

State = Mapping[str, Any]
StateUpdate = dict[str, Any]

DEFAULT_MAX_CONCURRENCY = 32
"""The limit of concurrent model calls if the run's config has none."""

_KEY_OPTIONS = {"use_guidelines", "use_episodes", "swap", "checks", "small_model"}
"""The options that change a judge's verdict."""

# LangGraph has no public names for these. A run without a checkpointer can have a thread id.
_CHECKPOINTER = "__pregel_checkpointer"
_RESUMING = "__pregel_resuming"
_SCRATCHPAD = "__pregel_scratchpad"

# Counts the subgraphs of one retry of a node. LangGraph's own counter, which all attempts share,
# identifies the node's task.
_retry_counter = lru_cache(1000)(lambda _counter, _attempt: itertools.count().__next__)


def current_runtime() -> Any:
    """Return LangGraph's `Runtime` of this run; raise InvalidInputError without one, or a store."""
    try:
        runtime = get_runtime()
    except RuntimeError:  # outside of a run
        runtime = None
    if runtime is None or runtime.store is None:
        raise InvalidInputError(
            "store: no LangGraph store is available. Run this in a graph compiled with one, such "
            "as `.compile(store=InMemoryStore())`, or in an agent that is made with "
            "`create_agent(..., store=...)`."
        )
    return runtime


def saved_thread_id(runtime: Runtime[Any]) -> str | None:
    """Return the thread's id; None without a checkpointer."""
    if runtime.execution_info is None or not get_config()["configurable"].get(_CHECKPOINTER):
        return None
    return runtime.execution_info.thread_id


def signed_in(runtime: Runtime[Any]) -> str | None:
    """Return the identity of the Agent Server's user; None without a sign-in."""
    user = getattr(getattr(runtime, "server_info", None), "user", None)
    identity = getattr(user, "identity", None)  # an API key of LangSmith may have none
    # Studio's own user is not authenticated.
    return str(identity) if identity and getattr(user, "is_authenticated", True) else None


def is_resuming() -> bool:
    """Return whether this is the first step of a resumed run, or a node that is tried again."""
    return bool(ensure_config()["configurable"].get(_RESUMING))  # empty outside of a run


def has_answer() -> bool:
    """Return whether this step has an answer that names no interrupt, and that none has read."""
    return get_config()["configurable"][_SCRATCHPAD].get_null_resume() is not None


async def call_graph(io: IO, graph: Any, state: Any, **options: Any) -> dict[str, Any]:
    """Run a compiled graph, blocking or awaiting."""
    scratchpad: Any = ensure_config()["configurable"].get(_SCRATCHPAD)
    run: Any = get_runtime().execution_info if scratchpad else None
    if run and run.node_attempt > 1:
        # LangGraph counts on from the earlier attempt, and in a resumed run from zero. There a
        # question that this attempt asks would not be found.
        counter = _retry_counter(scratchpad.subgraph_counter, run.node_attempt)
        own = {_SCRATCHPAD: replace(scratchpad, subgraph_counter=counter)}
        options.setdefault("config", {"configurable": own})
    result: dict[str, Any] = await io.call_either(
        lambda: graph.invoke(state, **options), lambda: graph.ainvoke(state, **options)
    )
    return result


class Clients:
    """Chat models, one for each event loop, and an embedder, which several judges may share."""

    def __init__(self, embeddings: models.EmbeddingsLike) -> None:
        self.embedder = models.Embedder(embeddings)
        self._chat_models = OncePerLoop[BaseChatModel]()
        # The model and the schema are stored, too, so that no other object gets their ids.
        self._bound = OncePerLoop[tuple[BaseChatModel, Any, StructuredModel]]()

    def chat_model(self, model: ChatModelLike, *, small: bool | None = None) -> BaseChatModel:
        """Return a chat model, declared small or not; resolve a string at its first use."""

        def resolve() -> BaseChatModel:
            chat_model = models.resolve_chat_model(model)
            return chat_model if small is None else models.declare_small(chat_model, small=small)

        key = model if isinstance(model, str) else id(model)
        return self._chat_models.get((key, small), resolve)

    def judge_model(self, judge: Judge, model: str | None = None) -> BaseChatModel:
        """Return the model that judges; `model` is the context's choice."""
        return self.chat_model(model or judge.model, small=None if model else judge.small_model)

    def distill_model(self, judge: Judge, model: str | None = None) -> BaseChatModel:
        """Return the model that distills; by default the one that judges."""
        if judge.distill_model is not None:
            return self.chat_model(judge.distill_model)
        return self.judge_model(judge, model)

    def structured_model(
        self, model: BaseChatModel, schema: dict[str, Any], purpose: Purpose = "judge"
    ) -> StructuredModel:
        """Return a chat model bound to a schema; both must live as long as the graph."""
        key = (id(model), id(schema))
        return self._bound.get(key, lambda: (model, schema, with_schema(model, schema, purpose)))[2]


class JudgeResources:
    """A judge's settings and clients, made once for each graph."""

    def __init__(self, judge: Judge, review: Any = None, clients: Clients | None = None) -> None:
        self.judge = judge
        self.criterion = judge.criterion
        self.review = review
        """When an expert is asked; None if the graph asks nobody."""
        self.defaults: ResolvedSettings = {
            "namespace": list(DEFAULT_NAMESPACE),
            "k": judge.k,
            "model": None,
            "review": "never" if review is None else mode_of(review),
        }
        """The settings that a run's context can change."""
        self.clients = clients or Clients(judge.embeddings)
        self.schemas = [answer_schema(self.criterion, cites=cites) for cites in (False, True)]
        self._judge_keys = OncePerLoop[tuple[BaseChatModel, str]]()

    def memory(self, store: BaseStore, settings: ResolvedSettings) -> MemoryAccess:
        layout = MemoryLayout((*settings["namespace"], self.criterion.name))
        return MemoryAccess(store, self.criterion, layout, self.clients.embedder)

    def judge_key(self, model: BaseChatModel) -> str:
        """Return the key of the judge with this chat model, under which verdicts are stored."""

        def make() -> tuple[BaseChatModel, str]:
            options = self.judge.model_dump(include=_KEY_OPTIONS)
            return model, models.judge_key(model, options, PROMPT_VERSION)

        return self._judge_keys.get(id(model), make)[1]


@dataclass(frozen=True)
class NodeCall:
    """The input of an operation: a judge in one run, and the graph's state."""

    io: IO
    resources: JudgeResources
    runtime: Runtime[Any]
    settings: ResolvedSettings
    access: MemoryAccess
    state: State = field(default_factory=dict)
    max_concurrency: int = 1

    @property
    def judge(self) -> Judge:
        return self.resources.judge

    @cached_property
    def chat_model(self) -> BaseChatModel:
        return self.resources.clients.judge_model(self.judge, self.settings["model"])

    @property
    def distill_chat_model(self) -> BaseChatModel:
        return self.resources.clients.distill_model(self.judge, self.settings["model"])

    @cached_property
    def asks_checks(self) -> bool:
        """Whether each guideline is asked as a check."""
        return asks_checks(self.judge.checks, self.chat_model)

    @property
    def k(self) -> int:
        """How many similar examples the judge is shown."""
        return self.settings["k"] if self.judge.use_episodes else 0

    @property
    def finds_similar(self) -> bool:
        """Whether similar cases are looked for, to be shown or weighed."""
        return self.judge.weighs or self.k > 0

    @property
    def thread_id(self) -> str | None:
        """The thread's id; None without a checkpointer."""
        return saved_thread_id(self.runtime)

    @property
    def example(self) -> Example:
        # Not parsed again: it keeps its id, also if another version of the package parsed it.
        example: Example = stored_example(require_channel(self.state, "judge_run")["example"])
        return example

    @property
    def judgment(self) -> Judgment:
        return Judgment.model_validate(require_channel(self.state, "judgment"))

    @property
    def feedback(self) -> Feedback:
        return Feedback.model_validate(self.state["feedback"])

    def warn_without_checkpointer(self, graph: str) -> None:
        """Warn that an expert is asked but can't answer."""
        if self.thread_id is None:
            warnings.warn(
                f"The {graph} graph runs without a checkpointer: it stops to ask, but can't be "
                "resumed. Compile it with `.compile(store=..., checkpointer=InMemorySaver())` and "
                "pass a `thread_id`.",
                MemAlignWarning,
                stacklevel=3,
            )


def require_channel(state: State, name: str) -> dict[str, Any]:
    """Return the value of a channel that an earlier node wrote."""
    value: dict[str, Any] | None = state.get(name)
    if value is None:
        raise missing_channel(name)
    return value


def missing_channel(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"state: the channel {name!r} is missing. Derive the graph's state from "
        "memalign_graph.state.JudgeState, or from ReviewState if experts are asked, and run "
        "`retrieve_episodes` and `assemble_guidelines` before the judge."
    )


@dataclass(eq=False, repr=False)
class Node(Runnable[Any, Any]):
    """An operation as a graph's node, sync and async."""

    operation: Callable[[NodeCall], Coroutine[Any, Any, StateUpdate]]
    resources: JudgeResources
    name: str = ""
    is_first: bool = False
    """Whether it reads the run's context, which LangGraph does not keep across an interrupt."""
    tags: Sequence[str] = ()
    """Tags for the runs of its chat models."""
    parallel: int = 1
    """How many such nodes run concurrently and share the run's `max_concurrency`."""

    def __post_init__(self) -> None:
        self.name = self.name or self.operation.__name__

    # The parameters have Runnable's names; the config is read by `get_config`.
    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> StateUpdate:  # noqa: A002, ARG002
        return run_sync(self._run_operation(SyncIO, input))

    async def ainvoke(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,  # noqa: ARG002
        **_: Any,
    ) -> StateUpdate:
        return await self._run_operation(AsyncIO, input)

    async def _run_operation(self, io: type[SyncIO | AsyncIO], state: Any) -> StateUpdate:
        fields = state if isinstance(state, Mapping) else fields_of(state)
        resources = self.resources
        try:
            runtime = current_runtime()
            if self.is_first:
                settings = resolve_context(runtime.context, resources.defaults, resources.judge)
            else:
                settings = require_channel(fields, "judge_run")["settings"]
            access = resources.memory(runtime.store, settings)

            def run_metadata() -> dict[str, str]:
                retrieved = fields.get("judge_memory") or {}
                version = retrieved.get("version") or access.view.version
                return {CRITERION: resources.criterion.name, MEMORY_VERSION: version}

            limit = get_config().get("max_concurrency") or DEFAULT_MAX_CONCURRENCY
            limit = max(1, limit // self.parallel)
            traced = TracedIO(io(limit), run_metadata, self.tags)
            call = NodeCall(traced, resources, runtime, settings, access, fields, limit)
            return await self.operation(call)
        except MemAlignError as error:
            error.node = error.node or self.name
            raise
