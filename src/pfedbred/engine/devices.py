"""The devices that share the clients of a round: all of this process, or of all processes of ``jax.distributed``.

Clients are spread over a mesh with one axis, ``clients``. Every device runs its share of them with the same program;
what all of them need (the data, the server's state) is on each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pfedbred.errors import SettingError
from pfedbred.io.folders import ensure_folder
from pfedbred.io.memory import host_memory as host_memory
from pfedbred.types import Tree

CLIENTS = "clients"


def use_all_cores() -> None:
    """Makes each core of the CPU a separate device, so that clients run on all of them.

    Call it before JAX is used; the command line does. It has no effect once JAX is running, or if the number of devices
    has been set already.
    """
    chosen = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    if chosen != -1 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", _cores())
    except RuntimeError:
        return  # JAX is running already, with the devices it has


def join_processes() -> bool:
    """Makes this process one of several that run the same program; returns whether it is the first of them.

    On a cluster (Slurm, Open MPI, Kubernetes, cloud TPUs) JAX detects the others. Elsewhere, set three environment
    variables: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    given = [os.environ.get(f"JAX_{name}") for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")]
    try:
        if all(given):
            address, processes, number = given
            jax.distributed.initialize(address, int(processes or 0), int(number or 0))
        else:
            jax.distributed.initialize()
    except (RuntimeError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise SettingError(f"cannot join the other processes: {reason}") from None
    return jax.process_index() == 0


def keep_programs(folder: Path) -> None:
    """Keeps compiled programs in a folder, so that the same experiment starts at once the next time.

    The command line calls this. A folder configured for JAX (``JAX_COMPILATION_CACHE_DIR``) takes precedence. If the
    folder cannot be created, programs are not kept.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        try:
            ensure_folder(folder)  # JAX would create it for everyone to read
        except SettingError:
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler_options() -> dict[str, Any]:
    """Options for XLA, on GPUs.

    Do not merge matrix products that share an operand: to join them it copies the other factors, which for clients'
    params are most of the memory that a step reads. Do not recompute values to save memory: where a program does not
    fit, fewer clients at a time save more, and that pass can take long to find out.
    """
    if jax.default_backend() != "gpu":
        return {}
    return {"xla_gpu_dot_merger_threshold_mb": 0, "xla_disable_hlo_passes": "rematerialization"}


class TooLarge(SettingError):
    """A program needs more memory than a device has: ``needed`` bytes, of which ``temporary`` ones while it runs."""

    def __init__(self, needed: int, temporary: int, room: int) -> None:
        super().__init__(
            f"the compiled program needs {needed / 1e9:,.1f} GB on each device, but only {room / 1e9:,.1f} GB are "
            "available: use fewer clients or seeds, a smaller batch_size or model, or a smaller chunk"
        )
        self.needed, self.temporary, self.room = needed, temporary, room


def compiled(traced: Any) -> Any:
    """A traced program, compiled; rejected if the compiler says that it needs more memory than a device has."""
    program = traced.lower().compile(compiler_options())
    stats = program.memory_analysis()
    if stats is not None:  # not every backend reports it
        needed = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        if jax.default_backend() != "cpu":  # there, samples may be a memory-mapped file, which takes no memory
            needed += stats.argument_size_in_bytes
        room = device_memory()
        if needed > room:
            raise TooLarge(needed, stats.temp_size_in_bytes, room)
    return program


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether this exception of NumPy or JAX means that memory is exhausted."""
    return isinstance(problem, MemoryError) or "RESOURCE_EXHAUSTED" in str(problem)


def is_no_device(problem: BaseException) -> bool:
    """Whether this exception of JAX means that the devices requested by JAX_PLATFORMS are missing."""
    return isinstance(problem, RuntimeError) and "Unable to initialize backend" in str(problem)


def device_memory() -> int:
    """Bytes of memory of one device; for a CPU device, its share of the machine's."""
    facts = jax.local_devices()[0].memory_stats()
    return facts["bytes_limit"] if facts else host_memory() // len(jax.local_devices())


def clients_mesh(devices: int | None = None) -> Mesh | None:
    """A mesh of all devices (or the first few); None if there is only one."""
    found = jax.devices()[:devices]
    return Mesh(np.asarray(found), (CLIENTS,)) if len(found) > 1 else None


def spread(mesh: Mesh, axis: int) -> NamedSharding:
    """A sharding that spreads the clients, along that axis, over the devices."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, CLIENTS))


def everywhere(mesh: Mesh) -> NamedSharding:
    """A sharding that replicates arrays on every device."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Tree, sharding: NamedSharding | None) -> Tree:
    """The arrays on their devices. All processes must pass the same arrays."""
    if sharding is None:
        return jax.tree.map(jax.numpy.asarray, tree)

    def put(leaf: Any) -> jax.Array:
        if jax.process_count() == 1:
            return jax.device_put(leaf, sharding)
        if isinstance(leaf, jax.Array) and _is_key(leaf):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree)


def fetch(leaf: Any) -> np.ndarray:
    """An array on the host; a random key as its numbers. All processes must call this."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def without_keys(shape: Any) -> Any:
    """The shape and type that ``fetch`` returns."""
    return jax.eval_shape(jax.random.key_data, shape) if _is_key(shape) else shape


def with_keys(shape: Any, array: np.ndarray) -> Any:
    """The inverse of ``fetch``: keys become keys again."""
    return jax.random.wrap_key_data(jax.numpy.asarray(array)) if _is_key(shape) else array


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def agreed_text(text: str | None) -> str | None:
    """The text of the first process that has one, in all processes: a signal may reach only one of them."""
    if jax.process_count() == 1:
        return text
    from jax.experimental.multihost_utils import process_allgather

    own = np.frombuffer((text or "").encode()[:256].ljust(256, b"\0"), np.uint8)
    texts = [bytes(each).rstrip(b"\0").decode(errors="replace") for each in process_allgather(own)]
    return next(filter(None, texts), None)


def agreed(number: int) -> int:
    """The first process's number, in all processes: what depends on a clock is decided by one of them."""
    if jax.process_count() == 1:
        return number
    from jax.experimental.multihost_utils import broadcast_one_to_all

    return int(broadcast_one_to_all(np.int32(number)))
