"""Learning from much feedback at once: the nodes of the alignment graph, in their order."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.agreement import expert_agreement
from memalign_graph.alignment.batches import pack
from memalign_graph.alignment.consolidate import merge_proposals
from memalign_graph.alignment.drafts import ask_once
from memalign_graph.alignment.merging import Conflict, settle
from memalign_graph.alignment.redistill import learn_again, reword
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
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.memory.lessons import learn
from memalign_graph.models import Metered, max_input_tokens, with_schema
from memalign_graph.nodes.judge import judge_again, own_channel, value_judge
from memalign_graph.nodes.learn import read_saved
from memalign_graph.prompts.distill import distill_prompt, operations_schema, read_operations
from memalign_graph.reading import read_feedback
from memalign_graph.runtime import Node, Parts, Run, State, Update
from memalign_graph.settings import Alignment, LearnFrom, resolve_context
from memalign_graph.types import Criterion, Episode, Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)

_SHOWN_IDS = 5

Lesson = dict[str, Any]
"""What the nodes so far have left: see each node's last lines."""


def remember_node(parts: Parts, options: Alignment, built: Mapping[str, Any]) -> Node:
    """Make the first node: it stores feedback, and packs what is pending into batches.

    A record that can't be used is reported with the reason, and does not keep out the others.
    """

    async def remember_feedback(io: IO, state: State, run: Run) -> Update:
        start = time.time()
        metered = Metered(io)
        given = state.get("feedback")
        if not isinstance(given, list | tuple):
            raise InvalidInputError(
                "feedback: give a list of Feedback or of its fields, such as "
                "[{'inputs': ..., 'outputs': ..., 'value': ..., 'rationale': ...}]."
            )
        settings = resolve_context(run.context, built)
        access = parts.memory(run.store, settings)
        window = max_input_tokens(parts.distiller(settings["model"]))
        read, rejected = _read(given, parts.criterion, options.learn_from, run.thread_id)
        _progress(run, "remember", 0, len(read))
        before = (await access.refresh(metered)).version
        guidelines = await access.every_guideline(metered)
        stored = await remember(metered, access, read, note_threads=False)
        _progress(run, "remember", len(read), len(read))
        agreement = await _agreement(metered, access, run)
        batches: list[dict[str, Any]] = []
        if options.distill:
            batches = await _batches(metered, access, window, options.batch_size)
        new, changed = len(stored.new), len(stored.changed)
        outdated = sum(map(_is_outdated, read, stored.episodes))
        lesson: Lesson = {
            "received": {
                "feedback": {
                    "new": new,
                    "changed": changed,
                    "unchanged": len(read) - new - changed - outdated,
                    "rejected": len(rejected),
                },
                "rejected": rejected,
                "agreement": agreement,
                "memory_version_before": before,
            },
            "warnings": _outdated_warnings(outdated),
            "batches": batches,
            "guidelines_before": [guideline.to_json() for guideline in guidelines],
            "new_ids": sorted(stored.new | stored.changed),
            # Tells a purge that this thread carried them.
            "feedback_ids": list(dict.fromkeys(episode.id for episode in stored.episodes)),
            "usage": [_usage(metered, start)],
        }
        return {"judge_run": {"settings": settings}, "judge_lesson": lesson}

    return Node("remember_feedback", remember_feedback)


