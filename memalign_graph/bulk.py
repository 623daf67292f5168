"""Judge with a batch API: write the requests to a file, and read the answers from files.

Each case is judged by the usual code with the real client of its chat model, but the client's
requests are looked up in the answer files. Those without an answer are written to the next batch.
"""

import json
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
    write_errors,
)
from memalign_graph.evidence.confidence import asks_checks
from memalign_graph.identity import digest
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.judging.case import Case, Retrieved, prepare_example, recall_similar
from memalign_graph.judging.verdict import run_judge
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import DEFAULT_NAMESPACE, check_namespace
from memalign_graph.memory.history import pin_memory
from memalign_graph.memory.index import decode_vector, encode_vector, retrieval_text, vector_key
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.memory.recall import embed, index_missing
from memalign_graph.models import BaseChatModel, inner_models, model_name_of
from memalign_graph.replies import ChatReply, StructuredModel
from memalign_graph.runtime import Clients, JudgeResources, NodeCall
from memalign_graph.settings import Judge
from memalign_graph.types import Example, ExampleLike, Judgment, parse_example

logger = logging.getLogger(__name__)

T = TypeVar("T")

Row = dict[str, Any]

_PART = ".part"  # of the name of a file that is being written
_AT_ONCE = 2_048  # examples that are embedded together
_OK, _SERVER_ERROR = 200, 500
_TRY_AGAIN = {401, 403, 404, 408, 409, 429}
_NOT_COMPARED = {"criterion", "model", "distill_model", "embeddings", "keep_judgments"}
"""Options that change no request, or are compared by their hash or name."""


def namespace_labels(judge: Judge, namespace: Sequence[str] | str | None) -> list[str]:
    """Return the labels of a namespace; without one the default, unless the judge requires one."""
    if namespace is None and judge.require_namespace:
        raise InvalidInputError(
            "namespace: none was given, and the judge has require_namespace=True. Give one."
        )
    return list(check_namespace(DEFAULT_NAMESPACE if namespace is None else namespace))


async def prepare_memory(io: IO, judge: Judge, access: MemoryAccess) -> dict[str, str]:
    """Add missing questions and vectors; return the version and the id of the newest fact."""
    view = await access.refresh(io)
    clients = Clients(judge.embeddings)
    if asks_checks(judge.checks, clients.judge_model(judge)):
        from memalign_graph.evidence.checks import fill_questions

        missing = [item for item in await access.guidelines(io) if item.question is None]
        why = await fill_questions(io, access, clients.distill_model(judge), missing)
        if why and any(item.question is None for item in await access.guidelines(io)):
            raise ChatModelError(f"checks: {why}")
    try:
        if compares_cases(judge, access):
            await index_missing(io, access)
    except EmbeddingError:
        if judge.on_embedding_error == "raise":
            raise
    return {"version": view.version, "newest": view.latest_fact_id}


def compares_cases(judge: Judge, access: MemoryAccess) -> bool:
    """Return whether the judge compares cases with those in memory."""
    shows = judge.use_episodes and judge.k > 0
    return (shows or judge.weighs) and not access.view.is_empty


class UnansweredError(MemAlignError):
    """A case can't be judged yet, since one of its requests has no answer."""


@dataclass(frozen=True)
class PreparedBatch:
    """A batch of requests to be answered."""

    version: str
    """The version of the memory that was used."""

    requests: int
    """The number of requests. A case may have several, or none if it can't be judged."""

    cases: Path
    """The file of cases that `collect_batch` needs."""

    errors: dict[int, MemAlignError]
    """Why examples can't be judged, by position."""


