"""What the exit statuses say, to shells and build servers."""

from enum import IntEnum

from memalign_graph.errors import ChatModelError, EmbeddingError, ModelAnswerError
from memalign_graph.local.errors import LocalModelError

MODEL_ERRORS = (ChatModelError, EmbeddingError, LocalModelError, ModelAnswerError)
"""What a model or embeddings, and not the caller, are to blame for."""


class ExitStatus(IntEnum):
    """How a command ended."""

    DONE = 0
    """All of it is done."""

    MISSED = 1
    """Evaluated, and a threshold is missed, or can't be told."""

    UNUSABLE = 2
    """An argument, a file or the memory can't be used."""

    MODEL_FAILED = 3
    """A chat model or embeddings failed; what was committed before stays."""

    PARTLY = 4
    """Done, but not for every record: those that are left out are listed."""

    FAULT = 70
    """A fault of this program; the traceback says where."""

    INTERRUPTED = 130
    """Ctrl-C; what was committed before stays."""

    NO_READER = 141
    """Whatever read the output went away, as `head` does."""

    TERMINATED = 143
    """SIGTERM; what was committed before stays."""


TABLE = """\
exit status:
  0    done
  1    evaluate: a threshold is missed, or its metric is not defined; demo: it stopped
  2    an argument, a file or the memory can't be used
  3    a chat model or embeddings failed; what was committed before stays
  4    done, but not for every record: those left out are listed
  70   a fault of this program; please report the traceback
  130  stopped by Ctrl-C; what was committed before stays
  141  whatever read the output went away
  143  stopped by SIGTERM; what was committed before stays
"""
"""The statuses as `--help` shows them."""
