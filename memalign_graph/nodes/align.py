"""Learning from much feedback at once: the nodes of the alignment graph, in their order."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from memalign_graph.agreement import expert_agreement
from memalign_graph.alignment.batches import pack
from memalign_graph.alignment.consolidate import merge_proposals
from memalign_graph.alignment.merging import Conflict, settle, unsettled
from memalign_graph.alignment.redistill import (
    MAX_ATTEMPTS,
    Failure,
    NoWordingError,
    attempts,
    can_be_tried,
    distil_all,
    learn_again,
    operations_of,
    reword,
)
from memalign_graph.alignment.replay import replay
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.alignment.report import AlignmentReport, compare_guidelines, total_cost
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    ModelAnswerError,
    is_about_prompt,
)
from memalign_graph.evidence.checks import fill_check_answers, fill_questions
from memalign_graph.interrupts import conflict_form
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing, key_of
from memalign_graph.memory.feedback import (
    check_feedback,
    clear_cached_replies,
    record_judgments,
    remember,
    unjudged_cases,
)
from memalign_graph.memory.learning import learn
from memalign_graph.models import BaseChatModel, MeteredIO, is_small_model, max_input_tokens
from memalign_graph.nodes.judge import judge_again, value_judge
from memalign_graph.nodes.review import read_saved, saved
from memalign_graph.runtime import JudgeResources, Node, NodeCall, StateUpdate, require_channel
from memalign_graph.settings import Alignment, LearnFrom
from memalign_graph.types import Criterion, Example, Feedback, Guideline, Judgment, read_feedback

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
_NOT_REPLAYED = "{} seen case(s) could not be judged again, and were left out. The first: {}"
_DROPPED = "the replay dropped its new wording, with which more seen cases are lost than won"
_GIVEN_UP = (
    "{} {} could not be distilled in {} attempts, and are not tried again until they change, or "
    "the model or its settings do: {}."
)
_LEFT_OUT = (
    "Batch {} of {} was not distilled: its feedback stays pending, and the next alignment distils "
    "it. {}"
)
_UNMERGED = (
    "New guidelines were not compared with each other and with those that stand, since the model "
    "refused: `consolidate()` compares them. {}"
)
_CUT = (
    "{} record(s) were too long to be distilled whole: the middle of their longest texts was left "
    "out ({})."
)

Lesson = dict[str, Any]
"""What the nodes so far have left, as JSON: see each node's last lines."""


def alignment_nodes(resources: JudgeResources, options: Alignment) -> list[Node]:
    def node(operation: Callable[[_Step], Coroutine[Any, Any, StateUpdate]]) -> Node:
        is_first = operation is remember_feedback

        async def take(step: NodeCall) -> StateUpdate:
            lesson = {"usage": []} if is_first else require_channel(step.state, "judge_lesson")
            fields = {**vars(step), "io": MeteredIO(step.io), "lesson": lesson, "options": options}
            return await operation(_Step(**fields))

        return Node(take, resources, name=operation.__name__, is_first=is_first)

    return [
        node(remember_feedback),
        *([node(judge_cases)] if options.judge_cases else []),
        node(distill_batches),
        node(consolidate_guidelines),
        *([node(settle_conflicts)] if options.conflicts == "ask" else []),
        *([node(replay_cases)] if options.guard else []),
        node(commit_alignment),
    ]


@dataclass(frozen=True, kw_only=True)
class _Step(NodeCall):
    """What a node works with; what it asks of models is counted."""

    io: MeteredIO
    lesson: Lesson
    options: Alignment
    start: float = field(default_factory=time.time)

    def usage(self) -> list[Lesson]:
        used = self.io.usage.model_dump()
        return [*self.lesson["usage"], {"used": used, "start": self.start, "stop": time.time()}]

    def learned(self, **more: Any) -> StateUpdate:
        return {"judge_lesson": {**self.lesson, **more, "usage": self.usage()}}

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


