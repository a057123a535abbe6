"""The rank of this process, and the path of a split with it."""

from __future__ import annotations

import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex

from ._errors import ArgumentError
from ._settings import Setting, integer, path_settings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_MAX_RANKS = 2**24
_PASS = "pass rank and world, those of data parallelism, to split, or rank=0, world=1 to read all rows on purpose"
_DATA_PARALLEL = re.compile("NAME(_NAME)*".replace("NAME", "(dp|ddp|dp_replicate|dp_shard|replicate|shard|data|data_parallel|batch)"))


def resolve_split(
    name: str,
    rank: SupportsIndex | None,
    world: SupportsIndex | None,
    mesh: DeviceMesh | None,
    settings: dict[str, Setting],
    describe: Callable[[str], dict[str, Any]],
    is_own: bool = True,
) -> tuple[str, dict[str, Any]]:
    """Returns the path of a split under settings, and describe(path).

    Unless the path sets them, rank and world default to those of torch.distributed or torchrun's environment variables, and so does
    local_world if it matters. is_own reports whether the mount belongs to this process, so that its settings may say which rank this is;
    one for a whole host has the rank of any of its processes. Call this from a function that users call, because of its warning.

    Raises:
        ArgumentError: only one of rank and world is given or set, or an argument is wrong.
    """
    if (rank is None) != (world is None):
        raise ArgumentError("rank and world: give both, or none")
    if mesh is not None:
        if rank is not None:
            raise ArgumentError("mesh: give mesh, or rank and world, but not both")
        rank, world = _rank_in(mesh)
    base = name.rstrip("/")
    path = base + "/" + path_settings(settings) if settings else base
    parts = itertools.takewhile(lambda part: "=" in part, (part for part in reversed(path.split("/")) if part not in ("", ".")))
    given = {pair.partition("=")[0] for part in parts for pair in part.split(",")}
    if rank is None and not given & {"rank", "world"}:
        rank, world = _process_rank(lambda: is_own and describe(path)["world"] > 1) or (None, None)
    if rank is None or world is None:
        return path, describe(path)
    world = integer("world", world, 1, _MAX_RANKS)
    ranks: dict[str, Setting] = {"rank": integer("rank", rank, 0, _MAX_RANKS - 1), "world": world}
    local = _from_environment("LOCAL_WORLD_SIZE", 1) or 1
    # With model parallelism, LOCAL_WORLD_SIZE also counts processes that read the same rows.
    if local > 1 and world % local == 0 and "local_world" not in given and _from_environment("WORLD_SIZE", 1) in (None, world):
        info = describe(path)
        if info.get("shuffle_block") and info.get("local_world") == 1:
            ranks["local_world"] = local
    # The keys of one component are checked together.
    path = base + "/" + path_settings({**ranks, **settings})
    return path, describe(path)


def _rank_in(mesh: DeviceMesh) -> tuple[int, int]:
    """Returns the rank of this process among those of a mesh, and their number.

    Raises:
        ArgumentError: the mesh has a dimension that is not data parallel, or this process is not part of it.
    """
    names = getattr(mesh, "mesh_dim_names", None)
    if not names:
        raise ArgumentError(f'mesh must be a DeviceMesh whose dimensions have names (mesh_dim_names), such as mesh["dp"] (got {mesh!r})')
    for name in names:
        if not _DATA_PARALLEL.fullmatch(name):
            raise ArgumentError(
                f"mesh has the dimension {name}, whose ranks may need the same rows: pass only data-parallel dimensions, such as "
                'mesh["dp"] or mesh["dp_replicate", "dp_shard"], or else rank and world'
            )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ArgumentError(f"mesh: this process is not part of {mesh!r}")
    rank = 0
    for i, size in zip(coordinate, mesh.shape):
        rank = rank * size + i
    return rank, mesh.size()


def _process_rank(is_set: Callable[[], bool]) -> tuple[int, int] | None:
    """Returns the rank and world of this process, or None if it reads by the mount's settings.

    It raises an error or warns if there are other processes and nothing says which one this is. is_set reports whether the mount does.

    Raises:
        ArgumentError: only one of RANK and WORLD_SIZE is set, and there are other processes; or a variable is malformed.
    """
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    else:
        rank, world = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
    unknown = ""
    if rank is None and world is not None and world > 1:
        unknown = f"WORLD_SIZE is {world}, and RANK is not set"
    elif world is None and rank:
        unknown = f"RANK is {rank}, and WORLD_SIZE is not set"
    if unknown and not is_set():
        raise ArgumentError(f"{unknown}, so nothing says which rows this process reads: {_PASS}")
    if world in (None, 1) and (why := _other_processes()) and not is_set():
        warnings.warn(f"{why}, and nothing says which of the processes this is, so it reads all rows: {_PASS}", RuntimeWarning, stacklevel=4)
    return None if rank is None or world is None else (rank, world)


def _other_processes() -> str:
    """Returns what suggests that a launcher other than torchrun started several processes, or an empty string."""
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value) > 1:
            return f"{name} is {value}"
    # JAX before 0.5 may lack is_initialized.
    is_initialized = getattr(getattr(sys.modules.get("jax"), "distributed", None), "is_initialized", None)
    return "jax.distributed is initialized" if is_initialized and is_initialized() else ""


def _from_environment(name: str, low: int) -> int | None:
    if (value := os.environ.get(name)) is None:
        return None
    try:
        return integer(name, int(value), low, _MAX_RANKS)
    except ValueError as e:
        raise ArgumentError(f"the environment variable {name} must be a whole number from {low} to {_MAX_RANKS} (got {value!r})") from e
