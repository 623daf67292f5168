"""What goes wrong with the embedded model."""

from memalign_graph.errors import MemAlignError


class LocalModelError(MemAlignError, RuntimeError):
    """The embedded model cannot be found, checked or started; the message names the mend."""
