"""What goes wrong with the embedded model, and what to say when its packages are missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from memalign_graph.errors import MemAlignError


class LocalModelError(MemAlignError, RuntimeError):
    """The embedded model cannot be found, checked or started; the message names the mend."""


@contextmanager
def needs_local_extra(what: str) -> Iterator[None]:
    """Turn a failed import in the block into one sentence that names the extra.

    Args:
        what: What the caller wanted to use, such as `LocalEmbeddings`.

    Yields:
        Nothing.

    Raises:
        ImportError: If an import in the block fails.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{what} needs the extra "local": pip install "memalign-graph[local]"', name=error.name
        ) from error
