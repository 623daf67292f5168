"""Chat models and embeddings from an instance or a string, and the keys that name them."""

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from langchain_core.embeddings import Embeddings
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.fallbacks import RunnableWithFallbacks
from langgraph.store.base import ensure_embeddings
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError, first_line
from memalign_graph.identity import digest
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.replies import DEFAULT_CHAT_MODEL as DEFAULT_CHAT_MODEL  # noqa: PLC0414 - others take it from here
from memalign_graph.replies import describe_error, is_refusal

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel as BaseChatModel  # noqa: PLC0414 - others take it from here

    ChatModelLike = (
        BaseChatModel | RunnableWithFallbacks[Any, Any] | RunnableBindingBase[Any, Any] | str
    )
else:
    # Importing it takes longer than all of this package's own types.
    BaseChatModel = ChatModelLike = Any

T = TypeVar("T")

_MAX_VALUES = 100
"""How many models an event loop keeps of a graph: a run's context may name any."""

_MAX_LOOPS = 64
"""How many event loops are kept: their callers may drop them without closing them. Web servers run
up to 40 threads, each with a loop."""

DEFAULT_EMBEDDINGS = "openai:text-embedding-3-small"

EmbeddingsLike = (
    Embeddings
    | str
    | Callable[[Sequence[str]], list[list[float]]]
    | Callable[[Sequence[str]], Awaitable[list[list[float]]]]
)


class OncePerLoop(Generic[T]):
    """Values made once for each event loop and key, as a client's connections die with their loop.

    Kept are the loops used last, and of each the newest values: what is dropped is made again at
    its next use, and closed only when no call uses it any more.
    """

    def __init__(self) -> None:
        self._made: dict[
            int, tuple[threading.Lock, dict[asyncio.AbstractEventLoop | None, dict[Any, T]]]
        ] = {}

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the running event loop's value; outside of a loop, one value for all calls."""
        loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
        # A forked process makes its own, and keeps its parent's: to close them would disturb it.
        making, loops = self._made.setdefault(os.getpid(), (threading.Lock(), {}))
        with making:
            # A client references its loop: a weak dictionary would never drop either.
            for other in [other for other in loops if other is not None and other.is_closed()]:
                del loops[other]
            made = loops[loop] = loops.pop(loop, {})
            drop_oldest(loops, _MAX_LOOPS)
            if key not in made:
                made[key] = make()
                drop_oldest(made, _MAX_VALUES)
            return made[key]


def drop_oldest(entries: dict[Any, Any], size: int) -> None:
    """Drop the entries beyond a size; other threads may change the dictionary meanwhile."""
    if len(entries) > size:
        for key in list(entries)[:-size]:
            entries.pop(key, None)


_BATCH_WAIT_S = 0.01
"""How long a text waits for others while a request is in flight; a request takes far longer."""

_ROUNDS_APART, _SECONDS_APART = 3, 0.002
"""Rounds of the event loop, and seconds for threads, between the answers of one request.

Answered all at once, concurrent judgments would ask their model last, and together. More rounds or
seconds change little; a round costs 0.03 ms.
"""

_MAX_TEXTS_PER_REQUEST = 32
"""Servers that limit the texts of a request allow at least so many."""


