"""Panels: many criteria on one example, judged side by side, each with a memory of its own.

- `graph`, `state`: `create_panel_graph`, and what flows through it.
- `retrieve`, `nodes`: its nodes: what the memories have; judging, asking and learning.
- `form`: the review of all criteria in one form: payload out, the expert's reply in; pure.
- `aggregate`: one score of many criteria; pure.
"""

from memalign_graph.panel.aggregate import Aggregate, AggregateResult
from memalign_graph.panel.graph import PanelReview, create_panel_graph

__all__ = ["Aggregate", "AggregateResult", "PanelReview", "create_panel_graph"]
