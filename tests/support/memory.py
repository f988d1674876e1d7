"""How much memory this process holds."""

from pathlib import Path

GIGABYTE = 2**30


def data_bytes():
    """Memory of this process that it may write to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData")).split()[1])
