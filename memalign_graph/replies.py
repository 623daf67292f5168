"""A chat model bound to a schema and its replies: answers, truncation, refusals, errors."""

import json
import re
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables import Runnable

from memalign_graph.errors import ChatModelError, MemAlignError, first_line
from memalign_graph.identity import storable


@dataclass(frozen=True)
class ChatReply:
    """A chat model's reply to a prompt with a schema."""

    answer: dict[str, Any] | None
    text: str  # as the model wrote it
    problem: str | None = None  # why there is no answer
    model: str | None = None  # as it names itself
    input_tokens: int | None = None
    output_tokens: int | None = None
    is_refusal: bool = False  # a content filter stopped it, or the model refused
    logprobs: Any = None  # of the answer's tokens, if requested and available


@dataclass(frozen=True)
class StructuredModel:
    """A chat model bound to a schema."""

    runnable: Runnable[Any, Any]  # returns a message, or the dict of `include_raw` without a parser
    parser: Any  # parses the message; None if the runnable does
    name: str
    key: str  # hash of the model's settings and the schema
    purpose: str = "judge"  # as traces name it
    is_json: bool = True  # whether text has to be a JSON object

    def invoke(self, messages: Sequence[BaseMessage]) -> ChatReply:
        """Call the model; an invalid answer is a reply with a `problem`.

        Raises:
            ChatModelError: The call failed.
        """
        try:
            return self._parse(self.runnable.invoke(list(messages)))
        except Exception as error:  # noqa: BLE001 - providers share no base class
            return self._reply_of_failure(error)

    async def ainvoke(self, messages: Sequence[BaseMessage]) -> ChatReply:
        """Call the model asynchronously."""
        try:
            return self._parse(await self.runnable.ainvoke(list(messages)))
        except Exception as error:  # noqa: BLE001 - as above
            return self._reply_of_failure(error)

    def _parse(self, output: Any) -> ChatReply:
        if self.parser is None:
            return _parse_reply(**output, is_json=self.is_json)
        try:
            # As its `invoke` does, without a run of its own in every trace.
            parsed = self.parser.parse_result([ChatGeneration(message=output)])
        except Exception as error:  # noqa: BLE001 - a parser's error is shown to the model
            return _parse_reply(output, None, error)
        return _parse_reply(output, parsed, is_json=self.is_json)

    def _reply_of_failure(self, error: Exception) -> ChatReply:
        if isinstance(error, MemAlignError):
            raise error
        kind = type(error).__name__
        if kind not in _FINISH_PROBLEMS:
            why = describe_error(error, _CHAT_HINTS)
            failure = ChatModelError(f"The chat model {self.name} failed: {why}")
            failure.is_refusal = is_refusal(error, _CHAT_HINTS)
            raise failure from error
        completion = getattr(error, "completion", None)
        usage = getattr(completion, "usage", None)
        return ChatReply(
            answer=None,
            text=(completion.choices[0].message.content or "") if completion else "",
            problem=_FINISH_PROBLEMS[kind],
            is_refusal=_FINISH_PROBLEMS[kind] == _FILTERED,
            input_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )


_CUT_OFF = "it was cut off at the output limit: answer more briefly"
_FILTERED = "a content filter stopped it"
_FINISH_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason", "incomplete_details")
"""Keys of the finish reason: OpenAI and Gemini, Anthropic, Ollama, Bedrock, OpenAI's responses."""
_FINISH_PROBLEMS = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), _CUT_OFF),
    "model_context_window_exceeded": _CUT_OFF,
    **dict.fromkeys(("content_filter", "content_filtered", "safety", "refusal"), _FILTERED),
    **dict.fromkeys(("guardrail_intervened", "prohibited_content", "blocklist"), _FILTERED),
    **dict.fromkeys(("recitation", "spii"), _FILTERED),
    "LengthFinishReasonError": _CUT_OFF,
    "ContentFilterFinishReasonError": _FILTERED,
    "ModelRefusalError": _FILTERED,
}
"""Why an answer is invalid, by its finish reason or the client's exception."""
# Lines with a brace before anything but a quote or a brace are prose or code.
_OBJECT_START = re.compile(
    r"(?:```(?:json)?\s*|^[ \t]*)(?=\{\s*[\"'}])", re.MULTILINE | re.IGNORECASE
)
# Not a tag that the answer quotes: the next brace after that one closes the answer.
_THOUGHTS = re.compile(r"\A.*</think>(?=(?:[^{}<]++|<(?!/think>))*(?:\{|\Z))", re.DOTALL)


