"""Experts' answers: stored at once as feedback, distilled in the background.

If the server stops before an answer is distilled, its feedback stays pending and is distilled with
the next answer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from memalign_graph.errors import MemAlignError
from memalign_graph.interrupts import JUDGMENT_ID
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.feedback import date_after_known, remember
from memalign_graph.review import threads
from memalign_graph.review.forms import CasePayload, answers_another, feedback_of
from memalign_graph.review.tasks import Reviewer

logger = logging.getLogger(__name__)

Notice = tuple[str, str]
"""A level (`good`, `warn`, `bad`) and a sentence that an expert is shown."""

_DRAIN_TIMEOUT_S = 20
_STORED = "Your answer is stored, and learned from later"


@dataclass(frozen=True)
class Answer:
    """An expert's reply to a case."""

    reviewer: Reviewer
    task_id: str
    case: CasePayload
    reply: dict[str, Any]
    given_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def thread_id(self) -> str:
        """The thread that waits for it; empty if none does."""
        return threads.parse_task_id(self.task_id)[0]


class Answers:
    """Stores answers, learns from them, and tells experts the result."""

    def __init__(
        self, access: Callable[[str, list[str]], MemoryAccess], feedback_graph: Callable[[str], Any]
    ) -> None:
        """Take functions that return a criterion's memory and its compiled feedback graph."""
        self._access, self._feedback_graph = access, feedback_graph
        self.learning: dict[asyncio.Task[None], str] = {}
        """The tasks whose answers are being distilled."""
        self._notices: dict[tuple[str, str], list[Notice]] = {}
        """By the account and the name of the expert."""

    async def submit(self, answer: Answer) -> asyncio.Task[None]:
        """Store an answer; returns the background task that distills it."""
        feedback = feedback_of(answer.case, answer.reply)
        accesses = {name: self._access(name, answer.case["namespace"]) for name in feedback}
        # All parts of an answer have one date, after what other servers' clocks have dated.
        dates = [answer.given_at]
        for name, part in feedback.items():
            view = await accesses[name].refresh(ASYNC)
            dates.append(date_after_known(view, part.episode_id, answer.given_at))
        answer = replace(answer, given_at=max(dates))
        for name, part in feedback.items():
            dated = part.model_copy(update={"given_at": answer.given_at})
            # Before any model is called: the next search embeds the case.
            await remember(ASYNC, accesses[name], [dated], embeds=False)
        learning = asyncio.create_task(self._learn(answer))
        self.learning[learning] = answer.task_id
        learning.add_done_callback(self.learning.pop)
        return learning

    def take_notices(self, reviewer: Reviewer) -> list[Notice]:
        """Return the results of an expert's answers that the expert has not seen yet."""
        return self._notices.pop((reviewer.account, reviewer.name), [])

    async def drain(self) -> None:
        """Wait up to 20 seconds for the answers that are being distilled."""
        if self.learning:
            await asyncio.wait(self.learning, timeout=_DRAIN_TIMEOUT_S)

    async def _learn(self, answer: Answer) -> None:
        reviewer, task_id = answer.reviewer, answer.task_id
        try:
            newest_reply, run = partial(self._newest, answer), None
            if answer.thread_id:
                run = await threads.resume(reviewer.client, task_id, answer.case, newest_reply)
            newest = await newest_reply()
            if newest is None:
                return  # the expert took the answer back
            if answer.thread_id:
                notice = await self._resumed_notice(answer, newest, run)
            else:
                notice = await self._teach(answer, newest)
        except Exception as error:  # no caller awaits this task, so the expert gets a notice
            logger.exception("Learning from the answer to %s failed", task_id)
            notice = ("bad", f"{_STORED}: {error}")
        self._notices.setdefault((reviewer.account, reviewer.name), []).append(notice)

    async def _newest(self, answer: Answer) -> dict[str, Any] | None:
        """Return the reply with the expert's later changes; None if it was taken back.

        The reply names its date, because its run may begin much later, and its judgment, because a
        thread may have judged again. A question whose comment has changed since stays open.
        """
        case, reply, fields = answer.case, answer.reply, {"value", "rationale"}
        is_panel = case["kind"] == "panel"
        newest: dict[str, Any] = {}
        for name, feedback in feedback_of(case, reply).items():
            key, part = feedback.episode_id, reply[name] if is_panel else reply
            episode = (await self._access(name, case["namespace"]).episodes(ASYNC, [key])).get(key)
            if episode is None:
                continue
            if episode.given_at > answer.given_at:
                if case["kind"] == "question":
                    continue
                rest = {key: value for key, value in part.items() if key not in fields}
                part = rest | episode.model_dump(include=fields, exclude_none=True)
            newest[name] = {**part, "given_at": max(answer.given_at, episode.given_at).isoformat()}
            if case["kind"] != "question" and name in case["judgments"]:
                newest[name][JUDGMENT_ID] = case["judgments"][name]["id"]
        if not is_panel:
            return next(iter(newest.values()), None)
        return {"author": reply["author"], **newest} if newest else None

    async def _resumed_notice(
        self, answer: Answer, reply: Mapping[str, Any], run: Mapping[str, Any] | None
    ) -> Notice:
        """Say what came of the run that was resumed with the answer, if any."""
        case = answer.case
        if run is None:
            return "warn", f"The case was answered before, or its thread is gone. {_STORED}."
        if run["status"] in ("error", "timeout"):
            return "warn", f"The run of this case failed. {_STORED}."
        thread_id, interrupt_id = threads.parse_task_id(answer.task_id)
        thread = await threads.load_thread(answer.reviewer.client, thread_id)
        pending = threads.cases_of(thread, case["criteria"])
        still = pending.get(interrupt_id, {})
        if all(still.get(key) == case[key] for key in ("kind", "example")):
            return "warn", f"This case still waits: answer it again. {_STORED}."
        if any(each["kind"] == "question" for each in pending.values()):
            return "good", "Your answer is stored. A question about your comment waits now."
        if answers_another(case, reply):
            return "good", f"{_STORED}."
        learned = (thread.get("values") or {}).get("learned") or {}
        return _learned_notice(learned.values() if case["kind"] == "panel" else [learned])

    async def _teach(self, answer: Answer, reply: dict[str, Any]) -> Notice:
        """Run the feedback graph on the answer to a kept judgment."""
        [name], judgment_id = answer.case["criteria"], answer.task_id.rpartition("-")[2]
        try:
            result = await self._feedback_graph(name).ainvoke(
                {"judgment_id": judgment_id, "reply": reply},
                context={"namespace": answer.case["namespace"]},
            )
        except MemAlignError as error:  # a model failed, or the judgment has expired
            return "warn", f"{_STORED}: {error}"
        return _learned_notice([result["learned"]])


def _learned_notice(learned: Iterable[Any]) -> Notice:
    """Say what was learned, from a review graph's `learned`."""
    results = [result for result in learned if result]
    texts = [change["text"] for result in results for change in result["guidelines"]]
    warnings = [text for result in results for text in result.get("warnings", [])]
    said = f"Learned: {'; '.join(texts)}" if texts else "Your answer is stored."
    if is_pending := not all(result["episode_ids"] for result in results):
        said = f"{_STORED}:"
    return "warn" if is_pending or warnings else "good", " ".join([said, *warnings])
