"""The questions that wait for experts, wherever they wait, and what becomes of the answers.

A question waits on a thread of the Agent Server, or as a kept judgment in a memory. While an expert
looks at one it is theirs for ten minutes at a time. An answer is feedback: it is stored in the
memory at once. Learning from it follows in the background; if the server stops before that, the
feedback is pending and the next lesson learns from it.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from langgraph.config import get_store
from langgraph.store.base import BaseStore, Item, PutOp
from langgraph_sdk.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableEntityError,
)

from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError
from memalign_graph.graphs import create_feedback_graph
from memalign_graph.interrupts import CASE_KEYWORD, JUDGMENT_ID, REASONS, case_payload
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess, search_namespace
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, unpacked
from memalign_graph.prompts.clarify import merge_clarification
from memalign_graph.prompts.fences import headline
from memalign_graph.runtime import JudgeResources
from memalign_graph.settings import Judge
from memalign_graph.types import Feedback

logger = logging.getLogger(__name__)

LEASE = timedelta(minutes=10)
_LEAVING = timedelta(seconds=90)
"""How long a case stays taken after its page was closed: another tab of it says so in time."""
_KEEP_LEASES = timedelta(days=1)
_LISTED = 100
_FRESH_S = 5.0
"""How old the list of what waits may be; an older one is still shown while it is read again."""
_SHARE = 50  # a list that is long to read is read more seldom
_SETTLING_S = 20
_LEASES = ("memalign_review", "leases")
_KEPT = "Your answer is kept, and learned from later"
_TOO_LATE = "Somebody else had answered this before you"
_MAX_OPENED = 1_000  # cases that browsers may have open
_MAX_NOTICES = 1_000  # notices of experts who may not come back to read them
_THREAD = re.compile(r"t-([0-9a-f-]{36})-(\w+)")

Case = dict[str, Any]
"""What a question is about: `interrupts.case_payload`."""


@dataclass(frozen=True)
class Visitor:
    """Who looks at the page."""

    name: str = ""
    verified: bool = False
    may_roll_back: bool = False
    client: Any = None
    """A client of the Agent Server that is allowed what the visitor is; None without a server."""
    account: str = ""
    """Who they are to the server, whatever they are called here."""


@dataclass
class Question:
    """A question that waits for an expert."""

    id: str
    criterion: str  # its name, or the names
    title: str
    asked_at: datetime
    reasons: list[str]
    judgments: frozenset[str]  # their ids
    case: Case = field(default_factory=dict)  # once it is open
    held_by: str | None = None
    skipped: bool = False

    @property
    def age(self) -> str:
        """How long it has waited, in words."""
        seconds = max((datetime.now(UTC) - self.asked_at).total_seconds(), 0)
        for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
            if seconds >= length:
                number = int(seconds // length)
                return f"{number} {unit}{'s' * (number > 1)}"
        return "just now"


@dataclass
class _Listing:
    """What waits in one place, as last read."""

    questions: list[Question] = field(default_factory=list)
    total: int = 0
    read_at: float = float("-inf")
    took: float = 0.0
    gone: set[str] = field(default_factory=set)  # since it was begun to be read
    reading: asyncio.Task[None] | None = None


class Desk:
    """The questions of some judges, and the answers to them."""

    def __init__(
        self,
        judges: Sequence[Judge],
        *,
        namespace: Sequence[str] = DEFAULT_NAMESPACE,
        store: BaseStore | None = None,
    ) -> None:
        """Serve the judges' memories in a store; without one, in the Agent Server's."""
        self.judges = {judge.criterion.name: judge for judge in judges}
        self.namespace = [*namespace]
        self._store = store
        self._parts = {name: JudgeResources(judge) for name, judge in self.judges.items()}
        self._graphs = {
            name: create_feedback_graph(judge.criterion, **judge.options)
            for name, judge in self.judges.items()
        }
        self._listings: dict[str, _Listing] = {}
        self._opened: dict[tuple[str, str], Case] = {}
        self._taking = asyncio.Lock()
        self._learning: dict[asyncio.Task[None], str] = {}
        """The questions whose answers are being learned from."""
        self._notices: deque[tuple[str, tuple[str, str]]] = deque(maxlen=_MAX_NOTICES)
        """What experts are to be told, by their names, each with its level."""

    @property
    def store(self) -> BaseStore:
        """Where the memories lie."""
        return get_store() if self._store is None else self._store

    def access(self, name: str, namespace: Sequence[str] | None = None) -> MemoryAccess:
        """Reach the memory of a criterion."""
        if name not in self._parts:
            raise InvalidInputError(f"There is no criterion {name!r} here.")
        settings = {"namespace": self.namespace if namespace is None else [*namespace]}
        return self._parts[name].memory(self.store, settings)

    def chat(self, name: str) -> Any:
        """Return the model that words a criterion's rules."""
        judge = self.judges[name]
        return self._parts[name].clients.distill_model(judge)

    async def questions(self, visitor: Visitor) -> tuple[list[Question], int]:
        """List the oldest questions for a visitor, those put off last, and count all."""
        places = self._places(visitor).items()
        listings = [await self._listing(key, read) for key, read in places]
        leases, taken = await self._search(_LEASES), {*self._learning.values()}
        listed = [it for listing in listings for it in listing.questions]
        on_threads = {key for it in listed if it.id.startswith("t-") for key in it.judgments}
        taken |= {it.id for it in listed if it.id.startswith("j-") and it.judgments <= on_threads}
        put_off = {it.key for it in leases if it.value["skipped"]}
        found = [
            replace(
                it,
                held_by=_holder(it.id, leases, visitor),
                skipped=f"{it.id}:{visitor.name}" in put_off,
            )
            for it in listed
            if it.id not in taken
        ]
        found.sort(key=lambda it: (it.skipped, it.held_by is not None, it.asked_at, it.id))
        total = sum(listing.total for listing in listings) - len(listed) + len(found)
        return found, max(total, len(found))

    def _places(self, visitor: Visitor) -> dict[str, Callable[[], Coroutine[Any, Any, _Listing]]]:
        places: dict[str, Callable[[], Coroutine[Any, Any, _Listing]]]
        places = {f"kept {name}": partial(self._kept, name) for name in self.judges}
        if visitor.client is not None:
            places[f"threads {visitor.account}"] = partial(self._waiting, visitor.client)
        return places

    def _drop(self, visitor: Visitor, question_id: str) -> None:
        """List a question no more."""
        for place in self._places(visitor):
            if listing := self._listings.get(place):
                listing.gone.add(question_id)
                left = [it for it in listing.questions if it.id != question_id]
                listing.total -= len(listing.questions) - len(left)
                listing.questions = left

    async def next(self, visitor: Visitor, criterion: str | None = None) -> str | None:
        """Take the first question that nobody else is looking at."""
        async with self._taking:  # of two who ask at once, each gets another
            found, _ = await self.questions(visitor)
            free = (it for it in found if it.held_by is None)
            ours = (it.id for it in free if criterion in (None, *it.criterion.split(", ")))
            taken = next(ours, None)
            if taken is not None:
                await self.hold(visitor, taken)
            return taken

    async def open(
        self, visitor: Visitor, question_id: str, *, late: bool = False
    ) -> Question | None:
        """Take a question for a while; None where it was never asked, or, unless late, answered."""
        case = await self._case(visitor, question_id, late=late)
        if case is None and late:
            case = self._opened.get((visitor.name, question_id))
        if case is None:
            self._drop(visitor, question_id)
            return None
        # What is open in a browser can be answered, also when its judgment is no longer in the
        # store. Only this process knows it then: another one must not store what a form claims.
        self._opened[visitor.name, question_id] = case
        while len(self._opened) > _MAX_OPENED:
            del self._opened[next(iter(self._opened))]
        holder = await self.hold(visitor, question_id)
        question = _question(question_id, ", ".join(case["criteria"]), case)
        return replace(question, case=case, held_by=holder)

    async def hold(self, visitor: Visitor, question_id: str) -> str | None:
        """Keep a question for the visitor; returns who had it before and has it still."""
        key, at = f"{question_id}:{visitor.name}", datetime.now(UTC).isoformat()
        leases = await self._search(_LEASES)
        since = next((it.value["since"] for it in leases if it.key == key and _is_live(it)), at)
        lease = {"question": question_id, "who": visitor.name, "since": since, "skipped": False}
        await self._put(_LEASES, key, {**lease, "seen": at})
        for old in leases:
            if _age(old.value["seen"]) > _KEEP_LEASES:
                await self._put(_LEASES, old.key, None)
        return _holder(question_id, await self._search(_LEASES), visitor)

    async def leave(self, visitor: Visitor, question_id: str) -> None:
        """Leave a question to others shortly, unless another tab of the visitor has it open."""
        key = f"{question_id}:{visitor.name}"
        for lease in await self._search(_LEASES):
            if lease.key == key and _is_live(lease):
                seen = datetime.now(UTC) - LEASE + _LEAVING
                await self._put(_LEASES, key, {**lease.value, "seen": seen.isoformat()})

    async def release(self, visitor: Visitor, question_id: str, *, skip: bool = False) -> None:
        """Leave a question to others; what is put off comes last."""
        at = datetime.now(UTC).isoformat()
        lease = {"question": question_id, "who": visitor.name, "since": at, "skipped": True}
        value = {**lease, "seen": at} if skip else None
        await self._put(_LEASES, f"{question_id}:{visitor.name}", value)

    async def answer(
        self, visitor: Visitor, question_id: str, case: Case, reply: dict[str, Any]
    ) -> None:
        """Store an answer, and learn from it in the background."""
        at = datetime.now(UTC)
        for name, said in feedback_of(case, reply).items():
            feedback = said.model_copy(update={"given_at": at})
            access = self.access(name, case["namespace"])
            try:
                await remember(ASYNC, access, [feedback])
            except EmbeddingError as error:
                logger.warning(
                    "The answer to %s is stored without a vector: %s", question_id, error
                )
                await remember(ASYNC, access, [feedback], embeds=False)
        await self.release(visitor, question_id)
        task = asyncio.create_task(self._learn(visitor, question_id, case, reply, at))
        self._learning[task] = question_id
        task.add_done_callback(self._learning.pop)
        self._drop(visitor, question_id)

    async def _learn(
        self, visitor: Visitor, question_id: str, case: Case, reply: dict[str, Any], at: datetime
    ) -> None:
        try:
            reply = await self._newest(case, reply, at)
            notice = await self._deliver(visitor, question_id, case, reply)
        except Exception as error:  # nobody awaits this task: the expert is told instead
            logger.exception("Learning from the answer to %s failed", question_id)
            kept = "The question still waits" if case["kind"] == "conflicts" else _KEPT
            notice = ("bad", f"{kept}: {error}")
        self._notices.append((visitor.name, notice))
        self._drop(visitor, question_id)

    async def _newest(self, case: Case, reply: dict[str, Any], at: datetime) -> dict[str, Any]:
        """Return the reply, or what the expert has answered to the same case since."""
        if case["kind"] != "review":
            return reply
        for name, said in feedback_of(case, reply).items():
            episodes = await self.access(name, case["namespace"]).episodes(ASYNC, [said.episode_id])
            known = episodes.get(said.episode_id)
            if known is not None and known.given_at > at:
                later = {"value": known.value, "rationale": known.rationale}
                return {**reply, **{key: part for key, part in later.items() if part is not None}}
        return reply

    def outcomes(self, visitor: Visitor) -> list[tuple[str, str]]:
        """Return once what became of the visitor's answers."""
        told = [notice for name, notice in self._notices if name == visitor.name]
        others = [entry for entry in self._notices if entry[0] != visitor.name]
        self._notices.clear()
        self._notices.extend(others)
        return told

    async def settled(self) -> None:
        """Wait until answers are learned from, for some seconds."""
        if self._learning:
            await asyncio.wait(self._learning, timeout=_SETTLING_S)

    async def _deliver(
        self, visitor: Visitor, question_id: str, case: Case, reply: dict[str, Any]
    ) -> tuple[str, str]:
        asked = _THREAD.fullmatch(question_id)
        if asked is None:
            return await self._teach(case, question_id.rpartition("-")[2], reply)
        named = _with_judgment_ids(case, reply)
        run = await self._resume(visitor.client, asked[1], asked[2], named)
        failed = run is not None and run["status"] in ("error", "timeout")
        why = "The run of this case failed" if failed else _TOO_LATE
        if case["kind"] == "conflicts":
            taken = run is not None and not failed
            return ("good", "Your decision is taken.") if taken else ("warn", f"{why}.")
        thread = await _thread(visitor.client, asked[1])
        if run and any(it["kind"] == "question" for it in self._cases_of(thread).values()):
            return "good", "Your answer is taken. A question about your words waits now."
        if failed or not _is_taken(thread, case, reply):
            return "warn", f"{why}: your answer is kept, and learned from with the next one."
        learned = (thread.get("values") or {}).get("learned") or {}
        return _told(learned.values() if case["kind"] == "panel" else [learned])

    async def _teach(self, case: Case, judgment_id: str, reply: dict[str, Any]) -> tuple[str, str]:
        [name] = case["criteria"]
        given = {"judgment_id": judgment_id, "reply": reply}
        graph = self._graphs[name].compile(store=self.store)
        try:
            done = await graph.ainvoke(given, context={"namespace": case["namespace"]})
        except MemAlignError as error:  # the model failed, or the judgment's time is over
            return "warn", f"{_KEPT}: {error}"
        return _told([done["learned"]])

    async def _case(self, visitor: Visitor, question_id: str, *, late: bool) -> Case | None:
        place, _, where = question_id.partition("-")
        if place == "j":
            name, _, judgment_id = where.rpartition("-")
            with suppress(InvalidInputError):
                access = self.access(unquote(name))
                kept = await find_judgment(ASYNC, access, judgment_id, late=late)
                rows = (await access.refresh(ASYNC)).rows()
                if not late and any(judgment_id in row.verdicts for row in rows):
                    return None
                case = case_payload("review", [access.criterion], kept.example, [kept.judgment])
                return {**case, "namespace": self.namespace}
            return None
        asked = _THREAD.fullmatch(question_id)
        if visitor.client is None or asked is None:
            return None
        thread_id, interrupt_id = asked.groups()
        thread = await _thread(visitor.client, thread_id)
        cases = self._cases_of(thread)
        if late and thread and interrupt_id not in cases:
            for state in await visitor.client.threads.get_history(thread_id, limit=_LISTED):
                cases |= self._cases_of({"interrupts": {"": state["interrupts"]}})
        return cases.get(interrupt_id)

    async def _listing(
        self, key: str, read: Callable[[], Coroutine[Any, Any, _Listing]]
    ) -> _Listing:
        listing = self._listings.setdefault(key, _Listing())

        async def again() -> None:
            began = time.monotonic()
            listing.gone.clear()
            try:
                found = await read()
                listing.questions = [it for it in found.questions if it.id not in listing.gone]
                listing.total = found.total - len(found.questions) + len(listing.questions)
                listing.read_at = time.monotonic()
                listing.took = listing.read_at - began
            finally:
                listing.reading = None

        fresh = max(_FRESH_S, _SHARE * listing.took)
        if listing.reading is None and time.monotonic() - listing.read_at > fresh:
            listing.reading = asyncio.create_task(again())
        if listing.reading is not None and listing.read_at < 0:
            await asyncio.shield(listing.reading)
        return listing

    async def _kept(self, name: str) -> _Listing:
        """List the kept judgments that wait; of a large memory only what is shown is read whole."""
        access = self.access(name)
        namespace = access.layout.of("judgments")
        stored = [it for it in await self._search(namespace) if it.namespace == namespace]
        items = [{**unpacked(it.value), "kept_at": it.created_at} for it in stored]
        view, now = await access.refresh(ASYNC), datetime.now(UTC)
        answered = {judgment_id for row in view.rows() for judgment_id in row.verdicts}
        waiting = [
            item
            for item in items
            if item["judgment"]["id"] not in answered
            and datetime.fromisoformat(item["kept_until"]) > now
        ]
        waiting.sort(key=lambda item: (item["kept_until"], item["judgment"]["id"]))
        found = []
        for item in waiting[:_LISTED]:
            case: Case = {"example": item["example"], "judgments": {name: item["judgment"]}}
            key = f"j-{quote(name, safe='')}-{item['judgment']['id']}"
            # LangGraph's store in SQLite gives times in UTC that do not say so.
            kept_at = item["kept_at"].replace(tzinfo=item["kept_at"].tzinfo or UTC)
            found.append(_question(key, name, case, kept_at))
        return _Listing(found, len(waiting))

    async def _waiting(self, client: Any) -> _Listing:
        """List what waits on threads, oldest first, past those that wait for something else."""
        found: list[Question] = []
        total, at = await client.threads.count(status="interrupted"), 0
        while len(found) < _LISTED:
            threads = await client.threads.search(
                status="interrupted",
                sort_by="created_at",
                sort_order="asc",
                limit=_LISTED,
                offset=at,
                select=["thread_id", "created_at", "interrupts", "metadata"],
            )
            for thread in threads:
                waits = f"a run of {thread['metadata'].get('graph_id', 'a graph')!r} waits for it"
                asked_at = datetime.fromisoformat(thread["created_at"])
                for interrupt_id, case in self._cases_of(thread).items():
                    key = f"t-{thread['thread_id']}-{interrupt_id}"
                    asked = _question(key, ", ".join(case["criteria"]), case, asked_at)
                    found.append(replace(asked, reasons=[*asked.reasons, waits]))
            at += len(threads)
            if len(threads) < _LISTED:
                total = min(total, len(found))
                break
        return _Listing(found, total)

    def _cases_of(self, thread: Mapping[str, Any]) -> dict[str, Case]:
        """Read what a thread asks of the criteria that are answered here."""
        waiting = [one for those in (thread.get("interrupts") or {}).values() for one in those]
        schemas = {one["id"]: one.get("response_schema") or {} for one in waiting}
        cases = {
            key: schema[CASE_KEYWORD] for key, schema in schemas.items() if CASE_KEYWORD in schema
        }
        return {key: it for key, it in cases.items() if it["criteria"].keys() <= self.judges.keys()}

    async def _resume(
        self, client: Any, thread_id: str, interrupt_id: str, reply: Any
    ) -> Mapping[str, Any] | None:
        """Answer a thread's question, and wait for the run; None where it waits no more."""
        while interrupt_id in self._cases_of(thread := await _thread(client, thread_id)):
            with suppress(ConflictError):  # another run is under way: maybe of another question
                run = await client.runs.create(
                    thread_id,
                    thread["metadata"]["assistant_id"],
                    command={"resume": {interrupt_id: reply}},
                    multitask_strategy="reject",
                )
                await client.runs.join(thread_id, run["run_id"])
                done: Mapping[str, Any] = await client.runs.get(thread_id, run["run_id"])
                return done
            await asyncio.sleep(1)
        return None

    async def _search(self, namespace: tuple[str, ...]) -> list[Any]:
        found: Any = await self.store.abatch([search_namespace(namespace)])
        return list(found[0])

    async def _put(self, namespace: tuple[str, ...], key: str, value: Any) -> None:
        await self.store.abatch([PutOp(namespace, key, value, index=False)])