def _parse_reply(
    raw: Any, parsed: Any, parsing_error: BaseException | None = None, *, is_json: bool = True
) -> ChatReply:
    # The usage of a cached answer has only its cost.
    usage: Mapping[str, Any] = raw.usage_metadata or {}
    metadata = raw.response_metadata
    refusal = refusal_in(raw)
    problem = _finish_problem(metadata)
    if is_json and raw.text and not raw.tool_calls and not refusal:
        try:  # again, as LangChain's parser completes truncated JSON and takes the first
            parsed = _parse_json(raw.text)
        except (ValueError, RecursionError) as error:
            parsed, parsing_error = None, parsing_error or error
    if problem is None and not isinstance(parsed, dict):
        problem = "it is not the JSON object asked for"
        if refusal:
            problem = f"the model refused: {refusal}"
        elif parsing_error is not None:
            problem = _FINISH_PROBLEMS.get(
                type(parsing_error).__name__,
                f"it is not the JSON asked for ({first_line(parsing_error)})",
            )
    return ChatReply(
        answer=parsed if problem is None else None,
        text=refusal or raw.text or (json.dumps(raw.tool_calls) if raw.tool_calls else ""),
        problem=problem,
        is_refusal=problem == _FILTERED or (problem is not None and bool(refusal)),
        model=storable(str(metadata.get("model_name") or "")) or None,
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        logprobs=metadata.get("logprobs"),
    )


def refusal_in(message: BaseMessage) -> str:
    """Return how a model refused: in parts of the content, or next to it."""
    parts = message.content if isinstance(message.content, list) else []
    places = [*(part for part in parts if isinstance(part, dict)), message.additional_kwargs]
    return "".join(str(place.get("refusal") or "") for place in places)


def _finish_problem(metadata: Mapping[str, Any]) -> str | None:
    reasons = [metadata.get(name) for name in _FINISH_FIELDS]
    reasons = [reason.get("reason") if isinstance(reason, dict) else reason for reason in reasons]
    problems = (_FINISH_PROBLEMS.get(str(reason).lower()) for reason in reasons)
    return next(filter(None, problems), None)


def _parse_json(text: str) -> Any:
    """Parse JSON, also in a code fence or after thoughts, without repairing truncated JSON."""
    if not text.lstrip().startswith("{"):
        text = _THOUGHTS.sub("", text)
    if text.lstrip().startswith("{") or "```" not in text:
        return json.loads(text, strict=False)
    # A judged text that the model quotes may hold an answer, too.
    decoder, answer, end = JSONDecoder(strict=False), None, 0
    while start := _OBJECT_START.search(text, end):
        found, end = decoder.raw_decode(text, start.end())
        if answer and found and found != answer:
            raise ValueError("it holds several JSON objects that differ")
        answer = answer or found
    return answer


_REFUSED_STATUS = (400, 422)
"""HTTP statuses that concern one prompt or text."""
_REFUSED_CODE = re.compile(
    "context_length|content_|invalid_prompt|json_validate_failed|tool_use_failed"
)
"""Codes that concern one prompt, also if the error quotes an answer with words of an outage. In a
body with status 200, all other codes are outages."""
_TOO_LARGE = 413
_OUTAGE = re.compile(
    "(?i)api key|unexpected response type|no (embedding )?data received|buffer size must|"
    "no sync function|rate.?limit|overloaded|server.error|credit balance|usage limits|"
    "billing (hard|on)|failed_precondition|organization has been|decommissioned|invalid model|"
    "model (not (exist|found)|identifier)|no longer support|"
    "(does|is)(n.t| not) support.{0,30}(this model|the api|schema|format|tools?|thinking)\\b"
)
"""Providers also return 400 for a wrong key, an empty account, and a model that has been shut down
or lacks a capability. OpenAI's Responses API returns 200 with an error. Proxies return 200 with a
page, an error or a part of the answer as the body: the openai client then can't read the bytes of
an embedding. LangGraph's wrapper of an async function refuses a blocking call."""


