"""`evaluate` and `learning_curve`: let judges learn, judge held-out cases, score and report."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain, pairwise
from typing import Unpack

from memalign_graph.agreement import expert_agreement
from memalign_graph.errors import EmbeddingError, is_about_prompt
from memalign_graph.evaluation import dataset
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    JudgeUnderTest,
    Options,
    TrainedMemory,
    make_splits,
    open_experiment,
    parse_options,
    verdict_name,
)
from memalign_graph.evaluation.metrics import Comparison, JudgeScores, Prediction, score
from memalign_graph.evaluation.report import (
    ALIGNED,
    EvaluatedCase,
    ExpertLabel,
    FoldMemory,
    LearningCurve,
    LearningStep,
    Report,
    RunSettings,
)
from memalign_graph.evidence.confidence import RawVerdict
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.identity import digest
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.recall import load_examples, recall, recall_without_episodes
from memalign_graph.models import ChatModelLike, embedder_id, model_name_of, resolve_chat_model
from memalign_graph.scales import Scale
from memalign_graph.settings import Alignment, Judge
from memalign_graph.types import Criterion, Episode, Feedback, FeedbackLike, Judgment

_NAMED_OTHERWISE = {"criterion", "keep_judgments", "model", "distill_model", "embeddings"}


async def _evaluate(
    io: IO,
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    judges: Mapping[str, Judge | Alignment] | None = None,
    test: Iterable[FeedbackLike] | None = None,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Measure how far judges agree with experts on cases that they did not learn from.

    Feedback is divided into folds. For each fold, the judges learn from the others and judge the
    cases of this one. Baselines that need no judge are scored with them. Then all the feedback is
    learned, to show its guidelines.

    Args:
        criterion: What is judged.
        feedback: The experts' feedback; cases that are judged need a value.
        judges: The judges by name, such as `ablations(judge)`; an `Alignment` also says how the
            judge learns. The others are compared with the first; the report is about the last. By
            default the judge that the options describe (`aligned`), and the same one without memory
            (`base`).
        test: Cases to judge instead of folds, learning from all feedback on other items.
        **options: See `Options`, and the options of `Judge` and `create_alignment_graph`.

    Returns:
        The report: `metric(judge, name)`, `save(path)`, `compare(other)`, `to_pandas()`, ...

    Raises:
        InvalidInputError: If an argument can't be used, before any model is called.
        ChatModelError: If a model fails, and not because of one case.
    """
    settings, alignments = parse_options(criterion, options, judges)
    parsed, folds = make_splits(criterion, feedback, test, settings)
    with open_experiment(criterion, settings) as experiment:
        subjects = [JudgeUnderTest(experiment, name, how) for name, how in alignments.items()]
        for subject in subjects:
            subject.judge  # noqa: B018 - an unusable model fails here
        cases, memories = await _judge_folds(io, subjects, folds)
        main = subjects[-1].for_stage("report")
        learned = memories[main.name][0]
        if main.alignment.judge.has_memory and len(folds) > 1:
            learned = main.empty()
            await main.learn(io, learned, parsed)
        guidelines = await learned.access.guidelines(io)
        cited = dict.fromkeys(key for guideline in guidelines for key in guideline.episode_ids)
        curve = None
        if settings.learning_curve:
            curve = await _run_learning_curve(io, main.for_stage("curve"), folds[0])
        used = {item.episode_id: item for fold in folds for item in fold.feedback}.values()
        run = _run_settings(criterion, used, folds, settings, alignments)
        scores, comparisons = _score_judges(cases, list(alignments), criterion.scale, run)
        return Report(
            criterion=criterion,
            settings=run,
            judges=list(alignments),
            cases=cases,
            scores=scores,
            comparisons=comparisons,
            memories=[
                FoldMemory(
                    fold=number,
                    judge=name,
                    episodes=len(episodes := await memory.access.all_episodes(io)),
                    pending=sum(episode.status == "pending" for episode in episodes),
                    guidelines=await memory.access.guidelines(io),
                    warnings=memory.report.warnings,
                )
                for name, by_fold in memories.items()
                for number, memory in enumerate(by_fold)
                if memory.report is not None
            ],
            experts=expert_agreement(map(Episode.from_feedback, used), criterion.scale),
            usage=experiment.usage.rows(),
            warnings=[
                f"{name}: {warning}"
                for name, alignment in alignments.items()
                for warning in _warnings_on(name, alignment, cases, memories[name])
            ],
            guidelines=guidelines,
            sources=list((await learned.access.episodes(io, cited)).values()),
            curve=curve,
        )


