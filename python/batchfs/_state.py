"""info.json, and the state of a run: where it is, and what decides its rows."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Mapping
from typing import Any

from ._errors import ArgumentError, Error, MountError
from ._program import run
from ._settings import integer

MAX_BATCHES = 2**40  # numbers of batches are below this
_VERSION = 2


def parse_info(path: str, text: bytes) -> dict[str, Any]:
    """Returns the content of a path's info.json.

    Raises:
        MountError: the file has no state, so another program wrote it.
    """
    with contextlib.suppress(ValueError, TypeError):
        info = json.loads(text)
        if "state" in info:
            return info
    raise MountError(f"{path}: info.json has no state, so it is not that of a split; name the directory of a split in a mount")


def state_at(info: dict[str, Any], step: int) -> dict[str, Any]:
    """Returns the state of a run of the split with this info.json whose next batch is step. It is the same on all ranks."""
    batch_size, world = info["batch_size"], info["world"]
    position = {"step": step, "row": step * batch_size * world, "batch_size": batch_size, "world": world}
    settings = dict(info["state"])
    if "too_long" in settings:
        # torch.distributed.checkpoint loads only the keys that the current state has, such as rows.
        settings["rows"] += "+" + settings["too_long"]
    return {"version": _VERSION, **position, **settings}


def step_of(info: dict[str, Any], state: Mapping[str, Any], workers: int = 0) -> int:
    """Returns the step at which the split with this info.json continues with the next row of a state.

    workers is the number of a DataLoader's workers, each of which has a state of its own.

    Raises:
        ArgumentError: a key is missing or malformed.
        Error: different rows would follow. The text names the settings that differ.
    """
    if not isinstance(state, Mapping):  # pyright: ignore
        raise ArgumentError(f"the state must be what state_dict() returned (got {state!r})")
    found = _compare(dict(state), state_at(info, 0))
    if found["malformed"]:
        raise ArgumentError(found["malformed"])
    changes: list[str] = found["differences"]
    step, rest = found["step"], found["rest"]
    then = {key: operator.index(state[key]) for key in ("row", "batch_size", "world")}
    rows_then, rows_now = (each["batch_size"] * each["world"] for each in (then, info))
    if workers > 1 and rows_then != rows_now:
        changes.append(f"batch_size times world was {rows_then} and is {rows_now}, to which workers of a DataLoader cannot convert their steps")
    if changes:
        # Each of several workers has a step of its own, and none knows the step of the loop.
        purpose = f"steps({step + (rest > 0)})" if workers <= 1 else "steps(N), where N is the number of the batch that the loop needs next"
        raise Error(
            f"the state does not fit {info['split']}: {', '.join(changes)}; mount the tokens and settings that the run began with, or continue with "
            f"other rows on purpose: {purpose}"
        )
    if rest:
        row = then["row"]
        words = ", ".join(f"{key} was {then[key]} and is {info[key]}" for key in ("batch_size", "world") if then[key] != info[key])
        raise Error(
            f"the next row of the state, {row}, is inside a batch: {words}; let batch_size times world divide {row}, or continue on purpose: steps({step}) repeats "
            f"{rest} rows, and steps({step + 1}) skips {rows_now - rest}"
        )
    return integer("the step that continues the state", step, 0, MAX_BATCHES)


def differences(then: dict[str, Any], now: dict[str, Any], batches: int) -> str:
    """Returns an empty string if the first batches of the sequences of two info.json files are the same. Otherwise, it says how the
    sequences differ, or why they cannot be compared.

    Raises:
        Error: the program failed.
    """
    if then["identity"] == now["identity"]:
        return ""
    states = ({**state_at(info, batches), **{key: info[key] for key in ("identity", "rank", "dtype")}} for info in (then, now))
    found = _compare(*states)
    return found["malformed"] or ", ".join(found["differences"])


def _compare(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns the program's comparison of two states.

    Raises:
        ArgumentError: a state cannot be written as JSON.
        Error: the program failed.
    """
    try:
        states = json.dumps({"then": then, "now": now}, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ArgumentError(f"the state must be what state_dict() returned (got {then!r}): {e}") from e
    answer, why = run("resume", stdin=states.encode())
    if why:
        raise Error(f"the states cannot be compared: {why.message}")
    return json.loads(answer)


def _plain(value: Any) -> Any:
    """Returns an integer of any type as an int, and anything else as a list, which no state contains."""
    try:
        return operator.index(value)
    except TypeError:
        return [repr(value)]
