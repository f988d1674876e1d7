"""A broken standard output, such as a closed pipe or a full disk, does not end a run: it is reported at the end."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any


class _Closed(io.TextIOBase):
    """A substitute for a stream that the caller has closed, which is None in Python."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Stream:
    """A text stream that ignores writes once one has failed.

    Attributes:
      problem: the first failure; None so far.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def write(self, text: str) -> int:
        """Writes the text, or nothing."""
        with self._noting():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the text, or ignores a failure."""
        with self._noting():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self.problem = problem
            # Discards what is left in its buffer: Python would report at exit that it cannot be flushed.
            with suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


@contextmanager
def lasting_streams() -> Iterator[Stream]:
    """While open, standard output and standard error are streams of this kind; yields the former."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed by the caller: no file of a run may take its place
            os.open(os.devnull, os.O_RDWR)
    output, errors = (Stream(_Closed() if stream is None else stream) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(output), redirect_stderr(errors):
        yield output