class _Batch:
    """The texts of one request, and its answer, which their callers wait for."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.answer: Future[list[list[float]]] = Future()
        self.task: asyncio.Task[None] | None = None

    def vectors_of(self, index: int) -> list[list[float]] | None:
        """Return a text's vector; None if the text has to be sent alone.

        A text that is alone in its request gets all that came back, or the request's error.
        """
        if len(self.texts) == 1:
            return self.answer.result()
        # One text may have failed all.
        if self.answer.exception() is not None or len(self.answer.result()) != len(self.texts):
            return None
        return [self.answer.result()[index]]


class _BatchedEmbeddings(Embeddings):
    """Embeddings that send single texts of concurrent calls in one request.

    With 64 concurrent judgments, one request each would cost as much as the rest of judging.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self.shared = embeddings
        self._open: dict[IO, _Batch] = {}
        self._unanswered = 0
        self._lock = threading.Lock()

    def embed_query(self, text: str) -> list[float]:
        return self.shared.embed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(texts) != 1:
            return self.shared.embed_documents(texts)
        batch, index = self._join(SYNC, texts[0])
        if index == 0:
            try:
                run_sync(self._request(SYNC, batch))
            finally:
                self._finish(SYNC, batch)
        vectors = batch.vectors_of(index)
        if vectors is None:
            return self.shared.embed_documents(texts)
        time.sleep(index * _SECONDS_APART)
        return vectors

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(texts) != 1:
            return await self.shared.aembed_documents(texts)
        batch, index = self._join(ASYNC, texts[0])
        if batch.task is None:  # not a part of the first caller, which may be cancelled
            batch.task = asyncio.ensure_future(self._request(ASYNC, batch))
            batch.task.add_done_callback(lambda _: self._finish(ASYNC, batch))
        await asyncio.wait([batch.task])
        vectors = batch.vectors_of(index)
        if vectors is None:
            return await self.shared.aembed_documents(texts)
        for _ in range(index * _ROUNDS_APART):
            await asyncio.sleep(0)
        return vectors

    def _join(self, io: IO, text: str) -> tuple[_Batch, int]:
        """Add a text to the batch that is not sent yet; return the batch and the text's place."""
        with self._lock:
            batch = self._open.get(io)
            if batch is None or len(batch.texts) == _MAX_TEXTS_PER_REQUEST:
                batch = self._open[io] = _Batch()
                self._unanswered += 1
            batch.texts.append(text)
            return batch, len(batch.texts) - 1

    async def _request(self, io: IO, batch: _Batch) -> None:
        try:
            if self._unanswered > 1:  # a text that is alone does not wait
                await io.call_either(
                    lambda: time.sleep(_BATCH_WAIT_S), lambda: asyncio.sleep(_BATCH_WAIT_S)
                )
            self._close(io, batch)
            batch.answer.set_result(await io.embed(self.shared, batch.texts))
        except BaseException as error:
            batch.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _close(self, io: IO, batch: _Batch) -> None:
        with self._lock:
            if self._open.get(io) is batch:
                del self._open[io]

    def _finish(self, io: IO, batch: _Batch) -> None:
        self._close(io, batch)
        with self._lock:
            self._unanswered -= 1
        batch.answer.cancel()  # if its task was cancelled before it began


class Embedder:
    """Embeddings and their id; a string is resolved at first use."""

    def __init__(self, embeddings: EmbeddingsLike) -> None:
        self.id = embedder_id(embeddings)
        self._embeddings = embeddings
        self._made = OncePerLoop[Embeddings]()

    @property
    def embeddings(self) -> Embeddings:
        return self._made.get(
            None, lambda: _BatchedEmbeddings(resolve_embeddings(self._embeddings))
        )


def check_chat_model(value: Any, field: str = "model") -> Any:
    """Return the value of an option that takes a chat model, or its string, if it can be used."""
    from langchain_core.language_models import BaseChatModel as ChatModel

    if isinstance(value, str):
        return check_model_string(value, field)
    if not all(isinstance(model, ChatModel) for model in inner_models(value)):
        raise InvalidInputError(
            f"{field}: expected a chat model or a string such as {DEFAULT_CHAT_MODEL!r}, got "
            f"{type(value).__name__}. Set options on the model itself, not by .bind()."
        )
    return value


def check_model_string(text: str, field: str, example: str = DEFAULT_CHAT_MODEL) -> str:
    provider, _, name = text.partition(":")
    if provider != "local" and not (provider and name):
        raise InvalidInputError(
            f"{field}: {text!r} names no model: write it as 'provider:name', such as {example!r}, "
            "or give 'local' for the embedded one."
        )
    return text


def inner_models(model: Any) -> list[BaseChatModel]:
    """Return the chat models inside `.with_fallbacks()` and `.with_retry()`, in order."""
    if isinstance(model, RunnableWithFallbacks):
        return [inner for outer in model.runnables for inner in inner_models(outer)]
    # Options of `.bind()` do not reach structured answers.
    is_wrapper = isinstance(model, RunnableBindingBase) and not model.kwargs
    return inner_models(model.bound) if is_wrapper else [model]


def map_models(model: Any, change: Callable[[BaseChatModel], Any]) -> Any:
    """Apply a change to a chat model, or to each model inside its fallbacks and retries."""
    if isinstance(model, RunnableWithFallbacks):
        first, *others = [map_models(inner, change) for inner in model.runnables]
        return model.model_copy(update={"runnable": first, "fallbacks": others})
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": map_models(model.bound, change)})
    return change(model)


def resolve_chat_model(model: ChatModelLike) -> BaseChatModel:
    """Return the chat model that an option names; raises `InvalidInputError` if it can't."""
    if isinstance(model, str):
        model = _resolve(model, "model", DEFAULT_CHAT_MODEL)
    return cast("BaseChatModel", model)


def resolve_embeddings(embeddings: EmbeddingsLike) -> Embeddings:
    """Return the embeddings that an option names; raises `InvalidInputError` if it can't."""
    if isinstance(embeddings, str):
        return cast("Embeddings", _resolve(embeddings, "embeddings", DEFAULT_EMBEDDINGS))
    return ensure_embeddings(embeddings)


