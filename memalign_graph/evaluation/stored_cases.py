"""Judge the cases in memory again: with an earlier version of the memory, or with another judge.

`flips` finds cases that were right at an earlier version and are wrong now: a new guideline that
corrects one case may break another. Source of the measure: M. Srivastava, B. Nushi, E. Kamar,
S. Shah and E. Horvitz, An empirical analysis of backward compatibility in machine learning systems,
KDD 2020.

`migrate` compares a judge with the same one on another model. Verdicts count only for the judge
that gave them, so after a change `decide="auto"`, the confidence and the threshold of
`review="uncertain"` start again, unless the new judge's verdicts on the cases in memory replace
those of the old one.
"""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Unpack

from langgraph.runtime import Runtime

from memalign_graph.agreement import values_agree
from memalign_graph.alignment.replay import ReplayCase, replay_cases_from
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    JudgeUnderTest,
    Options,
    open_experiment,
    parse_options,
)
from memalign_graph.evaluation.metrics import Estimate, Prediction, score
from memalign_graph.evaluation.report import ALIGNED, ChangedCase, UsageRow
from memalign_graph.evidence.cases import ValueEncoding, load_cases
from memalign_graph.evidence.deciding import current_trust
from memalign_graph.evidence.threshold import Trust, more_decisions
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.judging.again import judge_as_new, judge_leaving_out, without_measuring
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.feedback import record_judgments
from memalign_graph.memory.history import Snapshot, pin_memory, snapshot
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import ChatModelLike
from memalign_graph.runtime import JudgeResources, NodeCall
from memalign_graph.scales import Value
from memalign_graph.settings import Alignment, Judge, Uncertain
from memalign_graph.types import FrozenModel, Guideline, Judgment

OLD, NEW = "old", "new"
"""The judges, as rows of usage name them."""


async def _flips(
    io: IO, memory: JudgeMemory, *, since: str, **options: Unpack[EvaluationOptions]
) -> list[ChangedCase]:
    """Find the cases that were right at a version of the memory and are wrong now.

    Each case in memory is judged with the guidelines and episodes of then and of now, its own
    episode included, as the deployed judge would. With evidence, a case has no vote on itself, and
    verdict and votes are weighed as they are today. The memory is only read.

    Args:
        memory: The memory.
        since: The earlier version.
        **options: The options of the `Judge` that is deployed; of an evaluation `cache`,
            `max_concurrency` and `progress`.

    Returns:
        The cases, with the guidelines that changed the verdict.

    Raises:
        InvalidInputError: If an argument can't be used, or `history()` does not list the version.
    """
    settings, judge = _parse_arguments(memory, options)
    with open_experiment(memory.criterion, settings) as experiment:
        subject = JudgeUnderTest(experiment, ALIGNED, Alignment(judge=judge), "flips")
        earlier = await snapshot(io, memory.access, since)
        copy = await MemoryCopy.of(io, memory.access)
        return await _find_flips(io, subject, copy, earlier)


class Migration(FrozenModel):
    """Two judges on the cases in memory, and what the new one needs for `review="uncertain"`."""

    cases: int
    """How many cases have an expert's value."""

    cases_before: int
    """How many of these have a verdict of the old judge."""

    before: Estimate
    """The agreement of the old judge's verdicts with the experts, with a 95 % interval."""

    after: Estimate
    """The agreement of the new judge's."""

    difference: Estimate
    """The new judge's agreement minus the old one's, with a paired interval."""

    changed: list[ChangedCase]
    """The cases on which their verdicts differ; those that were right come first."""

    failures: dict[str, str]
    """Why a case has no new verdict, by the example's id."""

    usage: list[UsageRow]
    """Calls and tokens of both judges."""

    trust: Trust
    """From which confidence on the new judge's verdicts need no expert."""

    more_labels: dict[str, int | None]
    """At least so many more labels are needed until `review="uncertain"` leaves a verdict
    unasked, by verdict; None if the agreement so far is not clearly above the target."""

    judge_key: str
    """The new judge's key, as in its judgments."""