async def _learning_curve(
    io: IO,
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    **options: Unpack[EvaluationOptions],
) -> LearningCurve:
    """Measure a judge as its memory grows, on cases that it has learned from and on others.

    One memory learns the feedback in random order. After each step of `sizes` it judges the cases
    that were set aside, and those it has learned from.

    Args:
        criterion: What is judged.
        feedback: The experts' feedback.
        test: The cases to set aside; by default one fold.
        **options: As of `evaluate`.

    Returns:
        The steps, from no feedback to all of it.

    Raises:
        InvalidInputError: If an argument can't be used, before any model is called.
        ChatModelError: If a model fails, and not because of one case.
    """
    settings, alignments = parse_options(criterion, options)
    _, [fold, *_] = make_splits(criterion, feedback, test, settings)
    with open_experiment(criterion, settings) as experiment:
        subject = JudgeUnderTest(experiment, ALIGNED, alignments[ALIGNED], "curve")
        return await _run_learning_curve(io, subject, fold)


evaluate, aevaluate = sync_async_functions(_evaluate)
learning_curve, alearning_curve = sync_async_functions(_learning_curve)


async def _judge_folds(
    io: IO, subjects: Sequence[JudgeUnderTest], folds: Sequence[dataset.Fold]
) -> tuple[list[EvaluatedCase], dict[str, list[TrainedMemory]]]:
    """Let every judge learn from the other folds and judge each; returns its memories, too."""
    cases = [(number, case) for number, fold in enumerate(folds) for case in fold.test]
    # One judge after another, so that what two of them ask alike comes from the cache.
    memories = {subject.name: await _learn(io, subject, folds) for subject in subjects}
    outcomes = [
        await subject.for_stage("judge").judge_all(
            io, [(memories[subject.name][number], case.example) for number, case in cases]
        )
        for subject in subjects
    ]
    criterion = subjects[0].experiment.criterion
    scale = criterion.scale
    with_memory = [subject for subject in subjects if subject.alignment.judge.has_memory]
    baselines = [await _baselines(io, fold, criterion, *with_memory[-1:]) for fold in folds]
    evaluated = [
        EvaluatedCase(
            example=case.example,
            group=case.group,
            fold=number,
            expected=case.expected,
            experts=[
                ExpertLabel.model_validate(item, from_attributes=True) for item in case.feedback
            ],
            predictions=predictions,
            judgments={},
            failures={},
        )
        for (number, case), predictions in zip(cases, chain(*baselines), strict=True)
    ]
    for subject, column in zip(subjects, outcomes, strict=True):
        name, has_verdicts = subject.name, subject.alignment.judge.decide == "evidence"
        has_verdicts |= any(map(_is_decided_by_evidence, column))
        for judged, outcome in zip(evaluated, column, strict=True):
            if isinstance(outcome, str):
                judged.failures[name] = outcome
                continue
            judged.judgments[name] = outcome
            judged.predictions[name] = _prediction(outcome)
            if has_verdicts:
                confidence = (outcome.probabilities or {}).get(scale.render(outcome.verdict))
                verdict = Prediction(value=outcome.verdict, confidence=confidence)
                judged.predictions[verdict_name(name)] = verdict
    return evaluated, memories


