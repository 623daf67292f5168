"""The package's door: what it names, and what it says when an extra is missing."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from memalign_graph import InvalidInputError, JudgeMemory, integrations
from memalign_graph.integrations.plain import plain_json
from tests.conftest import CRITERION


def test_every_public_name_is_there() -> None:
    for name in integrations.__all__:
        assert getattr(integrations, name)
    assert dir(integrations) == integrations.__all__ == sorted(integrations.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = integrations.nothing


def test_nothing_heavy_is_imported_with_it() -> None:
    code = (
        "import sys; from memalign_graph.integrations import *; "
        "print([one for one in ('mlflow', 'dspy', 'openevals', 'agentevals', 'langchain') "
        "if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def memory() -> JudgeMemory:
    return JudgeMemory(InMemoryStore(), CRITERION, embeddings=lambda texts: [[1.0] for _ in texts])


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dspy", None)
    with pytest.raises(ImportError, match=r'export_to_mlflow needs the extra "mlflow"'):
        integrations.export_to_mlflow(memory())
    with pytest.raises(ImportError, match=r'export_to_mlflow needs the extra "mlflow"'):
        await integrations.aexport_to_mlflow(memory())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model": "openai:gpt-4.1-mini"}, "model: 'openai:gpt-4.1-mini' is no model as MLflow"),
        ({"embedding_model": 7}, "embedding_model"),
        ({"reflection_lm": ""}, "reflection_lm"),
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"retrieval_k": True}, "retrieval_k"),
    ],
)
def test_options_of_an_export_are_checked_first(options: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        integrations.export_to_mlflow(memory(), **options)
    assert str(caught.value).startswith(field)
    with pytest.raises(InvalidInputError, match=r"^memory: give a JudgeMemory"):
        integrations.export_to_mlflow("memory")  # type: ignore[arg-type]


class Answer(BaseModel):
    text: str
    at: datetime


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    message: HumanMessage


def test_what_applications_return_becomes_json() -> None:
    moment = datetime(2025, 3, 1, tzinfo=UTC)
    given = {
        "messages": [HumanMessage("Where is it?")],
        "answer": Answer(text="Here.", at=moment),
        "order": Order(7, HumanMessage("Now?")),
        "rest": (Colour.RED, UUID(int=0), Decimal("1.50"), date(2025, 3, 1), moment, None, True),
    }
    assert plain_json(given) == {
        "messages": [{"role": "user", "content": "Where is it?"}],
        "answer": {"text": "Here.", "at": "2025-03-01T00:00:00Z"},
        "order": {"number": 7, "message": {"role": "user", "content": "Now?"}},
        "rest": [
            "red",
            str(UUID(int=0)),
            "1.50",
            "2025-03-01",
            "2025-03-01T00:00:00+00:00",
            None,
            True,
        ],
    }
    nothing = object()
    assert plain_json(nothing) is nothing
