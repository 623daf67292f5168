"""The package without langchain: all of it works but what needs langchain, which says so."""

import subprocess
import sys
from pathlib import Path

HIDDEN = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "langchain":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
from memalign_graph import *
tool = create_quality_gate_tool(Criterion(name="tone", instructions="Kind?"))
print(tool.name)
for way in (
    "from memalign_graph import QualityGateMiddleware",
    "import memalign_graph; memalign_graph.QualityGateMiddleware",
    "from memalign_graph.agents import QualityGateMiddleware",
    "from memalign_graph import ApprovalMiddleware, create_approval_wrapper",
):
    try:
        exec(way)
    except ImportError as error:
        print(type(error.__cause__).__name__, error)
"""


def test_package_works_without_langchain_but_the_middleware_says_what_to_install() -> None:
    command = [sys.executable, "-W", "error", "-c", HIDDEN]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    told = "needs the package langchain: pip install 'memalign-graph[agents]'."
    missing = f"ModuleNotFoundError QualityGateMiddleware {told}"
    *lines, approvals = done.stdout.splitlines()
    assert lines == ["check_quality", *[missing] * 3]
    assert approvals.startswith("ModuleNotFoundError Approvals need langchain 1.4.7 or newer: pip")
