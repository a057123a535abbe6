"""The state of a run: where it is, and what decides its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._program import ArgumentError, Error, integer

MAX_BATCHES = 2**40  # numbers of batches are below this
_VERSION = 2
# The smallest value of each number; 0 for those not listed.
_MIN = {"batch_size": 1, "world": 1, "local_world": 1, "bos": -1, "eot": -1, "ignore_index": -(2**63)}
_MAX = {"step": MAX_BATCHES}
_DESCRIBED = {"formats": "the token files are read differently (format, tensor, token_dtype, shape, or which files each source has)"}


def state_at(info: dict[str, Any], step: int) -> dict[str, Any]:
    """Returns the state of a run of the split with this info.json whose next batch is step. It is the same on all ranks."""
    batch_size, world = info["batch_size"], info["world"]
    position = {"step": step, "row": step * batch_size * world, "batch_size": batch_size, "world": world}
    return {"version": _VERSION, **position, **info["state"]}


def same_past(then: str, now: str, end: int) -> bool:
    """Reports whether two lists of sources, or of stages such as 0=9:1,1000=5:5, agree up to row end.

    Appended sources and later stages may differ.
    """
    if "=" not in then or "=" not in now:
        return all(a == b for a, b in zip(then.split(","), now.split(",")))
    a, b = ([stage for stage in text.split(",") if not (row := stage.partition("=")[0]).isdecimal() or int(row) < end] for text in (then, now))
    return a == b


def continues(then: dict[str, Any], now: dict[str, Any], batches: int) -> bool:
    """Reports whether the sequences of two info.json files have the same first batches."""
    a, b = then["identity"].split(" "), now["identity"].split(" ")
    if len(a) < 3 or len(b) < 3:
        return a == b
    end = _schedule_row(then, batches * then["batch_size"] * then["world"])
    return a[0] == b[0] and all(same_past(*pair, end) for pair in zip(a[1:], b[1:]))


def _schedule_row(info: Mapping[str, Any], row: int) -> int:
    """Returns the number of a row in the schedule: with shuffle_block, among the rows of a host."""
    return row * info["local_world"] // info["world"] if info["state"]["shuffle_block"] else row


def step_of(info: dict[str, Any], state: Mapping[str, Any], workers: int = 0) -> int:
    """Returns the step at which the split with this info.json continues with the next row of a state.

    workers is the number of a DataLoader's workers, each of which has a state of its own.

    Raises:
        ArgumentError: a key is missing or malformed.
        Error: different rows would follow. The text names the settings that differ.
    """
    if not isinstance(state, Mapping):  # pyright: ignore
        raise ArgumentError(f"the state must be what state_dict() returned (got {state!r})")
    if _checked("version", state.get("version", _VERSION), 0) != _VERSION:
        raise ArgumentError(f"the state has version {state['version']}, and this batchfs reads version {_VERSION}: use the one that saved it")
    now = state_at(info, 0)
    for verb, keys in (("lacks", now.keys() - state.keys()), ("has an unknown key,", state.keys() - now.keys())):
        if keys:
            raise ArgumentError(f"the state {verb} {', '.join(sorted(map(str, keys)))}: load what state_dict() returned, as it was")
    then = {key: _checked(key, value, now[key]) for key, value in state.items()}
    rows_then, rows_now = then["batch_size"] * then["world"], now["batch_size"] * now["world"]
    row = then["row"]
    if row != then["step"] * rows_then:
        raise ArgumentError(f"row in the state must be step times batch_size times world, {then['step'] * rows_then} (got {row})")

    is_torch = str(now["order"]).startswith("torch")
    may_differ = {"step", "row"} if is_torch else {"step", "row", "batch_size", "world", "local_world"}
    if "stages" in info:
        end = _schedule_row(info, row)
        may_differ |= {key for key in ("weights", "fingerprint", "formats") if same_past(then[key], now[key], end)}
    changes = _changes({key: value for key, value in now.items() if key not in may_differ}, then)
    if _index_decides(now, then):
        changes.append("the indexes of documents next to the token files, which the fingerprint now covers, decide where documents end instead of eot")
    if now["shuffle_block"] and then["world"] * now["local_world"] != now["world"] * then["local_world"]:
        hosts = [f"{each['world']}/{each['local_world']}" for each in (then, now)]
        changes.append(f"the number of hosts, world/local_world, was {hosts[0]} and is {hosts[1]}")
    if workers > 1 and rows_then != rows_now:
        changes.append(f"batch_size times world was {rows_then} and is {rows_now}, to which workers of a DataLoader cannot convert their steps")
    step, rest = divmod(row, rows_now)
    _refuse(info, step + (rest > 0), changes)
    if rest:
        words = ", ".join(_changes({key: now[key] for key in ("batch_size", "world")}, then))
        raise Error(
            f"the next row of the state, {row}, is inside a batch: {words}; let batch_size times world divide {row}, or continue on purpose: steps({step}) repeats "
            f"{rest} rows, and steps({step + 1}) skips {rows_now - rest}"
        )
    return integer("the step that continues the state", step, 0, MAX_BATCHES)


def _checked(key: str, value: Any, like: int | str) -> Any:
    """Returns the value of a key in a state. Raises ArgumentError if it is out of range, or not an int or a string as like is."""
    if isinstance(like, int) and isinstance(value, bool):
        raise ArgumentError(f"{key} in the state must be an integer (got {value})")
    if isinstance(like, int):
        return integer(f"{key} in the state", value, _MIN.get(key, 0), _MAX.get(key, 2**64))
    if not isinstance(value, str):
        raise ArgumentError(f"{key} in the state must be a string (got {value!r})")
    return value


def _changes(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    return [_DESCRIBED.get(key, f"{key} was {then[key]!r} and is {value!r}") for key, value in now.items() if then[key] != value]


def _index_decides(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Reports whether documents of the state ended after eot, and now end where an index says."""
    same = all(now[key] == then[key] for key in ("rows", "documents", "mask_targets"))
    return same and now["eot"] == -1 != then["eot"] and (now["fingerprint"] == "" or now["fingerprint"] != then["fingerprint"])


def _refuse(info: dict[str, Any], step: int, changes: Iterable[str]) -> None:
    """Raises an Error if there are changes."""
    if words := ", ".join(changes):
        raise Error(
            f"the state does not fit {info['split']}: {words}; mount the tokens and settings that the run began with, or continue with "
            f"other rows on purpose: steps({step})"
        )