async def remember_feedback(step: _Step) -> StateUpdate:
    """Store feedback, but for what can't be used, and pack what is pending into batches."""
    io, access, criterion = step.io, step.access, step.resources.criterion
    given = step.state.get("feedback")
    if not isinstance(given, list | tuple):
        raise InvalidInputError(
            "feedback: give a list of Feedback or of its fields, such as "
            "[{'inputs': ..., 'outputs': ..., 'value': ..., 'rationale': ...}]."
        )
    window = max_input_tokens(step.distiller)
    read: list[Feedback] = []
    rejected: list[Lesson] = []
    for index, record in enumerate(given):
        try:
            read.append(_read(record, criterion, step.options.learn_from, step.run.thread_id))
        except InvalidInputError as error:
            rejected.append({"index": index, "reason": str(error)})
    step.progress("remember", 0, len(read))
    before = (await access.refresh(io)).version
    guidelines = await access.guidelines(io)
    stored = await remember(io, access, read, is_table=True, note_threads=False)
    step.progress("remember", len(read), len(read))
    rows = (await access.refresh(io)).rows()
    per_case = Counter(row.vector_key for row in rows)
    several = [row.id for row in rows if per_case[row.vector_key] > 1]
    experts = await access.episodes(io, several)
    agreement = expert_agreement(list(experts.values()), criterion.scale)
    shown = agreement.model_dump(mode="json")
    if agreement.examples:
        step.run.write({"type": "alignment_agreement", "criterion": criterion.name, **shown})
    new, changed = len(stored.new), len(stored.changed)
    by_id = {episode.id: episode for episode in stored.episodes}
    known = [(said, by_id[said.episode_id]) for said in read if said.episode_id in by_id]
    outdated = sum(
        said.value not in (None, kept.value) or said.rationale not in (None, kept.rationale)
        for said, kept in known
    )
    warnings = [_OUTDATED.format(outdated)] if outdated else []
    lesson = {
        "feedback": {
            "new": new,
            "changed": changed,
            "unchanged": len(read) - new - changed - outdated,
            "rejected": len(rejected),
        },
        "rejected": rejected,
        "agreement": shown,
        "memory_version_before": before,
        "batches": await _batches(step, window, warnings) if step.options.distill else [],
        "warnings": warnings,
        "guidelines_before": [guideline.to_json() for guideline in guidelines],
        "new_ids": sorted(stored.new | stored.changed),
        # Tells a purge that this thread carried them.
        "feedback_ids": list(dict.fromkeys(episode.id for episode in stored.episodes)),
        **_proposal(),
        "conflicts": [],
        "decisions": None,
        "replay": None,
    }
    return {"judge_run": {"settings": step.settings}, **step.learned(**lesson)}


async def judge_cases(step: _Step) -> StateUpdate:
    """Judge the cases in memory that experts valued and no judge has, each as if it were new."""
    io, access, criterion = step.io, step.access, step.resources.criterion
    # The verdict alone: what else the evidence weighs is what this brings about.
    judge = step.resources.judge.but(decide="verdict", keep_judgments=None)
    judging = replace(step, resources=JudgeResources(judge, clients=step.resources.clients))
    view = await access.refresh(io)
    await index_missing(io, access, view)
    cases = unjudged_cases(view.rows(), criterion.scale)
    standing = await access.guidelines(io)
    found = await access.episodes(io, (ids[0] for ids in cases.values()))
    examples = {episode.example_id: episode.example for episode in found.values()}
    # Cases are judged concurrently: all of them together keep to the limit.
    limit = max(step.run.max_concurrency // max(len(cases), 1), 1)
    step.progress("judge", 0, len(cases))
    add = step.counter("judge", len(cases))

    async def judge_case(example: Example) -> Judgment | ChatModelError | ModelAnswerError:
        own = frozenset(view.episode_ids_for_vector(key_of(access, example)))
        # As if it were new: without what rests on its episodes alone.
        guidelines = [
            rule for rule in standing if not rule.episode_ids or {*rule.episode_ids} - own
        ]
        judged: Judgment | ChatModelError | ModelAnswerError
        try:
            judged = await judge_again(
                judging, example, guidelines=guidelines, excluded_episode_ids=own, limit=limit
            )
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                raise
            judged = error
        add()
        return judged

    outcomes = await io.gather(list(map(judge_case, examples.values())), step.run.max_concurrency)
    # Without its words: they may repeat other cases', which a purge of those would miss.
    judgments = {
        key: outcome.model_copy(update={"rationale": ""})
        for key, outcome in zip(examples, outcomes, strict=True)
        if isinstance(outcome, Judgment)
    }
    await record_judgments(io, access, judgments)
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Judgment)]
    told = Counter(warning for judgment in judgments.values() for warning in judgment.warnings)
    warnings = [
        *step.lesson["warnings"],
        *([_UNJUDGED.format(len(failures), failures[0])] if failures else []),
        *(f"{times} case(s) were judged so: {warning}" for warning, times in told.items()),
    ]
    return step.learned(judged_cases=len(judgments), warnings=warnings)


