"""Judging elsewhere: a batch of requests made with one memory as it stands, and their answers.

Each case is judged as ever, by the real client of its chat model, but what that client sends is
looked up in the files of answers. What is not found there is a line of the next batch.
"""

import json
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langsmith import tracing_context

from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    MemAlignError,
    excerpt,
)
from memalign_graph.identity import digest
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.judging.case import Case, prepare_example, retrieve
from memalign_graph.judging.pinned import compares_cases, pin_memory, prepare_memory
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.embedding import embed
from memalign_graph.memory.external_traces import record_batch_file
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import Vector, encode_vector, vector_key
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, check_namespace
from memalign_graph.memory.recall import decode_optional_vector
from memalign_graph.models import BaseChatModel, model_name_of
from memalign_graph.replies import ChatReply, StructuredModel
from memalign_graph.runtime import Clients, JudgeResources, NodeCall
from memalign_graph.settings import Judge
from memalign_graph.types import Example, ExampleLike, Judgment, parse_example

logger = logging.getLogger(__name__)

T = TypeVar("T")

Row = dict[str, Any]

_AT_ONCE = 2_048  # examples are embedded in requests side by side
_OK, _SERVER_ERROR = 200, 500
_TRY_AGAIN = {408, 409, 429}
_UNSAID = {"criterion", "model", "distill_model", "embeddings", "keep_judgments"}
"""What of a judge is compared in other words, or changes no request."""


class UnansweredError(MemAlignError):
    """A case can't be judged yet: the answers hold none to one of its requests."""


@dataclass(frozen=True)
class PreparedBatch:
    """A batch to be answered."""

    version: str
    """The version of the memory it was made with."""

    requests: int
    """How many there are: a case may have several, or none, where it can't be judged."""

    cases: Path
    """The file that `collect_batch` reads them by."""

    errors: dict[int, MemAlignError]
    """Why examples can't be judged, by their position."""


def prepare_batch(
    judge: Judge,
    examples: Iterable[ExampleLike],
    path: str | Path,
    *,
    store: BaseStore,
    namespace: Sequence[str] | str = DEFAULT_NAMESPACE,
) -> PreparedBatch:
    """Write the requests that judge examples with the memory as it is, and call no judge.

    They are OpenAI batch JSONL, as OpenAI's batch API, vLLM's `run-batch` and others read it.
    Beside `batch.jsonl` stands `batch.cases.jsonl`, by which the answers are collected. Neither
    file may be there already. Examples are embedded now, and with `checks=True` guidelines that
    have no question yet are asked for one.

    Args:
        judge: The judge, whose `model` is a `ChatOpenAI` or a string that makes one.
        examples: What to judge. Further fields of an example come back with its judgment.
        path: Where the requests are written to.
        store: Holds the memory; one for blocking calls.
        namespace: The memory's namespace in the store.

    Returns:
        What was prepared.

    Raises:
        InvalidInputError: If the judge or a file can't be used.
        EmbeddingError: If an embedding call fails, unless the judge goes on without.
        ChatModelError: If a guideline can't be made a question.
    """
    path = Path(path).resolve()
    cases = path.with_suffix(".cases.jsonl")
    batch = _Batch(judge, store, namespace)
    with ExitStack() as stack:
        lines, requests = (stack.enter_context(_new_file(file)) for file in (cases, path))
        memory = run_sync(prepare_memory(SYNC, judge, batch.access))
        _write(lines, {"batch": uuid4().hex, **memory, "judge": batch.described()})
        rows = _rows(examples)
        while some := list(islice(rows, _AT_ONCE)):
            for case in run_sync(batch.embedded(SYNC, some)):
                _write(lines, case)
        lines.flush()
        errors = {
            number: outcome
            for number, (_, outcome) in enumerate(_judged(batch, cases, requests))
            if isinstance(outcome, MemAlignError) and not isinstance(outcome, UnansweredError)
        }
    return PreparedBatch(memory["version"], batch.exchange.requested, cases, errors)


