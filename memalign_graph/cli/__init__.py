"""The command line: `memalign`, or `python -m memalign_graph.cli`. It needs the extra `cli`.

`app` runs a command and turns errors into a message and an exit status. `options` declares the
options that commands share, `records` and `files` read files, and `terminal` prints.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        from memalign_graph.cli.app import run
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write('memalign needs the extra "cli": pip install "memalign-graph[cli]"\n')
        return 2
    return run(sys.argv[1:] if arguments is None else arguments)
