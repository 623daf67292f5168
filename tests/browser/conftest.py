"""One Chromium for all tests of the review page, and experts with separate sessions."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.support import Bring, Expert, Shop
from tests.loopback import LoopbackServer

TIMEOUT_MS = 60_000


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "These tests need Chromium: install the package `chromium`."
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def expert(chromium: Browser) -> Iterator[Bring]:
    """Open a browser session for an expert. The test fails on any error in the session."""
    experts: list[Expert] = []

    def bring(url: str, name: str = "", **options: Any) -> Expert:
        context = chromium.new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        if name:
            context.add_cookies([{"name": "memalign_name", "value": name, "url": f"{url}/review"}])
        experts.append(Expert(context, url))
        return experts[-1]

    yield bring
    for label in experts:
        label.context.close()
    assert [label.trouble for label in experts] == [[]] * len(experts)


@pytest.fixture
def shop(server: LoopbackServer, tmp_path: Path) -> Shop:
    return Shop(tmp_path, server)
