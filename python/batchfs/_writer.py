"""Token files from Python: documents are appended to shards, which get their final names when all of them are complete."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import time
import weakref
from collections.abc import Generator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from ._batch import Array
from ._program import ArgumentError, Error, PathLike, integer
from ._tokenizer import vocabulary

_State: TypeAlias = "dict[str, Any]"

_WORK = ".prepare"
_STATE = ".writer.json"
_SHARD = re.compile(r"shard_(\d+)_of_(\d+)")
_TOKEN_FILE = re.compile(r"vocab\.json|(.*[-_.])?(train|val)([-_.\d].*)?\.(bin|npy|ds|idx|index)")
_OWN = re.compile(rf"{_SHARD.pattern}|{_TOKEN_FILE.pattern}|{re.escape(_STATE)}(\.new)?")
_ARRAY_NAME = re.compile("(?!(x|y|tokens|rows|cu_seqlens|positions|lengths|source)$)[a-z0-9_]{1,32}")
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()

_BUFFER = 8 << 20  # bytes
_OVERHEAD = 256  # bytes of memory that a document takes in addition to its arrays
_FIRST_CHECKPOINT, _CHECKPOINTS = 1.0, 10.0  # seconds


class Writer:
    """Writes token files: train.bin, val.bin, their document indexes and aligned arrays, and vocab.json.

        with batchfs.writer("data", tokenizer=tok) as out:
            for ids, mask in conversations:
                out.add(ids, mask=mask)

    Unfinished work is in .prepare in the directory. A ``with`` that ends normally completes the files; one that ends with an
    exception keeps what was added, so that ``resume=True`` continues there. A writer belongs to one thread of one process.

    Args:
        dir: the directory to write to, which is created if missing. It must not have token files yet.
        tokenizer: of transformers, tokenizers, tiktoken or sentencepiece. vocab.json says what its tokens stand for.
        vocab_size: all ids are below it. Give it if there is no tokenizer.
        val: the fraction of documents for val, chosen by a hash of their ids.
        shard_tokens: a shard, such as train_000001.bin, ends with the document that reaches this number of tokens. Default: one file.
        shard: (i, n) if n processes write to dir, this one as number i. When all are complete, `finish` joins their shards.
        resume: continue an unfinished writer with the same arguments. ``documents`` is the number of documents that are safe.

    Raises:
        ArgumentError: an argument is wrong.
        Error: dir has token files or an unfinished writer, or another process writes there.
    """

    def __init__(
        self, dir: PathLike, *, tokenizer: Any = None, vocab_size: SupportsIndex | None = None, val: float = 0.0,
        shard_tokens: SupportsIndex | None = None, shard: tuple[SupportsIndex, SupportsIndex] | None = None, resume: bool = False
    ) -> None:
        if not 0 <= val < 1:
            raise ArgumentError(f"val must be 0 or more and below 1, such as 0.01 (got {val!r})")
        limit = None if shard_tokens is None else integer("shard_tokens", shard_tokens, 1)
        name = ""
        if shard is not None:
            n = integer("the number of shards", shard[1], 1, 99_999)
            name = f"shard_{integer('the number of the shard', shard[0], 0, n - 1):05d}_of_{n:05d}"
        self._manifest = _describe(tokenizer, vocab_size)
        self._is_shard, self._pid = shard is not None, os.getpid()
        self._saved = self._failed = self._closed = False
        self._columns: list[_Column] = []  # empty until the first document
        self._buffered = 0  # bytes
        self._due = time.monotonic() + _FIRST_CHECKPOINT
        # The name of a tokenizer may be a path, which differs between hosts.
        tokens = hashlib.sha256(json.dumps({**self._manifest, "tokenizer": ""}).encode()).hexdigest()
        self._settings: _State = {"vocab_size": self._manifest["vocab_size"], "tokenizer": tokens, "val": float(val), "shard_tokens": limit}
        self.directory = _absolute(dir)
        with _explained(self.directory), contextlib.ExitStack() as on_error:
            os.makedirs(self.directory, exist_ok=True)
            self._shared = self._work = _Work(os.path.join(self.directory, _WORK), fcntl.LOCK_SH if name else fcntl.LOCK_EX)
            on_error.callback(self._shared.unlock)
            entries = os.listdir(self._shared.path)
            if _STATE in entries if name else any(map(_SHARD.fullmatch, entries)):
                other = "a writer of the whole directory" if name else "writers of shards"
                raise Error(f"{self._shared.path} belongs to {other}: complete that work first, or remove the directory")
            if name:
                self._work = _Work(os.path.join(self._shared.path, name), fcntl.LOCK_EX)
                on_error.callback(self._work.unlock)
            self._state = self._load(resume)
            self._splits = {name: _Split(self._work, name, bool(limit or shard), limit, state) for name, state in self._state["splits"].items()}
            if self._state["complete"]:
                self._publish()
            on_error.pop_all()

    def _load(self, resume: bool) -> _State:
        """Returns the state to continue from."""
        path, state = self._work.path, _load(self._work.path)
        if not (state and state["complete"]):
            _check_free(self.directory)
        if not state:
            self._work.clear()
            splits: _State = {name: {"shards": [], "tokens": 0, "documents": 0, "ones": 0} for name in ("train", "val")}
            return {"settings": self._settings, "arrays": None, "eot_at": {"end": True, "begin": True}, "splits": splits, "complete": False}
        if not resume:
            what = "a complete shard" if state["complete"] else "unfinished work"
            documents = _total([state], "documents")
            raise Error(f"{path} has {what} of {documents} documents: continue with resume=True, or remove the directory to start over")
        for key, then in state["settings"].items():
            if then != (now := self._settings[key]):
                was = "another tokenizer" if key == "tokenizer" else f"{key}={then}, and now it is {now}"
                raise Error(f"{path} was written with {was}: use the same again, or remove the directory to start over")
        self._saved = True
        if state["arrays"] is not None:
            self._columns = self._all_columns(state["arrays"])
        return state

    @property
    def documents(self) -> int:
        """The number of documents that were added, including those before a resume."""
        return _total([self._state], "documents") + sum(len(split.pending) for split in self._splits.values())

    def add(self, ids: Any, /, *, split: str | None = None, **arrays: Any) -> None:
        """Adds one document.

        Args:
            ids: a list, a NumPy array or a tensor of integers. They are written as they are: nothing is appended.
            split: "train" or "val". Default: a hash of the ids decides, with the fraction val.
            arrays: for each name, as many elements as there are ids: numbers, or arrays of one shape. All documents must have the
                same names, and dtypes that can be cast safely to those of the first document. ``mask`` must be 0 or 1: a trainer
                learns to predict tokens with mask 1.

        Raises:
            ArgumentError: the document is wrong. Nothing of it was added.
            Error: the files cannot be written.
        """
        self._check_open()
        tokens = self._tokens(ids)
        columns = self._columns or self._all_columns({name: self._element(name, value) for name, value in arrays.items()})
        if {column.name for column in columns[1:]} != arrays.keys():
            raise self._wrong(f"has the arrays {[*arrays]}, but the first document has {[column.name for column in columns[1:]]}")
        values = [tokens, *(self._aligned(column, arrays[column.name], len(tokens)) for column in columns[1:])]
        if split is None:
            val = self._settings["val"]
            hashed = hashlib.blake2b(tokens.data, digest_size=8).digest() if val else b""
            split = "val" if int.from_bytes(hashed, "little") < val * 2**64 else "train"
        elif split not in self._splits:
            raise self._wrong(f"has split={split!r}: must be 'train' or 'val'")
        if not self._columns:
            self._columns, self._state["arrays"] = columns, {c.name: [str(c.dtype), c.shape] for c in columns[1:]}
        self._splits[split].pending.append(values)
        self._buffered += sum(value.nbytes for value in values) + _OVERHEAD
        if self._buffered >= _BUFFER or time.monotonic() >= self._due:
            with self._writing():
                self._write()

    def close(self) -> None:
        """Completes the files. Without a ``with``, call it at the end."""
        if self._closed:
            return
        self._check_open()
        try:
            with self._writing():
                self._write()
            if not self._is_shard:
                _check_end(self._work.path, [self._state])
                _check_free(self.directory)
            with self._writing():
                self._complete()
                self._publish()
        finally:
            self._keep()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._keep()

    def _check_open(self) -> None:
        why = ""
        if os.getpid() != self._pid:
            why = f"this writer belongs to process {self._pid}: in several processes, give each one its own writer(..., shard=(i, n))"
        elif self._closed:
            why = "this writer is complete or closed, so nothing can be added"
        elif self._failed:
            why = "an earlier write failed or was interrupted: continue with writer(..., resume=True)"
        if why:
            raise Error(f"{self._work.path}: {why}")

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Until the block has ended, the files may lack a part of what was added."""
        self._failed = True
        with _explained(self._work.path):
            yield
        self._failed = False

    def _wrong(self, words: str) -> ArgumentError:
        return ArgumentError(f"document {self.documents} {words}")

    def _tokens(self, ids: Any) -> Array:
        tokens, size = self._array("ids", ids), self._settings["vocab_size"]
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            raise self._wrong(f"must be one or more integers in one dimension (got {tokens.dtype} of shape {tokens.shape})")
        if tokens.max() >= size or tokens.min() < 0:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= size))[0])
            raise self._wrong(f"has the id {tokens[at]} at position {at}: must be 0 or more and below the vocabulary's size, {size}")
        return tokens.astype(self._manifest["token_dtype"], "C")

    def _array(self, name: str, value: Any) -> Array:
        if hasattr(value, "detach"):
            value = value.detach().cpu()  # a tensor
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as e:
            raise self._wrong(f"has {name} that NumPy cannot represent: {e}") from e

    def _element(self, name: str, value: Any) -> list[Any]:
        """Returns the dtype and the shape of an element of an array of the first document."""
        array = self._array(name, value)
        dtype = "uint8" if name == "mask" else str(array.dtype)
        if not _ARRAY_NAME.fullmatch(name):
            raise ArgumentError(f"{name!r} cannot be the name of an array: 1 to 32 letters a to z, digits and _, and not a name of batchfs, such as x")
        if dtype not in _DTYPES or 0 in array.shape:
            raise self._wrong(f"has the array {name} of {dtype} and shape {array.shape}: must not be empty, and of {', '.join(_DTYPES)}")
        return [dtype, array.shape[1:]]

    def _aligned(self, column: _Column, value: Any, length: int) -> Array:
        array, shape = self._array(column.name, value), (length, *column.shape)
        if array.shape != shape:
            raise self._wrong(f"has the array {column.name} of shape {array.shape}: must be {shape}, an element for each id")
        if column.name == "mask":
            if array.dtype.kind not in "biu" or array.max() > 1 or array.min() < 0:
                raise self._wrong("has a mask that is not 0 or 1 everywhere")
        elif not np.can_cast(array.dtype, column.dtype, "safe"):
            raise self._wrong(f"has the array {column.name} of {array.dtype}, but in the first document it is {column.dtype}")
        return array.astype(column.dtype, "C")

    def _all_columns(self, arrays: dict[str, list[Any]]) -> list[_Column]:
        token = _Column("", np.dtype(self._manifest["token_dtype"]), ())
        return [token, *(_Column(name, np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in arrays.items())]

    def _write(self) -> None:
        """Writes the documents that are in memory, and saves a checkpoint if it is due."""
        completed = [split.write(self._columns, self._manifest.get("eot"), self._state["eot_at"]) for split in self._splits.values()]
        self._buffered = 0
        if any(completed) or time.monotonic() >= self._due:
            self._save()

    def _save(self) -> None:
        for split in self._splits.values():
            split.sync()
        self._work.save(self._state)
        self._saved = True
        self._due = time.monotonic() + _CHECKPOINTS

    def _complete(self) -> None:
        for split in self._splits.values():
            split.complete_shard(self._columns)
        shards = {name: split.state["shards"] for name, split in self._splits.items()}
        names = ["vocab.json", *(name for split in shards.values() for shard in split for name in _names(shard))]
        _write_manifest(self._work, self._manifest, shards, [self._state])
        self._state.update(complete=True, moves=[(name, name) for name in names])
        self._save()

    def _publish(self) -> None:
        if not self._is_shard:
            _publish(self.directory, self._work, self._state["moves"])
        self._closed = True
        self._release()

    def _keep(self) -> None:
        """Keeps the work for a resume: with a last checkpoint, unless the files may lack a part of what was added."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            with contextlib.suppress(OSError):
                if not self._failed and self.documents:
                    self._write()
                    self._save()
                if not self._saved:
                    self._work.clear()
        finally:
            self._release()

    def _release(self) -> None:
        for split in self._splits.values():
            split.close()
        self._work.unlock()
        self._shared.unlock()


class _Column(NamedTuple):
    """The tokens, whose name is empty, or an aligned array."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of an element

    def file(self, stem: str) -> str:
        return f"{stem}.{self.name}.bin" if self.name else f"{stem}.bin"


class _Split:
    """The files of train or val in a work directory, and the documents that wait to be written to them.

    Attributes:
        state: the complete shards; and the tokens, the documents and the tokens with mask 1 in the current shard.
    """

    def __init__(self, work: _Work, name: str, numbered: bool, limit: int | None, state: _State) -> None:
        self.work, self.name, self.numbered, self.limit, self.state = work, name, numbered, limit, state
        self.pending: list[list[Array]] = []
        self.files: list[FileIO] = []  # of each column, and the document index

    def _stem(self) -> str:
        return f"{self.name}_{len(self.state['shards']) + 1:06d}" if self.numbered else self.name

    def _open(self, columns: list[_Column]) -> None:
        """Opens the files of the current shard, and truncates them to what the state says."""
        stem, tokens = self._stem(), self.state["tokens"]
        sizes = {column.file(stem): tokens * column.dtype.itemsize * math.prod(column.shape) for column in columns}
        sizes[f"{stem}.bin.index"] = 8 * self.state["documents"]
        for name, size in sizes.items():
            path = os.path.join(self.work.path, name)
            file = FileIO(path, "ab")
            self.files.append(file)
            if file.tell() < size:
                raise Error(f"{path} has {file.tell()} bytes, but had {size}: remove {self.work.path} and start over")
            file.truncate(size)

    def write(self, columns: list[_Column], eot: int | None, eot_at: dict[str, bool]) -> bool:
        """Writes the documents that wait, and reports whether it completed a shard."""
        before = len(self.state["shards"])
        while self.pending:
            lengths = np.cumsum([len(document[0]) for document in self.pending])
            room = math.inf if self.limit is None else self.limit - self.state["tokens"]
            n = min(len(lengths), int(np.searchsorted(lengths, room)) + 1)
            lengths, arrays = lengths[:n], [np.concatenate(arrays) for arrays in zip(*self.pending[:n])]
            del self.pending[:n]
            if not self.files:
                self._open(columns)
            for file, array in zip(self.files, [*arrays, (lengths + self.state["tokens"]).astype(np.uint64)]):
                rest = array.data.cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
            # A reader may split documents at end-of-text tokens only if each document has one.
            is_eot = arrays[0] == (-1 if eot is None else eot)
            once = int(np.count_nonzero(is_eot)) == n
            eot_at["end"] &= once and bool(is_eot[lengths - 1].all())
            eot_at["begin"] &= once and bool(is_eot[0] and is_eot[lengths[:-1]].all())
            self.state["tokens"] += int(lengths[-1])
            self.state["documents"] += n
            self.state["ones"] += sum(int(array.sum()) for column, array in zip(columns, arrays) if column.name == "mask")
            if self.limit is not None and self.state["tokens"] >= self.limit:
                self.complete_shard(columns)
        return len(self.state["shards"]) > before

    def sync(self) -> None:
        for file in self.files:
            os.fsync(file.fileno())

    def complete_shard(self, columns: list[_Column]) -> None:
        """Ends the current shard, unless it is empty."""
        if not self.state["tokens"]:
            return
        if not self.files:  # after a resume, nothing may have been added
            self._open(columns)
        self.sync()
        self.close()
        stem, hashed = self._stem(), hashlib.sha256()
        with open(os.path.join(self.work.path, f"{stem}.bin"), "rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        arrays = [{"name": c.name, "file": c.file(stem), "dtype": str(c.dtype), **({"shape": c.shape} if c.shape else {})} for c in columns[1:]]
        described = {"arrays": arrays, "mask_ones": self.state["ones"]} if arrays else {}
        sizes = {key: self.state[key] for key in ("tokens", "documents")}
        self.state["shards"].append({"name": f"{stem}.bin", **sizes, "sha256": hashed.hexdigest(), **described})
        self.state.update(tokens=0, documents=0, ones=0)

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = []


class _Work:
    """A directory of unfinished work, which belongs to this user and is locked until `unlock` is called or the object is gone."""

    def __init__(self, path: str, operation: int) -> None:
        self.path = path
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._lock(path, operation)
        except BaseException:
            os.close(self.fd)
            raise
        self.unlock = weakref.finalize(self, _unlock, path, self.fd, os.getpid())

    def _lock(self, path: str, operation: int) -> None:
        status, entries = os.fstat(self.fd), os.listdir(path)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise Error(f"{path} belongs to another user, or others may write to it: choose another directory, or remove it")
        if ".state.json" in entries:
            raise Error(f"{path} belongs to an unfinished batchfs prepare: run that command again, or remove the directory")
        if foreign := [name for name in entries if not _OWN.fullmatch(name)]:
            raise Error(f"{path} has {foreign[0]}, which no writer made: remove the directory, or choose another")
        try:
            fcntl.flock(self.fd, operation | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise Error(f"{path}: another batchfs.writer or batchfs prepare is running there: wait until it has ended") from e
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), status):
            raise Error(f"{path}: another writer has just ended: try again")
        os.fchmod(self.fd, 0o700)

    def save(self, state: _State) -> None:
        """Replaces the state atomically."""
        path = os.path.join(self.path, _STATE)
        self.write(_STATE + ".new", state)
        os.rename(path + ".new", path)
        os.fsync(self.fd)

    def write(self, name: str, value: _State) -> None:
        with open(os.path.join(self.path, name), "w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Removes everything, the state last."""
        for name in sorted(os.listdir(self.path), key=_STATE.__eq__):
            path = os.path.join(self.path, name)
            (shutil.rmtree if _SHARD.fullmatch(name) else os.remove)(path)


def finish(dir: PathLike) -> None:
    """Joins the shards that ``writer(dir, shard=(i, n))`` wrote in n processes. If it is killed, call it again.

    Raises:
        Error: a shard is missing or not complete, or was not written like the others. The text names it.
    """
    directory = _absolute(dir)
    path = os.path.join(directory, _WORK)
    with _explained(path), contextlib.ExitStack() as at_end:
        work = _Work(path, fcntl.LOCK_EX)  # no shard is being written
        at_end.callback(work.unlock)
        state = _load(path)
        if state and "joined" not in state:
            raise Error(f"{path} belongs to a writer of the whole directory: continue it with resume=True")
        if not (state or os.listdir(path)) and os.path.exists(os.path.join(directory, "vocab.json")):
            return  # finished before
        if not state:
            state = _join(directory, work)
            work.save(state)
        _publish(directory, work, state["moves"])


def _join(directory: str, work: _Work) -> _State:
    """Checks the shards, writes their manifest, and returns the state in which they are complete."""
    found = {match[0]: (int(match[1]), int(match[2])) for match in map(_SHARD.fullmatch, sorted(os.listdir(work.path))) if match}
    counts, present = sorted({n for _, n in found.values()}), {i for i, _ in found.values()}
    states = {i: _load(os.path.join(work.path, name)) or {"complete": False} for name, (i, _) in found.items()}
    if len(counts) != 1:
        raise Error(f"{work.path} has {f'shards of runs with {counts} shards: remove the wrong ones' if counts else 'no shards: write them with shard=(i, n)'}")
    if missing := [i for i in range(counts[0]) if i not in present]:
        raise Error(f"{work.path}: of {counts[0]} shards, these are missing: {missing[:8]}: write them")
    if unfinished := [i for i, state in states.items() if not state["complete"]]:
        raise Error(f"{work.path}: of {counts[0]} shards, these are not complete: {unfinished[:8]}: continue them with resume=True")
    arrays = None
    for i, state in states.items():
        arrays = state["arrays"] if arrays is None else arrays
        other = [key for key, value in state["settings"].items() if value != states[0]["settings"][key]]
        if state["arrays"] not in (None, arrays):
            other.append("set of arrays")
        if other:
            raise Error(f"{work.path}: shard {i} was written with another {other[0]} than shard 0: remove the wrong one and write it again")
    _check_end(work.path, [*states.values()])
    _check_free(directory)
    shards: dict[str, list[_State]] = {"train": [], "val": []}
    moves = [("vocab.json", "vocab.json")]
    for name, (i, _) in found.items():
        for split, joined in shards.items():
            for shard in states[i]["splits"][split]["shards"]:
                stem, new = shard["name"].removesuffix(".bin"), f"{split}_{len(joined) + 1:06d}"
                moves += [(os.path.join(name, old), new + old.removeprefix(stem)) for old in _names(shard)]
                joined.append(json.loads(json.dumps(shard).replace(f'"{stem}.', f'"{new}.')))
    manifest = json.loads(Path(work.path, next(iter(found)), "vocab.json").read_bytes())
    _write_manifest(work, manifest, shards, [*states.values()])
    return {"joined": counts[0], "complete": True, "moves": moves}


def _load(path: str) -> _State | None:
    """Returns the state in a work directory, if there is one."""
    try:
        return json.loads(Path(path, _STATE).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise Error(f"{path}: {_STATE}: {e}: remove the directory and start over") from e


def _names(shard: _State) -> list[str]:
    return [shard["name"], shard["name"] + ".index", *(array["file"] for array in shard.get("arrays", []))]


def _total(states: list[_State], key: str, names: tuple[str, ...] = ("train", "val"), in_shards: str = "") -> int:
    splits = [state["splits"][name] for state in states for name in names]
    return sum(split[key] + sum(shard.get(in_shards or key, 0) for shard in split["shards"]) for split in splits)


def _check_end(path: str, states: list[_State]) -> None:
    """Raises an error if there is nothing to train on."""
    advice = f"add documents with resume=True, or remove {path} to start over"
    train, in_val = _total(states, "tokens", ("train",)), _total(states, "tokens", ("val",))
    documents, val = _total(states, "documents"), states[0]["settings"]["val"]
    if not documents:
        raise Error(f"{path}: there are no documents: {advice}")
    if val and not (train and in_val):
        raise Error(
            f"val={val} of {documents} documents leaves {train} tokens for train and {in_val} for val, because documents are not divided: {advice}"
        )
    if train and any("mask" in (state["arrays"] or {}) for state in states) and not _total(states, "ones", ("train",), "mask_ones"):
        raise Error(f"the mask is 0 for all {train} tokens of train, so nothing would be learned: {advice}")


def _check_free(directory: str) -> None:
    for name in sorted(os.listdir(directory)):
        if _TOKEN_FILE.fullmatch(name):
            raise Error(f"{os.path.join(directory, name)} already exists: move it away, or choose another directory")


def _describe(tokenizer: Any, vocab_size: SupportsIndex | None) -> _State:
    """Returns a manifest without files."""
    if (tokenizer is None) == (vocab_size is None):
        raise ArgumentError("tokenizer and vocab_size: give one of them")
    name, tokens, eot = ("", None, None) if tokenizer is None else vocabulary(tokenizer)
    size = integer("vocab_size", vocab_size or 0, 1, 1 << 32) if tokens is None else len(tokens)
    manifest: _State = {"tokenizer": name, "format": "headerless", "splits": {}, "kind": "ids" if tokens is None else "bpe", "vocab_size": size}
    manifest["token_dtype"] = "uint16" if size <= 1 << 16 else "uint32"
    if eot is not None:
        manifest["eot"] = eot
    if tokens is not None:
        manifest["eot_at"], manifest["token_bytes"] = "none", [base64.b64encode(token).decode() for token in tokens]
    return manifest


def _write_manifest(work: _Work, manifest: _State, splits: dict[str, list[_State]], states: list[_State]) -> None:
    if "eot" in manifest:
        manifest["eot_at"] = next((at for at in ("end", "begin") if all(state["eot_at"][at] for state in states)), "none")
    for name, shards in splits.items():
        if shards:
            manifest["splits"][name] = {**{key: sum(shard[key] for shard in shards) for key in ("tokens", "documents")}, "shards": shards}
    work.write("vocab.json", manifest)


def _publish(directory: str, work: _Work, moves: list[tuple[str, str]]) -> None:
    """Gives files their final names. The manifest is first, because a mount rejects token files while others that it lists are missing."""
    for old, new in sorted(moves, key=lambda move: move[1], reverse=True):
        old, new = os.path.join(work.path, old), os.path.join(directory, new)
        if os.path.exists(old) or not os.path.exists(new):  # otherwise it was moved before
            os.rename(old, new)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    work.clear()


def _absolute(dir: PathLike) -> str:
    path = os.fspath(dir)
    if re.match("[a-z0-9]+://", path):
        raise ArgumentError(f"{path}: must be a local directory, because batchfs never writes to a store: upload the files when they are complete")
    return os.path.abspath(path)


@contextlib.contextmanager
def _explained(path: str) -> Generator[None]:
    try:
        yield
    except OSError as e:
        raise Error(f"{path}: {e}: look at the directory and its disk, then continue with resume=True, or call finish again") from e


def _unlock(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # if it is empty
        fcntl.flock(fd, fcntl.LOCK_UN)  # processes that were forked have the descriptor too
    os.close(fd)
