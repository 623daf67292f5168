"""A batch API: a file of requests, and a shuffled file of responses."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.loopback.server import LoopbackServer


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def answer_batch(server: LoopbackServer, requests: Path, results: Path) -> list[Any]:
    """Answer a batch as OpenAI does; returns the requests."""
    requests_in_file = lines_of(requests)
    answers = [_answer(server, request) for request in requests_in_file]
    write_lines(results, reversed(answers))
    return requests_in_file


def write_lines(path: Path, lines: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def ids_of(requests: Sequence[Any]) -> list[str]:
    return [request["custom_id"] for request in requests]


def _answer(server: LoopbackServer, request: Any) -> Any:
    assert request["method"] == "POST"
    url = server.base_url.removesuffix("/v1") + request["url"]
    reply = httpx.post(url, json=request["body"], trust_env=False, timeout=60)
    response = {"status_code": reply.status_code, "request_id": "r", "body": reply.json()}
    return {"id": "b", "custom_id": request["custom_id"], "response": response, "error": None}
