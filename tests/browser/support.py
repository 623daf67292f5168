"""Helpers for browser tests: experts, and a review page over one memory."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

from playwright.sync_api import BrowserContext

from memalign_graph import Criterion, Episode, JudgeMemory, create_judge_graph
from memalign_graph.local import open_local_store
from tests.conftest import CRITERION
from tests.integration_tests.agent_server.support import free_port, serving
from tests.loopback import LoopbackServer

T = TypeVar("T")

SCREENS = {"case": "form.answer", "queue": "h1:text('Cases that wait')"}
UNANSWERED = "Failed to load resource"  # tests check refusals themselves


class Expert:
    """An expert's browser session; records console and network errors."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url, self.trouble = context, url, list[str]()
        self.page = page = context.new_page()
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("dialog", lambda dialog: self._note(dialog.message))
        page.on("request", lambda sent: self._note(sent.url, is_bad=not sent.url.startswith(url)))
        page.on("response", lambda got: self._note(got.url, is_bad=got.status >= 500))
        page.on(
            "console",
            lambda it: self._note(it.text, is_bad=it.type == "error" and not _is_known(it)),
        )

    def go(self, path: str = "", *, on: str = "") -> None:
        self.page.goto(f"{self.url}/review{path}")
        if on:
            self.see(on)

    def see(self, screen: str) -> None:
        """Wait until a page is loaded."""
        self.page.wait_for_selector(SCREENS[screen])

    def settle(self) -> None:
        """Wait until the form is submitted and the response is shown."""
        # Not wait_for_function: the page's Content-Security-Policy forbids eval.
        self.page.wait_for_selector("[aria-busy]", state="detached")
        self.page.wait_for_load_state("load")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def turn(self, key: str = "Enter", *, to: str = "", is_held: bool = False) -> None:
        """Press a key that opens another page."""
        with self.page.expect_navigation():
            self.page.keyboard.down(key)
        for _ in range(20 if is_held else 0):
            self.page.keyboard.down(key)
            self.page.wait_for_timeout(20)
        self.page.keyboard.up(key)
        if to:
            self.see(to)

    def fill(self, digit: str, words: str = "") -> None:
        """Fill in the form of a case with the keyboard."""
        self.see("case")
        self.press(digit)
        if words:
            self.press("w")
            self.page.keyboard.type(words)
            self.press("Escape")

    def answer(self, digit: str, words: str = "") -> None:
        self.fill(digit, words)
        self.turn()

    def preview(self) -> None:
        """Open the preview of an answer: predicted changes and proposed guideline."""
        self.press("p", "r")
        self.page.wait_for_selector("#effect h2")
        self.page.wait_for_selector("#rule :text('heed the expert')")

    @property
    def question(self) -> str:
        return str(self.page.get_attribute("[data-case]", "data-case"))

    @property
    def text(self) -> str:
        return self.page.inner_text("body")

    def notice(self) -> str:
        """Wait for the notice about an answer, which may appear on a later page."""
        for _ in range(100):
            if notice := self.page.inner_text("#notices").strip():
                return notice
            self.page.wait_for_timeout(200)
            self.go()
        raise AssertionError(f"nothing is told: {self.text}")

    def _note(self, message: str, *, is_bad: object = True) -> None:
        if is_bad:
            self.trouble.append(message)


def _is_known(message: Any) -> bool:
    return str(message.text).startswith(UNANSWERED)


def in_thread(call: Callable[[], T]) -> T:
    """Call in another thread, since this one runs Playwright's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@dataclass
class Shop:
    """A memory in a file with kept judgments, and its review page."""

    folder: Path
    models: LoopbackServer
    criterion: Criterion = CRITERION
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def keep(self, *cases: dict[str, Any]) -> None:
        """Judge cases and keep the judgments."""
        builder = create_judge_graph(
            self.criterion,
            model=self.models.chat_model(),
            embeddings=self.models.embedder(),
            keep_judgments=timedelta(days=30),
        )

        def judge() -> None:
            with open_local_store(self.folder / "memory.db") as store:
                builder.compile(store=store).batch(list(cases), {"max_concurrency": 1})

        in_thread(judge)

    def episodes(self) -> list[Episode]:
        def read() -> list[Episode]:
            with open_local_store(self.folder / "memory.db") as store:
                embeddings = self.models.embedder()
                return JudgeMemory(store, self.criterion, embeddings=embeddings).episodes()

        return in_thread(read)

    @contextmanager
    def open(self) -> Iterator["Popen[bytes]"]:
        file = self.folder / "criterion.json"
        file.write_text(self.criterion.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "memalign_graph.cli", "review"]
        command += ["--criterion", str(file), "--memory", "memory.db", "--port", str(self.port)]
        with serving(command, f"{self.url}/review", self.folder, self.models) as process:
            yield process


Bring = Callable[..., Expert]


def case(number: int) -> dict[str, Any]:
    return {"inputs": f"Where is parcel {number}?", "outputs": f"Answer number {number}."}
