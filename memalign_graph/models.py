"""Chat models and embeddings from an instance or a string, and the keys that name them."""

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from langchain_core.embeddings import Embeddings
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.fallbacks import RunnableWithFallbacks
from langgraph.store.base import ensure_embeddings

from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError, first_line
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.replies import DEFAULT_CHAT_MODEL as DEFAULT_CHAT_MODEL  # noqa: PLC0414 - others take it from here
from memalign_graph.replies import describe_error

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel as BaseChatModel  # noqa: PLC0414 - others take it from here

    ChatModelLike = (
        BaseChatModel | RunnableWithFallbacks[Any, Any] | RunnableBindingBase[Any, Any] | str
    )
else:
    # Importing it takes longer than all of this package's own types.
    BaseChatModel = ChatModelLike = Any

T = TypeVar("T")

DEFAULT_EMBEDDINGS = "openai:text-embedding-3-small"

EmbeddingsLike = (
    Embeddings
    | str
    | Callable[[Sequence[str]], list[list[float]]]
    | Callable[[Sequence[str]], Awaitable[list[list[float]]]]
)


class OncePerLoop(Generic[T]):
    """Something made once for each event loop, since a client's connections die with their loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[object, T] = {}
        self._making = threading.Lock()

    def get(self) -> T:
        """Return what belongs to the running event loop, made now if it is not there yet."""
        try:
            loop: object = asyncio.get_running_loop()
        except RuntimeError:
            loop = self  # stands for calls outside of any
        with self._making:
            # A client holds its loop, so that neither would ever go.
            for other in [key for key in self._made if _is_closed(key)]:
                del self._made[other]
            if loop not in self._made:
                self._made[loop] = self._make()
            return self._made[loop]


def _is_closed(loop: object) -> bool:
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


_BATCH_WAIT_S = 0.01
"""How long a text waits for others, while a request is under way; a request takes far longer."""

_MAX_TEXTS_PER_REQUEST = 32
"""Texts in one request: servers that bound them allow as many."""


_PendingText = tuple[str, asyncio.Future[list[list[float]]]]


class _BatchedEmbeddings(Embeddings):
    """Embeddings that send single texts asked for at the same time in one request.

    At 64 judgments at once a request for each would cost as much as all else that a judge does.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self.shared = embeddings
        self._waiting: list[_PendingText] = []
        self._in_flight: set[asyncio.Task[None]] = set()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.shared.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.shared.embed_query(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        if len(texts) != 1:
            return await self.shared.aembed_documents(texts)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[list[float]]] = loop.create_future()
        self._waiting.append((texts[0], answer))
        if len(self._waiting) == 1:
            # Nothing waits that is alone.
            loop.call_later(_BATCH_WAIT_S if self._in_flight else 0, self._send)
        return await answer

    def _send(self) -> None:
        self._waiting = [
            pending for pending in self._waiting if not pending[1].done()
        ]  # or cancelled
        while self._waiting:
            texts = self._waiting[:_MAX_TEXTS_PER_REQUEST]
            del self._waiting[:_MAX_TEXTS_PER_REQUEST]
            # In a task of its own: who asked first may be cancelled.
            task = asyncio.ensure_future(self._request(texts))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _request(self, texts: list[_PendingText]) -> None:
        try:
            vectors = await self.shared.aembed_documents([text for text, _ in texts])
            answers = [[vector] for vector in vectors] if len(texts) > 1 else [vectors]
            for (_, answer), vector in list(zip(texts, answers, strict=True)):
                if not answer.done():
                    answer.set_result(vector)
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            if len(texts) > 1:  # it may be about one text, which is no fault of the others
                await asyncio.gather(*(self._request([text]) for text in texts))
            for _, answer in texts:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            for _, answer in texts:
                answer.cancel()  # where this was


