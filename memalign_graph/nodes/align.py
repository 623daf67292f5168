"""Learning from much feedback at once: the nodes of the alignment graph, in their order."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.agreement import expert_agreement
from memalign_graph.alignment.batches import pack
from memalign_graph.alignment.consolidate import merge_proposals
from memalign_graph.alignment.merging import Conflict, settle
from memalign_graph.alignment.redistill import distil, learn_again, reword
from memalign_graph.alignment.replay import replay
from memalign_graph.alignment.report import AlignmentReport, compare_guidelines, total_cost
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
)
from memalign_graph.interrupts import conflict_form
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.changes import check_feedback, remember
from memalign_graph.memory.embedding import index_missing, key_of
from memalign_graph.memory.forgetting import clear_drafts
from memalign_graph.memory.judged import note_judgments, unjudged_cases
from memalign_graph.memory.lessons import learn
from memalign_graph.models import Metered, max_input_tokens
from memalign_graph.nodes.judge import judge_again, own_channel, value_judge
from memalign_graph.nodes.learn import read_saved, saved
from memalign_graph.prompts.distill import distill_prompt
from memalign_graph.reading import read_feedback
from memalign_graph.runtime import Node, Parts, Run, State, Update
from memalign_graph.settings import Alignment, LearnFrom, default_settings, resolve_context
from memalign_graph.types import Criterion, Episode, Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)

_SHOWN_IDS = 5
_OUTDATED = (
    "{} record(s) do not count, since there is a newer word of the same expert on the same "
    "example. Feedback without `author` and `id` is taken for one expert's."
)
_UNJUDGED = (
    "{} case(s) could not be judged, and are weighed without a verdict: the next alignment asks "
    "again. The first: {}"
)
_CUT = (
    "{} record(s) were too long to be distilled whole: the middle of their longest texts was left "
    "out ({})."
)

Lesson = dict[str, Any]
"""What the nodes so far have left, as JSON: see each node's last lines."""


def alignment_nodes(parts: Parts, options: Alignment) -> list[Node]:
    """Make the nodes, in their order."""

    def node(operation: Callable[[_Step], Coroutine[Any, Any, Update]]) -> Node:
        async def take(io: IO, state: State, run: Run) -> Update:
            return await operation(_Step(parts, options, io, state, run))

        return Node(operation.__name__, take)

    operations = [
        remember_feedback,
        *([judge_cases] if options.judge_cases else []),
        distill_batches,
        consolidate_guidelines,
        *([settle_conflicts] if options.conflicts == "ask" else []),
        *([replay_cases] if options.guard else []),
        commit_alignment,
    ]
    return list(map(node, operations))


class _Step:
    """What a node works with; what it asks of models is counted."""

    def __init__(self, parts: Parts, options: Alignment, io: IO, state: State, run: Run) -> None:
        self._start = time.time()
        self.io = Metered(io)
        self.parts, self.options, self.state, self.run = parts, options, state, run
        self.limit = run.max_concurrency

    @property
    def lesson(self) -> Lesson:
        return own_channel(self.state, "judge_lesson")

    @property
    def settings(self) -> Any:
        return own_channel(self.state, "judge_run")["settings"]

    @property
    def distiller(self) -> BaseChatModel:
        return self.parts.distiller(self.settings["model"])

    def memory(self) -> MemoryAccess:
        return self.parts.memory(self.run.store, self.settings)

    def usage(self, before: Sequence[Lesson]) -> list[Lesson]:
        """Return what was used before, and here."""
        used = self.io.usage.model_dump()
        return [*before, {"used": used, "start": self._start, "stop": time.time()}]

    def learned(self, **lesson: Any) -> Update:
        usage = self.usage(self.lesson["usage"])
        return {"judge_lesson": {**self.lesson, **lesson, "usage": usage}}

    def progress(self, stage: str, done: int, of: int, **more: Any) -> None:
        """Stream how far the alignment is, as a custom event."""
        event = {"type": "alignment_progress", "stage": stage, "done": done, "of": of, **more}
        self.run.write(event)

    def counter(self, stage: str, of: int, done: int = 0) -> Callable[..., None]:
        """Make what streams, each time it is called, that one more is done, also concurrently."""
        lock, numbers = threading.Lock(), count(done + 1)

        def add(**more: Any) -> None:
            with lock:
                self.progress(stage, next(numbers), of, **more)

        return add


