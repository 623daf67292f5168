"""The rows of the table: how each is read off the measurements, and what it aims at."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.plan import Measured, Results

_COARSE = 100


class Row(NamedTuple):
    """A quantity that both sides are measured by."""

    group: str
    title: str  # sizes are filled in
    unit: str
    source: str  # which measurements it is read off
    read: Callable[[Measured], float]
    target: float | None = None  # what we aim at, at full size
    digits: int = 2
    higher: bool = False  # whether higher is better

    def median_and_best(self, results: Results) -> tuple[float, float] | None:
        """Read the row off one side's measurements, if there are any."""
        values = [self.read(one) for one in results.get(self.source, [])]
        if not values:
            return None
        return statistics.median(values), (max if self.higher else min)(values)

    def show(self, found: tuple[float, float] | None) -> str:
        """Write the median, and the best in brackets."""
        if found is None:
            return ""
        median, best = (f"{number:,.{self.digits}f}" for number in found)
        unit = f" {self.unit}" if self.unit else ""
        return median + (f" ({best})" if best != median else "") + unit

    def ratio(self, ours: tuple[float, float] | None, peer: tuple[float, float] | None) -> str:
        """Write how many times better ours is than the peer, by the medians."""
        if ours is None or peer is None:
            return ""
        worse, better = (ours[0], peer[0]) if self.higher else (peer[0], ours[0])
        if better == 0:
            return "1" if worse == 0 else "∞"
        factor = worse / better
        return f"{factor:,.0f}" if factor >= _COARSE else f"{factor:.2g}"


def _wall_s(measured: Measured) -> float:
    return float(measured["wall_s"])


def _overhead_ms(measured: Measured) -> float:
    """Return what a judgment took besides the server's time: its requests follow one another."""
    return 1_000 * (float(measured["wall_s"]) - float(measured["held_s"]))


def _counted(name: str) -> Callable[[Measured], float]:
    return lambda measured: float(measured[name])


_TEXTS, _PROMPT = _counted("texts_embedded"), _counted("prompt_tokens")
_AT_ONCE = "{concurrent} judgments, {at_once} at once, share of the latency bound"
ROWS = (
    Row("align", "align {small}", "s", "align_small", _wall_s, 1.7),
    Row("align", "align {large}", "s", "align_large", _wall_s, 3.6),
    Row("align", "align {large}, server without latency", "s", "align_zero", _wall_s, 1.0),
    Row("align", "align {large}, prompt tokens", "", "align_large", _PROMPT, 336_000, 0),
    Row("change", "one more on {large}, texts embedded", "", "one_more", _TEXTS, 1, 0),
    Row("change", "one more on {large}", "s", "one_more", _wall_s, 1.7),
    Row("change", "remove one of {large}, texts embedded", "", "remove_one", _TEXTS, 0, 0),
    Row("change", "remove one of {large}", "s", "remove_one", _wall_s, 0.05, 3),
    Row("reopen", "reopen {large} and judge, texts embedded", "", "reopen", _TEXTS, 1, 0),
    Row("reopen", "reopen {large} and judge", "s", "reopen", _wall_s, 1.0),
    Row("judge", "overhead of a judgment, {large} episodes", "ms", "judge", _overhead_ms, 20, 1),
    Row("judge", "prompt tokens of a judgment", "", "judge", _PROMPT, 3_000, 0),
    Row("judge", "share of it in common", "", "judge", _counted("prefix"), 0.6, 2, True),
    Row("concurrency", _AT_ONCE, "", "concurrent", _counted("share"), 0.6, 2, True),
    Row("panel", "one example, one criterion", "s", "panel_one", _wall_s),
    Row("panel", "one example, {criteria} criteria", "s", "panel", _wall_s),
    Row("scale", "overhead of a judgment, {scale} episodes", "ms", "scale", _overhead_ms, 30, 1),
    Row("scale", "reopen {scale} and judge", "s", "scale_open", _wall_s, None, 1),
    Row("import", "import", "s", "import", _wall_s, 2.5),
    Row("install", "install, packages", "", "install", _counted("packages"), 60, 0),
    Row("install", "install, size", "MB", "install", _counted("megabytes"), 300, 0),
)  # fmt: skip
"""The rows, in their order."""

GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))
"""The groups of rows."""


def as_markdown(
    groups: Sequence[str], sizes: dict[str, int], ours: Results, peer: Results, cached: Results
) -> str:
    """Write what was asked for and measured as a table with its caption."""
    for results in (ours, peer):
        _add_shares(results, sizes)
    lines = [
        "| | ours | peer | ratio | peer, cache warm | ratio | target |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    filled = {name: f"{value:,}" for name, value in sizes.items()}
    for row in ROWS:
        mine, theirs = row.median_and_best(ours), row.median_and_best(peer)
        if row.group not in groups or mine is None:
            continue
        # A cache changes nothing where nothing is done again.
        warm = row.median_and_best(cached if row.group in ("change", "reopen") else {})
        target = "" if row.target is None else f"{'≥' if row.higher else '≤'} {row.target:,g}"
        cells = [row.title.format(**filled), row.show(mine), row.show(theirs)]
        cells += [row.ratio(mine, theirs), row.show(warm), row.ratio(mine, warm), target]
        lines.append(f"| {' | '.join(cells)} |")
    caption = (
        "The median, with the best in brackets; a ratio says how many times better ours is. Cache "
        "warm: the peer's client has on disk what this machine asked before; the column before it "
        "is without. [What each row means](../README.md)."
    )
    return "\n".join([caption, "", *lines])


def _add_shares(results: Results, sizes: dict[str, int]) -> None:
    """Add what is worked out from several measurements.

    The share of their prompts that judgments have in common at the front; and how close many at
    once come to what latency alone allows: `judgments / at once * latency of one`.
    """
    judged = results.get("judge")
    if not judged:
        return
    prompts = [prompt for one in judged for prompt in one["prompts"]]
    # What the first and the last in order have in common, all between them have, too.
    pairs = zip(min(prompts), max(prompts), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    for one in judged:
        one["prefix"] = common / statistics.mean(map(len, prompts))
    latency = statistics.median(float(one["held_s"]) for one in judged)
    for one in results.get("concurrent", []):
        one["share"] = sizes["concurrent"] / sizes["at_once"] * latency / float(one["wall_s"])