class Embedder(OncePerLoop[Embeddings]):
    """Embeddings under a name; a string is resolved at first use."""

    def __init__(self, embeddings: EmbeddingsLike) -> None:
        super().__init__(lambda: _BatchedEmbeddings(resolve_embeddings(embeddings)))
        self.id = embedder_id(embeddings)

    @property
    def embeddings(self) -> Embeddings:
        return self.get()


def is_chat_model(value: Any) -> bool:
    from langchain_core.language_models import BaseChatModel as ChatModel

    return isinstance(value, str) or all(
        isinstance(model, ChatModel) for model in inner_models(value)
    )


def inner_models(model: Any) -> list[BaseChatModel]:
    """Return the chat models in one made with `.with_fallbacks()` or `.with_retry()`, in order."""
    if isinstance(model, RunnableWithFallbacks):
        return [inner for outer in model.runnables for inner in inner_models(outer)]
    return inner_models(model.bound) if isinstance(model, RunnableBindingBase) else [model]


def map_models(model: Any, change: Callable[[BaseChatModel], Any]) -> Any:
    """Change a chat model, or each of those in one with fallbacks or retries."""
    if isinstance(model, RunnableWithFallbacks):
        first, *others = [map_models(inner, change) for inner in model.runnables]
        return model.model_copy(update={"runnable": first, "fallbacks": others})
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": map_models(model.bound, change)})
    return change(model)


def resolve_chat_model(model: ChatModelLike) -> BaseChatModel:
    """Return a chat model; a string is resolved now, not when the graph was built."""
    if isinstance(model, str):
        model = _resolve(model, "model", DEFAULT_CHAT_MODEL)
    return cast("BaseChatModel", model)


def resolve_embeddings(embeddings: EmbeddingsLike) -> Embeddings:
    """Return embeddings; a string is resolved now, not when the graph was built."""
    if isinstance(embeddings, str):
        return cast("Embeddings", _resolve(embeddings, "embeddings", DEFAULT_EMBEDDINGS))
    return ensure_embeddings(embeddings)


def _resolve(text: str, field: Literal["model", "embeddings"], example: str) -> Any:
    provider, _, name = text.partition(":")
    if provider != "local" and not (provider and name):
        raise InvalidInputError(
            f"{field}: {text!r} names no model: write it as 'provider:name', such as {example!r}."
        )
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
    except (ImportError, ValueError) as error:
        raise InvalidInputError(f"{field}: {text!r} can't be used: {first_line(error)}") from error


def _openai(text: str, field: Literal["model", "embeddings"], name: str) -> Any:
    import langchain_openai

    if not os.environ.get("OPENAI_API_KEY"):
        raise InvalidInputError(
            f"{field}: {text!r} needs a key: set OPENAI_API_KEY, or pass another model; 'local' "
            "needs none."
        )
    options: dict[str, Any] = {
        "model": name,
        "timeout": 120.0,  # for one answer; the client's own default is 600
        "http_async_client": _async_http_client.get(),
    }
    if field == "model":
        return _with_little_chance(langchain_openai.ChatOpenAI(**options))
    # Counting tokens would download tables at first use; texts are cut before they get here.
    return langchain_openai.OpenAIEmbeddings(check_embedding_ctx_length=False, **options)


def _with_little_chance(model: Any) -> Any:
    """Set what makes a model's answers steady, as far as its profile says that it takes it."""
    profile, settings = model.profile or {}, dict[str, Any]()
    if profile.get("temperature") is not False:
        settings["temperature"] = 0.0  # as LangChain keeps it: it is part of the key
    # Without reasoning there are log-probabilities; the judge writes its reasons down itself.
    if "none" in (profile.get("reasoning_effort_levels") or ()):
        settings["reasoning_effort"] = "none"
    # Not as arguments: LangChain drops the temperature of models that reason by default.
    return model.model_copy(update=settings)


def _make_async_http_client() -> Any:
    """Make a client that is closed at the end of the running event loop, if there is one."""
    import openai

    client: Any = openai.DefaultAioHttpClient()

    async def until_closed() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await client.aclose()

    with suppress(RuntimeError):
        asyncio.get_running_loop()
        # Before a loop ends, it closes the generators that were begun on it.
        client.until_closed = until_closed()
        with suppress(StopIteration):
            client.until_closed.__anext__().send(None)
    return client


