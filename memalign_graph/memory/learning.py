"""What distilling proposes, and what is learned of it: operations on guidelines, and their fact."""

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import PURGE, Retirement, Wording, Words, clock
from memalign_graph.types import Guideline

_FULL_STOPS = ".\u3002\u0964\u06d4"
"""Also the Chinese, the Hindi and the Urdu one."""

Action = Literal["add", "revise", "retire", "merge"]
"""What an operation does to a guideline.

- `add`: a new rule; in words that stand already it is that guideline, with the new sources.
- `revise`: another wording for a guideline.
- `retire`: a guideline that does not hold.
- `merge`: a guideline that says in other words what another says; that one gets its sources.
"""


class GuidelineOperation(BaseModel):
    """One small change of the guidelines, with the episodes that call for it."""

    model_config = ConfigDict(frozen=True)

    action: Action
    """What is done."""

    guideline_id: str | None = None
    """The guideline revised, retired or merged; of one added, the id it is to have, if known."""

    text: str | None = None
    """The new wording; of a guideline retired, the rule that holds in its place, if any."""

    question: str | None = None
    """The same as a yes/no question about one case, if it can be asked so."""

    episode_ids: list[str] = []
    """The episodes the operation comes from; none where it only tidies up."""

    before: str | None = None
    """The wording of the guideline to be revised, as the model was shown it."""

    superseded_by: str | None = None
    """The guideline that takes the place of this one, where it is known by its id."""

    reason: str | None = None
    """Why a guideline goes."""

    settled: bool = False
    """Whether an expert decided it: then also what an expert wrote by hand can be retired."""


def guideline_id(text: str) -> str:
    """Name a guideline that is distilled: the same words are the same guideline."""
    return digest(["guideline", plain_words(text)])


def free_id(text: str, taken: Collection[str]) -> str:
    """Name a new guideline; the same as `guideline_id`, unless a reworded one has that id."""
    key, number = guideline_id(text), 0
    while key in taken:
        number += 1
        key = digest(["guideline", plain_words(text), number])
    return key


def applied(
    guidelines: Iterable[Guideline], operations: Sequence[GuidelineOperation]
) -> list[Guideline]:
    """Return the guidelines as some operations would leave them."""
    standing = {guideline.id: guideline for guideline in guidelines}
    live = {key for operation in operations for key in operation.episode_ids}
    position = max((guideline.position for guideline in standing.values()), default=0) + 1
    table = GuidelineTable(standing, live=live, position=position)
    for operation in operations:
        table.apply(operation)
    return list(table.after.values())


async def learn(
    io: IO,
    access: MemoryAccess,
    operations: Sequence[GuidelineOperation],
    read: Mapping[str, str],
    *,
    prompts: Sequence[Collection[str]] | None = None,
    author: str | None = None,
    relearn: bool = False,
    passed_over: Collection[str] = (),
    failed: Collection[str] = (),
    reason: str = "learn",
) -> dict[str, Any]:
    """Bring what was distilled into the memory: its episodes are pending no more.

    `read` are the words that were read, by episode; `prompts` says which were read together;
    `failed` names what could not be distilled, to be counted.
    """
    view = await access.refresh(io)
    episodes = view.episodes(read)
    same = {key for key, episode in episodes.items() if episode.word == read[key]}
    gone = read.keys() - same
    kept = {guideline.id: guideline for guideline in view.guidelines}
    # Who read what is purged may repeat it also where something else is named as the source.
    purged = bool(view.purges_of(gone - episodes.keys()))
    valid, spared = ([], same) if purged else _valid(operations, kept, gone)
    spared = spared | {*passed_over}
    fresh = same - spared
    if not relearn:
        fresh = {key for key in fresh if episodes[key].status == "pending"}
    position = clock.now_us(ticks=2 * len(operations) + 1)
    table = GuidelineTable(kept, live=fresh, position=position, relearn=relearn)
    for operation in valid:
        table.apply(operation)
    words = view.all_words()
    lesson: dict[str, Any] = {
        "read": {key: words[key] for key in sorted(fresh) if episodes[key].status == "pending"},
        "guidelines": [
            Wording.of(
                guideline,
                {source: words[source] for source in guideline.episode_ids if source in words},
                replaces=None if guideline.id in table.retired else kept.get(guideline.id),
                is_anew=relearn and guideline.status == "standing",
                read_with=table.read_with.get(guideline.id),
            )
            for guideline in table.changed()
        ],
        "retired": table.retirements(words),
        "prompts": [sorted(prompt) for prompt in prompts or [read] if len(prompt) > 1],
        "failed": sorted(failed),
    }
    if lesson["read"] or lesson["guidelines"] or lesson["retired"] or lesson["failed"]:
        purges = view.purges_of(words.keys())
        fact = await access.write(io, reason, lesson, author=author)
        view = await access.refresh(io)
        named = fact.shown(key for sources in [fact.read, *fact.sources] for key in sources)
        if view.purges_of(named) - purges:
            # Purged meanwhile: what was learned may repeat it.
            worded = [wording.id for wording in fact.guidelines]
            await access.write(io, PURGE, {"scrubbed": {fact.id: worded}})
            await access.overwrite(io, [fact.scrub(worded)])
    return {
        "episode_ids": sorted(same - spared),
        "guidelines": [*table.outcome, *_learned_before(valid, kept, same - fresh)],
        "memory_version": view.version,
    }


