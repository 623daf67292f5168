"""What an evaluation asked of models, as a table and in words. Pure functions."""

from collections.abc import Iterable

from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.report.measures import lower_title, title_of
from memalign_graph.evaluation.report.tables import Cell, Table
from memalign_graph.evaluation.report.words import count, duration
from memalign_graph.evaluation.results import Evaluation


def cost_table(evaluation: Evaluation, curve: LearningCurve | None) -> Table:
    """Lay out what was asked of models."""
    entries = [("Learning, all folds together", evaluation.learning)]
    entries += [
        (f"Judging: {lower_title(title_of(name))}", one) for name, one in _judging(evaluation)
    ]
    if curve is not None:
        entries.append(("Learning curve: learning", _sum(one.learning for one in curve.steps)))
        entries.append(("Learning curve: judging", _sum(one.judging for one in curve.steps)))
    rows = [_cost_row(title, one) for title, one in entries]
    rows.append(_cost_row("All together", _sum(one for _, one in entries)))
    return Table(
        caption="What was asked of models",
        head=["For", "Calls", "Kept", "Tokens in", "Tokens out", "Model time"],
        rows=rows,
    )


def cost_sentence(evaluation: Evaluation, curve: LearningCurve | None) -> str:
    """Say what was asked of models."""
    steps = curve.steps if curve else []
    whole = _sum([evaluation.learning, *(one for _, one in _judging(evaluation))])
    whole = _sum([whole, *(part for one in steps for part in (one.learning, one.judging))])
    if not whole.chat_calls:
        return "No model was called."
    kept = f", {whole.kept_calls:,} of them kept from before" if whole.kept_calls else ""
    text = f"It took {count(whole.chat_calls, 'answer')} of the model{kept}"
    if whole.input_tokens or whole.output_tokens:
        text += f", {whole.input_tokens:,} tokens in and {whole.output_tokens:,} out"
    text += f": {duration(whole.model_seconds)} of its time."
    each = [
        f"{round(one.input_tokens / one.chat_calls):,} {lower_title(title_of(name))}"
        for name, one in _judging(evaluation)
        if one.chat_calls and one.input_tokens
    ]
    if each:
        text += f" A call to judge reads, in tokens on average: {', '.join(each)}."
    return text


def _judging(evaluation: Evaluation) -> list[tuple[str, Spent]]:
    return list(evaluation.judging.items())


def _sum(parts: Iterable[Spent]) -> Spent:
    return sum(parts, Spent())


def _cost_row(title: str, spent: Spent) -> list[Cell]:
    told = spent.input_tokens or spent.output_tokens or not spent.chat_calls
    return [
        Cell(title),
        Cell(f"{spent.chat_calls:,}"),
        Cell(f"{spent.kept_calls:,}"),
        Cell(f"{spent.input_tokens:,}" if told else "not told"),
        Cell(f"{spent.output_tokens:,}" if told else "not told"),
        Cell(duration(spent.model_seconds)),
    ]
