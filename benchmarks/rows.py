"""The rows of the table: what each is called, how it is read off the measurements, what it aims at.

All functions here are pure: measurements in, numbers out.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.plan import Sizes
from benchmarks.remote import Measured

Results = Mapping[str, Sequence[Measured]]
"""One side's measurements by what was measured."""


@dataclass(frozen=True)
class Number:
    """A measured number: the median of what was measured, and the best of it."""

    median: float
    """The median."""

    best: float
    """The best, which is the highest where higher is better."""

    times: int
    """How many measurements there are."""


@dataclass(frozen=True)
class Row:
    """One row: a quantity that both sides are measured by."""

    key: str
    """Its name in the JSON results."""

    group: str
    """The group it is asked for by."""

    title: str
    """Its name in the table; sizes are filled in."""

    unit: str
    """What it is counted in."""

    source: str
    """Which measurements it is read off."""

    read: Callable[[Measured], float]
    """Reads it off one of them."""

    target: float | None = None
    """What we aim at, at full size."""

    digits: int = 2
    """Decimals shown."""

    higher: bool = False
    """Whether higher is better."""

    timed: bool = True
    """Whether it varies from one measurement to the next."""

    together: bool = False
    """Whether it is read off all measurements at once, as `judged` puts them together."""

    def number(self, results: Results) -> Number | None:
        """Read the row off one side's measurements.

        Args:
            results: The measurements.

        Returns:
            The number; None where it was not measured.
        """
        measured = results.get(self.source)
        if not measured:
            return None
        chosen = [judged(measured)] if self.together else measured
        values = [self.read(one) for one in chosen]
        best = max(values) if self.higher else min(values)
        return Number(statistics.median(values), best, len(values))


def wall_s(measured: Measured) -> float:
    """Return what some work took."""
    return float(measured["wall_s"])


def overhead_ms(measured: Measured) -> float:
    """Return what a judgment took besides the server's time: its requests follow one another."""
    return 1_000 * (float(measured["wall_s"]) - float(measured["held_s"]))


def counted(name: str) -> Callable[[Measured], float]:
    """Return a reader of one of the server's counters."""
    return lambda measured: float(measured[name])


