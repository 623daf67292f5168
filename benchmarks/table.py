"""The results as a table people read, and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.plan import Sizes
from benchmarks.rows import ROWS, VARIANTS, Number, Results, Row, meets, overhead_ms, ratio

_COARSE = 100

_MARK = {True: "yes", False: "**no**", None: ""}


@dataclass(frozen=True)
class Run:
    """Everything one run of the benchmark brought."""

    sizes: Sizes
    """How much of everything."""

    groups: tuple[str, ...]
    """The groups of rows asked for."""

    quick: bool
    """Whether the sizes are too small to say anything."""

    machine: str
    """What it ran on."""

    command: str
    """What was run."""

    ours: Results
    """Our measurements."""

    peer: Results
    """The peer's, with the cache of its client switched off."""

    peer_cached: Results
    """The peer's, with that cache on and warm."""

    def rows(self) -> list[Row]:
        """Return the rows that were asked for and measured."""
        return [row for row in ROWS if row.group in self.groups and row.number(self.ours)]


def as_json(run: Run) -> dict[str, Any]:
    """Return a run as JSON: its rows, and all measurements they were read off.

    Args:
        run: The run.

    Returns:
        A JSON value.
    """
    rows = []
    for row in run.rows():
        ours, peer, cached = _numbers(run, row)
        rows.append(
            {
                "key": row.key,
                "title": row_title(row, run.sizes),
                "unit": row.unit,
                "ours": asdict(ours) if ours else None,
                "peer": asdict(peer) if peer else None,
                "peer_cached": asdict(cached) if cached else None,
                "ratio": _finite(ratio(row, ours, peer)),
                "ratio_cached": _finite(ratio(row, ours, cached)),
                "target": row.target,
                "met": None if run.quick else meets(row, ours),
            }
        )
    sides = {"ours": run.ours, "peer": run.peer, "peer_cached": run.peer_cached}
    return {
        "command": run.command,
        "machine": run.machine,
        "quick": run.quick,
        "sizes": asdict(run.sizes),
        "rows": rows,
        "measurements": {side: _without_prompts(results) for side, results in sides.items()},
    }


def as_markdown(run: Run) -> str:
    """Return a run as a table with its caption.

    Args:
        run: The run.

    Returns:
        Markdown.
    """
    head = ["", "ours", "peer", "ratio", "peer, cache warm", "ratio", "target", "met"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in run.rows():
        ours, peer, cached = _numbers(run, row)
        lines.append(
            [
                row_title(row, run.sizes),
                _show(row, ours),
                _show(row, peer) or ("not offered" if row.group == "scale" else ""),
                show_ratio(ratio(row, ours, peer)),
                _show(row, cached),
                show_ratio(ratio(row, ours, cached)),
                _show_target(row),
                "" if run.quick else _MARK[meets(row, ours)],
            ]
        )
    title = "# Quick run: the sizes are too small to say anything" if run.quick else "# Benchmark"
    parts = [title, _caption(run), _lay_out(lines), *_variants(run)]
    return "\n\n".join(parts) + "\n"


def _caption(run: Run) -> str:
    sizes = run.sizes
    return (
        f"`{run.command}` on {run.machine}.\n\n"
        f"Times are the median of {sizes.repeats} with the best in brackets; of judgments one by "
        f"one {sizes.judgments}, of imports 5. A ratio says how many times better ours is, by the "
        "medians of this run. The peer is MLflow's MemAlign on an SQLite tracking store, ours "
        "works on a SqliteStore in a file. Cache warm: the cache on disk that the peer's client "
        "keeps holds what this machine asked before; the column before it is without. "
        "[What each row means](../README.md)."
    )


def _variants(run: Run) -> list[str]:
    """Show how ours does with another store, and asynchronously."""
    lines = [
        ["ours", "overhead of a judgment", "share of the latency bound"],
        ["---", *["---:"] * 2],
    ]
    share_row = next(row for row in ROWS if row.key == "concurrent_share")
    overhead_row = next(row for row in ROWS if row.read is overhead_ms)
    for name, (judge, share) in VARIANTS.items():
        overhead = _reading(overhead_row, run.ours.get(judge, ()) if judge else ())
        reached = _reading(share_row, run.ours.get(share, ()))
        if overhead or reached:
            lines.append([name, _show(overhead_row, overhead), _show(share_row, reached)])
    return [_lay_out(lines)] if len(lines) > 2 else []  # noqa: PLR2004 - head and rule


def _reading(row: Row, measured: Sequence[Mapping[str, Any]]) -> Number | None:
    return row.number({row.source: [dict(one) for one in measured]})


def _numbers(run: Run, row: Row) -> tuple[Number | None, Number | None, Number | None]:
    # A cache changes nothing where nothing is done again.
    cached = run.peer_cached if row.group in ("change", "reopen") else {}
    return row.number(run.ours), row.number(run.peer), row.number(cached)


def row_title(row: Row, sizes: Sizes) -> str:
    """Return a row's title with the sizes filled in.

    Args:
        row: The row.
        sizes: The sizes.

    Returns:
        The title.
    """
    filled = {name: f"{value:,}" for name, value in asdict(sizes).items()}
    return row.title.format(**filled)


def _show(row: Row, number: Number | None) -> str:
    if number is None:
        return ""
    shown = _show_value(row, number.median)
    if row.timed and number.times > 1:
        shown += f" ({_show_value(row, number.best)})"
    return shown if row.unit in ("share", "texts", "packages", "tokens") else f"{shown} {row.unit}"


def _show_value(row: Row, value: float) -> str:
    return f"{value:,.{row.digits}f}"


def _show_target(row: Row) -> str:
    if row.target is None:
        return ""
    digits = row.digits if row.target < 1 else 1 if row.target % 1 else 0
    return f"{'≥' if row.higher else '≤'} {row.target:,.{digits}f}"


def show_ratio(factor: float | None) -> str:
    """Return a ratio as it is shown: finer where it is near 1.

    Args:
        factor: The ratio.

    Returns:
        The text; empty where there is none.
    """
    if factor is None:
        return ""
    if factor == float("inf"):
        return "∞"
    return f"{factor:,.0f}" if factor >= _COARSE else f"{factor:.2g}"


def _finite(factor: float | None) -> float | None:
    return None if factor == float("inf") else factor


def _without_prompts(results: Results) -> dict[str, list[dict[str, Any]]]:
    return {
        key: [{name: value for name, value in one.items() if name != "prompts"} for one in measured]
        for key, measured in results.items()
    }


def _lay_out(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