async def remember_feedback(step: _Step) -> Update:
    """Store feedback, and pack what is pending into batches.

    A record that can't be used is reported with the reason, and does not keep out the others.
    """
    io, run, parts, options = step.io, step.run, step.parts, step.options
    given = step.state.get("feedback")
    if not isinstance(given, list | tuple):
        raise InvalidInputError(
            "feedback: give a list of Feedback or of its fields, such as "
            "[{'inputs': ..., 'outputs': ..., 'value': ..., 'rationale': ...}]."
        )
    settings = resolve_context(run.context, default_settings(parts.judge))
    access = parts.memory(run.store, settings)
    window = max_input_tokens(parts.distiller(settings["model"]))
    read: list[Feedback] = []
    rejected: list[Lesson] = []
    for index, record in enumerate(given):
        try:
            read.append(_read(record, parts.criterion, options.learn_from, run.thread_id))
        except InvalidInputError as error:
            rejected.append({"index": index, "reason": str(error)})
    step.progress("remember", 0, len(read))
    before = (await access.refresh(io)).version
    guidelines = await access.every_guideline(io)
    stored = await remember(io, access, read, note_threads=False)
    step.progress("remember", len(read), len(read))
    agreement = await _agreement(io, access, run)
    new, changed = len(stored.new), len(stored.changed)
    outdated = sum(map(_is_outdated, read, stored.episodes))
    lesson: Lesson = {
        "feedback": {
            "new": new,
            "changed": changed,
            "unchanged": len(read) - new - changed - outdated,
            "rejected": len(rejected),
        },
        "rejected": rejected,
        "agreement": agreement,
        "memory_version_before": before,
        "warnings": [_OUTDATED.format(outdated)] if outdated else [],
        "batches": await _batches(io, access, options, window),
        "guidelines_before": [guideline.to_json() for guideline in guidelines],
        "new_ids": sorted(stored.new | stored.changed),
        # Tells a purge that this thread carried them.
        "feedback_ids": list(dict.fromkeys(episode.id for episode in stored.episodes)),
        **_proposal(),
        "conflicts": [],
        "decisions": None,
        "replay": None,
        "usage": step.usage([]),
    }
    return {"judge_run": {"settings": settings}, "judge_lesson": lesson}


