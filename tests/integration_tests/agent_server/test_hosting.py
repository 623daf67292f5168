"""The files on the hosting page serve the documented graphs and sign-in."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from langgraph_sdk import get_sync_client

from tests.conftest import COLD
from tests.documents import ROOT, code, file_of, table
from tests.integration_tests.agent_server.support import CASE, ask, new_thread, resume, started
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

SECRET = "a secret of the proxy"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hosted")
    config = json.loads(file_of("hosting.md", "langgraph.json"))
    text = (ROOT / "docs" / "hosting.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^\{\"auth\".*\}$", text, re.MULTILINE)
    (folder / "auth.py").write_text(file_of("hosting.md", "auth.py"), encoding="utf-8")
    criteria = [{"name": name, "instructions": "Is it right?"} for name in ("first", "second")]
    (folder / "criterion.json").write_text(json.dumps(criteria), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, LoopbackServer() as models:
        patch.setenv("PROXY_SECRET", SECRET)
        patch.setenv("MEMALIGN_CRITERION", "criterion.json")
        with started(folder, models, config | json.loads(line)) as running:
            yield running
        assert models.errors == []


def headers(user: str, secret: str = SECRET) -> dict[str, str]:
    return {"X-Forwarded-User": user, "X-Proxy-Secret": secret}


def test_documented_graphs_are_served(url: str) -> None:
    rows = {code(row[0])[0]: row for row in table("docs/hosting.md", "graph")}
    with get_sync_client(url=url, headers=headers("ann")) as client:
        made = client.assistants.search(metadata={"created_by": "system"})
        assert {thread_id["graph_id"] for thread_id in made} == set(rows)
        for thread_id in made:
            schemas = client.assistants.get_schemas(thread_id["assistant_id"])
            _, takes, gives = rows[thread_id["graph_id"]]
            takes = rows["judge"][1] if takes == "as `judge`" else takes
            for cell, kind in (takes, "input_schema"), (gives.partition(",")[0], "output_schema"):
                assert set(code(cell)) <= set(schemas[kind]["properties"])  # type: ignore[literal-required]


def test_only_users_of_the_proxy_can_answer(url: str) -> None:
    with get_sync_client(url=url, headers=headers("ann")) as client:
        for _ in range(2):
            ask(client, thread := new_thread(client))
        assert resume(client, thread, COLD)["learned"]["guidelines"]
    studio = {"x-auth-scheme": "langsmith", "Cookie": "memalign_name=ann"}
    for wrong in ({}, headers("bob", "guess"), headers(""), studio):
        assert httpx.get(f"{url}/review", headers=wrong, trust_env=False).status_code == 401
        assert httpx.get(f"{url}/threads/x", headers=wrong, trust_env=False).status_code == 401
    for user, other in ("ann", "bob"), ("bob", "ann"):
        with httpx.Client(headers=headers(user), trust_env=False, base_url=url) as browser:
            queue = browser.get("/review")
            assert queue.status_code == 200
            assert CASE["outputs"] in queue.text
            assert "not checked" not in queue.text
            assert (user in queue.text, other in queue.text) == (True, False)
            guidelines = browser.get("/review/learned/first").text
            assert ("Go back to this" in guidelines) == (user == "ann")
