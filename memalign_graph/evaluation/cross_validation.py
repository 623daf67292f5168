"""Judges measured on cases they did not learn from."""

from collections.abc import Iterable, Sequence
from typing import Unpack

from memalign_graph.agreement import expert_agreement
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.baselines import CONSTANT, NEAREST, constant_value, nearest_value
from memalign_graph.evaluation.cases import (
    Fold,
    LabelledCase,
    group_of,
    labelled_cases,
    make_folds,
    read_all,
)
from memalign_graph.evaluation.lab import Lab, Learned, Outcome
from memalign_graph.evaluation.options import (
    EvaluationOptions,
    drawing,
    grouping,
    lab_for,
    variant_of,
)
from memalign_graph.evaluation.results import EvaluatedCase, Evaluation, ExpertWord, FoldMemory
from memalign_graph.evaluation.scores import Comparison, JudgeScores, Verdicts, score
from memalign_graph.evaluation.telling import (
    decided_by_evidence,
    degraded,
    not_judged,
    not_learned,
)
from memalign_graph.evaluation.variants import ALIGNED, VERDICT, Variant
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.recall import recall
from memalign_graph.reading import FeedbackLike
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Episode, Example, Feedback, RecalledExample

DEFAULT_FOLDS = 5
"""How many folds there are, unless told otherwise."""


def cross_validate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Measure how far a judge agrees with experts, before and after it learned from them.

    Feedback is divided into folds; for each the judge learns from the others and judges the cases
    of this one, and so does the base judge, which has no memory. Beside them stand what needs no
    judge: one value for all cases, and the values of the most similar ones learned from.

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        test: Cases to judge instead of folds; then all the feedback is learned from, but for what
            is on the same items.
        folds: How many folds; each case is judged once.
        **options: See `EvaluationOptions`, and the options of `create_judge_graph` and
            `create_alignment_graph`.

    Returns:
        Each case with all verdicts, and the judges' scores with 95 % intervals.

    Raises:
        InvalidInputError: If feedback or an option can't be used; before any model is called.
        MemAlignError: If learning fails, or a call does; what was answered is kept in the cache.
        ImportError: If the extra `evaluation` is not installed.
    """
    with lab_for(criterion, **options) as lab:
        return run(_cross_validate(BLOCKING, lab, feedback, test, folds, options))


async def across_validate(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    folds: int = DEFAULT_FOLDS,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Async twin of `cross_validate`."""
    with lab_for(criterion, **options) as lab:
        return await _cross_validate(AWAITING, lab, feedback, test, folds, options)


async def _cross_validate(
    io: IO,
    lab: Lab,
    feedback: Iterable[FeedbackLike],
    test: Iterable[FeedbackLike] | None,
    folds: int,
    options: EvaluationOptions,
) -> Evaluation:
    aligned = variant_of(ALIGNED, lab.criterion, options)
    divided = divide(lab.criterion, feedback, test, folds, options)
    variants = [aligned.without_memory(), aligned]
    evaluation, _ = await measure(io, lab, divided, variants, options)
    return evaluation


def divide(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    test: Iterable[FeedbackLike] | None,
    folds: int,
    options: EvaluationOptions,
) -> list[Fold]:
    """Divide feedback into what is learned from and what is judged."""
    group_by = grouping(options)["group_by"]
    read = read_all(feedback, criterion)
    if test is None:
        return make_folds(read, criterion, folds=folds, **grouping(options))
    judged = labelled_cases(read_all(test, criterion, "test"), criterion, group_by)
    if not judged:
        raise InvalidInputError("test: no case has a value: give cases that experts valued.")
    known = {case.group for case in judged}
    train = [one for one in read if group_of(one.example, group_by) not in known]
    if not train:
        raise InvalidInputError(
            "feedback: nothing is left to learn from beside the items in `test`: give more."
        )
    return [Fold(train=tuple(train), test=tuple(judged))]


async def measure(
    io: IO, lab: Lab, folds: Sequence[Fold], variants: Sequence[Variant], options: EvaluationOptions
) -> tuple[Evaluation, dict[tuple[int, str], Learned]]:
    """Measure ways of judging on the same folds."""
    draws = drawing(options)
    for variant in variants:
        lab.check(variant)
    if any(variant.has_memory for variant in variants):
        learned_from = [one.example for fold in folds for one in fold.train]
        judged = [case.example for fold in folds for case in fold.test]
        await lab.embed(io, [*learned_from, *judged])
    memories = await _learn(io, lab, folds, variants)
    places = [(number, case) for number, fold in enumerate(folds) for case in fold.test]
    columns = []
    # One way after another: prompts that two ways have in common are asked once.
    for variant in variants:
        tasks = [(variant, memories[number, variant.name], case.example) for number, case in places]
        columns.append(await lab.judge_all(io, tasks))
    nearest = await _nearest(io, lab, folds, variants, memories)
    cases = [
        _case(number, case, dict(zip([one.name for one in variants], row, strict=True)))
        for (number, case), row in zip(places, zip(*columns, strict=True), strict=True)
    ]
    cases = _with_predictions(cases, folds, nearest, lab.criterion.scale)
    scores, comparisons = score_cases(lab.criterion.scale, cases, variants, **draws)
    evaluation = Evaluation(
        criterion=lab.criterion,
        folds=len(folds),
        cases=cases,
        scores=scores,
        comparisons=comparisons,
        memories=await _described(io, memories),
        learning=sum((one.spent for one in _distinct(memories)), Spent()),
        judging={one.name: lab.spent(f"judge {one.name}") for one in variants},
        experts=expert_agreement(_episodes(folds), lab.criterion.scale),
        warnings=[
            *not_learned(memories),
            *not_judged(cases, scores, variants),
            *degraded(cases),
            *decided_by_evidence(cases, variants),
        ],
    )
    return evaluation, memories


