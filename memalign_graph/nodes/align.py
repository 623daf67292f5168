"""The nodes of the alignment graph, in their order."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from memalign_graph.agreement import expert_agreement
from memalign_graph.alignment.distill import (
    NoWordingError,
    commit_distilled,
    distill_in_batches,
    dump_operations,
    failure_of,
    give_up_warnings,
    load_operations,
    pack_batches,
    reword_pending,
    sources_to_try,
)
from memalign_graph.alignment.merge import (
    merge_proposals,
    overruled_warnings,
    resolve_conflicts,
    unresolved_warnings,
)
from memalign_graph.alignment.replay import replay
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.alignment.report import AlignmentReport, Conflict, compare_guidelines, sum_usage
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    MemAlignError,
    ModelAnswerError,
    is_about_prompt,
)
from memalign_graph.evidence.checks import fill_check_answers, fill_questions
from memalign_graph.interrupts import conflict_form
from memalign_graph.judging.again import judge_as_new, judge_leaving_out, without_measuring
from memalign_graph.memory.feedback import parse_record, record_judgments, remember, unjudged_cases
from memalign_graph.memory.purge import clear_cached_replies
from memalign_graph.memory.recall import index_missing
from memalign_graph.models import is_small_model, max_input_tokens
from memalign_graph.prompts.distill import shown_guidelines
from memalign_graph.prompts.distilled import DistillResult
from memalign_graph.runtime import JudgeResources, Node, NodeCall, StateUpdate, require_channel
from memalign_graph.settings import Alignment
from memalign_graph.tracing import MeteredIO
from memalign_graph.types import Episode, Feedback, Guideline, Judgment

_OUTDATED = (
    "{} record(s) do not count, because memory has newer feedback of the same expert on the same "
    "example, or forgot it. All feedback without `author` and `id` counts as one expert's."
)
_UNJUDGED = (
    "{} case(s) could not be judged and have no verdict. The next alignment tries again. The first "
    "error: {}"
)
_NOT_REPLAYED = "{} seen case(s) could not be judged again and do not count. The first error: {}"
_DROPPED = "the replay dropped its new wording, which regresses more seen cases than it fixes"
_LEFT_OUT = (
    "Batch {} of {} was not distilled. Its feedback stays pending for the next alignment. {}"
)
_UNMERGED = (
    "New guidelines were not compared with each other and with the active ones, because the model "
    "refused. Call `consolidate()` to compare them. {}"
)
_PURGED = "Feedback of this run was purged meanwhile. Delete this thread from the checkpointer."

Lesson = dict[str, Any]
"""The JSON results of the previous nodes."""


def alignment_nodes(resources: JudgeResources, options: Alignment) -> list[Node]:
    operations = [
        remember_feedback,
        distill_batches,
        consolidate_guidelines,
        *([settle_conflicts] if options.conflicts == "ask" else []),
        *([replay_cases] if options.guard else []),
        commit_alignment,
        *([judge_cases] if options.judge_cases else []),
    ]
    return [
        Node(
            partial(_run_node, operation, options),
            resources,
            name=operation.__name__,
            is_first=operation is remember_feedback,
        )
        for operation in operations
    ]


async def _run_node(
    operation: Callable[["_Call"], Coroutine[Any, Any, StateUpdate]],
    options: Alignment,
    call: NodeCall,
) -> StateUpdate:
    # The first node starts over: the thread may hold the lesson of an earlier run.
    is_first = operation is remember_feedback
    lesson = {"usage": []} if is_first else require_channel(call.state, "judge_lesson")
    fields = {**vars(call), "io": MeteredIO(call.io)}
    return await operation(_Call(**fields, lesson=lesson, options=options))


@dataclass(frozen=True, kw_only=True)
class _Call(NodeCall):
    """A call of a node that counts model calls and tokens."""

    io: MeteredIO
    lesson: Lesson
    options: Alignment
    start: float = field(default_factory=time.time)

    def usage(self) -> list[Lesson]:
        used = self.io.usage.model_dump()
        return [*self.lesson["usage"], {"used": used, "start": self.start, "stop": time.time()}]

    def learned(self, **more: Any) -> StateUpdate:
        return {"judge_lesson": {**self.lesson, **more, "usage": self.usage()}}

    def warnings(self, *more: str) -> list[str]:
        """Log more warnings; return them after those so far."""
        return [*self.lesson["warnings"], *self.access.log_warnings(more)]

    def progress(self, stage: str, done: int, of: int) -> None:
        """Stream a custom event with the progress."""
        event = {"type": "alignment_progress", "stage": stage, "done": done, "of": of}
        self.runtime.stream_writer(event)

    def progress_counter(self, stage: str, of: int) -> Callable[[], None]:
        """Return a thread-safe function that counts one more and streams the progress."""
        lock, numbers = threading.Lock(), count(1)

        def add() -> None:
            with lock:
                self.progress(stage, next(numbers), of)

        return add


async def remember_feedback(call: _Call) -> StateUpdate:
    """Store valid feedback, and pack all that is pending into batches."""
    io, access, criterion = call.io, call.access, call.resources.criterion
    records = call.state.get("feedback")
    if not isinstance(records, list | tuple):
        raise InvalidInputError(
            "feedback: expected a list of Feedback, or of dicts with its fields, such as "
            "[{'inputs': ..., 'outputs': ..., 'value': ..., 'rationale': ...}]."
        )
    max_input_tokens(call.distill_chat_model)  # before anything is stored: it may be unusable
    feedback: list[Feedback] = []
    rejected: list[Lesson] = []
    for index, record in enumerate(records):
        try:
            item = parse_record(record, criterion, call.options.learn_from)
            thread_id = item.thread_id or call.thread_id
            feedback.append(item.model_copy(update={"thread_id": thread_id}))
        except InvalidInputError as error:
            rejected.append({"index": index, "reason": str(error)})
    call.progress("remember", 0, len(feedback))
    version_before = (await access.refresh(io)).version
    guidelines = await access.guidelines(io)
    stored = await remember(io, access, feedback, is_table=True)
    call.progress("remember", len(feedback), len(feedback))
    agreement = expert_agreement(await access.all_episodes(io), criterion.scale)
    new, changed = len(stored.new), len(stored.changed)
    by_id = {episode.id: episode for episode in stored.episodes}
    outdated = sum(_is_outdated(item, by_id.get(item.episode_id)) for item in feedback)
    warnings = [_OUTDATED.format(outdated)] if outdated else []
    lesson = {
        "feedback": {
            "new": new,
            "changed": changed,
            "unchanged": len(feedback) - new - changed - outdated,
            "rejected": len(rejected),
        },
        "rejected": rejected,
        "agreement": agreement.model_dump(mode="json"),
        "memory_version_before": version_before,
        **await _pack(call, warnings),
        "warnings": [*stored.warnings, *access.log_warnings(warnings)],
        "guidelines_before": [guideline.to_json() for guideline in guidelines],
        "new_ids": sorted(stored.new | stored.changed),
        # A purge finds by these ids that the thread has the feedback.
        "feedback_ids": list(dict.fromkeys(item.episode_id for item in feedback)),
    }
    return {"judge_run": {"settings": call.settings}, **call.learned(**lesson)}


def _is_outdated(feedback: Feedback, stored: Episode | None) -> bool:
    """Return whether memory has other feedback of the same expert on the example, or none."""
    return (
        stored is None
        or feedback.value not in (None, stored.value)
        or feedback.rationale not in (None, stored.rationale)
    )


async def _pack(call: _Call, warnings: list[str]) -> Lesson:
    """Pack pending feedback into batches; add a warning about what is given up."""
    if not call.options.distill:
        return {"batches": [], "has_pending": False}
    io, access, chat = call.io, call.access, call.distill_chat_model
    pending = [*(await access.episodes(io, (await access.refresh(io)).pending())).values()]
    outdated = await access.pending_guidelines(io)
    for kind, items in (("piece(s) of feedback", pending), ("pending guideline(s)", outdated)):
        warnings += give_up_warnings(access, chat, kind, items)
    batches = pack_batches(
        [*sources_to_try(access, chat, pending)],
        access.criterion,
        await access.guidelines(io),
        max_input_tokens=max_input_tokens(chat),
        max_batch_size=call.options.batch_size,
        is_small=is_small_model(chat),
    )
    is_outdated = any(sources_to_try(access, chat, outdated))
    return {"batches": batches, "has_pending": bool(batches) or is_outdated}


async def distill_batches(call: _Call) -> StateUpdate:
    """Distill all batches concurrently, and reword guidelines that lost a source.

    A batch that fails is left out if anything else was distilled.
    """
    # A run that broke off under release 0.2 has these ids in a dict, or a guideline's id.
    named = [
        each if isinstance(each, dict) else {"episode_ids": each} for each in call.lesson["batches"]
    ]
    batches: list[list[str]] = [each["episode_ids"] for each in named if "episode_ids" in each]
    access, chat = call.access, call.distill_chat_model
    io = CachedRepliesIO(call.io, access)
    add_progress = call.progress_counter("distill", len(batches))

    async def distill(number: int) -> DistillResult | ChatModelError:
        episodes = await access.episodes(io, batches[number])
        # Another run may have distilled some of it in the meantime.
        waiting = [episode for episode in episodes.values() if episode.status == "pending"]
        try:
            result = await distill_in_batches(io, access, chat, waiting)
        except ChatModelError as error:
            return error
        add_progress()
        return result

    distilling = [distill(number) for number in range(len(batches))]
    outcomes = dict(enumerate(await call.io.gather(distilling, call.max_concurrency)))
    results = {n: each for n, each in outcomes.items() if isinstance(each, DistillResult)}
    errors = {n: each for n, each in outcomes.items() if isinstance(each, ChatModelError)}
    distilled = sum(results.values(), DistillResult())
    reworded = await reword_pending(io, access, chat, limit=call.max_concurrency)
    unreachable = [*errors.values(), *(e for e in reworded.errors if not is_about_prompt(e))]
    if unreachable and not distilled.read and not reworded.read:
        raise unreachable[0]
    left_out = [_LEFT_OUT.format(n + 1, len(batches), error) for n, error in errors.items()]
    return call.learned(
        batches=[batches[n] for n, result in results.items() if result.read],
        proposals=[
            dump_operations(each.operations) for each in distilled.by_prompt if each.operations
        ],
        prompts=[list(each.read) for each in distilled.by_prompt],
        read=distilled.read,
        rewordings=dump_operations(reworded.operations),
        reworded=reworded.read,
        failed_attempts=[*distilled.failed_attempts, *reworded.failed_attempts],
        warnings=call.warnings(*left_out, *distilled.all_warnings, *reworded.warnings),
    )


async def consolidate_guidelines(call: _Call) -> StateUpdate:
    """Merge proposals with each other and with the active guidelines."""
    asks = call.options.conflicts == "ask"
    proposals = list(map(load_operations, call.lesson["proposals"]))
    active = await call.access.guidelines(call.io)
    shown = shown_guidelines(active, max_input_tokens(call.distill_chat_model))
    # A single prompt has the active guidelines that fit; several are independent.
    compare = len(proposals) >= (1 if asks or len(shown) < len(active) else 2)
    call.progress("consolidate", 0, 1)
    io, unmerged = CachedRepliesIO(call.io, call.access), list[str]()
    merge = partial(merge_proposals, io, call.access, call.distill_chat_model, proposals)
    try:
        merged = await merge(compare=compare)
    except (ChatModelError, ModelAnswerError) as error:
        if not error.is_refusal:
            raise
        unmerged.append(_UNMERGED.format(error))
        merged = await merge(compare=False)
    call.progress("consolidate", 1, 1)
    resolved = [] if asks else resolve_conflicts(merged.conflicts)
    unresolved = [] if asks else unresolved_warnings(merged.conflicts, resolved)
    return call.learned(
        operations=dump_operations([*merged.operations, *resolved]),
        left_pending=sorted(merged.left_pending),
        conflicts=[conflict.model_dump(mode="json") for conflict in merged.conflicts],
        warnings=call.warnings(*unmerged, *unresolved, *merged.warnings),
    )


async def settle_conflicts(call: _Call) -> StateUpdate:
    call.warn_without_checkpointer("alignment")
    conflicts = [Conflict.model_validate(fields) for fields in call.lesson["conflicts"]]
    decisions = conflict_form(call.resources.criterion, conflicts).ask(call.settings["namespace"])
    resolved = resolve_conflicts(conflicts, decisions)
    return call.learned(
        decisions=decisions,
        operations=[*call.lesson["operations"], *dump_operations(resolved)],
        warnings=call.warnings(*overruled_warnings(conflicts, decisions, resolved)),
    )


async def replay_cases(call: _Call) -> StateUpdate:
    """Judge seen cases again, and drop guidelines that regress them."""
    lesson, judge = call.lesson, without_measuring(call.judge)
    judging = replace(call, resources=JudgeResources(judge, clients=call.resources.clients))
    rewordings = load_operations(lesson["rewordings"])
    retained, outcome = await replay(
        call.io,
        call.access,
        partial(judge_leaving_out, judging),
        [*rewordings, *load_operations(lesson["operations"])],
        max_cases=call.options.replay_cases,
        limit=call.max_concurrency,
        report=partial(call.progress, "replay"),
    )
    dropped = {operation.guideline_id for operation in rewordings if operation not in retained}
    failures = DistillResult()
    for guideline in await call.access.pending_guidelines(call.io):
        if guideline.id in dropped:
            chat, error = call.distill_chat_model, NoWordingError(_DROPPED)
            failures += failure_of(call.access, chat, guideline, error)
    unjudged = list(outcome.failed.values())
    warnings = [_NOT_REPLAYED.format(len(unjudged), unjudged[0])] if unjudged else []
    return call.learned(
        operations=dump_operations([item for item in retained if item not in rewordings]),
        rewordings=dump_operations([item for item in retained if item in rewordings]),
        replay=outcome.model_dump(mode="json"),
        failed_attempts=[*lesson.get("failed_attempts", []), *failures.failed_attempts],
        warnings=call.warnings(*warnings, *failures.warnings),
    )


async def commit_alignment(call: _Call) -> StateUpdate:
    """Commit the operations and return the report; a repeated commit changes nothing."""
    io, lesson, access = call.io, call.lesson, call.access
    # Without anything pending, the nodes between were skipped, and the lesson has no operations.
    aligned, reworded = await commit_distilled(io, access, lesson, reason="align")
    learned, warnings = [*aligned["guidelines"], *reworded], [*aligned["warnings"]]
    if not call.options.judge_cases or lesson.get("failed_attempts"):
        # The next attempt asks the model, and does not read the answer of this one.
        await clear_cached_replies(io, access)
    call.progress("commit", 1, 1)
    if call.asks_checks:
        guidelines = await access.guidelines(io)
        unasked = await fill_questions(io, access, call.distill_chat_model, guidelines)
        warnings += [unasked] if unasked else []
        # Answers are specific to a model: ask the judge's own. Judging repeats these prompts.
        warnings += await fill_check_answers(
            CachedRepliesIO(io, access) if call.options.judge_cases else io,
            access,
            call.chat_model,
            limit=call.max_concurrency,
            report_progress=partial(call.progress, "check"),
        )
    view = await access.refresh(io)
    gone = {key for key in lesson.get("feedback_ids", []) if not view.holds(key)}
    warnings += [_PURGED] if view.purges(gone) else []
    # Report only this run's changes: others may change the memory in the meantime.
    touched = {item.get(name) for item in learned for name in ("guideline_id", "superseded_by")}
    sources = {*lesson["new_ids"], *lesson.get("read", {}), *lesson.get("reworded", {})}

    def of_run(guidelines: Sequence[Guideline]) -> list[Guideline]:
        return [
            guideline
            for guideline in guidelines
            if guideline.id in touched or not sources.isdisjoint(guideline.episode_ids)
        ]

    before = [Guideline.model_validate(fields) for fields in lesson["guidelines_before"]]
    after = await access.guidelines(io)
    fields = {name: lesson[name] for name in AlignmentReport.model_fields if name in lesson}
    fields |= {"batches": len(fields["batches"]), "warnings": call.warnings(*warnings)}
    report = AlignmentReport(
        **fields,
        guidelines=compare_guidelines(of_run(before), of_run(after), learned),
        cost=sum_usage(call.usage()),
        memory_version_after=view.version,
    )
    return {"report": report.to_json(), **call.learned()}


async def judge_cases(call: _Call) -> StateUpdate:
    """Judge the cases in memory with an expert's value and no verdict, each as if it were new.

    With what was learned: the evidence weighs the verdicts of the judge as it is from now on.
    """
    io, access, report = call.io, call.access, require_channel(call.state, "report")
    # The verdict alone: the evidence model needs it.
    judge = call.judge.but(decide="verdict")
    judging = replace(call, resources=JudgeResources(judge, clients=call.resources.clients))
    view = await access.refresh(io)
    await index_missing(io, access)
    unjudged = unjudged_cases(view.rows(), access.criterion.scale)
    guidelines = await access.guidelines(io)
    episodes = await access.episodes(io, unjudged)
    call.progress("judge", 0, len(unjudged))
    add_progress = call.progress_counter("judge", len(unjudged))
    judgments: dict[str, Judgment] = {}
    failures: list[MemAlignError] = []

    async def judge_case(case: Episode) -> None:
        try:
            judgments[case.example_id] = await judge_as_new(judging, case.example, guidelines)
        except MemAlignError as error:
            if not is_about_prompt(error):
                raise
            failures.append(error)
        finally:
            add_progress()

    await io.gather(list(map(judge_case, episodes.values())), call.max_concurrency)
    await record_judgments(io, access, judgments)
    await clear_cached_replies(io, access)
    counts = Counter(warning for judgment in judgments.values() for warning in judgment.warnings)
    warnings = [_UNJUDGED.format(len(failures), failures[0])] if failures else []
    access.log_warnings(warnings)  # those of the judgments were logged when they were made
    warnings += [
        f"{n} case(s) were judged with a warning: {text}" for text, n in sorted(counts.items())
    ]
    judged = {
        "judged_cases": len(judgments),
        "warnings": [*report["warnings"], *warnings],
        "cost": sum_usage(call.usage()).to_json(),
        "memory_version_after": (await access.refresh(io)).version,
    }
    return {"report": {**report, **judged}}