async def distill_batches(step: _Step) -> StateUpdate:
    """Distil all batches concurrently; once more what failed, when the others are done and kept.

    A batch that fails again is left out, and named, where another was distilled.
    """
    lesson, access, chat = step.lesson, step.access, step.distiller
    batches = lesson["batches"]
    proposals = list(lesson.get("proposals", [None] * len(batches)))
    waiting = [number for number, proposal in enumerate(proposals) if proposal is None]
    add = step.counter("distill", len(batches), len(batches) - len(waiting))

    io = CachedRepliesIO(step.io, access, bypass_cache="proposals" in lesson)

    async def distill(number: int) -> tuple[Lesson, ChatModelError | None]:
        try:
            proposal = await _propose(io, access, chat, batches[number])
        except ChatModelError as error:
            left_out = _LEFT_OUT.format(number + 1, len(batches), error)
            if "proposals" in lesson:
                logger.warning("%s", left_out)
            return {**_proposal(), "refused": [left_out]}, error
        add(batch=number + 1)
        return proposal, None

    distilled = await step.io.gather(list(map(distill, waiting)), step.run.max_concurrency)
    for number, (proposal, _) in zip(waiting, distilled, strict=True):
        proposals[number] = proposal
    errors = {number: error for number, (_, error) in zip(waiting, distilled, strict=True) if error}
    if "proposals" not in lesson:
        for number, error in errors.items():
            failed = "Batch %d of %d failed and is tried again: %s"
            logger.warning(failed, number + 1, len(batches), error)
            proposals[number] = None
    elif errors and not any(proposal["read"] or proposal["reworded"] for proposal in proposals):
        raise next(iter(errors.values()))
    return step.learned(proposals=proposals, failed=proposals.count(None))


async def consolidate_guidelines(step: _Step) -> StateUpdate:
    """Bring proposals together with each other and with what stands."""
    proposals, asks = step.lesson["proposals"], step.options.conflicts == "ask"
    proposed = [read_saved(one["operations"]) for one in proposals if one["operations"]]
    # One batch has seen what stands; several know nothing of each other.
    compare = len(proposed) >= (1 if asks else 2)
    step.progress("consolidate", 0, 1)
    io = CachedRepliesIO(step.io, step.access)
    warnings = list(step.lesson["warnings"])
    merge = partial(merge_proposals, io, step.access, step.distiller, proposed)
    try:
        merged = await merge(compare=compare)
    except (ChatModelError, ModelAnswerError) as error:
        if not error.is_refusal:
            raise
        warnings.append(_UNMERGED.format(error))
        logger.warning("%s", warnings[-1])
        merged = await merge(compare=False)
    step.progress("consolidate", 1, 1)
    joined: Lesson = _proposal()
    for proposal in proposals:
        for name, more in proposal.items():
            joined[name] = joined[name] | more if isinstance(more, dict) else joined[name] + more
    cut = joined["cut"]
    cuts = [_CUT.format(len(cut), _some(cut))] if cut else []
    settled = [] if asks else settle(merged.conflicts)
    left = unsettled(replace(merged, conflicts=[]) if asks else merged, settled)
    for warning in left:
        logger.warning("%s", warning)
    return step.learned(
        operations=saved([*merged.operations, *settled]),
        conflicts=[conflict.model_dump(mode="json") for conflict in merged.conflicts],
        **{name: joined[name] for name in ("rewordings", "read", "reworded", "failed_attempts")},
        prompts=[list(proposal["read"]) for proposal in proposals],
        warnings=[*warnings, *left, *joined["refused"], *cuts],
    )


