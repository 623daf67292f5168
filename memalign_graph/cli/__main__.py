"""`python -m memalign_graph.cli`: the same as `memalign`."""

import sys

from memalign_graph.cli import main

if __name__ == "__main__":
    sys.exit(main())