async def _migrate(
    io: IO,
    memory: JudgeMemory,
    to: ChatModelLike | None = None,
    *,
    apply: bool = False,
    target_agreement: float = 0.9,
    **options: Unpack[EvaluationOptions],
) -> Migration:
    """Compare a judge with the same one on another model, on the cases in memory.

    Each case is judged without its own feedback and without guidelines that come from it alone. The
    judges' own verdicts are compared, also where the evidence would decide.

    Args:
        memory: The memory.
        to: The model to change to. Without one the judge is compared with the stored verdicts of
            other judges: after an update of this package whose prompts count as another judge.
        apply: Whether to store the new verdicts in place of the old ones; otherwise the memory is
            only read. `memory.rollback` undoes it.
        target_agreement: As of `Uncertain`.
        **options: The options of the `Judge` that is deployed; of an evaluation `cache`,
            `max_concurrency`, `resamples`, `seed` and `progress`. `embeddings` has no effect: the
            memory's are used.

    Returns:
        How the two judges agree with the experts, and how many labels are missing.

    Raises:
        InvalidInputError: If an argument can't be used, or no case in memory has a value.
        ChatModelError: If a model fails, and not because of one case.
    """
    target = Uncertain(target_agreement=target_agreement).target_agreement
    settings, judge = _parse_arguments(memory, options)
    scale = memory.criterion.scale
    with open_experiment(memory.criterion, settings) as experiment:
        new = judge if to is None else judge.but(model=to)
        subject = JudgeUnderTest(experiment, NEW, Alignment(judge=new), "judge")
        subject.judge  # noqa: B018 - an unusable model fails before the old one is called
        copy = await MemoryCopy.of(io, memory.access)
        if not copy.cases:
            raise InvalidInputError("memory: no case has an expert's value. Remember some first.")
        if to is not None:
            old = replace(subject, name=OLD, alignment=Alignment(judge=judge))
            judged_before, *_ = await _judge_as_new(io, old, copy)
            before = {key: judgment.value for key, judgment in judged_before.items()}
        judgments, failures, judge_key = await _judge_as_new(io, subject, copy)
        if to is None:
            before = _stored_values(copy.access, judge_key)
        await record_judgments(io, copy.access, judgments, replaces=True)
        trust = await current_trust(io, copy.access, judge.mode, target, judge_key)
        if apply:
            await record_judgments(io, memory.access, judgments, replaces=True)
    after = {key: judgment.value for key, judgment in judgments.items()}
    counts = Counter(map(ValueEncoding(scale).class_name, after.values()))
    scores, [compared] = score(
        scale,
        [case.expected for case in copy.cases],
        [case.example_id for case in copy.cases],
        {
            name: [Prediction(value=values.get(case.example_id)) for case in copy.cases]
            for name, values in ((OLD, before), (NEW, after))
        },
        pairs=[(NEW, OLD)],
        resamples=settings.resamples,
        seed=settings.seed,
    )
    changed = [
        ChangedCase(
            example=case.example,
            expected=case.expected,
            before=before[key],
            after=after[key],
            rationale=judgments[key].rationale,
            guidelines=[],
        )
        for case in copy.cases
        if (key := case.example_id) in before.keys() & after.keys()
        and not values_agree(scale, before[key], after[key])
    ]
    changed.sort(key=lambda case: not values_agree(scale, case.before, case.expected))
    return Migration(
        cases=len(copy.cases),
        cases_before=len(before),
        before=scores[0].metrics["agreement"],
        after=scores[1].metrics["agreement"],
        difference=compared.differences["agreement"],
        changed=changed,
        failures=failures,
        usage=experiment.usage.rows(),
        trust=trust,
        more_labels={
            name: more_decisions(trust.verdicts[name])
            if name in trust.verdicts
            else max(trust.needed - count, 1)
            for name, count in sorted(counts.items())
        },
        judge_key=judge_key,
    )


def _parse_arguments(memory: JudgeMemory, options: EvaluationOptions) -> tuple[Options, Judge]:
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            f"memory: expected a JudgeMemory, got {type(memory).__name__}. Use "
            "JudgeMemory(store, criterion, ...)."
        )
    settings, alignments = parse_options(memory.criterion, options)
    return settings, alignments[ALIGNED].judge


flips, aflips = sync_async_functions(_flips)
migrate, amigrate = sync_async_functions(_migrate)