def collect_batch(
    judge: Judge,
    cases: str | Path,
    answers: Iterable[str | Path],
    *,
    store: BaseStore,
    namespace: Sequence[str] | str = DEFAULT_NAMESPACE,
    again: str | Path | None = None,
) -> Iterator[tuple[Row, Judgment | MemAlignError]]:
    """Judge a prepared batch with the answers to it: as judging at once would have.

    Each case is judged with the memory as it was when the batch was prepared, and no model is
    called. What was purged since is gone: cases that it was shown with are to be asked again.
    Collecting twice gives judgments the same ids.

    Args:
        judge: The judge that the batch was prepared with.
        cases: The file `....cases.jsonl` that `prepare_batch` wrote.
        answers: The files that came back, of results and of errors, of every round there was.
        store: Holds the memory; one for blocking calls.
        namespace: The memory's namespace in the store.
        again: Where to write the requests that have no answer, as the next batch.

    Yields:
        What an example had besides its own fields, and its judgment, in the order of the examples;
        where there is none the error that says why, an `UnansweredError` where a request is to be
        answered yet: one that failed, or a further one that an answer led to.

    Raises:
        InvalidInputError: If a file can't be used, or the judge is another one.
    """
    batch = _Batch(judge, store, namespace, read_answers(answers))
    with ExitStack() as stack:
        file = None if again is None else stack.enter_context(_new_file(Path(again).resolve()))
        yield from _judged(batch, Path(cases), file)


def read_answers(paths: Iterable[str | Path]) -> dict[str, Row]:
    """Read the answers to a batch by the ids of requests, those that are of use before others."""
    answers: dict[str, Row] = {}
    for path in paths:
        for number, line in _lines(path, "answers"):
            answer = _row_of(line, "custom_id")
            if not isinstance(key := answer.get("custom_id"), str):
                logger.warning("%s, line %d: this is no answer of a batch: not used.", path, number)
            elif _reply(answers.get(key, {})) is None:
                answers[key] = answer
    return answers


def _reply(line: Row) -> tuple[int, Any] | None:
    """Return the status and the body of an answer; None where it is worth asking again."""
    response = line.get("response")
    fields = response if isinstance(response, dict) else {}
    status, body = fields.get("status_code"), fields.get("body")
    if body is None and (error := line.get("error")):
        body = error if isinstance(error, dict) and "error" in error else {"error": error}
    if not isinstance(status, int) or status in _TRY_AGAIN or status >= _SERVER_ERROR:
        return None
    if not isinstance(body, dict):
        return None
    says_something = status != _OK or body.get("choices") or body.get("output")
    return (status, body) if says_something else None