def prepare_batch(
    judge: Judge,
    examples: Iterable[ExampleLike],
    path: str | Path,
    *,
    store: BaseStore,
    namespace: Sequence[str] | str | None = None,
) -> PreparedBatch:
    """Write the requests that judge examples with the present memory, without calling the judge.

    The format is OpenAI's batch JSONL, which vLLM's `run-batch` and others also read. A second
    file, `batch.cases.jsonl` for `batch.jsonl`, is needed to collect the answers. Neither file may
    exist. Examples are embedded now, and with `checks=True` missing check questions are written.

    Args:
        judge: The judge, whose `model` is a `ChatOpenAI` or a string that makes one.
        examples: What to judge. Further fields of an example are returned with its judgment.
        path: The file of requests to write.
        store: The memory's store, for sync calls.
        namespace: The memory's namespace in the store.

    Returns:
        The version, the number of requests, and the errors.

    Raises:
        InvalidInputError: If the judge or a file can't be used.
        EmbeddingError: If the embeddings fail and `on_embedding_error` is "raise". A refused text
            is the error of its example alone.
        ChatModelError: If a check question can't be written.
    """
    path = Path(path).resolve()
    cases = path.with_suffix(".cases.jsonl")
    batch = _BatchJudge(judge, store, namespace)
    with ExitStack() as stack:
        # The file of cases gets its name first, so that no batch is without it.
        requests, lines = (stack.enter_context(_new_file(file)) for file in (path, cases))
        memory = run_sync(prepare_memory(SYNC, judge, batch.access))
        _write(lines, {"batch": uuid4().hex, **memory, "judge": batch.fingerprint()})
        rows = _rows(examples)
        while some := list(islice(rows, _AT_ONCE)):
            for case in run_sync(batch.with_vectors(some)):
                _write(lines, case)
        errors = {
            number: outcome
            for number, (_, outcome) in enumerate(_judged(batch, Path(lines.name), requests))
            if isinstance(outcome, MemAlignError) and not isinstance(outcome, UnansweredError)
        }
    return PreparedBatch(memory["version"], batch.io.requested, cases, errors)


def collect_batch(
    judge: Judge,
    cases: str | Path,
    answers: Iterable[str | Path],
    *,
    store: BaseStore,
    namespace: Sequence[str] | str | None = None,
    again: str | Path | None = None,
) -> Iterator[tuple[Row, Judgment | MemAlignError]]:
    """Judge a prepared batch by its answers, with the result of judging without a batch.

    Each case is judged with the memory as of when the batch was prepared, and no model is called.
    Cases whose prompts had text that was purged since have to be asked again. Collecting twice
    gives judgments the same ids.

    Args:
        judge: The judge that the batch was prepared with.
        cases: The `.cases.jsonl` file that `prepare_batch` wrote.
        answers: The files of results and of errors, of all rounds.
        store: The memory's store, for sync calls.
        namespace: The memory's namespace in the store.
        again: A file to write requests without an answer to, as the next batch.

    Yields:
        The further fields of an example, and its judgment or error, in the order of the examples.
        The error is an `UnansweredError` if a request failed, or an answer led to another one.

    Raises:
        InvalidInputError: If a file can't be used, or was prepared by a different judge.
    """
    batch = _BatchJudge(judge, store, namespace, read_answers(answers))
    with ExitStack() as stack:
        file = None if again is None else stack.enter_context(_new_file(Path(again).resolve()))
        yield from _judged(batch, Path(cases), file)


def read_answers(paths: Iterable[str | Path]) -> dict[str, Row]:
    """Read answers by request id; of several the first usable one counts."""
    answers: dict[str, Row] = {}
    for path in paths:
        for number, answer in _read_rows(path, "answers"):
            is_answer = not {"response", "error"}.isdisjoint(answer)
            if not (isinstance(key := answer.get("custom_id"), str) and is_answer):
                logger.warning("%s, line %d: not an answer of a batch API; ignored.", path, number)
            elif not _reply(known := answers.get(key, {})) or _status(answer) < _status(known):
                answers[key] = answer
    return answers


def _status(line: Row) -> int:
    """Return the status of an answer, which is lowest for a usable one."""
    return (_reply(line) or (_SERVER_ERROR, None))[0]


def _reply(line: Row) -> tuple[int, Any] | None:
    """Return the status and body of an answer; None if the request should be sent again."""
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