async def judge_cases(step: _Step) -> Update:
    """Judge the cases in memory that experts valued and no judge has judged.

    Each is judged once, whatever the number of its experts, as if it were new: without the episodes
    on it, and without the guidelines that rest on it alone. The judgment is kept on its episodes,
    without its rationale; a case that gets no answer that can be used is left without.
    """
    io, access = step.io, step.memory()
    # The verdict alone: what else the evidence weighs is what this brings about.
    parts = step.parts.but(decide="verdict", keep_judgments=None)
    view = await access.refresh(io)
    await index_missing(io, access, view)
    cases = unjudged_cases(view.rows(), parts.criterion.scale)
    standing = await access.all_guidelines(io)
    found = await access.episodes(io, (ids[0] for ids in cases.values()))
    examples = {episode.example_id: episode.example for episode in found.values()}
    step.progress("judge", 0, len(cases))
    add = step.counter("judge", len(cases))

    async def judge_case(example: Example) -> Judgment | ModelAnswerError:
        own = frozenset(view.episodes_at(key_of(access, example)))
        judged: Judgment | ModelAnswerError
        try:
            judged = await judge_again(
                io,
                parts,
                access,
                example,
                guidelines=[
                    guideline
                    for guideline in standing
                    if not guideline.episode_ids or not own.issuperset(guideline.episode_ids)
                ],
                besides=own,
                settings=step.settings,
                # Cases are judged concurrently: all of them together keep to the limit.
                limit=max(step.limit // len(cases), 1),
            )
        except ModelAnswerError as error:
            judged = error
        add()
        return judged

    outcomes = await io.gather(list(map(judge_case, examples.values())), step.limit)
    # Without its words: they may repeat other cases', which a purge of those would miss.
    judgments = {
        key: outcome.model_copy(update={"rationale": "", "thread_id": step.run.thread_id})
        for key, outcome in zip(examples, outcomes, strict=True)
        if isinstance(outcome, Judgment)
    }
    await note_judgments(io, access, judgments)
    failures = [outcome for outcome in outcomes if isinstance(outcome, ModelAnswerError)]
    warnings = [_UNJUDGED.format(len(failures), failures[0])] if failures else []
    for warning, times in Counter(
        warning for judgment in judgments.values() for warning in judgment.warnings
    ).items():
        warnings.append(f"{times} case(s) were judged so: {warning}")
    return step.learned(judged_cases=len(judgments), warnings=[*step.lesson["warnings"], *warnings])


async def distill_batches(step: _Step) -> Update:
    """Distil all batches concurrently.

    This is run once more for what fails, when the others are done and kept; if that fails again the
    run does, and goes on from there when it is made again.
    """
    lesson, access, chat = step.lesson, step.memory(), step.distiller
    batches = lesson["batches"]
    proposals = list(lesson.get("proposals", [None] * len(batches)))
    waiting = [number for number, proposal in enumerate(proposals) if proposal is None]
    add = step.counter("distill", len(batches), len(batches) - len(waiting))

    async def distill(number: int) -> Lesson | MemAlignError:
        try:
            proposal = await _propose(step.io, access, chat, batches[number])
        except (ChatModelError, ModelAnswerError) as error:
            return error
        add(batch=number + 1)
        return proposal

    distilled = await step.io.gather(list(map(distill, waiting)), step.limit)
    for number, proposal in zip(waiting, distilled, strict=True):
        if not isinstance(proposal, MemAlignError):
            proposals[number] = proposal
            continue
        if "proposals" in lesson:
            raise proposal
        failed = "Batch %d of %d failed and is tried again: %s"
        logger.warning(failed, number + 1, len(batches), proposal)
    return step.learned(proposals=proposals)


async def consolidate_guidelines(step: _Step) -> Update:
    """Bring proposals together with each other and with what stands.

    One batch has seen the guidelines that stand and needs no comparison; several know nothing of
    each other. Where an expert is to decide conflicts, one is compared, too.
    """
    proposals, asks = step.lesson["proposals"], step.options.conflicts == "ask"
    proposed = [read_saved(one["operations"]) for one in proposals if one["operations"]]
    step.progress("consolidate", 0, 1)
    merged = await merge_proposals(
        step.io,
        step.memory(),
        step.distiller,
        proposed,
        compare=len(proposed) >= (1 if asks else 2),
    )
    step.progress("consolidate", 1, 1)
    joined: Lesson = _proposal()
    for proposal in proposals:
        for name, more in proposal.items():
            joined[name] = joined[name] | more if isinstance(more, dict) else joined[name] + more
    cut = joined["cut"]
    shown = ", ".join([*cut[:_SHOWN_IDS], *(["..."] if len(cut) > _SHOWN_IDS else [])])
    cuts = [_CUT.format(len(cut), shown)] if cut else []
    return step.learned(
        operations=saved([*merged.operations, *([] if asks else settle(merged.conflicts))]),
        conflicts=[conflict.model_dump(mode="json") for conflict in merged.conflicts],
        **{name: joined[name] for name in ("rewordings", "read", "reworded")},
        warnings=[*step.lesson["warnings"], *joined["refused"], *cuts],
    )


async def settle_conflicts(step: _Step) -> Update:
    """Ask an expert about all conflicts at once, and wait."""
    step.run.warn_without_checkpointer("alignment")
    conflicts = [Conflict.model_validate(fields) for fields in step.lesson["conflicts"]]
    decisions = conflict_form(step.parts.criterion, conflicts).ask()
    settled = saved(settle(conflicts, decisions))
    return step.learned(decisions=decisions, operations=[*step.lesson["operations"], *settled])


async def replay_cases(step: _Step) -> Update:
    """Keep guidelines from breaking what worked: seen cases are judged again."""
    lesson, access = step.lesson, step.memory()
    parts = Parts(value_judge(step.parts.judge), step.parts.clients)

    async def judge_case(
        io: IO, example: Example, guidelines: Sequence[Guideline], besides: frozenset[str]
    ) -> Any:
        judged = await judge_again(
            io,
            parts,
            access,
            example,
            guidelines=guidelines,
            besides=besides,
            settings=step.settings,
        )
        return judged.value

    rewordings = read_saved(lesson["rewordings"])
    kept, seen = await replay(
        step.io,
        access,
        judge_case,
        [*rewordings, *read_saved(lesson["operations"])],
        before=_guidelines_before(lesson),
        new_episodes=lesson["new_ids"],
        cases=step.options.replay_cases,
        limit=step.limit,
        tell=partial(step.progress, "replay"),
    )
    reworded = {one.guideline_id for one in rewordings}
    again = [one for one in kept if one.action != "merge" and one.guideline_id in reworded]
    return step.learned(
        operations=saved([one for one in kept if one not in again]),
        rewordings=saved(again),
        replay=seen.model_dump(mode="json"),
    )


async def commit_alignment(step: _Step) -> Update:
    """Commit what was learned, and report; again, it changes nothing more."""
    io, lesson, access = step.io, step.lesson, step.memory()
    learned: list[Lesson] = []
    if rewordings := read_saved(lesson["rewordings"]):
        again = await learn_again(io, access, rewordings, lesson["reworded"])
        learned += again["guidelines"]
    operations, read = read_saved(lesson["operations"]), lesson["read"]
    if read or operations:
        new = await learn(io, access, operations, read, reason="align")
        learned += new["guidelines"]
    await clear_drafts(io, access)
    step.progress("commit", 1, 1)
    view = await access.refresh(io)
    # Others may change the memory while this run asks or waits.
    touched = {one.get(name) for one in learned for name in ("guideline_id", "superseded_by")}
    sources = {*lesson["new_ids"], *read, *lesson["reworded"]}

    def of_run(guidelines: Sequence[Guideline]) -> list[Guideline]:
        return [
            one
            for one in guidelines
            if one.id in touched or not sources.isdisjoint(one.episode_ids)
        ]

    after = await access.every_guideline(io)
    fields = {name: lesson[name] for name in AlignmentReport.model_fields if name in lesson}
    fields["batches"] = len(fields["batches"])
    report = AlignmentReport(
        **fields,
        guidelines=compare_guidelines(of_run(_guidelines_before(lesson)), of_run(after)),
        cost=total_cost(step.usage(lesson["usage"])),
        memory_version_after=view.version,
    )
    return {"report": report.to_json()}


def _proposal() -> Lesson:
    """Begin what is proposed: the words of the episodes that were read, by id, and what of them."""
    lists = ("operations", "rewordings", "cut", "refused")
    return {**{name: [] for name in lists}, "read": {}, "reworded": {}}


def _guidelines_before(lesson: Lesson) -> list[Guideline]:
    return [Guideline.model_validate(fields) for fields in lesson["guidelines_before"]]


async def _propose(
    io: IO, access: MemoryAccess, chat: BaseChatModel, batch: Mapping[str, Any]
) -> Lesson:
    """Distil a batch: feedback, or a guideline that lost a source."""
    proposal = _proposal()
    if "guideline_id" in batch:
        for guideline in await access.all_guidelines(io, "pending"):
            if guideline.id == batch["guideline_id"]:
                rewording = await reword(io, access, chat, guideline)
                proposal["rewordings"] = saved([rewording.operation])
                proposal |= {"reworded": rewording.read, "refused": rewording.refused}
        return proposal
    found = await access.episodes(io, batch["episode_ids"])
    # Another run may have learned some of it meanwhile.
    waiting = [episode for episode in found.values() if episode.status == "pending"]
    guidelines = await access.all_guidelines(io)
    while waiting:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=waiting,
            max_input_tokens=max_input_tokens(chat),
        )
        proposed = await distil(io, chat, prompt, keep_in=access)
        proposal["operations"] += saved(proposed.operations)
        proposal["refused"] += proposed.refused
        proposal["read"] |= {episode.id: episode.word for episode in prompt.episodes.values()}
        proposal["cut"] += prompt.cut
        waiting = [episode for episode in waiting if episode.id not in proposal["read"]]
    return proposal


