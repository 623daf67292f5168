"""Worlds with checks of known quality, and what they do to a judge's verdicts on unseen cases."""

from collections.abc import Sequence
from math import exp, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from langgraph.store.memory import InMemoryStore

from memalign_graph import Boolean, Criterion, JudgeMemory
from memalign_graph.evidence.value_from_checks import add_checks, anchor_checks
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_check_answers
from memalign_graph.types import Check, Guideline

_NEW = 24  # unseen cases, half of them bad
_JUDGE_AUC = 0.8
_SPREAD, _MET = 0.7, 0.9  # of the log-odds of yes: standard deviation, and mean of good cases
Rng = np.random.Generator


class World(NamedTuple):
    """What experts and checks are like."""

    bad: float  # share of bad answers in memory
    aucs: Sequence[float]  # of each check, on the cases that break its guideline
    breaks_one: bool = False  # a bad case breaks a single guideline, not all
    shift: float = 0.0  # of all log-odds: the model says yes too often, or too seldom


class Gain(NamedTuple):
    """What checks add to the judge alone."""

    balanced: float  # accuracy in the mean of both values
    caught: float  # share of bad answers that are found


def probability(odds: float) -> float:
    return 1 / (1 + exp(-odds))


def asked_memory(
    values: Sequence[Any], answers: Sequence[Sequence[float]], scale: Any = None
) -> JudgeMemory:
    """A memory whose cases were asked checks; `answers` has a row for each check."""
    criterion = Criterion(name="tone", instructions="Is it kind?", scale=scale or Boolean())
    memory = JudgeMemory(InMemoryStore(), criterion, embeddings=lambda texts: [[1.0]] * len(texts))
    feedback = [
        {"inputs": f"Case {number}", "outputs": "Yes.", "value": value, "rationale": "So."}
        for number, value in enumerate(values)
    ]
    ids = [episode.example_id for episode in memory.remember(feedback)] if feedback else []
    by_asked = {f"{n}:model": dict(zip(ids, row, strict=True)) for n, row in enumerate(answers)}
    run_sync(record_check_answers(SYNC, memory.access, by_asked))
    return memory


def simulate(world: World, cases: int, memories: int) -> Gain:
    """Average over memories; the first case of each is bad."""
    gains = [_gain(world, cases, np.random.default_rng([cases, seed])) for seed in range(memories)]
    return Gain(*np.mean(gains, axis=0).tolist())


def _gain(world: World, cases: int, rng: Rng) -> Gain:
    good = np.concatenate(
        [[False], rng.random(cases - 1) >= world.bad, np.arange(_NEW) < _NEW // 2]
    ).astype(bool)
    distance = sqrt(2) * NormalDist().inv_cdf(_JUDGE_AUC)
    judge = (good - 0.5) * distance**2 + distance * rng.normal(size=len(good))
    distances = [sqrt(2) * NormalDist().inv_cdf(auc) for auc in world.aucs]
    breaks = np.repeat(~good[:, None], len(distances), axis=1)
    if world.breaks_one:
        breaks &= rng.integers(len(distances), size=len(good))[:, None] == range(len(distances))
    odds = rng.normal(size=breaks.shape) - breaks * distances
    answers = 1 / (1 + np.exp(-(_MET + world.shift + _SPREAD * odds)))
    sources = [np.flatnonzero(column) for column in breaks[:cases].T]
    known = [number for number, broken in enumerate(sources) if len(broken)]
    memory = asked_memory(good[:cases].tolist(), answers[:cases, known].T.tolist())
    by_number = {int(str(each.example.inputs)[5:]): each.id for each in memory.episodes()}
    guidelines = {
        str(n): Guideline.model_construct(
            id=str(n),
            question="?",
            episode_ids=[by_number[sources[number][n % len(sources[number])]]],
        )
        for n, number in enumerate(known)
    }
    accepted = []
    for row, own in zip(answers[cases:, known], judge[cases:], strict=True):
        checks = [
            Check(guideline_id=str(n), asked=f"{n}:model", held=None, probability=float(share))
            for n, share in enumerate(row)
        ]
        anchored = anchor_checks(memory.access.view, Boolean(), checks, guidelines, ())
        judged = {"true": probability(own), "false": probability(-own)}
        shares = add_checks(judged, anchored, [True, False], Boolean())
        accepted.append(shares["true"] > shares["false"])
    gains = np.array(accepted, float) - (judge[cases:] > 0)
    passed, missed = gains[: _NEW // 2].mean(), gains[_NEW // 2 :].mean()
    return Gain((passed - missed) / 2, -missed)
