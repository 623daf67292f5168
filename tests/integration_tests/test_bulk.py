"""Batches: requests, every kind of answer, and changes of the memory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_openai import AzureChatOpenAI
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Criterion,
    EmbeddingError,
    Feedback,
    InvalidInputError,
    Judge,
    JudgeMemory,
    Judgment,
    ModelAnswerError,
)
from memalign_graph.bulk import (
    UnansweredError,
    collect_batch,
    prepare_batch,
    prepare_memory,
    read_answers,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.history import pin_memory
from tests.conftest import CASE as SAID
from tests.conftest import COLD, CRITERION, OTHER, Bench, judgings
from tests.integration_tests.evidence import checks_support as checks
from tests.integration_tests.evidence.judging_support import Judge as Model
from tests.integration_tests.evidence.judging_support import case, learn, truth, words
from tests.integration_tests.test_both_orders import CASE as PAIR_CASE
from tests.integration_tests.test_both_orders import PAIR, judge_by_first
from tests.loopback import Rule, answer, error, refusal, truncated
from tests.loopback.batches import answer_batch, ids_of, lines_of, write_lines

CASES = [{**SAID, "inputs": f"Order {number} never came."} for number in range(4)]
BUSY = (401, 403, 404, 408, 409, 429, 503)  # statuses after which the same request may be answered


class Batch:
    """A batch of one judge in a folder."""

    def __init__(self, bench: Bench, folder: Path, **options: Any) -> None:
        arguments = {"criterion": CRITERION, "embeddings": bench.server.embedder(), **options}
        self.judge = Judge(model=bench.server.chat_model(), **arguments)
        self.bench, self.folder, self.rounds = bench, folder, 0
        self.answers: list[Path] = []

    def at(self, name: str) -> Path:
        return self.folder / f"{name}{self.rounds}.jsonl"

    def prepare(self, cases: Any) -> Any:
        return prepare_batch(self.judge, cases, self.at("batch"), store=self.bench.store)

    def collect(self, **options: Any) -> list[Any]:
        cases = self.folder / "batch0.cases.jsonl"
        arguments = {"store": self.bench.store, "again": self.at("batch"), **options}
        return [made for _, made in collect_batch(self.judge, cases, self.answers, **arguments)]

    def round(self) -> list[Any]:
        """Answer the newest batch; returns its requests."""
        self.answers.append(self.at("answers"))
        requests = answer_batch(self.bench.server, self.at("batch"), self.answers[-1])
        self.rounds += 1
        return requests

    def answered(self, cases: Any) -> list[Any]:
        """Prepare a batch and have it answered; returns the lines of the answers."""
        self.prepare(cases)
        self.round()
        return lines_of(self.answers[-1])

    def whole(self, cases: Any) -> tuple[list[Any], list[int]]:
        """Judge with as many batches as needed; also returns their sizes."""
        self.prepare(cases)
        sizes = []
        while self.at("batch").stat().st_size and self.rounds < 5:
            sizes.append(len(self.round()))
            made = self.collect()
        return made, sizes


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def at_once(batch: Batch, cases: Any) -> list[Any]:
    graph = batch.bench.judge_graph(batch.judge.criterion, **batch.judge.options)
    return [(await batch.bench.invoke(graph, case))["judgment"] for case in cases]


def equal_except_run_fields(made: list[Any], judged: list[Any]) -> bool:
    """Whether judgments are equal except for run-specific fields."""
    alone = ("id", "thread_id")
    actual = [{**judgment.to_json(), **dict.fromkeys(alone)} for judgment in made]
    return actual == [{**judgment, **dict.fromkeys(alone)} for judgment in judged]


async def learned_judge(bench: Bench) -> None:
    await bench.remember({**SAID, **COLD, "author": "ann"}, {**OTHER, "value": True})
    await bench.add_guideline("Say sorry first.")


async def test_batch_equals_direct_calls(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    batch = Batch(bench, tmp_path, decide="verdict")
    judged = await at_once(batch, CASES)
    sent = [chat.body for chat in judgings(bench.server)]
    bench.server.chats.clear()
    prepared = batch.prepare([*CASES, {"inputs": "x", "id": 7}, "no object"])
    assert bench.server.chats == []
    assert (prepared.requests, list(prepared.errors)) == (4, [4, 5])
    assert prepared.version == judged[0]["memory_version"]
    requests = batch.round()
    assert [request["body"] for request in requests] == sent
    assert {request["url"] for request in requests} == {"/v1/chat/completions"}
    assert all(len(key) <= 64 for key in ids_of(requests))
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    *made, unusable, _ = batch.collect()
    assert equal_except_run_fields(made, judged)
    assert made[0].episode_ids
    assert made[0].guideline_ids
    assert str(unusable) == "outputs: is missing. Add it."
    assert (bench.server.chats, bench.server.embeddings) == ([], [])
    collected = batch.collect(again=None)[:4]
    assert [judgment.id for judgment in made] == [judgment.id for judgment in collected]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [({"decide": "evidence", "confidence": True}, [4, 4]), ({"checks": True}, [8, 4])],
)
async def test_options_that_add_requests(
    bench: Bench, tmp_path: Path, options: Any, sizes: list[int]
) -> None:
    judged = Model(value=truth, belief=lambda number: 0.6 + number / 100)
    check_model = checks.Model({checks.SORRY: 0.2, checks.BRIEF: 0.8})
    bench.server.responder = lambda chat: (check_model if checks.is_check(chat) else judged)(chat)
    await learn(bench, words(24))
    if "checks" in options:
        await checks.rules(bench, [checks.SORRY, checks.BRIEF])
    batch = Batch(bench, tmp_path, **options)
    cases = list(map(case, range(30, 34)))
    expected = await at_once(batch, cases)
    made, asked_for = batch.whole(cases)
    assert equal_except_run_fields(made, expected)
    assert asked_for == sizes


async def test_a_guideline_that_gets_no_question_does_not_stop_the_batch(
    bench: Bench, tmp_path: Path
) -> None:
    for text in ("Say sorry.", "Never threaten to kill."):
        await bench.add_guideline(text)
    bench.server.responder = lambda chat: (
        error(400, "It was filtered.")
        if "kill" in chat.text
        else answer({"questions": [checks.SORRY]})
    )
    batch = Batch(bench, tmp_path, checks=True)
    run_sync(prepare_memory(SYNC, batch.judge, bench.memory().access))
    assert [rule.question for rule in await bench.guidelines()] == [checks.SORRY, ""]


def test_samples_of_one_prompt_are_several_requests(bench: Bench, tmp_path: Path) -> None:
    refused = error(400, "No logprobs here.")
    bench.server.rules = [Rule(lambda chat: "logprobs" in chat.body, reply=refused)]
    made, sizes = Batch(bench, tmp_path, confidence=True, samples=3).whole(CASES[:1])
    assert (made[0].confidence, made[0].confidence_source) == (1, "samples")
    assert sum(sizes) == 1 + 1 + 3


async def test_both_orders_are_in_one_batch(bench: Bench, tmp_path: Path) -> None:
    bench.server.rules = judge_by_first("A", "A")
    batch = Batch(bench, tmp_path, criterion=PAIR, swap=True)
    made, sizes = batch.whole([PAIR_CASE])
    assert sizes == [2]
    assert equal_except_run_fields(made, await at_once(batch, [PAIR_CASE]))


async def test_unusable_and_missing_answers(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    cases = [{**SAID, "inputs": name} for name in ("fine", "refused", "cut", "wrong", "late")]
    cases += [{**SAID, "inputs": name} for name in ("lost", "bad", *map(str, BUSY))]
    batch = Batch(bench, tmp_path)
    batch.prepare(cases)
    bench.server.script({"rationale": "Ok.", "value": True}, refusal(), truncated('{"rat'), "no")
    requests = batch.round()
    fine, refused, cut, wrong, late, lost, bad, *busy = ids_of(requests)
    lines = {line["custom_id"]: line for line in lines_of(batch.answers[0])}
    expired = {"code": "batch_expired", "message": "It was not done in time."}
    lines[late] |= {"response": None, "error": expired}
    # As vLLM reports an error.
    unfit = {"message": "Not supported.", "code": 405}
    lines[bad] |= {"response": {"status_code": 405}, "error": unfit}
    for key, status in zip(busy, BUSY, strict=True):
        fault = {"status_code": status, "body": {"error": {"message": "Busy."}}}
        lines[key]["response"] |= fault
    del lines[lost]
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    hostile = ['{"custom_id": ["a"]}', f'{{"custom_id": "{late}", "response": "x"}}', "[" * 99_999]
    later = json.dumps({"custom_id": fine, "response": None, "error": expired})  # counts less
    whole = "\n".join(["\ufeff", *hostile, f"{text}{later}", '{"custom_id": "cut'])
    batch.answers[0].write_text(whole, "utf-8")
    made = batch.collect()
    errors = dict(zip(ids_of(requests), made, strict=True))
    assert errors[fine].value is True
    assert "Not supported." in str(errors[bad])
    assert "batch_expired" in str(errors[late])
    assert f"The request {lost} has no answer (it is in no file" in str(errors[lost])
    again = [error for error in errors if isinstance(errors[error], UnansweredError)]
    assert again == [refused, cut, wrong, late, lost, *busy]
    # Unusable answers are shown to the model, as in direct calls; other requests are unchanged.
    more = batch.round()
    assert set(ids_of(more)) & set(errors) == {late, lost, *busy}
    assert sum("That answer can't be used" in json.dumps(request["body"]) for request in more) == 3
    made = batch.collect(again=None)
    assert sum(isinstance(judgment, Judgment) for judgment in made) == 6 + len(BUSY)
    # A second unusable answer is an error, and no request is left.
    bench.server.rules = []
    for line in (answers := lines_of(batch.answers[1])):
        if "That answer" in json.dumps(
            next(o for o in more if o["custom_id"] == line["custom_id"])
        ):
            line["response"]["body"]["choices"][0]["message"]["content"] = "no"
    write_lines(batch.answers[1], answers)
    made = batch.collect()
    assert sum(isinstance(judgment, ModelAnswerError) for judgment in made) == 3
    assert not batch.at("batch").stat().st_size


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_first_usable_answer_counts(bench: Bench, tmp_path: Path, status: int) -> None:
    """So that a later file changes no judgment, and no follow-up request."""
    batch, others = Batch(bench, tmp_path), tmp_path / "others"
    [line] = batch.answered(CASES[:1])
    failed = {"status_code": status, "body": {"error": {"message": "There is no such model."}}}
    write_lines(others, [{**line, "id": "second"} | ({"response": failed} if status > 200 else {})])
    assert read_answers([*batch.answers, others]) == {line["custom_id"]: line}
    if status > 200:
        assert read_answers([others, *batch.answers]) == {line["custom_id"]: line}


@pytest.mark.parametrize(
    "message",
    [{"content": '{"rationale": "Sorry \ud83d", "value": true}'}, {"score": float("nan")}],
)
async def test_answers_that_are_no_valid_text_or_json(
    bench: Bench, tmp_path: Path, message: dict[str, Any]
) -> None:
    batch = Batch(bench, tmp_path)
    [line] = batch.answered(CASES[:1])
    line["response"]["body"]["choices"][0]["message"] |= message
    write_lines(batch.answers[0], [line])
    [made] = batch.collect()
    # As without a batch, the model is shown why half a surrogate pair is refused.
    assert isinstance(made, UnansweredError if "content" in message else Judgment)


async def test_later_changes_do_not_change_the_batch(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    batch = Batch(bench, tmp_path, keep_judgments=timedelta(days=1))
    expected = await at_once(Batch(bench, tmp_path), CASES)
    batch.answered(CASES)
    memory = bench.memory()
    memory.forget([memory.episodes()[0].id])
    memory.add_guideline("Be brief.")
    memory.remember(Feedback.model_validate({**CASES[0], "value": True}))
    made = batch.collect()
    [warning] = {judgment.warnings.pop() for judgment in made if isinstance(judgment, Judgment)}
    assert warning.startswith("Not stored for later feedback: an episode or guideline")
    assert equal_except_run_fields(made, expected)
    assert memory.judgments() == []


async def test_judgments_are_kept_once(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    made = []
    for name in "ab":  # the same cases in two batches
        (folder := tmp_path / name).mkdir()
        batch = Batch(bench, folder, keep_judgments=timedelta(days=1))
        batch.answered(CASES)
        made += batch.collect(again=None)
        assert batch.collect(again=None) == made[-4:]
    kept = sorted(item.judgment.id for item in bench.memory().judgments())
    assert kept == sorted(judgment.id for judgment in made)


async def test_cases_whose_prompts_were_purged_are_requested_again(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await learned_judge(bench)
    batch = Batch(bench, tmp_path, k=1)
    batch.answered([*CASES, {**OTHER, "inputs": "The cup arrived in pieces."}])
    bench.memory().forget(author="ann", purge=True)
    *again, made = batch.collect()
    assert "were purged since" in caplog.text
    assert {type(error) for error in again} == {UnansweredError}
    assert isinstance(made, Judgment)
    requests = batch.round()
    assert "Too cold" not in json.dumps(requests)
    assert all(isinstance(judgment, Judgment) for judgment in batch.collect())


async def test_batch_of_another_memory_is_refused(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    batch = Batch(bench, tmp_path)
    batch.answered(CASES)
    before, bench.store = bench.store, InMemoryStore()
    again = batch.at("batch")
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"^memory: .* has no commit"):
            batch.collect()
        assert not again.exists()
        bench.memory().remember(Feedback.model_validate({**SAID, "value": True}))
    bench.store = before
    bench.memory().forget(author="ann", purge=True)
    assert {type(made) for made in batch.collect()} == {UnansweredError}


async def test_interrupted_prepare_leaves_no_file(bench: Bench, tmp_path: Path) -> None:
    """As in a power failure, where no cleanup runs."""
    batch, seen = Batch(bench, tmp_path), set[str]()

    def cases() -> Any:
        for example in CASES:
            seen.update(names(tmp_path))
            yield example

    batch.prepare(cases())
    assert seen == {"batch0.jsonl.part", "batch0.cases.jsonl.part"}
    assert names(tmp_path) == {"batch0.jsonl", "batch0.cases.jsonl"}
    batch.rounds = 1
    for _ in collect_batch(
        batch.judge, tmp_path / "batch0.cases.jsonl", [], store=bench.store, again=batch.at("batch")
    ):
        assert "batch1.jsonl" not in names(tmp_path)
    assert len(ids_of(lines_of(batch.at("batch")))) == 4
    (tmp_path / "batch2.jsonl.part").touch()
    batch.rounds = 2
    with pytest.raises(InvalidInputError, match=r"path: .*batch2.jsonl.part already exists"):
        batch.prepare(CASES)
    assert names(tmp_path) >= {"batch2.jsonl.part"}


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file become larger."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_full_disk_names_the_file_and_leaves_none(bench: Bench, tmp_path: Path) -> None:
    batch = Batch(bench, tmp_path)
    batch.prepare(CASES)
    before = names(tmp_path)
    cases_file, requests = tmp_path / "batch0.cases.jsonl", batch.at("batch")
    batch.rounds = 1
    for written in (cases_file, requests):
        name = written.name.replace("0", "1")
        full = rf"^path: .*{name} can't be written: File too large. Free space or choose"
        with full_disk(written.stat().st_size - 1), pytest.raises(InvalidInputError, match=full):
            batch.prepare(CASES)
        assert names(tmp_path) == before
    with full_disk(written.stat().st_size - 1), pytest.raises(InvalidInputError, match=full):
        batch.collect()
    assert names(tmp_path) == before


def test_failures_of_the_caller_are_not_about_the_file(bench: Bench, tmp_path: Path) -> None:
    def cases() -> Iterator[Any]:
        yield CASES[0]
        raise OSError("The caller's disk is gone.")

    with pytest.raises(OSError, match=r"^The caller's disk is gone.$"):
        Batch(bench, tmp_path).prepare(cases())
    assert names(tmp_path) == set()


async def test_unusable_arguments_are_refused_before_any_request(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(bench, tmp_path)
    batch.prepare(CASES)
    with pytest.raises(InvalidInputError, match=r"path: .*batch0.jsonl already exists"):
        batch.prepare(CASES)
    batch.judge = batch.judge.but(k=1)
    with pytest.raises(InvalidInputError, match="differs in k: give the one that prepared it"):
        batch.collect(again=(again := tmp_path / "again.jsonl"))
    assert not again.exists()
    with pytest.raises(InvalidInputError, match="differs in k, namespace: give"):
        batch.collect(again=None, namespace="elsewhere")
    refused = r"cases: .*batch0.jsonl was not written with a batch"
    with pytest.raises(InvalidInputError, match=refused):
        list(collect_batch(batch.judge, tmp_path / "batch0.jsonl", [], store=bench.store))
    batch.judge = batch.judge.but(k=5)
    assert read_answers([tmp_path / "batch0.jsonl"]) == {}  # it has the requests
    batch.answers = [tmp_path / "none.jsonl"]
    with pytest.raises(InvalidInputError, match=r"answers: .*none.jsonl can't be read: No such"):
        batch.collect(again=None)
    batch.judge = batch.judge.but(require_namespace=True)
    with pytest.raises(InvalidInputError, match="namespace: none was given"):
        batch.prepare(CASES)
    batch.judge = batch.judge.but(require_namespace=False)
    monkeypatch.setattr("memalign_graph.local.chat.start_server", None)
    batch.rounds = 5
    chat = bench.server.chat_model()
    for model, name in (
        (FakeListChatModel(responses=["yes"]), "FakeList"),
        ("local", "qwen"),
        (chat.with_fallbacks([chat]), "gpt"),
        (chat.with_retry(), "gpt"),
    ):
        batch.judge = batch.judge.but(model=model)
        with pytest.raises(InvalidInputError, match=f"model: {name}.* cannot be called by a batch"):
            batch.prepare(CASES)
    assert bench.server.chats == []
    assert not (tmp_path / "batch5.jsonl").exists()


async def test_request_for_azure_names_the_deployment(bench: Bench, tmp_path: Path) -> None:
    batch = Batch(bench, tmp_path)
    options: Any = {"api_key": "key", "azure_endpoint": "http://azure", "api_version": "1"}
    model = AzureChatOpenAI(azure_deployment="of-ours", **options)
    batch.judge = batch.judge.but(model=model)
    made, sizes = batch.whole(CASES[:1])
    assert (made[0].value, sizes) == (True, [1])
    [request] = lines_of(tmp_path / "batch0.jsonl")
    assert (request["url"], request["body"]["model"]) == ("/v1/chat/completions", "of-ours")


@pytest.mark.parametrize("field", ["vector", "failed", "example", None])
async def test_damaged_case_is_named(bench: Bench, tmp_path: Path, field: str | None) -> None:
    batch, file = Batch(bench, tmp_path), tmp_path / "batch0.cases.jsonl"
    batch.prepare(CASES)
    lines = file.read_text().splitlines()
    case = json.loads(lines[2])
    case.pop(field, None)
    lines[2] = json.dumps(case) if field else lines[2][:-5]  # a line that was cut
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidInputError, match=r"batch0.cases.jsonl is damaged in line 3"):
        batch.collect(again=None)


async def test_failing_embeddings_leave_no_files(bench: Bench, tmp_path: Path) -> None:
    await learned_judge(bench)
    batch = Batch(bench, tmp_path)
    bench.server.script_embeddings(*[error(401, "No.")] * 2)
    with pytest.raises(EmbeddingError):
        batch.prepare(CASES)
    assert names(tmp_path) == set()
    batch.judge = batch.judge.but(on_embedding_error="guidelines")
    made, sizes = batch.whole(CASES)
    assert sizes == [4]
    assert all("guidelines alone" in judgment.warnings[0] for judgment in made)


@pytest.mark.parametrize("on_embedding_error", ["raise", "guidelines"])
async def test_example_that_the_embeddings_refuse_fails_alone(
    bench: Bench, tmp_path: Path, on_embedding_error: Any
) -> None:
    await learned_judge(bench)
    bench.server.refused_text = str(CASES[1]["inputs"])
    batch = Batch(bench, tmp_path, on_embedding_error=on_embedding_error)
    first, refused, *others = batch.whole(CASES)[0]
    assert all(judgment.warnings == [] for judgment in (first, *others))
    if on_embedding_error == "raise":
        assert isinstance(refused, EmbeddingError)
    else:
        assert "guidelines alone" in " ".join(refused.warnings)


async def test_refused_text_in_memory_is_not_sent_again_when_answers_are_collected(
    bench: Bench, tmp_path: Path
) -> None:
    await learned_judge(bench)
    bench.server.refused_text = "Refused"
    await bench.remember({**SAID, "inputs": "Refused", "value": True})
    batch = Batch(bench, tmp_path)
    batch.answered(CASES)
    bench.server.embeddings.clear()
    bench.server.script_embeddings(error(503, "It is down."))
    made = batch.collect()
    assert bench.server.embeddings == []
    assert [judgment.warnings for judgment in made] == [[]] * 4


def test_empty_store_judges_by_the_criterion(bench: Bench, tmp_path: Path) -> None:
    criterion = Criterion(name="other", instructions="Is it true?")
    bench.store = InMemoryStore()
    batch = Batch(bench, tmp_path, criterion=criterion)
    made, sizes = batch.whole(CASES)
    assert sizes == [4]
    assert {judgment.memory_version.strip("0") for judgment in made} == {""}
    assert JudgeMemory(bench.store, criterion, embeddings="local").history() == []


async def test_later_changes_do_not_reach_readers_of_a_pinned_memory(bench: Bench) -> None:
    await learned_judge(bench)
    memory, judge = bench.memory(), Judge(criterion=CRITERION, **bench.models())
    prepared = run_sync(prepare_memory(SYNC, judge, memory.access))
    expected = memory.recall(CASES[0], 2)
    pinned = run_sync(
        pin_memory(SYNC, memory.access, newest=prepared["newest"], version=prepared["version"])
    )
    memory.forget([memory.episodes()[0].id])
    memory.add_guideline("Be brief.")
    bench.server.embeddings.clear()
    # As a graph reads it, through its store.
    there = JudgeMemory(pinned.store, CRITERION, embeddings=bench.server.embedder())
    assert there.version() == prepared["version"] != memory.version()
    assert there.recall(CASES[0], 2) == expected
    assert len(bench.server.embeddings) == 1
