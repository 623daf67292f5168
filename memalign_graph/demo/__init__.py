"""The main job on cases of its own: `python -m memalign_graph.demo`.

- `cases`: the cases, read from `cases/*.json`.
- `loop`: judge, ask, learn, judge again.
- `report`: the table at the end.
- `terminal`: an expert who types.
"""
