"""Chat models and embeddings, from an instance or a `"provider:name"` string."""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableSequence

from memalign_graph.errors import InvalidInputError

T = TypeVar("T")

DEFAULT_CHAT_MODEL = "openai:gpt-4.1-mini"
"""The chat model where none is given."""

DEFAULT_EMBEDDINGS = "openai:text-embedding-3-small"
"""The embeddings where none are given."""

DEFAULT_MAX_INPUT_TOKENS = 128_000
"""The context window assumed of a chat model whose profile does not tell, in tokens."""

_TWO = 2

_TIMEOUT_S = 120.0
"""How long a model made from a string may take for one answer; the client's own default is 600."""

EmbeddingsFunction = (
    Callable[[Sequence[str]], list[list[float]]]
    | Callable[[Sequence[str]], Awaitable[list[list[float]]]]
)
"""A function from texts to vectors, sync or async."""

EmbeddingsLike = Embeddings | EmbeddingsFunction | str
"""Whatever can be given as `embeddings`."""


class OncePerLoop(Generic[T]):
    """Something made once for each event loop, and once for calls outside of any.

    A client's pooled connections die with the event loop they were opened in, and its next calls
    fail, each after a request was sent for nothing; so what is made here has a client of its own.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._outside: list[T] = []
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(self) -> T:
        """Return what belongs to the running event loop, made now if it is not there yet."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if not self._outside:
                self._outside.append(self._make())
            return self._outside[0]
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return self._by_loop[loop]


class Embedder:
    """Embeddings under a name; a string is resolved at first use."""

    def __init__(self, given: EmbeddingsLike) -> None:
        self._given = given
        self._resolved = OncePerLoop(lambda: resolve_embeddings(given))

    @cached_property
    def id(self) -> str:
        """The name, by `embedder_id`."""
        return embedder_id(self._given)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings, by `resolve_embeddings`."""
        return self._resolved.get()


@dataclass(frozen=True)
class StructuredModel:
    """A chat model bound to a schema."""

    runnable: Runnable[Any, Any]
    """Takes messages, gives a message, or what `read_output` reads."""

    parser: Runnable[Any, Any] | None
    """Reads the message; None where the runnable does all."""

    name: str
    """The model's name, for errors and judgments."""


def resolve_chat_model(model: BaseChatModel | str) -> BaseChatModel:
    """Return a chat model; a string is resolved now, not when the graph was built."""
    if isinstance(model, BaseChatModel):
        return model
    provider, name = split_name(model, "model", DEFAULT_CHAT_MODEL)
    if provider == "openai":
        import openai
        from langchain_openai import ChatOpenAI

        _check_openai_key("model", model)
        return ChatOpenAI(
            model=name,
            temperature=0,
            timeout=_TIMEOUT_S,
            http_async_client=openai.DefaultAsyncHttpxClient(),
        )
    if provider == "local":
        from memalign_graph.local import local_chat_model

        return local_chat_model()
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise InvalidInputError(_needs_langchain("model", model)) from error
    try:
        resolved: BaseChatModel = init_chat_model(model)
    except (ImportError, ValueError) as error:
        raise InvalidInputError(f"model: {model!r} can't be used: {error}") from error
    return resolved


def resolve_embeddings(embeddings: EmbeddingsLike) -> Embeddings:
    """Return embeddings; a string is resolved now, not when the graph was built."""
    if isinstance(embeddings, Embeddings):
        return embeddings
    if not isinstance(embeddings, str):
        from langgraph.store.base import ensure_embeddings

        return ensure_embeddings(embeddings)
    provider, name = split_name(embeddings, "embeddings", DEFAULT_EMBEDDINGS)
    if provider == "openai":
        import openai
        from langchain_openai import OpenAIEmbeddings

        _check_openai_key("embeddings", embeddings)
        # Counting tokens would download tables at first use; texts are cut before they get here.
        return OpenAIEmbeddings(
            model=name,
            check_embedding_ctx_length=False,
            timeout=_TIMEOUT_S,
            http_async_client=openai.DefaultAsyncHttpxClient(),
        )
    if provider == "local":
        from memalign_graph.local import LocalEmbeddings

        return LocalEmbeddings()
    try:
        from langchain.embeddings import init_embeddings
    except ImportError as error:
        raise InvalidInputError(_needs_langchain("embeddings", embeddings)) from error
    try:
        return init_embeddings(embeddings)
    except (ImportError, ValueError) as error:
        raise InvalidInputError(f"embeddings: {embeddings!r} can't be used: {error}") from error