def score_cases(
    scale: Scale,
    cases: Sequence[EvaluatedCase],
    variants: Sequence[Variant],
    *,
    resamples: int,
    seed: int,
) -> tuple[list[JudgeScores], list[Comparison]]:
    """Score what was found on cases, each way beside the first and beside what needs no judge."""
    judges = [one.name for one in variants]
    weighs = any(one.name == ALIGNED and one.judge.decide == "evidence" for one in variants)
    if weighs:
        judges.insert(judges.index(ALIGNED), VERDICT)
    verdicts = [
        Verdicts(
            judge=name,
            values=[case.value_of(name) for case in cases],
            confidence=[case.confidence_of(name, scale) for case in cases],
        )
        for name in [CONSTANT, NEAREST, *judges]
    ]
    against = (variants[0].name, CONSTANT, NEAREST)
    pairs = [(one, other) for one in judges for other in against if one != other]
    if weighs:
        pairs.append((ALIGNED, VERDICT))
    return score(
        scale,
        [case.expected for case in cases],
        [case.group for case in cases],
        verdicts,
        pairs=pairs,
        resamples=resamples,
        seed=seed,
    )


async def _learn(
    io: IO, lab: Lab, folds: Sequence[Fold], variants: Sequence[Variant]
) -> dict[tuple[int, str], Learned]:
    """Let each fold's memories learn; variants that would learn the same share one."""
    empty = lab.empty()
    shared: dict[tuple[int, object], Learned] = {}
    memories: dict[tuple[int, str], Learned] = {}
    to_learn: list[tuple[Variant, Learned, Fold]] = []
    for number, fold in enumerate(folds):
        for variant in variants:
            if not variant.has_memory:
                memories[number, variant.name] = empty
                continue
            key = (number, variant.memory_key)
            if key not in shared:
                shared[key] = lab.empty()
                to_learn.append((variant, shared[key], fold))
            memories[number, variant.name] = shared[key]
    lab.progress.expect(len(to_learn))
    beside = min(len(to_learn), lab.limit)
    learning = [
        lab.learn(io, variant, learned, fold.train, beside=beside)
        for variant, learned, fold in to_learn
    ]
    await io.gather(learning, lab.limit)
    return memories


async def _nearest(
    io: IO,
    lab: Lab,
    folds: Sequence[Fold],
    variants: Sequence[Variant],
    memories: dict[tuple[int, str], Learned],
) -> list[list[RecalledExample]]:
    """Find what is most similar to each case, in the memory of the first variant that has one."""
    with_memory = [one for one in variants if one.has_memory]
    if not with_memory:
        return [[] for fold in folds for _ in fold.test]
    variant = max(with_memory, key=lambda one: one.name == ALIGNED)
    k = max(variant.judge.k, 1)

    async def look(io: IO, number: int, example: Example) -> list[RecalledExample]:
        access = memories[number, variant.name].memory.access
        found = await recall(io, access, example, k)
        return found.examples

    looks = [
        look(io, number, case.example) for number, fold in enumerate(folds) for case in fold.test
    ]
    found: list[list[RecalledExample]] = await io.gather(looks, lab.limit)
    return found


def _case(number: int, case: LabelledCase, outcomes: dict[str, Outcome]) -> EvaluatedCase:
    return EvaluatedCase(
        example=case.example,
        group=case.group,
        fold=number,
        expected=case.expected,
        experts=[
            ExpertWord(author=one.author, value=one.value, rationale=one.rationale)
            for one in case.feedback
        ],
        judgments={
            name: one.judgment for name, one in outcomes.items() if one.judgment is not None
        },
        failures={name: one.failure for name, one in outcomes.items() if one.failure is not None},
        predictions={},
    )


def _with_predictions(
    cases: Sequence[EvaluatedCase],
    folds: Sequence[Fold],
    nearest: Sequence[Sequence[RecalledExample]],
    scale: Scale,
) -> list[EvaluatedCase]:
    constants = [constant_value(_values(fold.train), scale) for fold in folds]
    told = []
    for case, found in zip(cases, nearest, strict=True):
        constant = constants[case.fold]
        # Similar cases on which nobody gave a value predict what most cases have.
        near = nearest_value(found, scale)
        predictions = {CONSTANT: constant, NEAREST: constant if near is None else near}
        there = {name: value for name, value in predictions.items() if value is not None}
        told.append(case.model_copy(update={"predictions": there}))
    return told


def _values(feedback: Sequence[Feedback]) -> list[Value]:
    return [one.value for one in feedback if one.value is not None]


async def _described(io: IO, memories: dict[tuple[int, str], Learned]) -> list[FoldMemory]:
    described = []
    for (number, name), learned in memories.items():
        if learned.report is None:
            continue
        access = learned.memory.access
        described.append(
            FoldMemory(
                fold=number,
                judge=name,
                episodes=len(await access.all_episodes(io)),
                guidelines=await access.guidelines(io),
                warnings=learned.report.warnings,
            )
        )
    return described


def _distinct(memories: dict[tuple[int, str], Learned]) -> list[Learned]:
    return list({id(one): one for one in memories.values()}.values())


def _episodes(folds: Sequence[Fold]) -> list[Episode]:
    every = [one for fold in folds for case in fold.test for one in case.feedback]
    every += [one for fold in folds for one in fold.train]
    found = {one.episode_id: Episode.from_feedback(one) for one in every}
    return list(found.values())
