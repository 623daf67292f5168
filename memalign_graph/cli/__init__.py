"""The command line: `memalign`, or `python -m memalign_graph.cli`.

- `entry`: from the arguments to the exit status; where errors become sentences.
- `parser`, `options`: the commands, and the options they share.
- `exits`: the exit statuses.
- `output`: what goes to the terminal, and what a terminal may be sent.
- `criteria`, `tables`, `records`: criteria and records from files.
- `places`, `selecting`: the memory's file, and items named by the beginning of their id.
- `align`, `judge`, `evaluate`, `looking`, `changing`: the commands.
- `reports`: what people read, as text.

Nothing heavy is imported before a command needs it.
"""

from memalign_graph.cli.entry import main

__all__ = ["main"]