def _is_decided_by_evidence(outcome: Judgment | str) -> bool:
    evidence = None if isinstance(outcome, str) else outcome.evidence
    return evidence is not None and evidence.decided_by == "evidence"


async def _learn(
    io: IO, subject: JudgeUnderTest, folds: Sequence[dataset.Fold]
) -> list[TrainedMemory]:
    """Let a judge's memories learn, one for each fold."""
    memories = [(subject.empty(), fold.train) for fold in folds]
    if subject.alignment.judge.has_memory:
        experiment = subject.experiment
        await subject.embed(io, [item.example for fold in folds for item in fold.feedback])
        parallel_runs = min(len(folds), experiment.options.max_concurrency)
        await experiment.map(io, lambda task: subject.learn(io, *task, parallel_runs), memories)
    return [memory for memory, _ in memories]


async def _baselines(
    io: IO, fold: dataset.Fold, criterion: Criterion, subject: JudgeUnderTest | None = None
) -> list[dict[str, Prediction]]:
    """Predict a fold's cases without a judge, from the labels of the other folds."""
    labels = [case.expected for case in dataset.labelled_cases(fold.train, criterion)]
    if subject is None or not labels:
        constants = dataset.baselines(labels, None, criterion.scale).items()
        return [{name: Prediction(value=value) for name, value in constants} for _ in fold.test]
    access, k = subject.empty().access, max(subject.alignment.judge.k, 1)
    await remember(io, access, fold.train)
    model = await current_evidence_model(io, access)
    predictions = []
    for case in fold.test:
        try:
            similar = await recall(io, access, case.example, k, embed_always=True)
        except EmbeddingError as error:
            if not is_about_prompt(error):
                raise
            similar = await recall_without_episodes(io, access, error)
        examples = load_examples(access.view, similar.recalled)
        values = dataset.baselines(labels, examples, criterion.scale)
        verdict = RawVerdict(values.get(dataset.MEDIAN, values[dataset.MAJORITY]))
        decision = model.decide(verdict, access.load_vector(similar.vector), "evidence")
        by_name = {name: Prediction(value=value) for name, value in values.items()}
        by_name[dataset.EVIDENCE] = Prediction(value=decision.value, confidence=decision.confidence)
        predictions.append(by_name)
    return predictions


def _prediction(judgment: Judgment | str) -> Prediction:
    if isinstance(judgment, str):
        return Prediction()
    return Prediction(value=judgment.value, confidence=judgment.confidence)


def _score_judges(
    cases: Sequence[EvaluatedCase], judges: Sequence[str], scale: Scale, settings: RunSettings
) -> tuple[list[JudgeScores], list[Comparison]]:
    """Score baselines and judges, and compare each judge with the first and with the baselines."""
    predicted = {*judges, *(name for case in cases for name in case.predictions)}
    baselines = [name for name in dataset.BASELINES if name in predicted]
    rows = [row for name in judges for row in (verdict_name(name), name) if row in predicted]
    pairs = [(row, other) for row in rows for other in (judges[0], *baselines) if row != other]
    pairs += [(name, verdict_name(name)) for name in judges if verdict_name(name) in predicted]
    return score(
        scale,
        [case.expected for case in cases],
        [case.group for case in cases],
        {
            name: [case.predictions.get(name, Prediction()) for case in cases]
            for name in [*baselines, *rows]
        },
        pairs=list(dict.fromkeys(pairs)),
        resamples=settings.resamples,
        seed=settings.seed,
    )