async def settle_conflicts(step: _Step) -> StateUpdate:
    step.run.warn_without_checkpointer("alignment")
    conflicts = [Conflict.model_validate(fields) for fields in step.lesson["conflicts"]]
    decisions = conflict_form(step.resources.criterion, conflicts).ask(step.settings["namespace"])
    settled = saved(settle(conflicts, decisions))
    return step.learned(decisions=decisions, operations=[*step.lesson["operations"], *settled])


async def replay_cases(step: _Step) -> StateUpdate:
    """Keep guidelines from breaking what worked: seen cases are judged again."""
    lesson, judge = step.lesson, value_judge(step.resources.judge)
    judging = replace(step, resources=JudgeResources(judge, clients=step.resources.clients))

    async def judge_case(
        example: Example, guidelines: Sequence[Guideline], excluded_episode_ids: frozenset[str]
    ) -> Any:
        judged = await judge_again(
            judging, example, guidelines=guidelines, excluded_episode_ids=excluded_episode_ids
        )
        return judged.value

    rewordings = read_saved(lesson["rewordings"])
    proposed = {operation.guideline_id for operation in rewordings}
    kept, again, seen = await replay(
        step.io,
        step.access,
        judge_case,
        read_saved(lesson["operations"]),
        rewordings,
        before=_guidelines_before(lesson),
        new_episodes=lesson["new_ids"],
        cases=step.options.replay_cases,
        limit=step.run.max_concurrency,
        report=partial(step.progress, "replay"),
    )
    warnings, attempted = list(lesson["warnings"]), list(lesson["failed_attempts"])
    reworded = {operation.guideline_id for operation in again}
    for guideline in await step.access.pending_guidelines(step.io):
        if guideline.id in proposed - reworded:
            failure = Failure.of(guideline, step.distiller, NoWordingError(_DROPPED))
            warnings.append(str(failure))
            attempted += attempts([failure])
            logger.warning("%s", failure)
    if seen.failed:
        warnings.append(_NOT_REPLAYED.format(len(seen.failed), next(iter(seen.failed.values()))))
        logger.warning("%s", warnings[-1])
    return step.learned(
        operations=saved(kept),
        rewordings=saved(again),
        replay=seen.model_dump(mode="json"),
        failed_attempts=attempted,
        warnings=warnings,
    )


async def commit_alignment(step: _Step) -> StateUpdate:
    """Commit what was learned, and report; again, it changes nothing more."""
    io, lesson, access = step.io, step.lesson, step.access
    learned: list[Lesson] = []
    if rewordings := read_saved(lesson["rewordings"]):
        again = await learn_again(io, access, rewordings, lesson["reworded"])
        learned += again["guidelines"]
    proposed, read = read_saved(lesson["operations"]), lesson["read"]
    failed = lesson["failed_attempts"]
    if read or proposed or failed:
        prompts = lesson["prompts"]
        aligned = await learn(
            io, access, proposed, read, prompts=prompts, failed=failed, reason="align"
        )
        learned += aligned["guidelines"]
    await clear_cached_replies(io, access)
    step.progress("commit", 1, 1)
    warnings = list(lesson["warnings"])
    if step.asks_checks:
        unasked = await fill_questions(
            io, access, step.distiller, access.criterion, await access.guidelines(io)
        )
        warnings += [unasked] if unasked else []
        # The judge's own model: of another the answers tell nothing.
        warnings += await fill_check_answers(
            io,
            access,
            step.chat,
            limit=step.run.max_concurrency,
            tell=partial(step.progress, "check"),
        )
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

    after = await access.guidelines(io)
    fields = {name: lesson[name] for name in AlignmentReport.model_fields if name in lesson}
    fields |= {"batches": len(fields["batches"]), "warnings": warnings}
    report = AlignmentReport(
        **fields,
        guidelines=compare_guidelines(of_run(_guidelines_before(lesson)), of_run(after), learned),
        cost=total_cost(step.usage()),
        memory_version_after=view.version,
    )
    return {"report": report.to_json()}