def judge_cases_node(parts: Parts) -> Node:
    """Make the node that judges the cases in memory that experts valued and no judge has judged.

    Each is judged once, whatever the number of its experts, as if it were new: without the episodes
    on it, and without the guidelines that rest on it alone. The judgment is kept on its episodes,
    without its rationale; a case that gets no answer that can be used is left without.
    """
    # The verdict alone: what else the evidence weighs is what this brings about.
    judge_parts = parts.but(decide="verdict", keep_judgments=None)

    async def judge_cases(io: IO, lesson: Lesson, access: MemoryAccess, run: _Run) -> Lesson:
        view = await access.refresh(io)
        await index_missing(io, access, view)
        cases = unjudged_cases(view.rows(), parts.criterion.scale)
        standing = await access.all_guidelines(io)
        found = await access.episodes(io, (ids[0] for ids in cases.values()))
        examples = {episode.example_id: episode.example for episode in found.values()}
        done = _Count(lambda count: run.progress("judge", count, len(cases)))

        async def judge_case(example: Example) -> Judgment | ModelAnswerError:
            own = frozenset(view.episodes_at(key_of(access, example)))
            guidelines = [one for one in standing if not _rests_on(one, own)]
            # Cases are judged concurrently: all of them together keep to the limit.
            limit = max(run.limit // max(len(cases), 1), 1)
            judged: Judgment | ModelAnswerError
            try:
                judged = await judge_again(
                    io,
                    judge_parts,
                    access,
                    example,
                    guidelines=guidelines,
                    besides=own,
                    settings=run.settings,
                    limit=limit,
                )
            except ModelAnswerError as error:
                judged = error
            done.add()
            return judged

        outcomes = await io.gather(list(map(judge_case, examples.values())), run.limit)
        # Without its words: they may repeat other cases', which a purge of those would miss.
        judgments = {
            key: outcome.model_copy(update={"rationale": "", "thread_id": run.run.thread_id})
            for key, outcome in zip(examples, outcomes, strict=True)
            if isinstance(outcome, Judgment)
        }
        failures = [outcome for outcome in outcomes if isinstance(outcome, ModelAnswerError)]
        await note_judgments(io, access, judgments)
        warnings = _judging_warnings(list(judgments.values()), failures)
        return {
            "judged_cases": len(judgments),
            "warnings": [*lesson["warnings"], *warnings],
        }

    return _lesson_node("judge_cases", parts, judge_cases)


def distill_batches_node(parts: Parts) -> Node:
    """Make the node that distils all batches concurrently.

    It is run once more for what fails, when the others are done and kept; if that fails again the
    run does, and goes on from there when it is made again.
    """

    async def distill_batches(io: IO, lesson: Lesson, access: MemoryAccess, run: _Run) -> Lesson:
        chat = parts.distiller(run.settings["model"])
        batches = lesson["batches"]
        proposals = list(lesson.get("proposals", [None] * len(batches)))
        waiting = [number for number, proposal in enumerate(proposals) if proposal is None]
        done = _Count(start=len(batches) - len(waiting))

        async def distill(number: int) -> dict[str, Any] | MemAlignError:
            try:
                proposal = await _propose(io, access, chat, batches[number])
            except (ChatModelError, ModelAnswerError) as error:
                return error
            count = done.add()
            run.progress("distill", count, len(batches), batch=number + 1)
            return proposal

        distilled = await io.gather(list(map(distill, waiting)), run.limit)
        for number, proposal in zip(waiting, distilled, strict=True):
            if not isinstance(proposal, MemAlignError):
                proposals[number] = proposal
            elif "proposals" in lesson:
                raise proposal
            else:
                logger.warning(
                    "Batch %d of %d failed and is tried again: %s",
                    number + 1,
                    len(batches),
                    proposal,
                )
        return {"proposals": proposals}

    return _lesson_node("distill_batches", parts, distill_batches)


def consolidate_node(parts: Parts, options: Alignment) -> Node:
    """Make the node that brings proposals together with each other and with what stands.

    One batch has seen the guidelines that stand and needs no comparison; several know nothing of
    each other. Where an expert is to decide conflicts, one is compared, too.
    """
    least = 1 if options.conflicts == "ask" else 2

    async def consolidate(io: IO, lesson: Lesson, access: MemoryAccess, run: _Run) -> Lesson:
        answers = lesson["proposals"]
        proposals = [read_saved(one["operations"]) for one in answers if one.get("operations")]
        run.progress("consolidate", 0, 1)
        merged = await merge_proposals(
            io,
            access,
            parts.distiller(run.settings["model"]),
            proposals,
            compare=len(proposals) >= least,
        )
        run.progress("consolidate", 1, 1)
        return {
            "operations": [one.model_dump(mode="json") for one in merged.operations],
            "conflicts": [one.model_dump(mode="json") for one in merged.conflicts],
            "rewordings": [one["rewording"] for one in answers if "rewording" in one],
        }

    return _lesson_node("consolidate_guidelines", parts, consolidate)


def settle_node(parts: Parts) -> Node:
    """Make the node that asks an expert about all conflicts at once, and waits."""

    async def settle_conflicts(_io: IO, state: State, run: Run) -> Update:
        run.warn_without_checkpointer("alignment")
        lesson = own_channel(state, "judge_lesson")
        conflicts = _conflicts(lesson)
        decisions = conflict_form(parts.criterion, conflicts).ask()
        return {"judge_lesson": {**lesson, "decisions": decisions}}

    return Node("settle_conflicts", settle_conflicts)


def replay_node(parts: Parts, options: Alignment) -> Node:
    """Make the node that keeps guidelines from breaking what worked: seen cases, judged again."""
    judge_parts = Parts(value_judge(parts.judge), parts.clients)

    async def replay_cases(io: IO, lesson: Lesson, access: MemoryAccess, run: _Run) -> Lesson:
        async def judge_case(
            metered: IO, example: Example, guidelines: Sequence[Guideline], besides: frozenset[str]
        ) -> Any:
            judged = await judge_again(
                metered,
                judge_parts,
                access,
                example,
                guidelines=guidelines,
                besides=besides,
                settings=run.settings,
            )
            return judged.value

        rewordings = read_saved(lesson["rewordings"])
        kept, seen = await replay(
            io,
            access,
            judge_case,
            [*rewordings, *_operations(lesson)],
            before=[Guideline.model_validate(one) for one in lesson["guidelines_before"]],
            new_episodes=lesson["new_ids"],
            cases=options.replay_cases,
            limit=run.limit,
            tell=lambda done, of: run.progress("replay", done, of),
        )
        reworded = {one.guideline_id for one in rewordings}
        is_rewording = [one.action != "merge" and one.guideline_id in reworded for one in kept]
        saved = [one.model_dump(mode="json") for one in kept]
        return {
            "operations": [
                one for one, again in zip(saved, is_rewording, strict=True) if not again
            ],
            "rewordings": [one for one, again in zip(saved, is_rewording, strict=True) if again],
            "replay": seen.model_dump(mode="json"),
        }

    return _lesson_node("replay_cases", parts, replay_cases)


def commit_alignment_node(parts: Parts) -> Node:
    """Make the node that commits what was learned, and reports; again, it changes nothing more."""

    async def commit_alignment(io: IO, state: State, run: Run) -> Update:
        start = time.time()
        metered = Metered(io)
        lesson = own_channel(state, "judge_lesson")
        access = parts.memory(run.store, own_channel(state, "judge_run")["settings"])
        answers = lesson.get("proposals", [])
        reworded = _words(one for one in answers if "rewording" in one)
        read = _words(one for one in answers if "operations" in one)
        learned: list[dict[str, Any]] = []
        rewordings = read_saved(lesson.get("rewordings"))
        if rewordings:
            again = await learn_again(metered, access, rewordings, reworded)
            learned += again["guidelines"]
        operations = _operations(lesson)
        if read or operations:
            new = await learn(metered, access, operations, read, reason="align")
            learned += new["guidelines"]
        await clear_drafts(metered, access)
        _progress(run, "commit", 1, 1)
        view = await access.refresh(metered)
        # Others may change the memory while this run asks or waits.
        guideline_ids = {
            one[name]
            for one in learned
            for name in ("guideline_id", "superseded_by")
            if one.get(name)
        }
        episode_ids = {*lesson["new_ids"], *read, *reworded}

        def of_run(guideline: Guideline) -> bool:
            named = not episode_ids.isdisjoint(guideline.episode_ids)
            return named or guideline.id in guideline_ids

        before = [Guideline.model_validate(one) for one in lesson["guidelines_before"]]
        after = await access.every_guideline(metered)
        report = AlignmentReport(
            **lesson["received"],
            guidelines=compare_guidelines(
                list(filter(of_run, before)), list(filter(of_run, after))
            ),
            conflicts=_conflicts(lesson),
            decisions=lesson.get("decisions"),
            replay=lesson.get("replay"),
            judged_cases=lesson.get("judged_cases", 0),
            batches=len(lesson["batches"]),
            cost=total_cost([*lesson["usage"], _usage(metered, start)]),
            memory_version_after=view.version,
            warnings=[
                *lesson["warnings"],
                *(why for one in answers for why in one["refused"]),
                *_cut_warnings([key for one in answers for key in one["cut"]]),
            ],
        )
        return {"report": report.to_json()}

    return Node("commit_alignment", commit_alignment)


class _Run:
    """The run of a node in the middle, as its operation needs it."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self.run = run
        self.settings = settings
        self.limit = run.max_concurrency

    def progress(self, stage: str, done: int, of: int, **more: Any) -> None:
        _progress(self.run, stage, done, of, **more)


def _lesson_node(
    name: str,
    parts: Parts,
    operation: Callable[[IO, Lesson, MemoryAccess, _Run], Coroutine[Any, Any, Lesson]],
) -> Node:
    """Make a node that adds to the lesson, and counts what it uses."""

    async def measured(io: IO, state: State, run: Run) -> Update:
        start = time.time()
        metered = Metered(io)
        lesson = own_channel(state, "judge_lesson")
        settings = own_channel(state, "judge_run")["settings"]
        access = parts.memory(run.store, settings)
        more = await operation(metered, lesson, access, _Run(run, settings))
        usage = [*lesson["usage"], _usage(metered, start)]
        return {"judge_lesson": {**lesson, **more, "usage": usage}}

    return Node(name, measured)


def _progress(run: Run, stage: str, done: int, of: int, **more: Any) -> None:
    """Stream how far an alignment is, as a custom event."""
    run.write({"type": "alignment_progress", "stage": stage, "done": done, "of": of, **more})


def _usage(metered: Metered, start: float) -> dict[str, Any]:
    return {"used": metered.usage.model_dump(), "start": start, "stop": time.time()}


class _Count:
    """Counts what is done concurrently, and tells."""

    def __init__(self, tell: Callable[[int], None] | None = None, *, start: int = 0) -> None:
        self._tell = tell or (lambda _count: None)
        self._lock = threading.Lock()
        self._count = start
        self._tell(start)

    def add(self) -> int:
        with self._lock:
            self._count += 1
            self._tell(self._count)
            return self._count


def _operations(lesson: Lesson) -> list[GuidelineOperation]:
    """Return what is to be done to the guidelines, conflicts settled."""
    operations = read_saved(lesson.get("operations"))
    if "replay" in lesson:
        return operations  # settled when they were replayed
    return [*operations, *settle(_conflicts(lesson), lesson.get("decisions"))]


def _conflicts(lesson: Lesson) -> list[Conflict]:
    return [Conflict.model_validate(one) for one in lesson.get("conflicts", [])]


def _words(answers: Any) -> dict[str, str]:
    """Return the words that some answers have read, by episode."""
    return {key: word for one in answers for key, word in one["read"].items()}


async def _propose(
    io: IO, access: MemoryAccess, chat: BaseChatModel, batch: Mapping[str, Any]
) -> dict[str, Any]:
    if "episode_ids" in batch:
        return await _distil(io, access, chat, batch["episode_ids"])
    pending = await access.all_guidelines(io, "pending")
    guideline = next((one for one in pending if one.id == batch["guideline_id"]), None)
    if guideline is None:
        return {"operations": [], "read": {}, "cut": [], "refused": []}
    rewording = await reword(io, access, chat, guideline)
    return {
        "rewording": rewording.operation.model_dump(mode="json"),
        "read": rewording.read,
        "cut": [],
        "refused": rewording.refused,
    }


async def _distil(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episode_ids: list[str]
) -> dict[str, Any]:
    found = await access.episodes(io, episode_ids)
    # Another run may have learned some of it meanwhile.
    waiting = [episode for episode in found.values() if episode.status == "pending"]
    guidelines = await access.all_guidelines(io)
    proposal: dict[str, Any] = {"operations": [], "read": {}, "cut": [], "refused": []}
    while waiting:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=waiting,
            max_input_tokens=max_input_tokens(chat),
        )

        def read(answer: dict[str, Any], last: bool, prompt: Any = prompt) -> Any:  # noqa: FBT001 - as `ask` calls it
            return read_operations(answer, prompt, drop_idle=last)

        structured = with_schema(chat, operations_schema(prompt))
        proposed = await ask_once(
            io, access, structured, prompt.messages, read, purpose="distil feedback"
        )
        shown: list[Episode] = list(prompt.episodes.values())
        proposal["operations"] += [one.model_dump(mode="json") for one in proposed.operations]
        proposal["refused"] += proposed.refused
        proposal["read"] |= {episode.id: episode.word for episode in shown}
        proposal["cut"] += prompt.cut
        waiting = [episode for episode in waiting if episode.id not in proposal["read"]]
    return proposal


def _read(
    given: Sequence[Any], criterion: Criterion, learn_from: LearnFrom, thread_id: str | None
) -> tuple[list[Feedback], list[dict[str, Any]]]:
    """Read records, and tell which can't be used, and why."""
    read: list[Feedback] = []
    rejected: list[dict[str, Any]] = []
    for index, record in enumerate(given):
        try:
            feedback = check_feedback(_part(record, learn_from), criterion)
        except InvalidInputError as error:
            rejected.append({"index": index, "reason": str(error)})
        else:
            own = feedback.thread_id or thread_id
            read.append(feedback.model_copy(update={"thread_id": own}))
    return read, rejected


def _part(record: Any, learn_from: LearnFrom) -> Feedback:
    """Read feedback, and take from it what is not to be learned from."""
    feedback = read_feedback(record)
    if learn_from == "both":
        return feedback
    kept, left_out = ("value", "rationale") if learn_from == "labels" else ("rationale", "value")
    if getattr(feedback, kept) is None:
        raise InvalidInputError(
            f"{kept}: the record has none, and with learn_from={learn_from!r} nothing else counts."
        )
    return feedback.model_copy(update={left_out: None})


async def _agreement(io: IO, access: MemoryAccess, run: Run) -> dict[str, Any]:
    view = await access.refresh(io)
    episodes = await access.episodes(io, view.shared())
    agreement = expert_agreement(list(episodes.values()), access.criterion.scale)
    shown = agreement.model_dump(mode="json")
    if agreement.examples:
        run.write({"type": "alignment_agreement", "criterion": access.criterion.name, **shown})
    return shown


async def _batches(
    io: IO, access: MemoryAccess, window: int, batch_size: int
) -> list[dict[str, Any]]:
    """Pack what is pending: feedback, and guidelines that lost a source."""
    view = await access.refresh(io)
    pending = await access.episodes(io, view.pending())
    guidelines = await access.every_guideline(io)
    packed = pack(
        list(pending.values()),
        access.criterion,
        [guideline for guideline in guidelines if guideline.status == "standing"],
        max_input_tokens=window,
        most=batch_size,
    )
    wordless = [guideline.id for guideline in guidelines if guideline.status == "pending"]
    return [*({"episode_ids": ids} for ids in packed), *({"guideline_id": key} for key in wordless)]


def _is_outdated(said: Feedback, kept: Episode) -> bool:
    """Tell whether the same expert's newer word on the example counts, and not this one."""
    value_stays = said.value is None or said.value == kept.value
    words_stay = said.rationale is None or said.rationale == kept.rationale
    return not (value_stays and words_stay)


def _rests_on(guideline: Guideline, episode_ids: frozenset[str]) -> bool:
    """Tell whether a guideline would not be there without some episodes."""
    return bool(guideline.episode_ids) and episode_ids.issuperset(guideline.episode_ids)


def _outdated_warnings(outdated: int) -> list[str]:
    if not outdated:
        return []
    sentence = (
        f"{outdated} record(s) do not count, since there is a newer word of the same expert on the "
        "same example. Feedback without `author` and `id` is taken for one expert's."
    )
    return [sentence]


def _judging_warnings(
    judgments: Sequence[Judgment], failures: Sequence[ModelAnswerError]
) -> list[str]:
    warnings = []
    if failures:
        warnings.append(
            f"{len(failures)} case(s) could not be judged, and are weighed without a verdict: the "
            f"next alignment asks again. The first: {failures[0]}"
        )
    counts = Counter(warning for judgment in judgments for warning in judgment.warnings)
    return [
        *warnings,
        *(f"{count} case(s) were judged so: {warning}" for warning, count in counts.items()),
    ]


def _cut_warnings(cut: Sequence[str]) -> list[str]:
    if not cut:
        return []
    shown = ", ".join(cut[:_SHOWN_IDS]) + (", ..." if len(cut) > _SHOWN_IDS else "")
    sentence = (
        f"{len(cut)} record(s) were too long to be distilled whole: the middle of their longest "
        f"texts was left out ({shown})."
    )
    return [sentence]
