"""What comes back from a model call: an answer, an answer that is no use, or a failure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage

from memalign_graph.errors import ChatModelError, EmbeddingError, MemAlignError
from memalign_graph.models import StructuredModel, embedder_id

_HINTS = {
    "APITimeoutError": "it did not answer in time; raise the model's timeout, or try later.",
    "APIConnectionError": "is the server up, and its base_url right?",
    "AuthenticationError": "check the API key.",
    "NotFoundError": "check the model's name and base_url.",
    "RateLimitError": "it stayed over its rate limit; try later, or raise max_retries.",
    "ContextOverflowError": "set the model's profile={'max_input_tokens': ...} to its window.",
    "InternalServerError": "the provider failed; try later.",
    "ModelAPIError": "the provider failed; try later.",
    "ModelTimeoutError": "it did not answer in time; raise the model's timeout, or try later.",
    "ModelConnectionError": "is the server up, and its address right?",
    "ModelAuthenticationError": "check the API key.",
    "ModelNotFoundError": "check the model's name.",
    "ModelRateLimitError": "it stayed over its rate limit; try later, or raise max_retries.",
}
"""What to do about a failed call, by the name of the client's error or one of its bases: those of
the openai client, and those that langchain-core gives to all providers."""


@dataclass(frozen=True)
class ChatReply:
    """What came back from a chat model that was asked for an answer in the shape of a schema."""

    answer: dict[str, Any] | None
    """The parsed answer; None if there is none."""

    text: str
    """The answer as the model wrote it."""

    problem: str | None = None
    """Why there is no parsed answer."""

    model: str | None = None
    """The model that answered, as it names itself."""

    input_tokens: int | None = None
    """How many tokens the prompt had, if the model tells."""

    output_tokens: int | None = None
    """How many tokens the answer had, if the model tells."""

    logprobs: Any = None
    """The log-probabilities of the answer's tokens, if they were asked for and the model tells."""


def read_output(output: Any) -> ChatReply:
    """Read what a model bound by `with_schema` gave."""
    raw: AIMessage = output["raw"]
    # A kept answer has usage that tells of nothing but its cost.
    usage: Mapping[str, Any] = raw.usage_metadata or {}
    about: dict[str, Any] = {
        "model": raw.response_metadata.get("model_name"),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "logprobs": raw.response_metadata.get("logprobs"),
    }
    refusal = raw.additional_kwargs.get("refusal")
    text = refusal or raw.text or (json.dumps(raw.tool_calls) if raw.tool_calls else "")
    parsed = output["parsed"]
    if isinstance(parsed, dict):
        return ChatReply(answer=parsed, text=text, **about)
    if refusal:
        problem = f"the model refused: {refusal}"
    elif output["parsing_error"] is not None:
        problem = f"it is not the JSON asked for ({_first_line(output['parsing_error'])})"
    else:
        problem = "it is not the JSON object asked for"
    return ChatReply(answer=None, text=text, problem=problem, **about)


def chat_failure(error: Exception, model: StructuredModel) -> ChatReply | MemAlignError:
    """Sort a failed chat call."""
    if isinstance(error, MemAlignError):
        return error
    kind = type(error).__name__
    if kind == "LengthFinishReasonError":
        completion = getattr(error, "completion", None)
        text = completion.choices[0].message.content if completion is not None else ""
        usage = getattr(completion, "usage", None)
        return ChatReply(
            answer=None,
            text=text or "",
            problem="it was cut off at the output limit: answer more briefly",
            input_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )
    if kind == "ContentFilterFinishReasonError":
        return ChatReply(answer=None, text="", problem="a content filter stopped it")
    return ChatModelError(f"The chat model {model.name} failed: {_reason(error)}")


def embedding_failure(error: Exception, embeddings: Embeddings) -> MemAlignError:
    """Make the error to raise for a failed embedding call."""
    if isinstance(error, MemAlignError):
        return error
    return EmbeddingError(f"The embeddings {embedder_id(embeddings)} failed: {_reason(error)}")


def _reason(error: Exception) -> str:
    names = [kind.__name__ for kind in type(error).__mro__]
    # The openai client tells an overflow by its code; LangChain does not always see it.
    if getattr(error, "code", None) == "context_length_exceeded":
        names.insert(1, "ContextOverflowError")
    hint = next((_HINTS[name] for name in names if name in _HINTS), None)
    return f"{names[0]}: {_first_line(error)}" + (f" ({hint})" if hint else "")


def _first_line(error: BaseException, limit: int = 300) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if len(text) <= limit else f"{text[:limit]}…"