def _question(key: str, criterion: str, case: Case, asked_at: datetime | None = None) -> Question:
    judgments = case.get("judgments", {}).values()
    asked = [code for it in judgments for code in (it.get("review") or {}).get("reasons", [])]
    example, about = case.get("example"), "Two rules contradict each other"
    title = headline(example["outputs"] if example else about, 120)
    reasons = [REASONS[code] for code in dict.fromkeys(asked)]
    at = asked_at or datetime.now(UTC)
    ids = frozenset(it["id"] for it in judgments)
    return Question(key, criterion, title, at, reasons, ids)


async def _thread(client: Any, thread_id: str) -> Mapping[str, Any]:
    """Read a thread; of one that is not there for this visitor, nothing."""
    with suppress(NotFoundError, PermissionDeniedError, UnprocessableEntityError):
        found: Mapping[str, Any] = await client.threads.get(thread_id)
        return found
    return {}


def _told(learned: Iterable[Any]) -> tuple[str, str]:
    """Say what was learned, in the form of a review graph's `learned`."""
    results = [result for result in learned if result]
    texts = [change["text"] for result in results for change in result["guidelines"]]
    if waiting := [result for result in results if not result["episode_ids"]]:
        why = " ".join(warning for result in waiting for warning in result.get("warnings", []))
        return "warn", f"{_KEPT}: {why}"
    return "good", f"Learned: {'; '.join(texts)}" if texts else "Your answer is taken."