def _read(
    record: Any, criterion: Criterion, learn_from: LearnFrom, thread_id: str | None
) -> Feedback:
    """Read feedback, and take from it what is not to be learned from."""
    feedback = read_feedback(record)
    if learn_from != "both":
        names = ("value", "rationale") if learn_from == "labels" else ("rationale", "value")
        kept, left_out = names
        if getattr(feedback, kept) is None:
            raise InvalidInputError(
                f"{kept}: the record has none, and with learn_from={learn_from!r} nothing else "
                "counts."
            )
        feedback = feedback.model_copy(update={left_out: None})
    feedback = check_feedback(feedback, criterion)
    return feedback.model_copy(update={"thread_id": feedback.thread_id or thread_id})


async def _agreement(io: IO, access: MemoryAccess, run: Run) -> Lesson:
    view = await access.refresh(io)
    episodes = await access.episodes(io, view.shared())
    agreement = expert_agreement(list(episodes.values()), access.criterion.scale)
    shown = agreement.model_dump(mode="json")
    if agreement.examples:
        run.write({"type": "alignment_agreement", "criterion": access.criterion.name, **shown})
    return shown


async def _batches(io: IO, access: MemoryAccess, options: Alignment, window: int) -> list[Lesson]:
    """Pack what is pending: feedback, and guidelines that lost a source."""
    if not options.distill:
        return []
    view = await access.refresh(io)
    pending = await access.episodes(io, view.pending())
    guidelines = await access.every_guideline(io)
    packed = pack(
        list(pending.values()),
        access.criterion,
        [guideline for guideline in guidelines if guideline.status == "standing"],
        max_input_tokens=window,
        most=options.batch_size,
    )
    wordless = [guideline.id for guideline in guidelines if guideline.status == "pending"]
    return [*({"episode_ids": ids} for ids in packed), *({"guideline_id": key} for key in wordless)]


def _is_outdated(said: Feedback, kept: Episode) -> bool:
    """Tell whether the same expert's newer word on the example counts, and not this one."""
    value_stays = said.value is None or said.value == kept.value
    words_stay = said.rationale is None or said.rationale == kept.rationale
    return not (value_stays and words_stay)
