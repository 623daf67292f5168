"""A review task, the lease of the reviewer who has it open, and the feedback in a reply to it.

While an expert has a task open, it is not offered to others. A lease lasts ten minutes unless it is
renewed. Leases are items of the store, so that all servers on one store see them. They hold names
and no comments.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import BaseStore, Item, PutOp

from memalign_graph.errors import visible
from memalign_graph.interrupts import REASONS
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import search_namespace
from memalign_graph.prompts.clarify import merge_clarification
from memalign_graph.prompts.fences import headline
from memalign_graph.review.blocks import tool_call
from memalign_graph.review.forms import criteria_of
from memalign_graph.transcript import goal_tools_answer, transcripts_in
from memalign_graph.types import Feedback

LEASE = timedelta(minutes=10)
_KEEP_LEASES = timedelta(days=1)
_NAMESPACE = ("memalign_review", "leases")
_HEADLINE_CHARS = 120

CasePayload = dict[str, Any]
"""The case of a task: `interrupts.case_payload`."""


@dataclass(frozen=True)
class Reviewer:
    """A user of the page."""

    name: str = ""
    verified: bool = False
    may_roll_back: bool = False
    client: Any = None
    """A client of the Agent Server with the reviewer's rights; None without a server."""
    account: str = ""
    """The reviewer's identity on the server, which may differ from the name."""


@dataclass
class ReviewTask:
    """A case that an expert is to answer."""

    id: str
    criteria: Sequence[str]
    inputs: str  # their first words
    title: str  # the first words of the outputs
    asked_at: datetime
    reasons: list[str]
    judgment_ids: frozenset[str]
    case: CasePayload = field(default_factory=dict)  # only in an open task
    ran_unasked: bool = False  # a tool call that ran without a question
    can_wait: bool = False  # no agent waits for it, and it was not drawn at random
    held_by: str | None = None
    skipped: bool = False

    @property
    def criterion(self) -> str:
        """The names of its criteria, to be shown."""
        return ", ".join(self.criteria)

    @property
    def age(self) -> str:
        """How long the task has been open, in words."""
        seconds = max((datetime.now(UTC) - self.asked_at).total_seconds(), 0)
        for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
            if seconds >= length:
                number = int(seconds // length)
                return f"{number} {unit}{'s' * (number > 1)}"
        return "just now"


def make_task(task_id: str, case: CasePayload, asked_at: datetime | None = None) -> ReviewTask:
    judgments, example = case["judgments"].values(), case["example"]
    codes = [code for each in judgments for code in (each.get("review") or {}).get("reasons", [])]
    # The page shows the judge's verdict only if the expert wants to see it.
    shown = [REASONS[code] for code in dict.fromkeys(codes) if code != "judged_wrong"]
    return ReviewTask(
        id=task_id,
        criteria=list(case["criteria"]),
        inputs=_goal(example["inputs"]),
        title=title_of(example["outputs"]),
        asked_at=asked_at or datetime.now(UTC),
        reasons=shown,
        judgment_ids=frozenset(judgment["id"] for judgment in judgments),
        ran_unasked=bool(tool_call(example["outputs"])) and any(map(_passed, judgments)),
    )


def _passed(judgment: Mapping[str, Any]) -> bool:
    """Return whether a judge let a call run without a question."""
    review = judgment.get("review") or {"asks": True}
    return judgment["value"] is True and not review["asks"]


def title_of(outputs: Any) -> str:
    """Return the first words of the outputs, or a tool call with its arguments."""
    if call := tool_call(outputs):
        arguments = (
            f"{key}={json.dumps(part, ensure_ascii=False)}" for key, part in call["args"].items()
        )
        outputs = f"{call['name']}({', '.join(arguments)})"
    return visible(headline(outputs, _HEADLINE_CHARS)) or "(empty)"


def _goal(inputs: Any) -> str:
    """Return the first words of the inputs; for a conversation, of its last question."""
    questions = goal_tools_answer(transcripts_in(inputs).get("", []))[0]
    return visible(headline(questions[-1] if questions else inputs, _HEADLINE_CHARS))


def answers_another(case: CasePayload, reply: Mapping[str, Any]) -> bool:
    """Return whether a reply answers the question about another expert's comment."""
    said = case.get("said") or {}
    return case["kind"] == "question" and said.get("author") not in (None, reply.get("author"))


def feedback_of(case: CasePayload, reply: Mapping[str, Any]) -> dict[str, Feedback]:
    feedback: dict[str, Feedback] = {}
    for name in case["criteria"]:
        about = {"example": case["example"], "judgment": case["judgments"].get(name)}
        answer = reply.get(name) if case["kind"] == "panel" else reply
        if case["kind"] == "question":
            earlier = Feedback.model_validate({**case["said"], **about})
            question = " ".join(case["asked"])
            if answers_another(case, reply):
                fields = {**reply, **about, "rationale": f"{question}\n{reply['rationale']}"}
                feedback[name] = Feedback.model_validate(fields)
            else:
                scale = criteria_of(case)[name].scale
                feedback[name] = merge_clarification(earlier, question, reply, scale)
        elif answer:
            fields = {"author": reply.get("author"), **answer, **about}
            feedback[name] = Feedback.model_validate(fields)
    return feedback


class Leases:
    """The leases in a store."""

    def __init__(self, store: Callable[[], BaseStore]) -> None:
        self._store = store

    async def all(self) -> list[Item]:
        """Return all leases, also those that have ended."""
        results: Any = await ASYNC.batch(self._store(), [search_namespace(_NAMESPACE)])
        # A memory may be in a namespace below.
        return [item for item in results[0] if tuple(item.namespace) == _NAMESPACE]

    async def renew(self, name: str, task_id: str) -> str | None:
        """Start or renew a lease; returns the expert who has an earlier one."""
        key, now = f"{task_id}:{name}", datetime.now(UTC).isoformat()
        leases = await self.all()
        begun = (lease.value["since"] for lease in leases if lease.key == key and _is_live(lease))
        lease = {"question": task_id, "who": name, "since": next(begun, now), "skipped": False}
        await self._put(key, {**lease, "seen": now})
        for old in leases:
            if _age(old.value["seen"]) > _KEEP_LEASES:
                await self._put(old.key, None)
        return holder_of(task_id, await self.all(), name)

    async def release(self, name: str, task_id: str, *, skip: bool = False) -> None:
        """End a lease; a skipped task is listed last for this expert."""
        now = datetime.now(UTC).isoformat()
        lease = {"question": task_id, "who": name, "since": now, "skipped": True, "seen": now}
        await self._put(f"{task_id}:{name}", lease if skip else None)

    def _put(self, key: str, value: Any) -> Awaitable[Any]:
        return ASYNC.batch(self._store(), [PutOp(_NAMESPACE, key, value, index=False)])


def holder_of(task_id: str, leases: Sequence[Item], name: str) -> str | None:
    """Return who opened a task first; None if nobody did, or this expert."""
    live = [
        lease.value for lease in leases if lease.value["question"] == task_id and _is_live(lease)
    ]
    first = min(live, key=lambda lease: (lease["since"], lease["who"]), default=None)
    return None if first is None or first["who"] == name else str(first["who"])


def _age(timestamp: str) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(timestamp)


def _is_live(lease: Item) -> bool:
    return not lease.value["skipped"] and _age(lease.value["seen"]) < LEASE