class Exchange(IO):
    """Answers the requests of one case after the other, and keeps those that have no answer."""

    def __init__(self, answers: Mapping[str, Row]) -> None:
        super().__init__(SYNC)
        self.requested = 0
        self.requests: list[Row] = []
        """Those of the case."""
        self._answers = answers
        self._number = 0
        self._asked: Counter[str] = Counter()
        self._unanswered: UnansweredError | None = None
        self._base_path = ""

    def begin(self, number: int) -> None:
        """Go on to another case."""
        self._number = number
        self._asked.clear()
        self.requests = []

    def connect(self, chat: BaseChatModel) -> BaseChatModel:
        """Return the same chat model, whose requests are answered here."""
        client = getattr(chat, "root_client", None)
        if client is None:
            raise InvalidInputError(
                f"model: {type(chat).__name__} sends no requests in OpenAI's format, which batches "
                "are made of: give a ChatOpenAI with a key, or judge at once."
            )
        import openai

        # Its own HTTP library: httpx, or what took its place.
        http: Any = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])

        def send(request: Any) -> Any:
            body = json.loads(request.content)
            status, answer = self._answer(request.url.path, body)
            return http.Response(status, json=answer)

        transport = openai.DefaultHttpxClient(transport=http.MockTransport(send))
        offline = client.with_options(http_client=transport, max_retries=0)
        self._base_path = client.base_url.path
        linked = {"root_client": offline, "client": offline.chat.completions}
        return chat.model_copy(update={**linked, "streaming": False, "rate_limiter": None})

    def _answer(self, url: str, body: Row) -> tuple[int, Any]:
        prompt = digest(body)
        # The same prompt more than once is a sample each time.
        self._asked[prompt] += 1
        key = f"{self._number}-{digest([prompt, self._asked[prompt]])}"
        line = self._answers.get(key)
        reply = None if line is None else _reply(line)
        if reply is not None:
            return reply
        url = f"/v1/{url.removeprefix(self._base_path)}"
        self.requests.append({"custom_id": key, "method": "POST", "url": url, "body": body})
        why = "there is none"
        if line is not None:
            failure = line.get("error") or line.get("response")
            why = excerpt(json.dumps(failure, ensure_ascii=False), 200)
        self._unanswered = UnansweredError(
            f"No answer to the request {key} ({why}): have it answered, and collect again."
        )
        raise self._unanswered

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        self._unanswered = None
        try:
            return model.invoke(messages)
        except ChatModelError as error:
            if self._unanswered is not None:  # the client takes it for a connection that failed
                raise self._unanswered from None
            raise error from error.__cause__

    async def gather(self, operations: Sequence[Coroutine[Any, Any, T]], limit: int) -> list[T]:  # noqa: ARG002 - nothing waits
        results: list[T] = []
        unanswered: UnansweredError | None = None
        try:
            for operation in operations:
                try:
                    results.append(await operation)
                except UnansweredError as error:  # what else is asked is asked in the same batch
                    unanswered = error
        finally:
            for operation in operations:
                operation.close()
        if unanswered is not None:
            raise unanswered
        return results


class _Batch:
    """A judge with the memory that a batch is made with."""

    def __init__(
        self,
        judge: Judge,
        store: BaseStore,
        namespace: Sequence[str] | str,
        answers: Mapping[str, Row] | None = None,
    ) -> None:
        self.judge = judge
        self.exchange = Exchange(answers or {})
        self._chat = Clients(judge.embeddings).judge_model(judge)
        offline = self.exchange.connect(self._chat)
        self._resources = JudgeResources(judge.but(model=offline, keep_judgments=None))
        labels = list(check_namespace(namespace))
        self._settings = {**self._resources.defaults, "namespace": labels}
        self.access = self._resources.memory(store, self._settings)
        self._header: Row = {}
        self._pinned = self.access

    def described(self) -> Row:
        """Tell what else a batch is made with."""
        options = {
            name: str(part) for name, part in dict(self.judge).items() if name not in _UNSAID
        }
        criterion = digest(self.judge.criterion.model_dump(mode="json"))
        names = {"model": model_name_of(self._chat), "embeddings": self.access.embedder.id}
        own = {"criterion": criterion, "namespace": self._settings["namespace"]}
        return {**options, **names, **own}

    async def embedded(self, io: IO, rows: list[Row]) -> list[Row]:
        """Give examples their vectors, in as few requests as there can be."""
        texts = {}
        for row in rows:
            try:
                example = parse_example(row.pop("example"))
            except InvalidInputError as error:
                row["invalid"] = str(error)
                continue
            text = retrieval_text(example)[0]
            key = vector_key(self.access.embedder.id, text)
            texts[key] = text
            row |= {"example": example.to_json(), "vector": key}
        vectors: dict[str, Vector] = {}
        failed = None
        try:
            if compares_cases(self.judge, self.access):
                vectors = await embed(io, self.access, texts)
        except EmbeddingError as error:
            if self.judge.on_embedding_error == "raise":
                raise
            failed = str(error)
        for row in rows:
            vector = vectors.get(row.get("vector", ""))
            row |= {"vector": None if vector is None else encode_vector(vector), "failed": failed}
        return rows

    async def resume(self, io: IO, header: Row, cases: Path, again: TextIO | None) -> None:
        """Have the memory as it was when the batch was prepared, and note where prompts go."""
        now, then = self.described(), header["judge"]
        if differ := sorted(name for name in now if now[name] != then.get(name)):
            raise InvalidInputError(
                f"{differ[0]}: {cases} was prepared by a judge that differs in "
                f"{', '.join(differ)}: give the one that prepared it."
            )
        self._header = header
        if again is not None and header["newest"]:
            await record_batch_file(io, self.access, Path(again.name))
        self._pinned = await pin_memory(
            io, self.access, newest=header["newest"], version=header["version"]
        )

    async def judgment(self, io: IO, case: Row) -> Judgment:
        """Judge a case."""
        if "invalid" in case:
            raise InvalidInputError(case["invalid"])
        runtime, state = Runtime(store=self._pinned.store), case["example"]
        call = NodeCall(
            self.exchange, self._resources, runtime, self._settings, self._pinned, state
        )
        example, failed = prepare_example(call), case["failed"]
        vector = EmbeddingError(failed) if failed else decode_optional_vector(case["vector"])
        retrieved = await retrieve(call, example, vector)
        _, guidelines = await self._pinned.guidelines_at(io, retrieved.version)
        retrieved = retrieved.with_guidelines(guidelines, call)
        judgment = await run_judge(Case(call, example, retrieved))
        key = digest([self._header["batch"], case["number"]])
        judgment = judgment.model_copy(update={"id": key})
        keep_for = self.judge.keep_judgments
        return await keep_judgment(io, self.access, judgment, example, retrieved.vector, keep_for)