class _OfflineIO(IO):
    """Answers requests from files, and collects those without an answer."""

    def __init__(self, answers: Mapping[str, Row]) -> None:
        super().__init__(SYNC)
        self.requested = 0
        self.requests: list[Row] = []  # of the present case
        self._answers = answers
        self._number = 0
        self._asked: Counter[str] = Counter()
        self._unanswered: UnansweredError | None = None
        self._base_path = ""

    def start_case(self, number: int) -> None:
        self._number = number
        self._asked.clear()
        self.requests = []

    def offline_model(self, chat: BaseChatModel) -> BaseChatModel:
        """Return a copy of a chat model whose requests are answered here."""
        client = getattr(chat, "root_client", None)
        # Fallbacks have their first model's client. The embedded model is not serializable: no
        # other process has it.
        if client is None or inner_models(chat) != [chat] or not chat.is_lc_serializable():
            raise InvalidInputError(
                f"model: {model_name_of(chat)} cannot be called by a batch API, which takes "
                "requests in OpenAI's format. Use a plain ChatOpenAI with any key, or no batch."
            )
        import openai

        # The openai client's HTTP library: httpx or its successor.
        http: Any = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])

        def send(request: Any) -> Any:
            body = json.loads(request.content)
            if deployment := getattr(chat, "deployment_name", None):
                body["model"] = deployment  # Azure's requests name it in the URL alone
            status, answer = self._answer(request.url.path, body)
            # `json=` refuses half a surrogate pair and NaN.
            content, headers = json.dumps(answer), {"content-type": "application/json"}
            return http.Response(status, content=content, headers=headers)

        transport = openai.DefaultHttpxClient(transport=http.MockTransport(send))
        offline = client.with_options(http_client=transport, max_retries=0)
        self._base_path = client.base_url.path
        linked = {"root_client": offline, "client": offline.chat.completions}
        return chat.model_copy(update={**linked, "streaming": False, "rate_limiter": None})

    def _answer(self, url: str, body: Row) -> tuple[int, Any]:
        prompt = digest(body)
        # A repeated prompt asks for another sample.
        self._asked[prompt] += 1
        key = f"{self._number}-{digest([prompt, self._asked[prompt]])}"
        line = self._answers.get(key, {})
        if (reply := _reply(line)) is not None:
            return reply
        url = f"/v1/{url.removeprefix(self._base_path)}"
        self.requests.append({"custom_id": key, "method": "POST", "url": url, "body": body})
        failure = json.dumps(line.get("error") or line.get("response"), ensure_ascii=False)
        why = excerpt(failure, 200) if line else "it is in no file of answers"
        self._unanswered = UnansweredError(
            f"The request {key} has no answer ({why}). Send it again, and collect again."
        )
        raise self._unanswered

    async def chat(self, model: StructuredModel, messages: Sequence[BaseMessage]) -> ChatReply:
        self._unanswered = None
        try:
            return model.invoke(messages)
        except ChatModelError as error:
            if self._unanswered is not None:  # the client reports it as a failed connection
                raise self._unanswered from None
            raise error from error.__cause__

    async def gather(
        self,
        operations: Sequence[Coroutine[Any, Any, T]],
        limit: int,  # noqa: ARG002 - nothing is awaited
    ) -> list[T]:
        results: list[T] = []
        unanswered: UnansweredError | None = None
        try:
            for operation in operations:
                try:
                    results.append(await operation)
                except UnansweredError as error:  # the others' requests join the same batch
                    unanswered = error
        finally:
            for operation in operations:
                operation.close()
        if unanswered is not None:
            raise unanswered
        return results


class _BatchJudge:
    """The judge and memory of a batch."""

    def __init__(
        self,
        judge: Judge,
        store: BaseStore,
        namespace: Sequence[str] | str | None,
        answers: Mapping[str, Row] | None = None,
    ) -> None:
        self.judge = judge
        self.io = _OfflineIO(answers or {})
        self._chat = Clients(judge.embeddings).judge_model(judge)
        offline = self.io.offline_model(self._chat)
        self._resources = JudgeResources(judge.but(model=offline))
        labels = namespace_labels(judge, namespace)
        self._settings = {**self._resources.defaults, "namespace": labels}
        self.access = self._resources.memory(store, self._settings)

    def fingerprint(self) -> Row:
        """Return what has to be the same when the batch is collected."""
        options = {
            name: str(part) for name, part in dict(self.judge).items() if name not in _NOT_COMPARED
        }
        criterion = digest(self.judge.criterion.model_dump(mode="json"))
        names = {"model": model_name_of(self._chat), "embeddings": self.access.embedder.id}
        hashes = {"criterion": criterion, "namespace": self._settings["namespace"]}
        return {**options, **names, **hashes}

    async def with_vectors(self, rows: list[Row]) -> list[Row]:
        """Add the examples' vectors, embedded in as few requests as possible."""
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
        failed: dict[str, EmbeddingError] = {}
        try:
            needed = texts if compares_cases(self.judge, self.access) else {}
            vectors = await embed(SYNC, self.access, needed, failed)
        except EmbeddingError as error:
            if self.judge.on_embedding_error == "raise":
                raise
            vectors, failed = {}, dict.fromkeys(texts, error)
        for row in rows:
            key = row.get("vector", "")
            row["vector"] = encode_vector(vectors[key]) if key in vectors else None
            row["failed"] = str(failed[key]) if key in failed else None
        return rows

    async def load(self, header: Row, cases: Path) -> MemoryAccess:
        """Return the memory as of the batch."""
        now, then = self.fingerprint(), header["judge"]
        if differ := sorted(name for name in now if now[name] != then.get(name)):
            raise InvalidInputError(
                f"{differ[0]}: {cases} was prepared by a judge that differs in "
                f"{', '.join(differ)}: give the one that prepared it."
            )
        versions = {"newest": header["newest"], "version": header["version"]}
        return await pin_memory(SYNC, self.access, **versions)

    async def judge_case(self, access: MemoryAccess, case: Row, judgment_id: str) -> Judgment:
        if "invalid" in case:
            raise InvalidInputError(case["invalid"])
        runtime = Runtime(store=access.store)
        call = NodeCall(self.io, self._resources, runtime, self._settings, access, case["example"])
        example, failed = prepare_example(call), case["failed"]
        vector = None if case["vector"] is None else decode_vector(case["vector"])
        recall = await recall_similar(call, example, EmbeddingError(failed) if failed else vector)
        active = await access.guidelines_at(SYNC, recall.version)
        retrieved = Retrieved.of(recall, access.view).with_guidelines(active.guidelines, call)
        judgment = await run_judge(Case(call, example, retrieved))
        judgment = judgment.model_copy(update={"id": judgment_id})
        keep_for = self.judge.keep_judgments
        return await keep_judgment(SYNC, self.access, judgment, example, retrieved.vector, keep_for)


