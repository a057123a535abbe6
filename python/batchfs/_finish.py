"""The end of writing: the manifest, and the shards of several processes joined."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ._errors import Error
from ._settings import PathLike
from ._workdir import FINISH_STATE, SHARD, WORK, WRITER_STATE, State, WorkDirectory, absolute, check_free, explained, read_state, shard_name

COUNTS = ("tokens", "documents", "ones")  # ones are tokens with mask 1


def finish(dir: PathLike) -> None:
    """Joins the shards that ``writer(dir, shard=(i, n))`` wrote in n processes. If it is killed, call it again.

    Raises:
        Error: a shard is missing or not complete, or was not written like the others. The text names it.
    """
    directory = absolute(dir)
    path = os.path.join(directory, WORK)
    with explained(path), contextlib.ExitStack() as at_end:
        work = WorkDirectory(path, fcntl.LOCK_EX)  # no shard is being written
        at_end.callback(work.unlock)
        entries = os.listdir(path)
        if WRITER_STATE in entries:
            raise Error(f"{path} belongs to a writer of the whole directory: continue it with resume=True")
        if not entries and published(directory):
            return
        state = read_state(path, FINISH_STATE)
        if not state:
            state = _join(directory, work)
            work.save(FINISH_STATE, state)
        work.publish(directory, state["moves"])


def _join(directory: str, work: WorkDirectory) -> State:
    """Checks the shards, writes their manifest, and returns the state in which they are complete."""
    counts = sorted({int(match[2]) for match in map(SHARD.fullmatch, os.listdir(work.path)) if match})
    if not counts:
        raise Error(f"{work.path} has no shards: write them with shard=(i, n)")
    if len(counts) > 1:
        raise Error(f"{work.path} has shards of {' and of '.join(map(str, counts))}: remove those of the run that you don't want")
    names = [shard_name(i, counts[0]) for i in range(counts[0])]
    found = [read_state(os.path.join(work.path, name), WRITER_STATE) for name in names]
    states = [state for state in found if state and state["moves"]]
    if bad := [i for i, state in enumerate(found) if state not in states]:
        shards = f"shard {bad[0]} of {counts[0]} is" if len(bad) == 1 else f"shards {', '.join(map(str, bad[:8]))} of {counts[0]} are"
        raise Error(f"{work.path}: {shards} missing or not complete: run the writer of each with resume=True")
    _check_same(work.path, states)
    check_end(work.path, states)
    check_free(directory)
    joined: dict[str, list[State]] = {"train": [], "val": []}
    moves = [("vocab.json", "vocab.json")]
    for name, state in zip(names, states):
        for split, shards in joined.items():
            for shard in state["splits"][split]["shards"]:
                stem, new = shard["name"].removesuffix(".bin"), f"{split}_{len(shards) + 1:06d}"
                moves += [(os.path.join(name, old), new + old.removeprefix(stem)) for old in file_names(shard)]
                shards.append({**shard, "name": f"{new}.bin"})
                if "arrays" in shard:
                    shards[-1]["arrays"] = [{**array, "file": new + array["file"].removeprefix(stem)} for array in shard["arrays"]]
    manifest = json.loads(Path(work.path, names[0], "vocab.json").read_bytes())
    write_manifest(work, manifest, joined, states)
    return {"writer": manifest["writer"], "moves": moves}


def _check_same(path: str, states: list[State]) -> None:
    """Raises an error unless all shards have the same settings and arrays."""
    # A shard without documents has no arrays.
    first = next((i for i, state in enumerate(states) if state["arrays"] is not None), 0)
    for i, state in enumerate(states):
        then, now = ({**of["settings"], "arrays": of["arrays"]} for of in (states[first], state))
        for key, value in then.items():
            if now.get(key) != value and (key != "arrays" or now[key] is not None):
                how = "different tokenizers" if key == "tokenizer" else f"{key}={value} and {now.get(key)}"
                raise Error(f"{path}: shards {first} and {i} were written with {how}: remove the wrong one and write it again")


def check_end(path: str, states: list[State]) -> None:
    """Raises an error if there is nothing to train on."""
    advice = f"add documents with resume=True, or remove {path} to start over"
    totals = ([state["splits"][name]["total"] for state in states] for name in ("train", "val"))
    train, in_val = ({key: sum(total[key] for total in of) for key in COUNTS} for of in totals)
    documents, val = train["documents"] + in_val["documents"], states[0]["settings"]["val"]
    if not documents:
        raise Error(f"{path}: there are no documents: {advice}")
    if val and not (train["tokens"] and in_val["tokens"]):
        raise Error(
            f"val={val} of {documents} documents leaves {train['tokens']} tokens for train and {in_val['tokens']} for val, "
            f"because documents are not divided: {advice}"
        )
    if train["tokens"] and not train["ones"] and any("mask" in (state["arrays"] or {}) for state in states):
        raise Error(f"the mask is 0 for all {train['tokens']} tokens of train, so nothing would be learned: {advice}")


def documents_of(state: State) -> int:
    """Returns the number of documents in the state of a writer."""
    return sum(split["total"]["documents"] for split in state["splits"].values())


def file_names(shard: State) -> list[str]:
    """Returns the names of the files of a shard. The tokens are last, because a mount accepts them without their index."""
    return [*(array["file"] for array in shard.get("arrays", [])), shard["name"] + ".index", shard["name"]]


def write_manifest(work: WorkDirectory, manifest: State, splits: dict[str, list[State]], states: Iterable[State]) -> None:
    """Completes a manifest with the shards of each split, in which writers with these states wrote documents."""
    manifest["writer"] = {"settings": next(iter(states))["settings"], "documents": [documents_of(state) for state in states]}
    written = [split for state in states for split in state["splits"].values()]
    if "eot" in manifest:
        # A reader may split documents at end-of-text tokens only if each document has exactly one.
        once = [at for at in ("end", "begin") if all(of["eot"]["all"] == of["eot"][at] == of["total"]["documents"] for of in written)]
        manifest["eot_at"] = once[0] if once else "none"
    manifest["splits"] = {}
    for name, shards in splits.items():
        eot = {key: sum(state["splits"][name]["eot"][key] for state in states) for key in ("all", "end", "begin")}
        inside = eot["all"] - max(eot["end"], eot["begin"])
        sums = {**{key: sum(shard[key] for shard in shards) for key in ("tokens", "documents")}, **({"eot_inside": inside} if inside else {})}
        if shards:
            manifest["splits"][name] = {**sums, "shards": shards}
    work.write("vocab.json", manifest)


def published(directory: str) -> State | None:
    """Returns the settings of the writers of a directory, and the documents of each, if all files are there."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        manifest = json.loads(Path(directory, "vocab.json").read_bytes())
        shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
        if all(os.path.exists(os.path.join(directory, name)) for shard in shards for name in file_names(shard)):
            return manifest["writer"]
    return None
