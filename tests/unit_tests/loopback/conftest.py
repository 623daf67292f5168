"""A loopback server, and the project's way to ask it, sync and async."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from langchain_core.language_models import BaseChatModel

from tests.loopback import (
    LoopbackServer,
)
from tests.unit_tests.loopback.schemas import YES_OR_NO, Ask


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running
    assert running.errors == []


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Ask for structured output in the project's way, synchronously or not."""

    async def ask_model(
        model: BaseChatModel, prompt: str = "Judge.", schema: dict[str, Any] = YES_OR_NO
    ) -> dict[str, Any]:
        judge = model.with_structured_output(schema, method="json_schema", include_raw=True)
        given = judge.invoke(prompt) if request.param == "sync" else await judge.ainvoke(prompt)
        return cast("dict[str, Any]", given)

    return ask_model
