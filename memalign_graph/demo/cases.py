"""The demo's cases: a criterion, cases an expert speaks on, and cases the judge has not seen."""

from importlib import resources
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

from memalign_graph.scales import Value
from memalign_graph.types import Criterion

CASE_FILES = ("sql", "saf")
"""The case files that come with the demo, in the order they are run."""


class ExpertWord(BaseModel):
    """What the expert says of a case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Value
    """What the value should be."""

    rationale: str | None = None
    """Why; given for the cases that are taught."""


class Case(BaseModel):
    """One case, and the expert's word on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    inputs: JsonValue
    outputs: JsonValue
    expert: ExpertWord


class CaseFile(BaseModel):
    """A set of cases on one criterion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    """What it is about."""

    source: str
    """Where the cases are from, with the licence."""

    criterion: Criterion
    """What is judged."""

    taught: list[Case]
    """Cases the expert speaks on."""

    unseen: list[Case]
    """Cases the judge meets before and after, without a word from the expert."""

    @classmethod
    def load(cls, name: str) -> Self:
        """Load one of the case files."""
        text = resources.files(__package__).joinpath("cases", f"{name}.json").read_text("utf-8")
        return cls.model_validate_json(text)