def _is_taken(thread: Mapping[str, Any], case: Case, reply: Mapping[str, Any]) -> bool:
    """Return whether it is this answer that a thread learned from."""
    taken = (thread.get("values") or {}).get("feedback") or {}
    for name, said in feedback_of(case, reply).items():
        fields = (taken.get(name) if case["kind"] == "panel" else taken) or {}
        given = (fields.get("rationale"), fields.get("author"))
        if (said.rationale, said.author) == given and said.value in (None, fields.get("value")):
            return True
    return False


def _with_judgment_ids(case: Case, reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that is refused if its thread waits for an answer to another judgment."""
    ids = {name: judgment["id"] for name, judgment in case.get("judgments", {}).items()}
    if case["kind"] == "review":
        return {**reply, JUDGMENT_ID: next(iter(ids.values()))}
    if case["kind"] == "panel":
        named = {name: {**reply[name], JUDGMENT_ID: ids[name]} for name in reply.keys() & ids}
        return {**reply, **named}
    return reply


def feedback_of(case: Case, reply: Mapping[str, Any]) -> dict[str, Feedback]:
    """Read a reply as feedback, by criterion."""
    said: dict[str, Feedback] = {}
    for name in case["criteria"] if case["kind"] != "conflicts" else ():
        about = {"example": case["example"], "judgment": case["judgments"].get(name)}
        one = reply.get(name) if case["kind"] == "panel" else reply
        if case["kind"] == "question":
            asked = Feedback.model_validate({**case["said"], **about})
            said[name] = merge_clarification(asked, " ".join(case["asked"]), reply)
        elif one:
            said[name] = Feedback.model_validate({"author": reply.get("author"), **one, **about})
    return said


def _age(at: str) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(at)


def _is_live(lease: Item) -> bool:
    return not lease.value["skipped"] and _age(lease.value["seen"]) < LEASE


def _holder(question_id: str, leases: Sequence[Item], visitor: Visitor) -> str | None:
    """Name who came first of those who look at a question, if that is another."""
    live = [it.value for it in leases if it.value["question"] == question_id and _is_live(it)]
    first = min(live, key=lambda lease: (lease["since"], lease["who"]), default=None)
    return None if first is None or first["who"] == visitor.name else str(first["who"])
