"""Two Agent Servers that share a Postgres database."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_sync_client

from tests.conftest import COLD, judgings
from tests.documents import file_of
from tests.integration_tests.agent_server.support import (
    CASE,
    ask,
    langgraph_dev,
    new_thread,
    resume,
    run,
)
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside


def test_review_started_on_one_server_is_resumed_on_another_and_both_learn(
    postgres_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMALIGN_STORE", postgres_uri)
    module = tmp_path / "on_postgres.py"
    module.write_text(file_of("hosting.md", module.name))
    graphs: Any = {name: {"path": f"{module}:own_{name}"} for name in ("store", "checkpointer")}
    with ExitStack() as stack:
        models = stack.enter_context(LoopbackServer())
        clients = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            serving = langgraph_dev(tmp_path / name, models, graphs={}, **graphs)
            clients.append(stack.enter_context(get_sync_client(url=stack.enter_context(serving))))
        one, other = clients
        thread = new_thread(one)
        ask(one, thread)
        # Thread state is in the database, but each server keeps its own list of threads.
        other.threads.create(thread_id=thread)
        learned = resume(other, thread, COLD)["learned"]
        judgment = run(one, new_thread(one), "judge", input=CASE)["judgment"]
        assert judgment["memory_version"] == learned["memory_version"]
        assert judgment["guideline_ids"] == [
            guideline["guideline_id"] for guideline in learned["guidelines"]
        ]
        assert judgment["guideline_ids"]
        assert len(judgings(models)) == 2