def _valid(
    operations: Sequence[GuidelineOperation], kept: Mapping[str, Guideline], gone: set[str]
) -> tuple[list[GuidelineOperation], set[str]]:
    """Leave out what comes from a word taken back, or rewords other words; name its sources."""
    valid: list[GuidelineOperation] = []
    spared: set[str] = set()
    for operation in operations:
        sources = {*operation.episode_ids}
        target = kept.get(operation.guideline_id or "")
        shown = (operation.before, operation.text)
        is_lost = operation.before is not None and (
            target.text not in shown if target is not None else not _stands(operation, kept)
        )
        if sources & gone or is_lost:
            spared |= sources - gone
        else:
            valid.append(operation)
    return valid, spared


def _stands(operation: GuidelineOperation, kept: Mapping[str, Guideline]) -> bool:
    """Tell whether the text of an operation stands already."""
    words = plain_words(operation.text or "")
    return any(plain_words(guideline.text) == words for guideline in kept.values())


class GuidelineTable:
    """The guidelines while operations are applied to them."""

    def __init__(
        self,
        guidelines: Mapping[str, Guideline],
        *,
        live: set[str],
        position: int,
        relearn: bool = False,
    ) -> None:
        self.outcome: list[dict[str, Any]] = []
        self.after: dict[str, Guideline] = dict(guidelines)
        """Those that stand, in their order; new ones come last."""
        self.read_with: dict[str, str] = {}
        """An episode of the prompt in which a new one was worded."""
        self.retired: dict[str, Retirement] = {}
        self._before = dict(guidelines)
        self._gone: dict[str, Guideline] = {}
        self._callers: dict[str, list[str]] = {}
        self._live = live
        self._relearn = relearn
        self._now = datetime.now(UTC)
        self._position = position

    def apply(self, operation: GuidelineOperation) -> None:
        """Apply an operation, unless nothing that calls for it stands."""
        sources = [key for key in operation.episode_ids if key in self._live]
        if operation.episode_ids and not sources:
            return
        match operation.action:
            case "add":
                self.add(operation, sources)
            case "revise":
                self._revise(operation, sources)
            case "retire":
                self._retire(operation, sources)
            case "merge":
                self._merge(operation)

    def changed(self) -> list[Guideline]:
        """Return the guidelines that are new or other than before, also new ones that lost."""
        standing = [one for key, one in self.after.items() if self._before.get(key) != one]
        known = self._before.keys() | self.after.keys()
        return [*(one for key, one in self._gone.items() if key not in known), *standing]

    def retirements(self, words: Words) -> list[Retirement]:
        """Return what became of the guidelines that are gone."""
        gone = [
            one for key, one in self.retired.items() if key in self._before or key not in self.after
        ]
        return [
            one.model_copy(
                update={"sources": {key: words[key] for key in self._calling(one) if key in words}}
            )
            for one in gone
        ]

    def _calling(self, gone: Retirement) -> list[str]:
        callers, by = self._callers.get(gone.id), gone.by or ""
        if callers or by in self.after:
            return callers or self.after[by].episode_ids
        return self._calling(self.retired[by]) if by in self.retired else []

    def callers(self, key: str) -> list[str]:
        """Return the episodes that call for the retirement of a guideline."""
        return self._callers.get(key, [])

    def keeper(self, key: str) -> str:
        """Return the guideline that holds in the place of one that is gone."""
        while key not in self.after and key in self.retired and self.retired[key].by is not None:
            key = self.retired[key].by or ""
        return key

    def add(self, operation: GuidelineOperation, sources: list[str]) -> str:
        """Bring in a rule; returns the id of the guideline that says it."""
        text, wanted = operation.text or "", operation.guideline_id
        same = self._in_words(text)
        if same is None:
            free = wanted if wanted and wanted not in self.after else free_id(text, self.after)
            same = Guideline(
                id=free,
                text=text,
                question=operation.question,
                position=self._position,
                created_at=self._now,
                updated_at=self._now,
            )
            self._position += 1
            self.after[free] = same
            self.read_with |= {free: sources[0]} if sources else {}
        elif same.origin == "expert":
            return same.id  # it stands already, and is the expert's to change
        same = self._with_sources(self._asked(same, operation), sources)
        self._report(operation, same, sources)
        return same.id

    def _revise(self, operation: GuidelineOperation, sources: list[str]) -> None:
        target = self._target(operation)
        if target is None:
            return
        text = operation.text or target.text
        same = self._in_words(text)
        if same is not None and same.id != target.id:
            # Another says just that already.
            self._drop(target.id, by=same.id)
            if same.origin == "expert":
                self._callers[target.id] = sources
            else:
                same = self._asked(same, operation)
                same = self._with_sources(same, [*target.episode_ids, *sources])
            self._report(operation, same, sources)
            return
        if text != target.text:
            # What it was measured at was said of other words.
            status = "standing" if target.status == "unproven" else target.status
            words = {"text": text, "question": operation.question}
            target = self._set(target, **words, status=status, worth=None)
        else:
            target = self._asked(target, operation)
        if self._relearn:
            target = self._set(target, status="standing")
        self._report(operation, self._with_sources(target, sources), sources)

    def _retire(self, operation: GuidelineOperation, sources: list[str]) -> None:
        key = operation.guideline_id or ""
        if key not in self.after:
            # Gone already: by an earlier attempt at this lesson, or by an expert meanwhile.
            self._report(operation, None, sources)
            return
        target = self._target(operation)
        if target is None:
            return
        instead = operation.superseded_by
        if operation.text:
            added = operation.model_copy(update={"action": "add", "guideline_id": None})
            instead = self.add(added, sources)
        if instead == key or (instead is not None and instead not in self.after):
            return  # what was to take its place is not there after all
        self._callers[key] = sources
        reason = operation.reason or "Newer feedback says otherwise."
        self._drop(key, by=instead, reason=reason, settled=operation.settled)
        told = operation.model_copy(update={"text": None, "reason": reason})
        self._report(told, target, sources, by=instead)

    def _merge(self, operation: GuidelineOperation) -> None:
        loser = self.after.get(operation.guideline_id or "")
        winner = self.after.get(operation.superseded_by or "")
        if loser is None or winner is None or loser.id == winner.id or loser.origin == "expert":
            return
        self._drop(loser.id, by=winner.id, reason=operation.reason)
        if winner.origin != "expert":
            self._with_sources(winner, loser.episode_ids)
        self._report(operation, loser, loser.episode_ids, by=winner.id)

    def _target(self, operation: GuidelineOperation) -> Guideline | None:
        target = self.after.get(operation.guideline_id or "")
        if target is not None and target.origin == "expert" and not operation.settled:
            return None  # what an expert wrote is the expert's to change
        return target

    def _in_words(self, text: str) -> Guideline | None:
        words = plain_words(text)
        return next((one for one in self.after.values() if plain_words(one.text) == words), None)

    def _drop(
        self, key: str, *, by: str | None, reason: str | None = None, settled: bool = False
    ) -> None:
        self._gone[key] = self.after.pop(key)
        self.retired[key] = Retirement(id=key, by=by, reason=reason, is_settled=settled)

    def _asked(self, guideline: Guideline, operation: GuidelineOperation) -> Guideline:
        """Fill in the question of a guideline that has none."""
        if guideline.question is not None or operation.question is None:
            return guideline
        return self._set(guideline, question=operation.question)

    def _with_sources(self, guideline: Guideline, sources: Iterable[str]) -> Guideline:
        merged = list(dict.fromkeys([*guideline.episode_ids, *sources]))
        if merged == guideline.episode_ids:
            return guideline
        return self._set(guideline, episode_ids=merged)

    def _set(self, guideline: Guideline, **changes: Any) -> Guideline:
        if "text" in changes:
            self.read_with.pop(guideline.id, None)
        after = guideline.model_copy(update={**changes, "updated_at": self._now})
        self.after[guideline.id] = after
        return after

    def _report(
        self,
        operation: GuidelineOperation,
        guideline: Guideline | None,
        sources: list[str],
        *,
        by: str | None = None,
    ) -> None:
        entry: dict[str, Any] = {
            "action": operation.action,
            "guideline_id": guideline.id if guideline else operation.guideline_id,
            "text": guideline.text if guideline is not None else operation.text,
            "episode_ids": sources,
        }
        if by is not None:
            entry["superseded_by"] = by
        if operation.reason is not None:
            entry["reason"] = operation.reason
        self.outcome.append(entry)


def _learned_before(
    operations: Iterable[GuidelineOperation],
    standing: Mapping[str, Guideline],
    distilled: set[str],
) -> list[dict[str, Any]]:
    """Report again what an earlier attempt at the same lesson made of some operations."""
    by_words = {plain_words(one.text): one for one in standing.values()}
    report = []
    for operation in operations:
        sources = [key for key in operation.episode_ids if key in distilled]
        if not sources:
            continue
        guideline = by_words.get(plain_words(operation.text or ""))
        retired = operation.action == "retire" and operation.guideline_id not in standing
        if retired or (guideline is not None and set(sources) <= set(guideline.episode_ids)):
            key = guideline.id if guideline is not None else operation.guideline_id
            entry = {"action": operation.action, "guideline_id": key, "text": operation.text}
            report.append({**entry, "episode_ids": sources})
    return report


def plain_words(text: str) -> str:
    """Reduce a guideline's text to what makes it another one: no case, no blanks, no full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(_FULL_STOPS)
