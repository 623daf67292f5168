"""Imports of the integrations, missing extras, and conversion to JSON."""

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from memalign_graph import InvalidInputError, Judge, integrations
from memalign_graph.integrations.ray import _Worker, judge_dataset
from memalign_graph.integrations.recorded import plain_json
from tests.conftest import CRITERION, Bench


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r'as_mlflow_scorer needs the extra "mlflow"'):
        integrations.as_mlflow_scorer(bench.judge_graph())


def test_ray_dataset_that_cannot_be_judged_is_refused(bench: Bench) -> None:
    judge = Judge(criterion=CRITERION, **bench.models())
    kept, required = judge.but(keep_judgments=timedelta(days=1)), judge.but(require_namespace=True)
    for columns, refused, named in (
        (["inputs", "value"], judge, "dataset: it has a column 'value' already"),
        (None, kept, "keep_judgments: leave it out"),
        (None, required, "namespace: none was given"),
    ):
        dataset = SimpleNamespace(columns=Mock(return_value=columns))
        with pytest.raises(InvalidInputError, match=f"^{named}"):
            judge_dataset(dataset, refused, store=lambda: bench.store)
    # Ray may not know the columns when the dataset is given.
    batch = SimpleNamespace(column_names=["inputs", "outputs", "value"])
    with pytest.raises(InvalidInputError, match=r"^dataset: it has a column 'value' already"):
        _Worker(judge, lambda: bench.store, None, {})(batch)


class Answer(BaseModel):
    at: datetime


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int


def test_application_objects_become_json() -> None:
    state: dict[str, Any] = {
        "messages": [HumanMessage("Where is it?")],
        "answer": Answer(at=datetime(2025, 3, 1, tzinfo=UTC)),
        "rest": (Order(7), Colour.RED, UUID(int=0), Decimal("1.50"), date(2025, 3, 1), None, True),
    }
    assert plain_json(state) == {
        "messages": [{"role": "user", "content": "Where is it?"}],
        "answer": {"at": "2025-03-01T00:00:00Z"},
        "rest": [{"number": 7}, "red", str(UUID(int=0)), "1.50", "2025-03-01", None, True],
    }
    nothing = object()
    assert plain_json(nothing) is nothing, "the example says that it is no JSON"
