"""Helpers for tests of panels: criteria, panels and judge answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from memalign_graph import Boolean, Categorical, Criterion, Numeric, Pairwise, create_panel_graph
from memalign_graph.scales import Scale
from tests.conftest import CASE, COLD, DOWN, Bench, Graph, judgings
from tests.integration_tests.gates.support import models
from tests.loopback import ChatRequest, LoopbackServer, Rule

GRADES = Numeric(minimum=1, maximum=3, integer=True)
ASPECTS = (
    *("installation", "exploration", "imputation", "features", "training"),
    *("prediction", "metrics", "plots", "explanation"),
)
PAIR = {"inputs": "My order never came.", "outputs": ["Sorry! We look into it.", "Wait."]}


def criterion(name: str, scale: Scale | None = None) -> Criterion:
    return Criterion(name=name, instructions=f"How is the {name}?", scale=scale or Boolean())


NINE = [criterion(name, GRADES) for name in ASPECTS]
TONE, FACTS, LENGTH = THREE = [criterion(name) for name in ("tone", "facts", "length")]
NAMES = [criterion.name for criterion in THREE]
MIXED = [
    criterion("polite"),
    criterion("grade", GRADES),
    criterion("share", Numeric(minimum=0, maximum=1)),
    criterion("level", Categorical(choices=("Poor", "Fair", "Good"), ordered=True)),
    criterion("kind", Categorical(choices=("Question", "Complaint"))),
    criterion("better", Pairwise()),
]


class Parent(TypedDict, total=False):
    """A graph that has panels for nodes."""

    inputs: Any
    outputs: Any
    judgments: dict[str, Any]
    errors: dict[str, Any]
    feedback: dict[str, Any] | None
    learned: dict[str, Any]


def panel(bench: Bench, criteria: Sequence[Criterion] = tuple(THREE), **options: Any) -> Graph:
    """A panel with the bench's models, without retries."""
    return bench.compile(create_panel_graph(list(criteria), **models(bench, **options)))


def reviewed(bench: Bench, criteria: Sequence[Criterion] = tuple(THREE), **options: Any) -> Graph:
    return panel(bench, criteria, review="always", **options)


def asks_about(name: str, purpose: str = "judgment") -> Callable[[ChatRequest], bool]:
    return lambda chat: f'Criterion "{name}":' in chat.text and chat.schema_name == purpose


def judged(**values: Any) -> list[Rule]:
    return [Rule(asks_about(name), value=value) for name, value in values.items()]


def fails(name: str, reply: Any = DOWN) -> Rule:
    return Rule(asks_about(name), reply=reply)


def fails_to_distil(name: str, reply: Any = DOWN) -> Rule:
    return Rule(asks_about(name, "guideline_operations"), reply=reply)


def judged_names(server: LoopbackServer, names: Sequence[str] = NAMES) -> list[str]:
    """The criterion of each judge request."""
    return sorted(name for chat in judgings(server) for name in names if asks_about(name)(chat))


def values_of(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: judgment["value"] for name, judgment in result["judgments"].items()}


def form_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a result's only interrupt."""
    [interrupt] = result["__interrupt__"]
    [action] = interrupt.value["action_requests"]
    return dict(action)


def approved() -> dict[str, Any]:
    """The reply that confirms every value."""
    return {"decisions": [{"type": "approve"}]}


async def store_feedback(
    bench: Bench, criterion: Criterion, case: Any = CASE, **feedback: Any
) -> None:
    """Store feedback in one criterion's memory and clear the recorded requests."""
    await bench.remember({**case, **(feedback or COLD)}, criterion=criterion)
    bench.server.embeddings.clear()


async def learned_texts(
    bench: Bench, criteria: Sequence[Criterion], **options: Any
) -> dict[str, list[str]]:
    return {
        each.name: [rule.text for rule in await bench.guidelines(criterion=each, **options)]
        for each in criteria
    }