def judged(measured: Sequence[Measured]) -> Measured:
    """Put judgments together: the share of their prompts that all have in common at the front."""
    prompts = [prompt for one in measured for prompt in one["prompts"]]
    # What the first and the last in order have in common, all between them have, too.
    pairs = zip(min(prompts), max(prompts), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return {"prefix_share": common / statistics.mean(map(len, prompts))}


def share_of_bound(results: Results, sizes: Sizes, source: str) -> list[Measured]:
    """Work out how close many judgments at once come to what latency alone allows.

    The bound is `judgments / at once * latency of one judgment`, the latency being what the server
    held a judgment's requests when they came one by one. Since judgments come whole, no more than
    `judgments / at once / ceil(judgments / at once)` of it can be reached.

    Args:
        results: One side's measurements.
        sizes: How many judgments, and how many at once.
        source: Which measurements of many at once.

    Returns:
        A measurement each, with its `share`.
    """
    if not results.get(source) or not results.get("judge"):
        return []
    latency = statistics.median(float(one["held_s"]) for one in results["judge"])
    bound = sizes.concurrent / sizes.at_once * latency
    return [{"share": bound / float(one["wall_s"]), "bound_s": bound} for one in results[source]]


def with_shares(results: Results, sizes: Sizes) -> Results:
    """Add to one side's measurements what is worked out from several of them.

    Args:
        results: The measurements.
        sizes: The sizes they were taken at.

    Returns:
        The measurements, with a share for each run of many judgments at once.
    """
    runs = [key for key in results if key.startswith("concurrent")]
    return {
        **results,
        **{key.replace("concurrent", "share"): share_of_bound(results, sizes, key) for key in runs},
    }


ROWS = (
    Row("align_small_s", "align", "align {small}", "s", "align_small", wall_s, 1.7),
    Row("align_large_s", "align", "align {large}", "s", "align_large", wall_s, 3.6),
    Row(
        "align_zero_s", "align", "align {large}, server without latency", "s", "align_zero",
        wall_s, 1.0,
    ),
    Row(
        "align_prompt_tokens", "align", "align {large}, prompt tokens", "tokens", "align_large",
        counted("prompt_tokens"), 336_000, digits=0, timed=False,
    ),
    Row(
        "one_more_texts", "change", "one more on {large}, texts embedded", "texts", "one_more",
        counted("texts_embedded"), 1, digits=0, timed=False,
    ),
    Row("one_more_s", "change", "one more on {large}", "s", "one_more", wall_s, 1.7),
    Row(
        "remove_one_texts", "change", "remove one of {large}, texts embedded", "texts",
        "remove_one", counted("texts_embedded"), 0, digits=0, timed=False,
    ),
    Row(
        "remove_one_s", "change", "remove one of {large}", "s", "remove_one", wall_s, 0.05,
        digits=3,
    ),
    Row(
        "reopen_texts", "reopen", "reopen {large} and judge, texts embedded", "texts", "reopen",
        counted("texts_embedded"), 1, digits=0, timed=False,
    ),
    Row("reopen_s", "reopen", "reopen {large} and judge", "s", "reopen", wall_s, 1.0),
    Row(
        "overhead_ms", "judge", "overhead of a judgment, {large} episodes", "ms", "judge",
        overhead_ms, 20, digits=1,
    ),
    Row("panel_one_s", "panel", "one example, one criterion", "s", "panel_one", wall_s),
    Row("panel_s", "panel", "one example, {criteria} criteria", "s", "panel", wall_s),
    Row(
        "scale_ms", "scale", "overhead of a judgment, {scale} episodes", "ms", "scale",
        overhead_ms, 30, digits=1,
    ),
    Row(
        "scale_recall", "scale", "recall@5 against exact search, {scale} episodes", "share",
        "scale_recall", counted("recall"), 0.99, digits=3, higher=True,
    ),
    Row("scale_open_s", "scale", "reopen {scale} and judge", "s", "scale_open", wall_s, digits=1),
    Row(
        "concurrent_share", "concurrency",
        "{concurrent} judgments, {at_once} at once, share of the latency bound", "share", "share",
        counted("share"), 0.6, higher=True,
    ),
    Row(
        "judge_tokens", "judge", "prompt tokens of a judgment", "tokens", "judge",
        counted("prompt_tokens"), 3_000, digits=0,
    ),
    Row(
        "judge_prefix", "judge", "share of it that all cases have in common", "share", "judge",
        counted("prefix_share"), 0.6, higher=True, together=True,
    ),
    Row("import_s", "import", "import", "s", "import", wall_s, 2.5),
    Row(
        "install_packages", "install", "install, packages", "packages", "install",
        counted("packages"), 60, digits=0, timed=False,
    ),
    Row(
        "install_mb", "install", "install, size", "MB", "install", counted("megabytes"), 300,
        digits=0, timed=False,
    ),
)  # fmt: skip
"""The rows, in their order."""

VARIANTS = {
    "SqliteStore, `batch`": ("judge", "share"),
    "SqliteStore, `abatch`": (None, "share_async"),
    "InMemoryStore, `batch`": ("judge_in_memory", "share_in_memory"),
    "InMemoryStore, `abatch`": (None, "share_async_in_memory"),
}
"""Ours with another store, or asynchronously: where overhead and share are read off."""


def ratio(row: Row, ours: Number | None, peer: Number | None) -> float | None:
    """Return how many times better ours is than the peer, by the medians.

    Args:
        row: The row.
        ours: Our number.
        peer: The peer's.

    Returns:
        The factor; infinite where ours is zero and the peer's is not, None where one is missing.
    """
    if ours is None or peer is None:
        return None
    worse, better = (ours, peer) if row.higher else (peer, ours)
    if better.median == 0:
        return 1.0 if worse.median == 0 else float("inf")
    return worse.median / better.median


def meets(row: Row, ours: Number | None) -> bool | None:
    """Tell whether our median meets the row's target.

    Args:
        row: The row.
        ours: Our number.

    Returns:
        Whether it does; None where there is no target or no number.
    """
    if ours is None or row.target is None:
        return None
    return ours.median >= row.target if row.higher else ours.median <= row.target