def _resolve(text: str, field: Literal["model", "embeddings"], example: str) -> Any:
    provider, _, name = check_model_string(text, field, example).partition(":")
    if provider == "openai":
        return _openai(text, field, name)
    if provider == "local":
        from memalign_graph import local

        return local.local_chat_model() if field == "model" else local.LocalEmbeddings()
    module = "langchain.chat_models" if field == "model" else "langchain.embeddings"
    try:
        init = import_module(module)
    except ImportError as error:
        raise InvalidInputError(
            f"{field}: {text!r} needs the package langchain: pip install 'memalign-graph[agents]' "
            "and the provider's own package, or pass the model itself."
        ) from error
    try:
        return init.init_chat_model(text) if field == "model" else init.init_embeddings(text)
    except Exception as error:  # providers share no base class
        raise InvalidInputError(f"{field}: {text!r} can't be used: {first_line(error)}") from error


def _openai(text: str, field: Literal["model", "embeddings"], name: str) -> Any:
    import langchain_openai

    if not os.environ.get("OPENAI_API_KEY"):
        raise InvalidInputError(
            f"{field}: {text!r} needs a key: set OPENAI_API_KEY, or pass another model; 'local' "
            "needs none."
        )
    # In seconds; the client's default is 600.
    options: dict[str, Any] = {"model": name, "timeout": 120.0}
    if not os.environ.get("OPENAI_PROXY"):  # langchain-openai makes the clients of a proxy itself
        options["http_client"] = _http_client(os.getpid())
        options["http_async_client"] = _http_async_clients.get(None, _make_http_async_client)
    if field == "model":
        return _deterministic(langchain_openai.ChatOpenAI(**options))
    # Counting tokens would download tables at first use; texts are shortened before this call.
    return langchain_openai.OpenAIEmbeddings(check_embedding_ctx_length=False, **options)


def _deterministic(model: Any) -> Any:
    """Set temperature 0 and no reasoning, where the model's profile accepts them."""
    profile, settings = model.profile or {}, dict[str, Any]()
    if profile.get("temperature") is not False:
        settings["temperature"] = 0.0  # a float, as LangChain stores it: it is part of the key
    # Log-probabilities need reasoning off; the judge writes its rationale anyway.
    if "none" in (profile.get("reasoning_effort_levels") or ()):
        settings["reasoning_effort"] = "none"
    # Not as arguments: LangChain drops the temperature of models that reason by default.
    return model.model_copy(update=settings)


@cache
def _http_client(process_id: int) -> Any:  # noqa: ARG001 - forked processes share no connections
    import openai

    return openai.DefaultHttpxClient()


def _make_http_async_client() -> Any:
    """Make an HTTP client that is closed with the running event loop, if there is one."""
    import openai

    client: Any = openai.DefaultAioHttpClient()

    async def until_closed() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await client.aclose()

    with suppress(RuntimeError):
        asyncio.get_running_loop()
        # A loop that ends closes the async generators that were started on it.
        client.until_closed = until_closed()
        with suppress(StopIteration):
            client.until_closed.__anext__().send(None)
    return client


_http_async_clients = OncePerLoop[Any]()
"""The HTTP clients of all models that strings name. A client for each graph could not be closed
when its graph is dropped."""


_NOT_IN_VECTORS = re.compile(
    r"client|key|token|secret|password|credential|url|base|endpoint|proxy|timeout|retr|chunk|batch"
    r"|show_|header|organization|region|verbose|callback|cache|ctx_length|special|skip_empty|user"
    r"|query$|^(model|model_name|size|dimensions)$",
    re.IGNORECASE,
)
"""Settings of embeddings that change no vector, or that are part of the id already."""


