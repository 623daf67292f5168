"""`python -m memalign_graph.demo`: the same as `memalign demo`."""

import sys

from memalign_graph.cli import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
