"""A chat model, embeddings and storage on one machine (extra `local`), without an API key.

`local_chat_model()` is a small chat model on the CPU, `LocalEmbeddings()` are multilingual sentence
embeddings. `open_local_store(path)` and `open_local_checkpointer(path)` open LangGraph's store and
checkpointer in one file, also with `_async`. `open_store(place)`, `open_store_async(place)` and
`open_checkpointer(place)` also accept the URL of a Postgres database (extra `postgres`). Each name
is imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memalign_graph.local.weights import LocalModelError, find_weights

if TYPE_CHECKING:
    from memalign_graph.local.chat import local_chat_model, start_server, stop_server
    from memalign_graph.local.embeddings import LocalEmbeddings
    from memalign_graph.local.stores import (
        open_checkpointer,
        open_local_checkpointer,
        open_local_checkpointer_async,
        open_local_store,
        open_local_store_async,
        open_store,
        open_store_async,
    )

__all__ = [
    "LocalEmbeddings",
    "LocalModelError",
    "find_weights",
    "local_chat_model",
    "open_checkpointer",
    "open_local_checkpointer",
    "open_local_checkpointer_async",
    "open_local_store",
    "open_local_store_async",
    "open_store",
    "open_store_async",
    "start_server",
    "stop_server",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "stores" if name.startswith("open_") else "chat"
    if name == "LocalEmbeddings":
        module = "embeddings"
    return getattr(import_module(f"{__name__}.{module}"), name)
