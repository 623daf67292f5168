"""Simulate the statistics of a judge in production: `python -m benchmarks.reliability [--runs N]`.

Streams have fixed seeds and no model. The tables show how many points the interval of the pass rate
reaches to each side with the labels alone, and with a judge how often it covers the rate and its
width as a share of that; how often agreement on unasked cases stays at 0.9 after a change to a
worse model whose verdicts on memory were stored; what runs without a question in streams of calls
that a judge passes; and false alarms and delay of the drift test, compared with a z-test of each
week against the first answers.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import inf
from typing import Any

import numpy as np

from benchmarks.plan import markdown_table
from memalign_graph.evidence.drift import DRIFT_LEVEL, bets
from memalign_graph.evidence.mean import estimate_mean
from memalign_graph.evidence.threshold import find_threshold, find_threshold_by_verdict
from memalign_graph.settings import Uncertain

_OTHERS, _ANSWERS, _A_DAY, _BASE = 2_000, 500, 5, 50  # 10,000 judgments, 100 a day, 5 % drawn
_RATES = {
    "2 %": (0.02, 0.98),
    "20 %": (0.2, 0.8),
    "50 %": (0.5, 0.5),
    "mean, rarely 1": (0.98, 0, 0, 0, 0.02),
    "mean, around 4": (0.3, 0.4, 0.2, 0.08, 0.02),
}
"""The shares of passes and failures, or of the values 5 to 1."""


def coverage(runs: int) -> list[list[str]]:
    """Return a row for each rate and number of labels, columns for the labels alone and judges."""
    rows = []
    for (name, shares), labels in product(_RATES.items(), (30, 100, 300)):
        values, ends = np.linspace(1, 0, len(shares)), np.cumsum(shares)[:-1]
        rate = float(values @ shares)
        judges = []
        for accuracy in (0.6, 0.8, 0.95):
            rng, hits, widths, points = np.random.default_rng(1), 0, [], []
            for _ in range(runs):
                at = np.searchsorted(ends, rng.random(labels + _OTHERS), side="right")
                is_wrong = rng.random(len(at)) >= accuracy
                # A wrong judge is one value lower; on the lowest case, at the top.
                truth, judged = values[at], values[(at + is_wrong) % len(values)]
                found = estimate_mean(truth[:labels], judged[:labels], judged[labels:])
                alone = estimate_mean(truth[:labels])
                hits += found.low <= rate <= found.high
                widths.append((found.high - found.low) / (alone.high - alone.low))
                points.append(50 * (alone.high - alone.low))
            judges.append(f"{hits / runs:.3f} ({np.mean(widths):.0%})")
        rows.append([name, f"{labels}", f"{np.mean(points):.1f}", *judges])
    return rows


def first_alarm(agreed: Sequence[bool], draws: Sequence[float]) -> float:
    """Return after how many answers the drift test alarms at the end of a day."""
    worth = np.array(bets(agreed, draws)).reshape(-1, _A_DAY)
    days = np.flatnonzero(worth.max(axis=1) >= 1 / DRIFT_LEVEL)
    return int(days[0] + 1) * _A_DAY if len(days) else inf


def weekly_alarm(agreed: Sequence[bool]) -> float:
    """Return after how many answers a one-sided z-test of a week alarms at 5 %."""
    week, base = 7 * _A_DAY, sum(agreed[:_BASE]) / _BASE
    for end in range(_BASE + week, len(agreed) + 1, week):
        now = sum(agreed[end - week : end]) / week
        pooled = (_BASE * base + week * now) / (_BASE + week)
        error = np.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / _BASE + 1 / week))
        if base - now > 1.645 * error:
            return end
    return inf


def drift(runs: int) -> list[list[str]]:
    """Return a row for each fall: false alarms, alarms after it, and the median delay in days."""
    rows = []
    for before, fall in product((0.8, 0.9, 0.95), (0.0, 0.05, 0.1, 0.2)):
        at, rng = 250 if fall else _ANSWERS, np.random.default_rng(2)
        shares = np.where(np.arange(_ANSWERS) < at, before, before - fall)
        alarms = []
        for _ in range(runs):
            agreed = (rng.random(_ANSWERS) < shares).tolist()
            draws = rng.random(_ANSWERS).tolist()
            alarms.append((first_alarm(agreed, draws), weekly_alarm(agreed)))
        cells = [f"{before}", f"{fall}"]
        for ends in np.array(alarms, float).T:
            seen = np.mean((ends > at) & np.isfinite(ends))
            days = np.median(np.where(ends > at, (ends - at) / _A_DAY, inf))
            cells += [f"{np.mean(ends <= at):.1%}", f"{seen:.0%}" if fall else ""]
            cells.append(f"{days:.0f}" if np.isfinite(days) else "")
        rows.append(cells)
    return rows


_TARGET, _HARD, _HALF, _DRAWN = 0.9, 0.3, 0.5, 0.05

SWAPS: dict[str, dict[str, Any]] = {
    "doubts where it errs": {},
    "doubts what the old one doubted": {"overlap": 0.8},
    "is sure of everything": {"is_overconfident": True},
    "errs where the old one was sure": {"overlap": -0.8},
}
"""Kinds of the new model, which is right on 80 %; the old one was on 88 %."""


def swapped(
    seed: int, *, overlap: float = 0.0, is_overconfident: bool = False, is_sampled: bool = True
) -> tuple[float | None, float]:
    """Change to a worse model; returns the agreement on unasked cases, and their share.

    Memory has 300 cases: a random sample, or those that the old judge doubted and 5 % of the rest.
    """
    rng, count, memory = np.random.default_rng(seed), 30_000, 300
    was_hard = rng.random(count) < _HARD
    is_hard = rng.random(count) < np.where(was_hard, 0.5 + overlap / 2, 0.5 - overlap * 0.2)
    passes = rng.random(count) < _HALF

    def chances(hard: np.ndarray) -> np.ndarray:
        low, high = np.where(hard, 0.45, 0.97), np.where(hard, 0.8, 1.0)
        return rng.uniform(low, high)

    old, new = chances(was_hard), chances(is_hard)
    verdict = passes == (is_right := rng.random(count) < new)
    known = rng.uniform(0.9, 1, count) if is_overconfident else new
    confidence = np.clip(known + rng.normal(0, 0.05, count), 0, 1)
    is_asked = np.ones(count, dtype=bool)
    if not is_sampled:
        is_doubted = old + rng.normal(0, 0.05, count) < _TARGET
        is_asked = is_doubted | (rng.random(count) < _DRAWN)
    kept = np.flatnonzero(is_asked[: count // 2])[:memory]
    decisions: dict[str, list[tuple[float, float]]] = {"True": [], "False": []}
    for at in kept.tolist():
        decisions[str(verdict[at])].append((float(confidence[at]), float(is_right[at])))
    trusts = find_threshold_by_verdict(decisions, 0.9).verdicts
    bars = {
        name: 2.0 if (bar := trust.threshold) is None else bar for name, trust in trusts.items()
    }
    alone = confidence >= np.where(verdict, bars["True"], bars["False"])
    alone[: count // 2] = False
    return (float(is_right[alone].mean()) if alone.any() else None), float(alone.mean() * 2)


def swaps(runs: int) -> list[list[str]]:
    """Return a row for each kind of new model and of memory."""
    rows = []
    for (name, options), is_sampled in product(SWAPS.items(), (True, False)):
        found = [swapped(seed, is_sampled=is_sampled, **options) for seed in range(runs)]
        held = np.mean([agreement is None or agreement >= _TARGET for agreement, _ in found])
        unasked = np.mean([share for _, share in found])
        drawn = "at random" if is_sampled else "for doubt"
        rows.append([name, drawn, f"{held:.1%}", f"{unasked:.0%}"])
    return rows


_CALLS, _CALLS_TARGET = 200, 0.95


@cache
def is_trusted(right: int, wrong: int) -> bool:
    """Return whether a call runs without a question after so many decisions."""
    decisions = [(1.0, True)] * right + [(1.0, False)] * wrong
    return find_threshold(decisions, _CALLS_TARGET).threshold is not None


def approvals(runs: int) -> list[list[str]]:
    """Return a row for each share of right calls among those that the judge passes.

    The bound is looked at before each call. A call that runs without a question teaches nothing.
    """
    rows, drawn_share = [], Uncertain().sample_share
    for share in (0.9, 0.94, 0.97, 0.995):
        rng, ran = np.random.default_rng(3), []
        for _ in range(runs):
            right, wrong, unasked = 0, 0, 0
            draws = zip(rng.random(_CALLS) < share, rng.random(_CALLS) < drawn_share, strict=True)
            for is_right, is_drawn in draws:
                is_asked = is_drawn or not is_trusted(right, wrong)
                right, wrong = right + (is_asked and is_right), wrong + (is_asked and not is_right)
                unasked += not is_asked
            ran.append(unasked)
        streams, calls = np.mean(np.array(ran) > 0), np.mean(ran) / _CALLS
        rows.append([f"{share:.1%}", f"{streams:.1%}", f"{calls:.0%}"])
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    runs = parser.parse_args().runs
    tables = {
        "rate|labels|labels alone|judge .6|judge .8|judge .95": coverage(runs),
        "new model|memory drawn|at 0.9 or above|unasked": swaps(runs // 5),
        "passed calls that are right|streams in which calls ran|calls that ran": approvals(runs),
        "agreement|fall|false alarms|seen|days|z-test: false alarms|seen|days": drift(runs),
    }
    for head, rows in tables.items():
        print(f"{markdown_table(head.split('|'), rows)}\n")


if __name__ == "__main__":
    main()
