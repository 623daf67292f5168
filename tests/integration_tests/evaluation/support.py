"""Helpers for tests of evaluations.

Each case's feedback has text of its own, so that a prompt shows which feedback it was made with.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Categorical,
    Criterion,
    Feedback,
    JudgeMemory,
    Numeric,
    Pairwise,
    evaluation,
)
from memalign_graph.evaluation import Report
from memalign_graph.scales import Scale
from tests.conftest import CRITERION
from tests.integration_tests import alignment_model
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike

START = datetime(2026, 1, 1, tzinfo=UTC)

_SCALES: dict[str, tuple[Scale, list[Any]]] = {
    "boolean": (CRITERION.scale, [True, False, True]),
    "categorical": (Categorical(choices=("warm", "cold", "odd")), ["warm", "cold", "odd", "cold"]),
    "ordered": (
        Categorical(choices=("poor", "fair", "good"), ordered=True),
        ["good", "poor", "fair", "good"],
    ),
    "stars": (Numeric(minimum=1, maximum=5, integer=True), [5, 1, 3, 4]),
    "number": (Numeric(minimum=0, maximum=10), [0.5, 9.25, 4.0, 7.5]),
    "pairwise": (Pairwise(), ["A", "B", "tie", "B"]),
}
"""Scales, and the experts' values of the cases in turn."""
SCALES = {
    name: CRITERION.model_copy(update={"scale": scale}) for name, (scale, _) in _SCALES.items()
}
"""A criterion on each scale."""


def record(number: int, *, values: Iterable[Any] = (True, False, True), **fields: Any) -> Any:
    """Feedback of one expert on one case."""
    values = list(values)
    return {
        "inputs": f"Case {number}: where is parcel {number * 7919 % 1000}?",
        "outputs": f"It left the depot at {number * 31 % 24} o'clock, says note {number}.",
        "value": values[number % len(values)],
        "rationale": f"On #t{number} because{number}so the reply has to name it.",
        "author": "ann",
        "given_at": (START + timedelta(minutes=number)).isoformat(),
        **fields,
    }


def records(count: int, scale: str = "boolean", **fields: Any) -> list[Any]:
    """Feedback of one expert on some cases."""
    made = [record(number, values=_SCALES[scale][1], **fields) for number in range(count)]
    if scale == "pairwise":
        for feedback in made:
            feedback["outputs"] = [feedback["outputs"], "Ask the post office."]
    return made


def shown(chat: ChatRequest) -> set[int]:
    """The numbers of all cases whose feedback is in a prompt."""
    return {int(number) for number in re.findall(r"because(\d+)so", chat.text)}


Model = partial(alignment_model.Model, distil=alignment_model.guideline_per_comment)
"""A model that turns comments into guidelines verbatim."""


def memory_of(
    server: LoopbackServer, feedback: Iterable[Any] = (), *guidelines: str
) -> JudgeMemory:
    """Build a memory with feedback and guidelines."""
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    remember(memory, *feedback)
    for text in guidelines:
        memory.add_guideline(text)
    return memory


def remember(memory: JudgeMemory, *feedback: Any) -> None:
    memory.remember([Feedback.model_validate(item) for item in feedback])


def contents(memory: JudgeMemory) -> Any:
    """All items of the memory's store."""
    store: Any = memory.access.store
    return [
        (item.namespace, item.key, item.value, item.created_at, item.updated_at)
        for item in store.search((), limit=10_000)
    ]


def nothing_to_learn(_: ChatRequest) -> ReplyLike:
    """Distill nothing."""
    return {"operations": []}


@dataclass
class Caller:
    """Calls evaluations with the loopback models, sync or async."""

    server: LoopbackServer
    defaults: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        awaits = options.pop("awaits", False)
        models = {} if "judges" in options else self.models()
        arguments = {**models, "progress": False, "resamples": 0, **self.defaults, **options}
        if awaits:
            return await getattr(evaluation, f"a{name}")(*args, **arguments)
        return getattr(evaluation, name)(*args, **arguments)

    def models(self) -> dict[str, Any]:
        return {"model": self.server.chat_model(), "embeddings": self.server.embedder()}

    async def evaluate(self, criterion: Criterion, feedback: Any, **options: Any) -> Report:
        report = await self("evaluate", criterion, feedback, **{"folds": 3, **options})
        assert isinstance(report, Report)
        return report


def asked(server: LoopbackServer) -> tuple[int, int]:
    """The numbers of chat and embedding calls since the last use."""
    counts = len(server.chats), len(server.embeddings)
    server.chats.clear()
    server.embeddings.clear()
    return counts


_OWN = ("id", "episode_ids", "guideline_ids", "memory_version", "given_at", "created_at")
_TIMES = ("updated_at", "position", "usage", "seconds")


def plain(result: Any) -> Any:
    """Results without ids, times and kept data, which differ between runs."""
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items() if key not in (*_OWN, *_TIMES)}
    return [plain(item) for item in result] if isinstance(result, list) else result


def calls(report: Any, *kinds: str, **of: str) -> int:
    """The number of chat calls in a report, by judge, stage or purpose."""
    rows = [row for row in report.usage if all(getattr(row, k) == v for k, v in of.items())]
    return sum(getattr(row, kind) for row in rows for kind in kinds or ["chat_calls"])


def answers(report: Any, **of: str) -> int:
    """The number of answers in a report, including cached ones."""
    return calls(report, "chat_calls", "cached_calls", **of)