# What to do, by the name of the exception or one of its bases, without the prefixes `API` and
# `Model` of the openai client and langchain-core.
_HINTS = {
    "TimeoutError": "it did not answer in time; raise the model's timeout, or try later.",
    "ConnectionError": "is the server up, and its base_url right?",
    "AuthenticationError": "check the API key.",
    "NotFoundError": "check the model's name and base_url.",
    "RateLimitError": "it stayed over its rate limit; try later, or raise max_retries.",
    "InternalServerError": "the provider failed; try later.",
    "ModelAPIError": "the provider failed; try later.",
}


_BY_CODE = {
    "context_length_exceeded": "ContextOverflowError",
    "model_not_found": "ModelNotFoundError",
}
"""Exception names by the code of the openai client's error."""

DEFAULT_CHAT_MODEL = "openai:gpt-6-luna"
"""OpenAI's recommended successor of gpt-4.1-mini and gpt-4o-mini, which shut down on 14 January
2027."""

_OVERFLOW_HINT = "set the model's profile={'max_input_tokens': ...} to its window."
_CHAT_HINTS = {
    **_HINTS,
    "ContextOverflowError": _OVERFLOW_HINT,
    "ModelNotFoundError": (
        "the provider has no such model, or has shut it down: give the option `model` (--model) "
        f"another, such as {DEFAULT_CHAT_MODEL!r}; then run `memalign migrate`."
    ),
}


def describe_error(error: Exception, hints: Mapping[str, str] = _HINTS) -> str:
    """Describe why a model or store call failed, and what to do."""
    hint = _hint(error, hints)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({hint})" if hint else "")


def _hint(error: Exception, hints: Mapping[str, str]) -> str | None:
    names = [kind.__name__ for kind in type(error).__mro__]
    # The openai client has a code for these; LangChain does not recognize every overflow.
    if known := _BY_CODE.get(str(getattr(error, "code", None))):
        names.insert(1, known)
    plain = [name if name in hints else re.sub("^(API|Model)", "", name) for name in names]
    return next((hints[name] for name in plain if name in hints), None)


def is_refusal(error: Exception, hints: Mapping[str, str] = _HINTS) -> bool:
    """Return whether a provider refused this prompt or text, and others may be answered."""
    hint = _hint(error, hints)
    status = _http_status(error) or _http_status(error.__cause__)
    text = str(error)
    # Above the limit of a minute, OpenAI returns 429.
    if hint == _OVERFLOW_HINT or status == _TOO_LARGE or "Request too large" in text:
        return True  # a shorter one may fit
    is_garbled = isinstance(error, JSONDecodeError | Base64Error)
    if is_garbled or hint or (_OUTAGE.search(text) and not _REFUSED_CODE.search(text)):
        return False
    return isinstance(error, ValueError) if status is None else status in _REFUSED_STATUS


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status in an exception of openai, httpx, botocore or Google."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore's
        # AWS also returns 400 for quotas and expired keys.
        is_about_prompt = response.get("Error", {}).get("Code") == "ValidationException"
        return response["ResponseMetadata"]["HTTPStatusCode"] if is_about_prompt else None
    places = ((error, "status_code"), (response, "status_code"), (error, "code"))
    statuses = [getattr(place, name, None) for place, name in places]
    # langchain-openai raises an error in a body with status 200 as it is.
    bodies = (part for part in getattr(error, "args", ()) if isinstance(part, Mapping))
    for code in (str(body.get("code")) for body in bodies):
        of_word = 400 if _REFUSED_CODE.search(code) else 200
        statuses.append(int(code) if code.isdecimal() else of_word)
    return next((status for status in statuses if isinstance(status, int)), None)