def _judged(
    batch: _BatchJudge, cases: Path, again: TextIO | None
) -> Iterator[tuple[Row, Judgment | MemAlignError]]:
    """Judge the cases of a file, and write requests without an answer."""
    rows = _read_rows(cases, "cases")
    _, header = next(rows, (1, {}))
    if not {"batch", "version", "newest", "judge"} <= header.keys():
        raise InvalidInputError(
            f"cases: {cases} was not written with a batch. Give the file that ends in .cases.jsonl."
        )
    access = run_sync(batch.load(header, cases))
    for number, case in rows:
        judged = "invalid" if "invalid" in case else "example"
        if not {"number", "row", "vector", "failed", judged} <= case.keys():
            raise InvalidInputError(f"cases: {cases} is damaged in line {number}.")
        batch.io.start_case(case["number"])
        outcome: Judgment | MemAlignError
        try:
            # Nothing is sent, so there are no calls to trace.
            with tracing_context(enabled=False):
                judgment_id = digest([header["batch"], case["number"]])
                outcome = run_sync(batch.judge_case(access, case, judgment_id))
        except UnansweredError as error:
            outcome = error
            batch.io.requested += len(batch.io.requests)
            for request in batch.io.requests if again else ():
                _write(again, request)
        except MemAlignError as error:
            outcome = error
        yield case["row"], outcome


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Create a file, which gets its name when it is whole; delete it if the block fails."""
    part = path.with_name(f"{path.name}{_PART}")
    with write_errors(path):
        for taken in (path, part):
            if taken.exists():
                raise InvalidInputError(
                    f"path: {taken} already exists and may belong to a running batch. Choose "
                    "another path or delete the file."
                )
        # Each line is flushed, so that no file gets its name before the other is whole.
        file = part.open("x", buffering=1, encoding="utf-8")
    try:
        yield file
        with write_errors(path):
            file.close()
            part.rename(path)
    except BaseException:
        with suppress(OSError):  # what is left to write
            file.close()
        part.unlink()
        raise


def _read_rows(path: str | Path, name: str) -> Iterator[tuple[int, Row]]:
    """Yield the numbers and objects of a file's lines; `{}` for a line that is not an object."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = None
                    with suppress(ValueError, RecursionError):
                        row = json.loads(line)
                    yield number, row if isinstance(row, dict) else {}
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidInputError(f"{name}: {path} can't be read: {problem}.") from error


def _write(file: Any, line: Row) -> None:
    text = json.dumps(line, default=str) + "\n"
    with write_errors(file.name.removesuffix(_PART)):
        file.write(text)


def _rows(examples: Iterable[ExampleLike]) -> Iterator[Row]:
    """Yield numbered examples, with their further fields in `row`, NaN as null."""
    for number, value in enumerate(examples, start=1):
        example: Any = value
        rest = {}
        if isinstance(value, Mapping):
            rest = {name: part for name, part in value.items() if name not in Example.model_fields}
            example = {name: part for name, part in value.items() if name not in rest}
        row = json.loads(json.dumps(rest, default=str), parse_constant=lambda _: None)
        yield {"number": number, "row": row, "example": example}