def embedder_id(embeddings: EmbeddingsLike) -> str:
    """Name an embedder, so that vectors of one are never compared with those of another."""
    if isinstance(embeddings, str):
        return _LOCAL_EMBEDDER if embeddings.partition(":")[0] == "local" else embeddings
    if not isinstance(embeddings, Embeddings):
        module = getattr(embeddings, "__module__", "")
        return f"{module}.{getattr(embeddings, '__qualname__', type(embeddings).__qualname__)}"
    traits = [getattr(embeddings, trait, None) for trait in ("model", "model_name", "size")]
    name = next((str(trait) for trait in traits if isinstance(trait, str | int)), "")
    dimensions = getattr(embeddings, "dimensions", None)
    kind = type(embeddings)
    prefix = _PROVIDER_OF.get(kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
    return ":".join(str(part) for part in (prefix, name, dimensions) if part)


_LOCAL_EMBEDDER = "local:universal-sentence-encoder-multilingual-v3"
"""What `embedder_id` says of the embedded embeddings, known without the extra `local`."""

_PROVIDER_OF = {"OpenAIEmbeddings": "openai", "LocalEmbeddings": "local"}
"""The provider of embedding classes that a `"provider:name"` string can make, too."""


def models_from_environment() -> tuple[str, str]:
    """Choose the models of a program that was told none: the demo, or what Studio serves."""
    has_key = bool(os.environ.get("OPENAI_API_KEY"))
    return (
        os.environ.get("MEMALIGN_MODEL") or (DEFAULT_CHAT_MODEL if has_key else "local"),
        os.environ.get("MEMALIGN_EMBEDDINGS") or (DEFAULT_EMBEDDINGS if has_key else "local"),
    )


def with_schema(model: BaseChatModel, schema: dict[str, Any]) -> StructuredModel:
    """Bind a chat model to answer in the shape of a JSON Schema."""
    parameters = inspect.signature(type(model).with_structured_output).parameters
    method: dict[str, Any] = {"method": "json_schema"} if "method" in parameters else {}
    try:
        steps = model.with_structured_output(schema, **method)
    except NotImplementedError as error:
        raise InvalidInputError(
            f"model: {_model_name(model)} can't answer in the shape of a schema: give one that "
            "has structured output."
        ) from error
    name = _model_name(model)
    if isinstance(steps, RunnableSequence) and len(steps.steps) == _TWO:
        # What `include_raw` does, at half its cost: it runs four more runnables a call.
        return StructuredModel(runnable=steps.first, parser=steps.last, name=name)
    whole = model.with_structured_output(schema, include_raw=True, **method)
    return StructuredModel(runnable=whole, parser=None, name=name)


def max_input_tokens(model: BaseChatModel) -> int:
    """Return a chat model's context window."""
    profile = getattr(model, "profile", None) or {}
    return int(profile.get("max_input_tokens") or DEFAULT_MAX_INPUT_TOKENS)


def split_name(text: str, field: str, example: str) -> tuple[str, str]:
    """Split a `"provider:name"` string."""
    provider, _, name = text.partition(":")
    if provider == "local" or (provider and name):
        return provider, name
    raise InvalidInputError(
        f"{field}: {text!r} names no model: write it as 'provider:name', such as {example!r}."
    )


def _model_name(model: BaseChatModel) -> str:
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str):
            return name
    return type(model).__name__


def _check_openai_key(field: str, text: str) -> None:
    if not os.environ.get("OPENAI_API_KEY"):
        raise InvalidInputError(
            f"{field}: {text!r} needs a key: set OPENAI_API_KEY, or pass another model; 'local' "
            "needs none."
        )


def _needs_langchain(field: str, text: str) -> str:
    return (
        f"{field}: {text!r} needs the package langchain: pip install 'memalign-graph[agents]' and "
        "the provider's own package, or pass the model itself."
    )
