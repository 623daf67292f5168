"""Structured answers: bind a chat model to a schema, parse its answer strictly, and retry once."""

import inspect
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableSequence
from langgraph.store.base import BaseStore, PutOp

from memalign_graph.errors import InvalidInputError, ModelAnswerError, excerpt
from memalign_graph.identity import check_json, digest
from memalign_graph.io import IO
from memalign_graph.models import BaseChatModel, inner_models, map_models, model_name_of, reply_key
from memalign_graph.replies import ChatReply, StructuredModel

T = TypeVar("T")

cached_answers: ContextVar[list[tuple[BaseStore, PutOp]]] = ContextVar("memalign_cached_answers")
"""How to delete the answers to one question from the caches that keep them."""

_SERIALIZING = threading.Lock()

Purpose = Literal["judge", "check", "distil", "compare", "clarify"]
"""What a structured answer is for, as traces name it."""


async def ask_with_retry(
    io: IO,
    model: StructuredModel,
    messages: Sequence[BaseMessage],
    parse: Callable[[dict[str, Any], bool], T],
) -> tuple[T, ChatReply]:
    """Ask for an answer; if it is invalid, tell the model why and ask once more.

    Raises:
        ModelAnswerError: Both answers are invalid.
    """
    prompt = list(messages)
    cached_answers.set([])
    for is_last in (False, True):
        reply = await io.chat(model, prompt)
        problem = reply.problem or "it is no answer"
        if reply.answer is not None:
            try:
                # Models can write what stores refuse, such as a NUL.
                check_json(reply.answer, "the answer")
                result = parse(reply.answer, is_last)
            except ValueError as error:
                problem = str(error)
            else:
                await io.mark_usable(reply)
                return result, reply
        problem = problem.rstrip(".")
        first_answer = reply.text[:2_000].encode(errors="replace").decode() or "(nothing)"
        complaint = (
            f"That answer can't be used: {problem}. Answer again, with nothing but the JSON object "
            "that was asked for."
        )
        prompt = [*messages, AIMessage(first_answer), HumanMessage(complaint)]
    wrote = excerpt(" ".join(reply.text.split()), 200)
    failure = ModelAnswerError(
        f"The chat model {model.name} gave no answer that can be used to {model.purpose}, also "
        f"when asked again: {problem}. It wrote: {wrote!r}"
    )
    failure.is_refusal = reply.is_refusal
    for store, deletion in cached_answers.get():
        await io.batch(store, [deletion])
    raise failure


def with_schema(
    model: BaseChatModel, schema: dict[str, Any], purpose: Purpose = "judge"
) -> StructuredModel:
    """Bind a chat model to the JSON Schema of its answers.

    Raises:
        InvalidInputError: The model has no structured output.
    """
    key, name = digest([reply_key(model), schema]), model_name_of(model)

    def bind(model: BaseChatModel, **options: Any) -> Runnable[Any, Any]:
        # Otherwise LangChain does this in the model's first call. Threads that do it at the same
        # time fail on Python 3.12 and newer.
        with _SERIALIZING:
            getattr(model, "_serialized", None)
        parameters = inspect.signature(type(model).with_structured_output).parameters
        if "json_schema" in str(parameters.get("method")):  # some classes have other methods only
            options["method"] = "json_schema"
        try:
            return model.with_structured_output(schema, **options)
        except (NotImplementedError, ValueError) as error:
            raise InvalidInputError(
                f"model: {model_name_of(model)} can't answer in the shape of a schema: give one "
                "that has structured output."
            ) from error

    if inner_models(model) == [model]:
        steps: Any = bind(_send_unchecked(model))
        is_pair = isinstance(steps, RunnableSequence) and all(
            # Of langchain-openai; refusals are recognized when the reply is parsed.
            step.get_name() == "_check_refusal"
            for step in steps.middle
        )
        if is_pair and hasattr(steps.last, "parse_result"):
            # The same as `include_raw`, which runs several more runnables a call, at half the cost.
            return StructuredModel(steps.first, steps.last, name, key, purpose)
    whole = map_models(model, lambda inner: bind(_send_unchecked(inner), include_raw=True))
    return StructuredModel(whole, None, name, key, purpose)


def _send_unchecked(model: BaseChatModel) -> BaseChatModel:
    """Return a copy of an OpenAI model whose client does not validate each message.

    The openai client tries every message type for each message: 4.6 of the 5.9 ms of processor time
    of a call with 12 messages. Its `parse` also raises where an answer was truncated.
    """
    clients = {}
    for name in ("root_client", "root_async_client"):
        if client := copy(getattr(model, name, None)):
            clients[name] = client
            vars(client).pop("chat", None)  # a cached property, bound to the original client
            raw = client.chat.completions.with_raw_response
            raw.parse = partial(_create, raw.create)
    return model.model_copy(update=clients) if clients else model


def _create(create: Callable[..., Any], *, messages: Any, response_format: Any, **body: Any) -> Any:
    sent = {"messages": messages, "response_format": response_format}
    extra_body = {**(body.pop("extra_body", None) or {}), **sent}
    return create(messages=_Messages(messages), extra_body=extra_body, **body)


class _Messages:
    """Messages that tracing tools can read, and the client skips since they lack `__iter__`."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: Any) -> Any:
        return self.messages[index]

    def __repr__(self) -> str:
        return repr(self.messages)