def _run_settings(
    criterion: Criterion,
    feedback: Collection[Feedback],
    folds: Sequence[dataset.Fold],
    settings: Options,
    alignments: Mapping[str, Alignment],
) -> RunSettings:
    learned = {item.episode_id for fold in folds for item in fold.train}
    contents = sorted(
        digest([item.episode_id, item.value, item.rationale, item.episode_id in learned])
        for item in feedback
    )
    return RunSettings(
        version=version("memalign-graph"),
        created_at=datetime.now(UTC),
        data=digest([criterion.to_json(), contents]),
        feedback=len(feedback),
        folds=len(folds),
        group_by=settings.group_by if isinstance(settings.group_by, str) else "a function",
        seed=settings.seed,
        resamples=settings.resamples,
        judges={
            name: {
                "model": _name(alignment.judge.model),
                "distill_model": _name(alignment.judge.distill_model or alignment.judge.model),
                "embeddings": embedder_id(alignment.judge.embeddings),
                **alignment.judge.model_dump(mode="json", exclude=_NAMED_OTHERWISE),
                **alignment.model_dump(mode="json", exclude={"judge"}),
            }
            for name, alignment in alignments.items()
        },
    )


def _name(model: ChatModelLike) -> str:
    return model if isinstance(model, str) else model_name_of(resolve_chat_model(model))


def _warnings_on(
    name: str,
    alignment: Alignment,
    cases: Sequence[EvaluatedCase],
    memories: Sequence[TrainedMemory],
) -> Iterator[str]:
    """Yield what a reader of a judge's numbers has to know."""
    reports = [memory.report for memory in memories if memory.report]
    if rejected := [item.reason for report in reports for item in report.rejected]:
        yield f"some feedback was not learned from; the first reason: {rejected[0]}"
    if noted := list(dict.fromkeys(warning for report in reports for warning in report.warnings)):
        yield f"{len(noted)} warnings while it learned; the first: {noted[0]}"
    if failures := [case.failures[name] for case in cases if name in case.failures]:
        missing = f"{len(failures)} of {len(cases)} cases have no verdict and are in none of"
        yield f"{missing} its numbers; the first: {failures[0]}"
    judgments = [case.judgments[name] for case in cases if name in case.judgments]
    counts = Counter(warning for judgment in judgments for warning in judgment.warnings)
    yield from (f"{count} judgments warn: {warning}" for warning, count in counts.items())
    by_evidence = sum(map(_is_decided_by_evidence, judgments))
    if alignment.judge.decide == "evidence" or by_evidence:
        yield f"the evidence decided {by_evidence} of {len(judgments)} cases."


async def _run_learning_curve(io: IO, subject: JudgeUnderTest, fold: dataset.Fold) -> LearningCurve:
    experiment = subject.experiment
    settings, criterion = experiment.options, experiment.criterion
    train = list(fold.train)
    random.Random(settings.seed).shuffle(train)  # noqa: S311 - nothing secret
    await subject.embed(io, [item.example for item in fold.feedback])
    memory = subject.empty()

    async def judge(cases: Sequence[dataset.LabelledCase], name: str) -> JudgeScores:
        outcomes = await subject.judge_all(io, [(memory, case.example) for case in cases])
        [scores], _ = score(
            criterion.scale,
            [case.expected for case in cases],
            [case.group for case in cases],
            {name: list(map(_prediction, outcomes))},
            resamples=settings.resamples,
            seed=settings.seed,
        )
        return scores

    async def measure(size: int) -> LearningStep:
        seen = dataset.labelled_cases(train[:size], criterion, settings.group_by)
        return LearningStep(
            feedback=size,
            guidelines=len(await memory.access.guidelines(io)),
            unseen=await judge(fold.test, "unseen"),
            seen=await judge(seen, "seen") if seen else None,
        )

    sizes = [*sorted({size for size in settings.sizes if size < len(train)}), len(train)]
    steps = [await measure(0)]
    for start, size in pairwise([0, *sizes]):
        await subject.learn(io, memory, train[start:size])
        steps.append(await measure(size))
    return LearningCurve(
        criterion=criterion,
        steps=steps,
        test_cases=len(fold.test),
        usage=[row for row in experiment.usage.rows() if row.stage == "curve"],
    )
