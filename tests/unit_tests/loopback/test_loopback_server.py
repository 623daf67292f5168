"""The server itself: connections, threads, what it leaves behind."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.loopback import (
    LoopbackServer,
    ReplyLike,
    Rule,
    Together,
)
from tests.unit_tests.loopback.schemas import Ask


def test_models_are_listed(server: LoopbackServer) -> None:
    model = server.chat_model()
    assert [one.id for one in model.root_client.models.list()] == ["loopback"]


def test_reset(server: LoopbackServer) -> None:
    server.script("Left over.")
    server.latency_s = 5
    server.rules.append(Rule(lambda _: True, reply="By rule."))
    server.responder = lambda _: "By responder."
    server.embedder().embed_query("text")
    server.reset()
    assert "nothing to add" in str(server.chat_model().invoke("Hello.").content)
    assert (len(server.chats), len(server.embeddings)) == (1, 0)


def test_many_threads_at_once(server: LoopbackServer) -> None:
    server.responder = Together(64, lambda request: request.text)
    model = server.chat_model()
    prompts = [f"prompt {number}" for number in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = [message.content for message in pool.map(model.invoke, prompts)]
    assert answers == prompts
    assert sorted(request.text for request in server.chats) == sorted(prompts)
    assert server.peak_chats == 64


async def test_many_tasks_at_once(server: LoopbackServer) -> None:
    server.responder = lambda request: request.text
    model = server.chat_model()
    prompts = [f"prompt {number}" for number in range(64)]
    answers = await asyncio.gather(*map(model.ainvoke, prompts))
    assert [message.content for message in answers] == prompts


def test_connections_are_kept_alive(server: LoopbackServer) -> None:
    model = server.chat_model()
    threads: set[str | int | None] = set()

    def who(_: object) -> ReplyLike:
        threads.add(threading.get_ident())
        return "Here."

    server.responder = who
    for _ in range(5):
        model.invoke("Hello.")
    assert len(threads) == 1


async def test_a_server_that_went_away_and_came_back(ask: Ask) -> None:
    with LoopbackServer() as first:
        model = first.chat_model(max_retries=0)
        await ask(model)
    with pytest.raises(openai.APIConnectionError):
        await ask(model)
    with LoopbackServer(port=first.port) as second:
        await ask(model)
        assert len(second.chats) == 1
        first.stop()


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    with LoopbackServer() as server:
        model, embedder = server.chat_model(), server.embedder()
        for _ in range(2):  # two event loops, each closed after its call
            asyncio.run(model.ainvoke("Hello."))
            asyncio.run(embedder.aembed_query("Hello."))
        model.invoke("Hello.")
        port = server.port
    server.stop()
    assert set(threading.enumerate()) <= before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    del model, embedder, server
    assert_no_unclosed_sockets()


def test_clients_of_others_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(keep_alive=False) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        model = ChatOpenAI(model="gpt-4.1-mini")
        model.invoke("Hello.")
        asyncio.run(model.ainvoke("Hello."))
        list(model.stream("Hello."))
        OpenAIEmbeddings(check_embedding_ctx_length=False).embed_query("Hello.")
        assert (len(server.chats), len(server.embeddings)) == (3, 1)
    del model
    assert_no_unclosed_sockets()


def test_a_proxy_in_the_environment_is_not_asked(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.chat_model().invoke("Hello.")
    asyncio.run(server.embedder().aembed_query("Hello."))
    assert (len(server.chats), len(server.embeddings)) == (1, 1)


def test_as_a_process() -> None:
    command = [sys.executable, "-m", "tests.loopback", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            with LoopbackServer() as here:
                model = here.chat_model(base_url=base_url)
                assert "nothing to add" in str(model.invoke("Hello.").content)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()


def assert_no_unclosed_sockets() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    assert [str(one.message) for one in caught] == []