def _judged(
    batch: _Batch, cases: Path, again: TextIO | None
) -> Iterator[tuple[Row, Judgment | MemAlignError]]:
    """Judge the cases of a file, and write requests that have no answer."""
    lines = _lines(cases, "cases")
    header = _row_of(next(lines, (1, ""))[1], "batch", "version", "newest", "judge")
    if not header:
        raise InvalidInputError(
            f"cases: {cases} was not written beside a batch: give the file that ends in "
            ".cases.jsonl."
        )
    exchange = batch.exchange
    run_sync(batch.resume(SYNC, header, cases, again))
    for number, line in lines:
        case = _row_of(line, "number", "row")
        if not case:
            raise InvalidInputError(f"cases: {cases} is damaged in line {number}: give it whole.")
        exchange.begin(case["number"])
        outcome: Judgment | MemAlignError
        try:
            # Nothing is sent: a trace would tell of calls that never were.
            with tracing_context(enabled=False):
                outcome = run_sync(batch.judgment(SYNC, case))
        except UnansweredError as error:
            outcome = error
            exchange.requested += len(exchange.requests)
            for request in exchange.requests if again else ():
                _write(again, request)
        except MemAlignError as error:
            outcome = error
        yield case["row"], outcome


def _row_of(line: str, *names: str) -> Row:
    """Read a line; empty where it is no object that has some fields."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) and row.keys() >= {*names} else {}


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Write a file: all of it or none, and none in the place of another."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise InvalidInputError(
            f"path: {path} is there already, and answers to it may be under way: name another "
            "file, or delete it."
        ) from error
    except OSError as error:
        raise InvalidInputError(f"path: {path} can't be written: {error.strerror}.") from error
    try:
        with file:
            yield file
    except BaseException:
        path.unlink()
        raise


def _lines(path: str | Path, name: str) -> Iterator[tuple[int, str]]:
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InvalidInputError(f"{name}: {path} can't be read: {problem}.") from error


def _write(file: Any, line: Row) -> None:
    file.write(json.dumps(line, default=str) + "\n")


def _rows(examples: Iterable[ExampleLike]) -> Iterator[Row]:
    """Read examples, each with its further fields."""
    for number, value in enumerate(examples, start=1):
        example: Any = value.to_json() if isinstance(value, Example) else value
        rest = {}
        if isinstance(value, Mapping):
            rest = {name: part for name, part in value.items() if name not in Example.model_fields}
            example = {name: part for name, part in value.items() if name not in rest}
        yield {"number": number, "row": rest, "example": example}
