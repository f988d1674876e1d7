"""How much memory this process may use, from the system's files and limits.

psutil reports the machine's memory, but not the limit of a container (cgroups), which is what ends a run; process
limits are in the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or fewer if a container or a process has a limit.

    8 GiB where the system does not report it, as on Windows.
    """
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        machine = 8 * 2**30
    return min([machine, *_process_limits(), *container_limits()])


def _process_limits() -> list[int]:
    """``ulimit -v`` and ``ulimit -d``, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    limits = [resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return [each for each in limits if each != resource.RLIM_INFINITY]


def container_limits(root: Path = Path("/")) -> Iterator[int]:
    """The memory limits of the cgroups that this process is in, version 1 or 2, and of those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")  # in a container that path may be the host's: only the top exists
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such file, or no limit: "max"
                yield int((each / ("memory.limit_in_bytes" if controllers else "memory.max")).read_text())
            if each == top:
                break
