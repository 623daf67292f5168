"""Review tasks on threads of an Agent Server: list them, load one, resume its run."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any

from langgraph_sdk.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableEntityError,
)

from memalign_graph.errors import InvalidInputError
from memalign_graph.interrupts import CASE_KEYWORD
from memalign_graph.review.forms import CasePayload, answers_another, shown_judgments
from memalign_graph.review.tasks import ReviewTask, make_task
from memalign_graph.types import Example

logger = logging.getLogger(__name__)

_MAX_STATES = 100
_REPEATED_CONFIG = {"recursion_limit", "tags"}
_TASK_ID = re.compile(r"t-([0-9a-f-]{36})-(\w+)")


def parse_task_id(task_id: str) -> tuple[str, str]:
    """Return the ids of a task's thread and interrupt; empty for a kept judgment."""
    parts = _TASK_ID.fullmatch(task_id)
    return (parts[1], parts[2]) if parts else ("", "")


def cases_of(thread: Mapping[str, Any], criteria: Mapping[str, Any]) -> dict[str, CasePayload]:
    """Return the cases that a thread asks about, by interrupt id, if the page can show them.

    They get the criteria that are served: the scale may have changed since the thread asked.
    """
    cases: dict[str, CasePayload] = {}
    for interrupt in chain(*(thread.get("interrupts") or {}).values()):
        case = (interrupt.get("response_schema") or {}).get(CASE_KEYWORD)
        if case and _can_show(case, criteria):
            served = {name: criteria[name] for name in case["criteria"]}
            cases[interrupt["id"]] = {**case, "criteria": served}
    return cases


def _can_show(case: CasePayload, criteria: Mapping[str, Any]) -> bool:
    """Return whether the criteria are served, and the page has a form for the case.

    It has none for guidelines that contradict each other.
    """
    if case["kind"] == "conflicts" or not {*case["criteria"]} <= {*criteria}:
        return False
    try:
        Example.model_validate(case["example"])
        shown_judgments(case)
    except (KeyError, ValueError) as error:  # of another version: it waits for a page of that one
        logger.warning("A question about %s is not listed: %s", [*case["criteria"]], error)
        return False
    return True


async def list_tasks(
    client: Any, criteria: Mapping[str, Any], max_tasks: int
) -> tuple[list[ReviewTask], int]:
    """List the oldest tasks, skipping threads with other interrupts, and count all."""
    tasks: list[ReviewTask] = []
    total, offset = await client.threads.count(status="interrupted"), 0
    while len(tasks) < max_tasks:
        threads = await client.threads.search(
            status="interrupted",
            sort_by="updated_at",
            sort_order="asc",
            limit=max_tasks,
            offset=offset,
            select=["thread_id", "updated_at", "interrupts", "metadata"],
        )
        for thread in threads:
            reason = f"a run of {thread['metadata'].get('graph_id', 'a graph')!r} waits for it"
            asked_at = datetime.fromisoformat(thread["updated_at"])
            for interrupt_id, case in cases_of(thread, criteria).items():
                task = make_task(f"t-{thread['thread_id']}-{interrupt_id}", case, asked_at)
                tasks.append(replace(task, reasons=[*task.reasons, reason]))
        offset += len(threads)
        if len(threads) < max_tasks:
            total = min(total, len(tasks))
            break
    return tasks, total


async def load_thread(client: Any, thread_id: str) -> Mapping[str, Any]:
    """Load a thread and its state's metadata; empty if this reviewer may not see it."""
    with suppress(NotFoundError, PermissionDeniedError, UnprocessableEntityError):
        thread = await client.threads.get(thread_id)
        state = await client.threads.get_state(thread_id)
        # A failed run empties the thread's interrupts; after a restart the state may have none.
        interrupts = {**(thread.get("interrupts") or {}), "state": state["interrupts"]}
        return {**thread, "interrupts": interrupts, "state_metadata": state["metadata"] or {}}
    return {}


async def load_case(
    client: Any, task_id: str, criteria: Mapping[str, Any], *, late: bool = False
) -> CasePayload | None:
    """Load a task's case; if late, also one that is answered, from earlier states."""
    thread_id, interrupt_id = parse_task_id(task_id)
    if client is None or not thread_id:
        return None
    thread = await load_thread(client, thread_id)
    cases = cases_of(thread, criteria)
    if late and thread and interrupt_id not in cases:
        for state in await client.threads.get_history(thread_id, limit=_MAX_STATES):
            cases |= cases_of({"interrupts": {"": state["interrupts"]}}, criteria)
    return cases.get(interrupt_id)


async def resume(
    client: Any,
    task_id: str,
    case: CasePayload,
    newest_reply: Callable[[], Awaitable[dict[str, Any] | None]],
) -> Mapping[str, Any] | None:
    """Resume a thread's interrupt and wait for the run; None if it was answered before.

    Another run may hold the thread for minutes, so the reply is read before each attempt. Without
    a reply nothing is resumed.
    """
    thread_id, interrupt_id = parse_task_id(task_id)
    while interrupt_id in cases_of(
        thread := await load_thread(client, thread_id), case["criteria"]
    ):
        reply = await newest_reply()
        if reply is None:
            return None
        if answers_another(case, reply):
            # Feedback of its own on another's comment: the thread goes on without it.
            reply = {"type": "approve"}
        with suppress(ConflictError):  # the thread has another run in flight
            run = await client.runs.create(
                thread_id,
                command={"resume": {interrupt_id: reply}},
                multitask_strategy="reject",
                **await _settings_of_asking_run(client, thread),
            )
            await client.runs.join(thread_id, run["run_id"])
            done: Mapping[str, Any] = await client.runs.get(thread_id, run["run_id"])
            return done
        await asyncio.sleep(1)
    return None


async def _settings_of_asking_run(client: Any, thread: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run that resumes the thread must repeat.

    A resume without a context gets the assistant's, which may be another customer's.
    """
    try:
        run = await client.runs.get(thread["thread_id"], thread["state_metadata"]["run_id"])
    except (KeyError, NotFoundError):  # a run is deleted with its state
        raise InvalidInputError(
            "The thread does not name the run that asked, whose context it needs to go on. Resume "
            "the thread from your application, with the same context."
        ) from None
    given = run["kwargs"]
    # The rest of the config is the server's own.
    config = {key: given["config"][key] for key in given["config"].keys() & _REPEATED_CONFIG}
    # Not as a `context`, of which the server drops what the graph's schema lacks.
    config["configurable"] = {
        key: value for key, value in given["context"].items() if not key.startswith("checkpoint_")
    }
    return {"assistant_id": run["assistant_id"], "webhook": given.get("webhook"), "config": config}
