"""The rows of the table: how each is read off the measurements, and what it aims at."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.plan import Measured, Results


class Row(NamedTuple):
    """A quantity that both sides are measured by."""

    group: str
    title: str  # sizes are filled in
    unit: str
    source: str  # which measurements it is read off
    read: Callable[[Measured], float]
    digits: int = 2
    higher: bool = False  # whether higher is better

    def show(self, results: Results) -> str:
        """Write the median of one side's measurements, and the best of them in brackets."""
        values = [self.read(one) for one in results.get(self.source, [])]
        if not values:
            return ""
        numbers = (statistics.median(values), (max if self.higher else min)(values))
        median, best = (f"{number:,.{self.digits}f}" for number in numbers)
        return f"{median}{f' ({best})' if best != median else ''} {self.unit}".rstrip()


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
    Row("align", "align {small}", "s", "align_small", _wall_s),
    Row("align", "align {large}", "s", "align_large", _wall_s),
    Row("align", "align {large}, server without latency", "s", "align_zero", _wall_s),
    Row("align", "align {large}, prompt tokens", "", "align_large", _PROMPT, 0),
    Row("change", "one more on {large}, texts embedded", "", "one_more", _TEXTS, 0),
    Row("change", "one more on {large}", "s", "one_more", _wall_s),
    Row("change", "remove one of {large}, texts embedded", "", "remove_one", _TEXTS, 0),
    Row("change", "remove one of {large}", "s", "remove_one", _wall_s, 3),
    Row("reopen", "reopen {large} and judge, texts embedded", "", "reopen", _TEXTS, 0),
    Row("reopen", "reopen {large} and judge", "s", "reopen", _wall_s),
    Row("judge", "overhead of a judgment, {large} episodes", "ms", "judge", _overhead_ms, 1),
    Row("judge", "prompt tokens of a judgment", "", "judge", _PROMPT, 0),
    Row("judge", "share of it in common", "", "judge", _counted("prefix"), 2, True),
    Row("concurrency", _AT_ONCE, "", "concurrent", _counted("share"), 2, True),
    Row("panel", "one example, one criterion", "s", "panel_one", _wall_s),
    Row("panel", "one example, {criteria} criteria", "s", "panel", _wall_s),
    Row("scale", "overhead of a judgment, {scale} episodes", "ms", "scale", _overhead_ms, 1),
    Row("scale", "reopen {scale} and judge", "s", "scale_open", _wall_s, 1),
)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))
"""The groups of rows."""


def as_markdown(groups: Sequence[str], sizes: dict[str, int], *sides: Results) -> str:
    """Write what was asked for and measured of ours, the peer, and the peer with a warm cache."""
    for results in sides:
        _add_shares(results, sizes)
    lines = ["| | ours | peer | peer, cache warm |", "|---|---:|---:|---:|"]
    filled = {name: f"{value:,}" for name, value in sizes.items()}
    for row in ROWS:
        if row.group in groups:
            cells = [row.title.format(**filled), *map(row.show, sides)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
