"""A killed evaluation process, and two processes that continue from its cache."""

import multiprocessing
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from memalign_graph.evaluation import Report, evaluate
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import Model, asked, judged, plain, records
from tests.loopback import LoopbackServer

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])  # so that a worker starts in milliseconds


def work(environment: Mapping[str, str], file: Path, limit: int) -> None:
    """Evaluate and write the report next to the cache."""
    os.environ.update(environment)
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    options: dict[str, Any] = {"folds": 3, "resamples": 0, "progress": False}
    options |= {"cache": file, "max_concurrency": limit, "embeddings": embeddings}
    report = evaluate(CRITERION, records(9), model=ChatOpenAI(model="gpt-4.1-mini"), **options)
    report.save(file.with_name(f"{file.stem}-{os.getpid()}.json"))


def started(server: LoopbackServer, file: Path, limit: int) -> Any:
    worker = FORKS.Process(target=work, args=(dict(server.environment), file, limit))
    worker.start()
    return worker


def finish(*workers: Any) -> None:
    for worker in workers:
        worker.join(240)
        assert worker.exitcode == 0


def reports(folder: Path, name: str) -> list[Any]:
    texts = [path.read_text() for path in folder.glob(f"{name}-*.json")]
    return [plain(Report.model_validate_json(text)) for text in texts]


def test_killed_run_is_continued(server: LoopbackServer, tmp_path: Path) -> None:
    """Only unanswered requests are sent, and the report is the same."""
    follow, file = Model(judge=lambda chat: judged(chat) % 2 > 0), tmp_path / "kept.db"
    server.responder = follow
    finish(started(server, tmp_path / "other.db", 4))
    whole = len(server.chats)
    [wanted] = reports(tmp_path, "other")
    for stop_at in (3, 8):
        server.reset()
        server.responder, server.latency_s = follow, 0.03
        worker = started(server, file, 2)
        give_up = time.monotonic() + 240
        while len(server.chats) < stop_at:
            assert time.monotonic() < give_up
            assert worker.is_alive()
            time.sleep(0.005)
        worker.kill()
        worker.join()
    server.reset()
    server.responder = follow
    finish(*(started(server, file, 4) for _ in range(2)))
    assert len(server.chats) > 0
    assert len({chat.text for chat in server.chats}) < whole - 6
    assert reports(tmp_path, "kept") == [wanted, wanted]
    asked(server)
    finish(started(server, file, 4))
    assert asked(server) == (0, 0)
