"""Which platform a network is traced for: this machine's, or any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_PORTABLE = ContextVar("portable", default=False)


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``; networks with platform-specific kernels ask for it."""
    return "cpu" if _PORTABLE.get() else jax.default_backend()


@contextmanager
def portable() -> Iterator[None]:
    """Within it, networks are traced without such kernels, which no other runtime has."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)