_async_http_client: OncePerLoop[Any] = OncePerLoop(_make_async_http_client)
"""The client of all models and embeddings that strings name: one that is dropped while its event
loop runs, with a graph, could not be closed any more."""


_NOT_IN_VECTORS = re.compile(
    r"client|key|token|secret|password|credential|url|base|endpoint|proxy|timeout|retr|chunk|batch"
    r"|show_|header|organization|region|verbose|callback|cache|ctx_length|special|skip_empty|user"
    r"|query$|^(model|model_name|size|dimensions)$",
    re.IGNORECASE,
)
"""Settings of embeddings that change no vector, or that name the embedder already."""


def embedder_id(embeddings: EmbeddingsLike) -> str:
    """Name embeddings, by all that is known to change their vectors."""
    if isinstance(embeddings, str):
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
    # Those that a string can make, too, have the same name.
    providers = {"OpenAIEmbeddings": "openai", "LocalEmbeddings": "local"}
    prefix = providers.get(kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
    others = _other_traits(embeddings)
    more = digest(others)[:12] if others else ""
    return ":".join(str(part) for part in (prefix, name, dimensions, more) if part)


def _function_id(function: Any) -> str:
    """Name a function: by its own `name`, by where it is defined, and by what it was made with.

    Raises:
        InvalidInputError: It holds something whose effect on its vectors can't be known.
    """
    name, path = getattr(function, "name", None), getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", "")
    if isinstance(name, str) and name:
        return f"{module}.{name}"
    try:
        if path is None:  # an object that can be called, such as a partial function
            kind, held = type(function), vars(function)
            inner = getattr(function, "func", None)
            made_with = [inner, getattr(function, "args", ()), getattr(function, "keywords", held)]
            return f"{kind.__module__}.{kind.__qualname__}:{digest(_known(made_with))[:12]}"
        code, cells = getattr(function, "__code__", None), []
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # it is still empty
                cells.append(cell.cell_contents)
        owner = getattr(function, "__self__", None)
        defaults = [getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__")]
        if not (cells or owner or any(defaults) or "<" in path):
            return f"{module}.{path}"
        # A number or a list that is shared may be a count or a cache, and change with use.
        made_with = [[_known(part, is_shared=True) for part in (*cells, owner)], _known(defaults)]
        made_with.append(_plain(getattr(code, "co_consts", None)))
    except _UnknownPartError:
        raise InvalidInputError(
            f"embeddings: {function!r} has no name, and holds values that may change its vectors. "
            'Give it a name, such as `embed.name = "my-model-v1"`, and a new one when its vectors '
            "change."
        ) from None
    return f"{module}.{path}:{digest([*made_with, code and code.co_names])[:12]}"


class _UnknownPartError(Exception):
    """Part of a function of which nobody knows whether it changes its vectors."""


def _known(value: Any, *, is_shared: bool = False) -> Any:
    """Return a value as JSON; raise `_UnknownPartError` where it can't be told from others."""
    if isinstance(value, Embeddings) or callable(value):
        return embedder_id(value)
    if value is None or isinstance(value, str):
        return value
    if not is_shared and isinstance(value, int | float):
        return value
    if not is_shared and isinstance(value, dict):
        return {str(name): _known(part) for name, part in value.items()}
    if not is_shared and isinstance(value, list | tuple):
        return list(map(_known, value))
    raise _UnknownPartError


def _plain(value: Any) -> Any:
    """Return a value as JSON, with the kinds of what is none in its place."""
    if isinstance(value, Embeddings) or (callable(value) and not isinstance(value, type)):
        return embedder_id(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    is_plain = value is None or isinstance(value, str | int | float | bool)
    return value if is_plain else type(value).__qualname__


def _other_traits(embeddings: Embeddings) -> dict[str, Any]:
    """Return the settings of embeddings that are not as they are by default, but for their name."""
    fields: Mapping[str, Any] = getattr(type(embeddings), "model_fields", {})
    traits: dict[str, Any] = {}
    for name, value in vars(embeddings).items():
        if name.startswith("_") or _NOT_IN_VECTORS.search(name):
            continue
        if name in fields and value == fields[name].get_default(call_default_factory=True):
            continue
        is_inner = isinstance(value, Embeddings) or callable(value)
        # What is no field may be a count or a cache, and change with use.
        if is_inner or isinstance(value, str) or name in fields:
            traits[name] = _plain(value)
    return traits


def models_from_environment() -> tuple[str, str]:
    """Choose the models of a program that was told none: the demo, or what Studio serves."""
    get = os.environ.get
    has_key = bool(get("OPENAI_API_KEY"))
    chat, embeddings = (DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS) if has_key else ("local", "local")
    return get("MEMALIGN_MODEL") or chat, get("MEMALIGN_EMBEDDINGS") or embeddings


# The fields of a chat model that do not change what it answers.
_FIELDS_NOT_IN_KEY = {"name", "cache", "callbacks", "tags", "metadata", "verbose", "max_retries"}
_FIELDS_NOT_IN_KEY |= {"request_timeout", "timeout", "http_socket_options", "stream_chunk_timeout"}
_FIELDS_NOT_IN_KEY |= {"profile"}  # an update of the provider's package changes it


def model_key(model: BaseChatModel) -> str:
    """Hash a chat model with its settings; LangChain's name leaves them out for some classes."""
    if (inner := inner_models(model)) != [model]:
        options = getattr(model, "kwargs", None)
        return digest([type(model).__qualname__, _json(options), *map(model_key, inner)])
    kind = type(model)
    names = kind.model_fields.keys() - _FIELDS_NOT_IN_KEY
    fields = {name: getattr(model, name, None) for name in names}
    return digest([f"{kind.__module__}.{kind.__qualname__}", _json(fields)])


def _json(fields: Any) -> str:
    # Clients and API keys have no place in a key.
    return json.dumps(fields, sort_keys=True, skipkeys=True, default=lambda _: None)


def judge_key(model: BaseChatModel, options: Mapping[str, Any], prompt_version: int) -> str:
    """Name a judge: verdicts of two judges with one name are drawn from the same source.

    It ends with the model's name, by which verdicts are known that an earlier version stored; not
    so for small models, which were asked otherwise then.
    """
    key = digest([model_key(model), dict(options), prompt_version])
    return key if is_small_model(model) else f"{key} {model_name_of(model)}"


def name_in_key(key: str) -> str:
    """Return the model's name in a judge's key; "" if it has none."""
    return key.partition(" ")[2]


def max_input_tokens(model: BaseChatModel) -> int:
    """Return the context window, the smallest of several; 128,000 where a profile has none."""
    profiles = [getattr(inner, "profile", None) or {} for inner in inner_models(model)]
    return min(int(profile.get("max_input_tokens") or 128_000) for profile in profiles)


_SMALL_MODEL = "memalign_small_model"


def declare_small(model: BaseChatModel, *, small: bool = True) -> BaseChatModel:
    """Return the chat model, declared small or not in its `metadata`."""

    def declared(inner: BaseChatModel) -> BaseChatModel:
        metadata = {**(inner.metadata or {}), _SMALL_MODEL: small}
        return inner.model_copy(update={"metadata": metadata})

    return cast("BaseChatModel", map_models(model, declared))


def is_small_model(model: BaseChatModel) -> bool:
    """Return whether a chat model was declared small: it is asked for one token at a time."""
    return bool((inner_models(model)[0].metadata or {}).get(_SMALL_MODEL))


def model_name_of(model: BaseChatModel) -> str:
    first = inner_models(model)[0]
    names = [getattr(first, attribute, None) for attribute in ("model_name", "model")]
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
        raise EmbeddingError(f"The embeddings {name} failed: {describe_error(error)}") from error