def _proposal() -> Lesson:
    """Begin what is proposed: the words of the episodes that were read, by id, and what of them."""
    lists = ("operations", "rewordings", "cut", "refused", "failed_attempts")
    return {**{name: [] for name in lists}, "read": {}, "reworded": {}}


def _guidelines_before(lesson: Lesson) -> list[Guideline]:
    return [Guideline.model_validate(fields) for fields in lesson["guidelines_before"]]


async def _propose(
    io: IO, access: MemoryAccess, chat: BaseChatModel, batch: Mapping[str, Any]
) -> Lesson:
    """Distil a batch: feedback, or a guideline that lost a source."""
    proposal = _proposal()
    if "guideline_id" in batch:
        pending = {one.id: one for one in await access.pending_guidelines(io)}
        if (guideline := pending.get(batch["guideline_id"])) is None:
            return proposal
        rewording = await reword(io, access, chat, guideline)
        failures = [rewording.failure] if rewording.failure is not None else []
        if failures and not failures[0].counts:
            raise failures[0].error
        proposal |= {"reworded": rewording.read, "refused": rewording.refused}
        proposal["rewordings"] = saved(operations_of([rewording]))
    else:
        found = await access.episodes(io, batch["episode_ids"])
        # Another run may have learned some of it meanwhile.
        waiting = [episode for episode in found.values() if episode.status == "pending"]
        reading = await distil_all(io, access, chat, waiting)
        failures = reading.failures
        proposal |= {"read": reading.read, "refused": reading.refused, "cut": reading.cut}
        proposal["operations"] = saved(reading.operations)
    for failure in failures:
        logger.warning("%s", failure)
    proposal["refused"] = [*proposal["refused"], *map(str, failures)]
    proposal["failed_attempts"] = attempts(failures)
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


def _some(ids: Sequence[str]) -> str:
    return ", ".join([*ids[:_SHOWN_IDS], *(["..."] if len(ids) > _SHOWN_IDS else [])])


async def _batches(step: _Step, window: int, warnings: list[str]) -> list[Lesson]:
    """Pack what is pending: feedback, and guidelines that lost a source; warn of what is not."""
    io, access = step.io, step.access
    view, chat = await access.refresh(io), step.distiller
    pending = (await access.episodes(io, view.pending())).values()
    guidelines = await access.guidelines(io)
    outdated = await access.pending_guidelines(io)
    batched = [episode for episode in pending if can_be_tried(access, chat, episode)]
    reworded = [guideline.id for guideline in outdated if can_be_tried(access, chat, guideline)]
    for kind, waiting, tried in (
        ("piece(s) of feedback", pending, {episode.id for episode in batched}),
        ("pending guideline(s)", outdated, {*reworded}),
    ):
        if given_up := sorted({item.id for item in waiting} - tried):
            warnings.append(_GIVEN_UP.format(len(given_up), kind, MAX_ATTEMPTS, _some(given_up)))
    packed = pack(
        batched,
        access.criterion,
        guidelines,
        max_input_tokens=window,
        most=step.options.batch_size,
        is_small=is_small_model(chat),
    )
    return [*({"episode_ids": ids} for ids in packed), *({"guideline_id": key} for key in reworded)]