def embedder_id(embeddings: EmbeddingsLike) -> str:
    """Return the id of embeddings: it covers every setting known to change their vectors."""
    if isinstance(embeddings, str):
        check_model_string(embeddings, "embeddings", DEFAULT_EMBEDDINGS)
        is_local = embeddings.partition(":")[0] == "local"
        return "local:universal-sentence-encoder-multilingual-v3" if is_local else embeddings
    if isinstance(embeddings, _BatchedEmbeddings):
        return embedder_id(embeddings.shared)
    kind = type(embeddings)
    if not isinstance(embeddings, Embeddings):
        return _function_id(embeddings)
    traits = [getattr(embeddings, trait, None) for trait in ("model", "model_name", "size")]
    name = next((str(trait) for trait in traits if isinstance(trait, str | int)), "")
    dimensions = getattr(embeddings, "dimensions", None)
    # The same id as the string that makes them.
    providers = {"OpenAIEmbeddings": "openai", "LocalEmbeddings": "local"}
    prefix = providers.get(kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
    others = _other_traits(embeddings)
    more = digest(others)[:12] if others else ""
    return ":".join(str(part) for part in (prefix, name, dimensions, more) if part)


def _function_id(function: Any) -> str:
    """Return a function's id: its `name`, or where it is defined; of a nested one also its code.

    Raises:
        InvalidInputError: It has no name and holds values, which may change its vectors.
    """
    name, code = (getattr(function, key, None) for key in ("name", "__code__"))
    module, path = (getattr(function, key, "") for key in ("__module__", "__qualname__"))
    if isinstance(name, str) and name:
        return f"{module}.{name}"
    values = (
        getattr(function, f"__{key}__", None) for key in ("closure", "defaults", "kwdefaults")
    )
    if code is None or hasattr(function, "__self__") or any(values):
        raise InvalidInputError(
            f"embeddings: {function!r} has no name, and holds values that may change its vectors. "
            'Give it a name, such as `embed.name = "my-model-v1"`, and a new one when its vectors '
            "change."
        )
    return f"{module}.{path}:{digest(_plain(code))[:12]}" if "<" in path else f"{module}.{path}"


def _plain(value: Any) -> Any:
    """Return a value as JSON, with the type's name in place of other objects."""
    if isinstance(value, Embeddings) or (callable(value) and not isinstance(value, type)):
        return embedder_id(value)
    if isinstance(value, CodeType):  # also of a comprehension inside a function
        return [value.co_code.hex(), value.co_names, _plain(value.co_consts)]
    if isinstance(value, frozenset | bytes):  # as in `text in {"a", "b"}`
        return sorted(map(repr, value)) if isinstance(value, frozenset) else value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    is_plain = value is None or isinstance(value, str | int | float | bool)
    return value if is_plain else type(value).__qualname__


def _other_traits(embeddings: Embeddings) -> dict[str, Any]:
    """Return the settings that differ from their defaults and are not part of the id already."""
    fields: Mapping[str, Any] = getattr(type(embeddings), "model_fields", {})
    traits: dict[str, Any] = {}
    for name, value in vars(embeddings).items():
        if name.startswith("_") or _NOT_IN_VECTORS.search(name):
            continue
        if name in fields and value == fields[name].get_default(call_default_factory=True):
            continue
        is_inner = isinstance(value, Embeddings) or callable(value)
        # An attribute that is not a field may be a count or a cache, and change with use.
        if is_inner or isinstance(value, str) or name in fields:
            traits[name] = _plain(value)
    return traits


def models_from_environment() -> tuple[str, str]:
    """Return the default chat model and embeddings of the demo, the CLI and Studio."""
    get = os.environ.get
    has_key = bool(get("OPENAI_API_KEY"))
    chat, embeddings = (DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS) if has_key else ("local", "local")
    return get("MEMALIGN_MODEL") or chat, get("MEMALIGN_EMBEDDINGS") or embeddings


# Fields of a chat model that do not change its answers.
_FIELDS_NOT_IN_KEY = {"name", "cache", "callbacks", "tags", "metadata", "verbose", "max_retries"}
_FIELDS_NOT_IN_KEY |= {"request_timeout", "timeout", "http_socket_options", "stream_chunk_timeout"}
_FIELDS_NOT_IN_KEY |= {"default_request_timeout", "max_concurrent_requests", "keep_alive"}
_FIELDS_NOT_IN_KEY |= {"openai_organization", "openai_proxy", "anthropic_proxy", "groq_proxy"}
_FIELDS_NOT_IN_KEY |= {"client_args", "client_kwargs", "async_client_kwargs", "sync_client_kwargs"}
# `default_metadata` has the headers of ChatGoogleGenerativeAI.
_HEADERS = ("default_headers", "default_query", "additional_headers", "default_metadata")
_FIELDS_NOT_IN_KEY |= {*_HEADERS}
_FIELDS_NOT_IN_KEY |= {"profile"}  # changes with the provider's package


def model_key(model: BaseChatModel) -> str:
    """Hash a chat model's class and settings; LangChain's own key misses some settings."""
    if (inner := inner_models(model)) != [model]:
        options = getattr(model, "kwargs", None)
        return digest([type(model).__qualname__, _json(options), *map(model_key, inner)])
    # ChatAnthropic has its limit from the default profile, which changes with the package.
    profile: Any = getattr(model, "_resolve_model_profile", dict)() or {}
    if getattr(model, "max_tokens", None) == profile.get("max_output_tokens", 0):
        model = model.model_copy(update={"max_tokens": None})
    kind = type(model)
    return digest([f"{kind.__module__}.{kind.__qualname__}", model_name_of(model), _json(model)])


def reply_key(model: BaseChatModel) -> str:
    """Hash a chat model, with the headers by which a gateway may choose the model that answers."""
    sent = [
        [name, _json(fields)]
        for inner in inner_models(model)
        for name in _HEADERS
        if (fields := getattr(inner, name, None))
    ]
    return digest([model_key(model), sent]) if sent else model_key(model)


def _json(settings: Any) -> str:
    # Clients and API keys have no place in a key.
    return json.dumps(_settings_in(settings), sort_keys=True, skipkeys=True, default=lambda _: None)


def _settings_in(value: Any) -> Any:
    """Return settings with enums, models and dataclasses as JSON."""
    match value:
        case Enum():
            return value.value
        case dict():
            names = [name.value if isinstance(name, Enum) else name for name in value]
            parts = dict(zip(names, map(_settings_in, value.values()), strict=True))
            # Options of a call, which may hold keys.
            return {name: parts[name] for name in parts.keys() - {"extra_headers", "extra_query"}}
        case list() | tuple():
            return list(map(_settings_in, value))
        case BaseModel():
            fields = type(value).model_fields
            # Without defaults, so that a field that a new version of the class adds changes no key.
            own: Any = [
                name
                for name in fields.keys() - _FIELDS_NOT_IN_KEY
                if _json(getattr(value, name, None)) != _json(_default(fields[name]))
            ]
        case _ if is_dataclass(value) and not isinstance(value, type):
            own = [field.name for field in dataclass_fields(value)]
        case _:
            return value
    parts = {name: _settings_in(getattr(value, name, None)) for name in own}
    return {type(value).__qualname__: parts}


def _default(field: FieldInfo) -> Any:
    """Return a field's default; None if it depends on the environment, or there is none."""
    is_constant: Any = field.default_factory in (dict, list)
    return field.get_default(call_default_factory=is_constant)


def judge_key(model: BaseChatModel, options: Mapping[str, Any], prompt_version: int) -> str:
    """Return the key of a judge; verdicts with the same key are calibrated together.

    It ends with the model's name, so that verdicts of earlier versions, which stored only the name,
    still match. Small models were prompted differently then: their key has no name.
    """
    key = digest([model_key(model), dict(options), prompt_version])
    return key if is_small_model(model) else f"{key} {model_name_of(model)}"


def name_in_key(key: str) -> str:
    """Return the model's name in a judge's key, or ""."""
    return key.partition(" ")[2]


def max_input_tokens(model: BaseChatModel) -> int:
    """Return the smallest context window of the models; 128,000 if none is known."""
    windows = []
    for inner in inner_models(model):
        profile = getattr(inner, "profile", None) or {}
        # ChatOllama's server cuts longer prompts.
        known = (profile.get("max_input_tokens"), getattr(inner, "num_ctx", None))
        windows.append(int(min(filter(None, known), default=128_000)))
    return min(windows)


_SMALL_MODEL = "memalign_small_model"


def declare_small(model: BaseChatModel, *, small: bool = True) -> BaseChatModel:
    """Return the chat model, declared small or not in its `metadata`."""

    def declared(inner: BaseChatModel) -> BaseChatModel:
        metadata = {**(inner.metadata or {}), _SMALL_MODEL: small}
        return inner.model_copy(update={"metadata": metadata})

    return cast("BaseChatModel", map_models(model, declared))


def is_small_model(model: BaseChatModel) -> bool:
    """Return whether a chat model was declared small; such a model answers one token a call."""
    return bool((inner_models(model)[0].metadata or {}).get(_SMALL_MODEL))


def model_name_of(model: BaseChatModel) -> str:
    first = inner_models(model)[0]
    attributes = ("model_name", "model", "deployment_name")
    names = [getattr(first, attribute, None) for attribute in attributes]
    return next((name for name in names if isinstance(name, str)), type(first).__name__)


async def embed_texts(io: IO, embeddings: Embeddings, texts: Sequence[str]) -> list[list[float]]:
    """Embed texts.

    Raises:
        EmbeddingError: The call failed.
    """
    try:
        return await io.embed(embeddings, texts)
    except MemAlignError:
        raise
    except Exception as error:
        name = embedder_id(embeddings)
        failure = EmbeddingError(f"The embeddings {name} failed: {describe_error(error)}")
        failure.is_refusal = is_refusal(error)
        raise failure from error