@dataclass(frozen=True)
class MemoryCopy:
    """A copy of a memory, to judge with and to write to, and its cases with an expert's value."""

    access: MemoryAccess
    guidelines: list[Guideline]
    cases: list[ReplayCase]

    @classmethod
    async def of(cls, io: IO, original: MemoryAccess) -> "MemoryCopy":
        view = await original.refresh(io)
        newest, version = view.latest_fact_id, view.version
        access = await pin_memory(io, original, newest=newest, version=version, embeds=True)
        cases = replay_cases_from(await access.all_episodes(io), original.criterion.scale)
        return cls(access, await access.guidelines(io), cases)

    def call(self, io: IO, judge: Judge) -> NodeCall:
        """Return what a judge works with on this memory."""
        resources, runtime = JudgeResources(judge), Runtime(store=self.access.store)
        return NodeCall(io, resources, runtime, resources.defaults, self.access)


async def _find_flips(
    io: IO, subject: JudgeUnderTest, copy: MemoryCopy, earlier: Snapshot
) -> list[ChangedCase]:
    """Return the flips since a snapshot of the memory."""
    experiment, scale = subject.experiment, subject.experiment.criterion.scale
    call = copy.call(io, without_measuring(subject.judge))
    was_said = {episode.id: episode for episode in earlier.episodes}
    new = frozenset(
        episode.id
        for case in copy.cases
        for episode in case.episodes
        if not (episode.id in was_said and was_said[episode.id].says_the_same_as(episode))
    )
    cases = [case for case in copy.cases if not new & {episode.id for episode in case.episodes}]
    before = earlier.guidelines
    texts, texts_before = (
        {(guideline.id, guideline.text) for guideline in guidelines}
        for guidelines in (copy.guidelines, before)
    )
    added = [rule for rule in copy.guidelines if (rule.id, rule.text) not in texts_before]
    removed = [rule for rule in before if (rule.id, rule.text) not in texts]

    async def judge(
        case: ReplayCase, guidelines: Sequence[Guideline], excluded: AbstractSet[str] = frozenset()
    ) -> Judgment | str:
        judging = judge_leaving_out(
            call, case.example, guidelines=guidelines, excluded_episode_ids=excluded
        )
        return await experiment.try_case(judging)

    def is_right(case: ReplayCase, judgment: Judgment | str) -> bool:
        return not isinstance(judgment, str) and values_agree(scale, judgment.value, case.expected)

    async def find_flip(case: ReplayCase) -> ChangedCase | None:
        was = await judge(case, before, new)
        now = await judge(case, copy.guidelines) if is_right(case, was) else ""
        if isinstance(was, str) or isinstance(now, str) or is_right(case, now):
            return None
        # One after another: cases are judged concurrently.
        responsible = [
            guideline
            for guideline in added
            if is_right(
                case,
                await judge(case, [other for other in copy.guidelines if other is not guideline]),
            )
        ]
        # If no single guideline explains the flip, all changes together may.
        is_joint = not responsible and is_right(case, await judge(case, before))
        return ChangedCase(
            example=case.example,
            expected=case.expected,
            before=was.value,
            after=now.value,
            rationale=now.rationale,
            guidelines=added if is_joint else responsible,
            removed=removed if is_joint else [],
        )

    flips = await experiment.map(io, find_flip, cases)
    return [flip for flip in flips if flip is not None]


def _stored_values(access: MemoryAccess, judge_key: str) -> dict[str, Value]:
    """Return the verdicts of all judges but this one; without any, its own earlier ones."""
    view, scale, values = access.view, access.criterion.scale, dict[str, Value]()
    for by_others in (True, False):
        for case in load_cases(view, scale, judge_key, len(view.rows()), by_others=by_others):
            if case.decision.verdict and not case.decision.is_told:
                values[case.example_id] = case.decision.verdict.value
        if values:
            break
    return values


async def _judge_as_new(
    io: IO, subject: JudgeUnderTest, copy: MemoryCopy
) -> tuple[dict[str, Judgment], dict[str, str], str]:
    """Judge each case as if it were new; returns judgments, failures, and the judge's key."""
    # The verdict alone: the evidence is built from these verdicts.
    call = copy.call(io, subject.judge.but(decide="verdict"))

    async def judge(case: ReplayCase) -> Judgment | str:
        operation = judge_as_new(call, case.example, copy.guidelines)
        return await subject.experiment.try_case(operation)

    results = await subject.experiment.map(io, judge, copy.cases)
    by_id = {case.example_id: result for case, result in zip(copy.cases, results, strict=True)}
    judgments = {key: result for key, result in by_id.items() if not isinstance(result, str)}
    failures = {key: result for key, result in by_id.items() if isinstance(result, str)}
    return judgments, failures, call.resources.judge_key(call.chat_model)
