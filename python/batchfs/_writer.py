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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, SupportsIndex, TypeAlias

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
_ARRAY_NAME = re.compile("[a-z0-9_]{1,32}")
_RESERVED = frozenset("x y tokens rows cu_seqlens positions lengths source".split())  # a batch's own arrays
_DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())

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
        self,
        dir: PathLike,
        *,
        tokenizer: Any = None,
        vocab_size: SupportsIndex | None = None,
        val: float = 0.0,
        shard_tokens: SupportsIndex | None = None,
        shard: tuple[SupportsIndex, SupportsIndex] | None = None,
        resume: bool = False,
    ) -> None:
        if (tokenizer is None) == (vocab_size is None):
            raise ArgumentError("tokenizer and vocab_size: give one of them")
        if not 0 <= val < 1:
            raise ArgumentError(f"val must be 0 or more and below 1, such as 0.01 (got {val!r})")
        limit = None if shard_tokens is None else integer("shard_tokens", shard_tokens, 1)
        name = ""
        if shard is not None:
            n = integer("the number of shards", shard[1], 1, 99_999)
            name = f"shard_{integer('the number of the shard', shard[0], 0, n - 1):05d}_of_{n:05d}"
        self._manifest = _describe(tokenizer, vocab_size)
        self._size: int = self._manifest["vocab_size"]
        self._val, self._is_shard, self._pid = val, shard is not None, os.getpid()
        self._saved, self._failed, self._closed = False, False, False
        self._splits: dict[str, _Split] = {}
        self._columns: list[_Column] = []  # empty until the first document
        self._buffered = 0  # bytes
        self._due = time.monotonic() + _FIRST_CHECKPOINT
        self.directory = _absolute(dir)
        settings = {"vocab_size": self._size, "tokenizer": _digest(self._manifest), "val": val, "shard_tokens": limit}
        with _explained(self.directory), contextlib.ExitStack() as on_error:
            os.makedirs(self.directory, exist_ok=True)
            self._shared = self._work = _Work(os.path.join(self.directory, _WORK), fcntl.LOCK_SH if name else fcntl.LOCK_EX)
            on_error.callback(self._shared.unlock)
            if name:
                self._check_foreign()
                self._work = _Work(os.path.join(self._shared.path, name), fcntl.LOCK_EX)
                on_error.callback(self._work.unlock)
            self._state = self._load(settings, resume)
            self._splits = {name: _Split(self._work, name, bool(limit or shard), limit, state) for name, state in self._state["splits"].items()}
            if self._state["complete"]:
                self._publish()
            on_error.pop_all()

    def _load(self, settings: _State, resume: bool) -> _State:
        """Returns the state to continue from."""
        path, state = self._work.path, self._work.load()
        if not self._is_shard:
            self._check_foreign()
        if not (state and state["complete"]):
            _check_free(self.directory)
        if not state:
            self._work.clear()
            splits: _State = {name: {"shards": [], "tokens": 0, "documents": 0, "ones": 0} for name in ("train", "val")}
            return {"settings": settings, "arrays": None, "eot_at": {"end": True, "begin": True}, "splits": splits, "complete": False}
        if not resume:
            documents = sum(_documents(split) for split in state["splits"].values())
            what = "a complete shard" if state["complete"] else "unfinished work"
            raise Error(f"{path} has {what} of {documents} documents: continue with resume=True, or remove the directory to start over")
        for key, then in state["settings"].items():
            if then != settings[key]:
                was = "another tokenizer" if key == "tokenizer" else f"{key}={then}, and now it is {settings[key]}"
                raise Error(f"{path} was written with {was}: use the same again, or remove the directory to start over")
        self._saved = True
        if state["arrays"] is not None:
            self._columns = self._columns_of(state["arrays"])
        return state

    def _check_foreign(self) -> None:
        """Raises an error if the directory has the work of shards and this is no shard, or the other way around."""
        entries = os.listdir(self._shared.path)
        if _STATE in entries if self._is_shard else any(map(_SHARD.fullmatch, entries)):
            owner = "a writer of the whole directory" if self._is_shard else "writers of shards"
            raise Error(f"{self._shared.path} belongs to {owner}: complete that work first, or remove the directory")

    @property
    def documents(self) -> int:
        """The number of documents that were added, including those before a resume."""
        return sum(_documents(split.state) + len(split.pending) for split in self._splits.values())

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
        if self._closed or self._failed or os.getpid() != self._pid:
            raise Error(f"{self._work.path}: {self._why_not()}")
        tokens = self._tokens(ids)
        columns = self._columns or self._columns_of({name: self._first(name, value) for name, value in arrays.items()})
        if len(columns) - 1 != len(arrays) or any(column.name not in arrays for column in columns[1:]):
            raise self._wrong(f"has the arrays {[*arrays]}, but the first document has {[column.name for column in columns[1:]]}")
        values = [tokens, *(self._aligned(column, arrays[column.name], len(tokens)) for column in columns[1:])]
        if split is None:
            hashed = hashlib.blake2b(tokens.data, digest_size=8).digest() if self._val else b""
            split = "val" if int.from_bytes(hashed, "little") < self._val * 2**64 else "train"
        elif split not in self._splits:
            raise self._wrong(f"has split={split!r}: must be 'train' or 'val'")
        if not self._columns:
            self._columns, self._state["arrays"] = columns, {c.name: [str(c.dtype), c.shape] for c in columns[1:]}
        self._splits[split].pending.append(values)
        self._buffered += sum(value.nbytes for value in values) + _OVERHEAD
        if self._buffered >= _BUFFER or time.monotonic() >= self._due:
            with self._explained():
                self._write()

    def close(self) -> None:
        """Completes the files. Without a ``with``, call it at the end."""
        if self._closed:
            return
        if os.getpid() != self._pid or self._failed:
            raise Error(f"{self._work.path}: {self._why_not()}")
        try:
            with self._explained():
                self._write()
            if not self._is_shard:
                _check_end(self._work.path, [self._state], self._val)
            with self._explained():
                self._complete()
                self._publish()
        except BaseException:
            self._keep()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._keep()

    def _why_not(self) -> str:
        if os.getpid() != self._pid:
            return f"this writer belongs to process {self._pid}: in several processes, give each one writer(..., shard=(i, n))"
        if self._failed:
            return "an earlier write failed or was interrupted: continue with writer(..., resume=True)"
        return "is complete or closed, so nothing can be added"

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        """Until the block has ended, the files may lack a part of what was added."""
        self._failed = True
        with _explained(self._work.path, "; then continue with resume=True"):
            yield
        self._failed = False

    def _wrong(self, words: str) -> ArgumentError:
        return ArgumentError(f"document {self.documents} {words}")

    def _tokens(self, ids: Any) -> Array:
        tokens = self._array("ids", ids)
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            raise self._wrong(f"must be one or more integers in one dimension (got {tokens.dtype} of shape {tokens.shape})")
        if tokens.max() >= self._size or tokens.min() < 0:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= self._size))[0])
            raise self._wrong(f"has the id {tokens[at]} at position {at}: must be 0 or more and below the vocabulary's size, {self._size}")
        return tokens.astype(self._manifest["token_dtype"], "C")

    def _array(self, name: str, value: Any) -> Array:
        if hasattr(value, "detach"):
            value = value.detach().cpu()  # a tensor
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as e:
            raise self._wrong(f"has {name} that NumPy cannot represent: {e}") from e

    def _first(self, name: str, value: Any) -> list[Any]:
        """Returns the dtype and the shape of an element of an array of the first document."""
        array = self._array(name, value)
        dtype = "uint8" if name == "mask" else str(array.dtype)
        if not _ARRAY_NAME.fullmatch(name) or name in _RESERVED:
            raise ArgumentError(f"{name!r} cannot be the name of an array: 1 to 32 letters a to z, digits and _, and none of {', '.join(sorted(_RESERVED))}")
        if dtype not in _DTYPES:
            raise self._wrong(f"has the array {name} of {dtype}, which no mount serves: convert it to one of {', '.join(sorted(_DTYPES))}")
        return [dtype, array.shape[1:]]

    def _aligned(self, column: _Column, value: Any, length: int) -> Array:
        array = self._array(column.name, value)
        if array.shape != (length, *column.shape):
            raise self._wrong(f"has the array {column.name} of shape {array.shape}: must be {(length, *column.shape)}, an element for each id")
        if column.name == "mask":
            if array.dtype.kind not in "biu" or array.max() > 1 or array.min() < 0:
                raise self._wrong("has a mask that is not 0 or 1 everywhere")
        elif not np.can_cast(array.dtype, column.dtype, "safe"):
            raise self._wrong(f"has the array {column.name} of {array.dtype}, but in the first document it is {column.dtype}")
        return array.astype(column.dtype, "C")

    def _columns_of(self, arrays: dict[str, list[Any]]) -> list[_Column]:
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
        _check_free(self.directory)
        splits = {name: split.state["shards"] for name, split in self._splits.items()}
        self._manifest["eot_at"] = _eot_at(self._manifest.get("eot"), [self._state])
        _write_manifest(self._work, self._manifest, splits)
        names = ["vocab.json", *(name for shards in splits.values() for shard in shards for name in _names(shard))]
        self._state["moves"] = [] if self._is_shard else _in_order([(name, name) for name in names])
        self._state["complete"] = True
        self._save()

    def _publish(self) -> None:
        self._closed = True
        if not self._is_shard:
            _publish(self.directory, self._work, self._state["moves"])
        self._release()

    def _keep(self) -> None:
        """Keeps the work for a resume: with a last checkpoint, unless the files may lack a part of what was added."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            if not self._failed and self.documents:
                with contextlib.suppress(OSError):
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
        self.files: list[BinaryIO] = []  # of each column, and the document index

    def _stem(self) -> str:
        return f"{self.name}_{len(self.state['shards']) + 1:06d}" if self.numbered else self.name

    def _open(self, columns: list[_Column]) -> None:
        """Opens the files of the current shard, and truncates them to what the state says."""
        stem, tokens = self._stem(), self.state["tokens"]
        sizes = {column.file(stem): tokens * column.dtype.itemsize * math.prod(column.shape) for column in columns}
        sizes[f"{stem}.bin.index"] = 8 * self.state["documents"]
        for name, size in sizes.items():
            file = open(os.path.join(self.work.path, name), "ab")
            self.files.append(file)
            if file.tell() < size:
                raise Error(f"{file.name} has {file.tell()} bytes, but had {size}: remove {self.work.path} and start over")
            file.truncate(size)

    def write(self, columns: list[_Column], eot: int | None, eot_at: dict[str, bool]) -> bool:
        """Writes the documents that wait, and reports whether it completed a shard."""
        before = len(self.state["shards"])
        while self.pending:
            ends = self.state["tokens"] + np.cumsum([len(document[0]) for document in self.pending])
            n = len(ends) if self.limit is None else min(len(ends), int(np.searchsorted(ends, self.limit)) + 1)
            arrays = [np.concatenate(arrays) for arrays in zip(*self.pending[:n])]
            del self.pending[:n]
            ends = ends[:n]
            if not self.files:
                self._open(columns)
            for file, array in zip(self.files, [*arrays, ends.astype("<u8")]):
                file.write(array.data)
            # A reader may split documents at end-of-text tokens only if there is one in each.
            after = ends - self.state["tokens"]
            is_eot = arrays[0] == eot
            once = int(np.count_nonzero(is_eot)) == n
            eot_at["end"] &= once and bool(is_eot[after - 1].all())
            eot_at["begin"] &= once and bool(is_eot[0] and is_eot[after[:-1]].all())
            self.state["tokens"] = int(ends[-1])
            self.state["documents"] += n
            self.state["ones"] += sum(int(array.sum()) for column, array in zip(columns, arrays) if column.name == "mask")
            if self.limit is not None and self.state["tokens"] >= self.limit:
                self.complete_shard(columns)
        return len(self.state["shards"]) > before

    def sync(self) -> None:
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())

    def complete_shard(self, columns: list[_Column]) -> None:
        """Ends the current shard, unless it is empty."""
        if not self.state["tokens"]:
            return
        if not self.files:  # after a resume, nothing may have been added
            self._open(columns)
        self.sync()
        self.close()
        stem = self._stem()
        hashed = hashlib.sha256()
        with open(os.path.join(self.work.path, f"{stem}.bin"), "rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        shard = {"name": f"{stem}.bin", "tokens": self.state["tokens"], "documents": self.state["documents"], "sha256": hashed.hexdigest()}
        if len(columns) > 1:
            shard["arrays"] = [
                {"name": c.name, "file": c.file(stem), "dtype": str(c.dtype), **({"shape": c.shape} if c.shape else {})} for c in columns[1:]
            ]
            shard["mask_ones"] = self.state["ones"]
        self.state["shards"].append(shard)
        self.state.update(tokens=0, documents=0, ones=0)

    def close(self) -> None:
        for file in self.files:
            with contextlib.suppress(OSError):
                file.close()
        self.files = []


class _Work:
    """A directory of unfinished work, which belongs to this user and is locked until `unlock` is called or the object is gone."""

    def __init__(self, path: str, operation: int) -> None:
        self.path = path
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.unlock = weakref.finalize(self, _unlock, path, self.fd, os.getpid())
        status = os.fstat(self.fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise Error(f"{path} belongs to another user, or others may write to it: choose another directory, or remove it")
        entries = os.listdir(path)
        if ".state.json" in entries:
            raise Error(f"{path} belongs to an unfinished batchfs prepare: run that command again, or remove the directory")
        if foreign := [name for name in entries if not _OWN.fullmatch(name)]:
            raise Error(f"{path} has {foreign[0]}, which no writer made: remove the directory, or choose another")
        try:
            fcntl.flock(self.fd, operation | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise Error(f"{path}: another writer or batchfs prepare is running there: wait until it has ended") from e
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), status):
            raise Error(f"{path}: another writer has just ended: try again")
        os.fchmod(self.fd, 0o700)

    def load(self) -> _State | None:
        path = os.path.join(self.path, _STATE)
        try:
            return json.loads(Path(path).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as e:
            raise Error(f"{path}: {e}: remove {self.path} and start over") from e

    def save(self, state: _State) -> None:
        """Replaces the state atomically."""
        self.write(_STATE + ".new", state)
        os.rename(os.path.join(self.path, _STATE + ".new"), os.path.join(self.path, _STATE))
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
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)


def finish(dir: PathLike) -> None:
    """Joins the shards that ``writer(dir, shard=(i, n))`` wrote in n processes. If it is killed, call it again.

    Raises:
        Error: a shard is missing or not complete, or was not written like the others. The text names it.
    """
    directory = _absolute(dir)
    path = os.path.join(directory, _WORK)
    with _explained(path, "; then call finish again"):
        work = _Work(path, fcntl.LOCK_EX)
        try:
            state = work.load()
            if state and "joined" not in state:
                raise Error(f"{path} belongs to a writer of the whole directory: continue it with resume=True")
            if not (state or os.listdir(path)) and os.path.exists(os.path.join(directory, "vocab.json")):
                return  # finished before
            if not state:
                state = _join(directory, work)
                work.save(state)
            _publish(directory, work, state["moves"])
        finally:
            work.unlock()


def _join(directory: str, work: _Work) -> _State:
    """Checks the shards, writes their manifest, and returns the state in which they are complete."""
    found = sorted(name for name in os.listdir(work.path) if _SHARD.fullmatch(name))
    if not found:
        raise Error(f"{work.path} has no shards: write them with batchfs.writer(dir, shard=(i, n))")
    counts = sorted({name.rpartition("_")[2] for name in found})
    if len(counts) > 1:
        raise Error(f"{work.path} has shards of runs with {' and '.join(str(int(n)) for n in counts)} shards: remove those of the wrong run")
    n = int(counts[0])
    present = {int(name.split("_")[1]) for name in found}
    if missing := [str(i) for i in range(n) if i not in present]:
        raise Error(f"{work.path} lacks {_numbered(missing)} of {n}: write what is missing")
    shards = [_Work(os.path.join(work.path, name), fcntl.LOCK_EX) for name in found]
    states = [shard.load() or {"complete": False} for shard in shards]
    if unfinished := [str(i) for i, state in enumerate(states) if not state["complete"]]:
        raise Error(f"{work.path}: {_numbered(unfinished)} of {n} is not complete: run it again with resume=True")
    arrays: Any = None
    for i, state in enumerate(states):
        for key, value in state["settings"].items():
            if value != states[0]["settings"][key]:
                raise Error(f"{work.path}: shard {i} was written with another {key} than shard 0: remove the wrong one and write it again")
        arrays = arrays if state["arrays"] is None else arrays or state["arrays"]
        if state["arrays"] not in (None, arrays):
            raise Error(f"{work.path}: shard {i} has the arrays {state['arrays']}, but an earlier one has {arrays}: remove the wrong one and write it again")
    _check_end(work.path, states, states[0]["settings"]["val"])
    _check_free(directory)
    splits: dict[str, list[_State]] = {"train": [], "val": []}
    moves = [("vocab.json", "vocab.json")]
    for shard, state in zip(shards, states):
        for split, all_shards in splits.items():
            for old in state["splits"][split]["shards"]:
                stem, new = old["name"].removesuffix(".bin"), f"{split}_{len(all_shards) + 1:06d}"
                moves += [(os.path.join(os.path.basename(shard.path), name), name.replace(stem, new, 1)) for name in _names(old)]
                arrays = [{**array, "file": array["file"].replace(stem, new, 1)} for array in old.get("arrays", [])]
                all_shards.append({**old, "name": f"{new}.bin", **({"arrays": arrays} if arrays else {})})
    with open(os.path.join(shards[0].path, "vocab.json"), "rb") as file:
        manifest = json.load(file)
    manifest["eot_at"] = _eot_at(manifest.get("eot"), states)
    _write_manifest(work, manifest, splits)
    return {"joined": n, "complete": True, "moves": _in_order(moves)}


def _numbered(numbers: list[str]) -> str:
    return f"shard{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:8])}{', ...' if len(numbers) > 8 else ''}"


def _names(shard: _State) -> list[str]:
    return [shard["name"], shard["name"] + ".index", *(array["file"] for array in shard.get("arrays", []))]


def _documents(split: _State) -> int:
    return split["documents"] + sum(shard["documents"] for shard in split["shards"])


def _eot_at(eot: int | None, states: list[_State]) -> str:
    always = {at for at in ("end", "begin") if all(state["eot_at"][at] for state in states)}
    return "none" if eot is None or not always else "end" if "end" in always else "begin"


def _check_end(path: str, states: list[_State], val: float) -> None:
    """Raises an error if there is nothing to train on."""
    def total(split: str, key: str, in_shards: str) -> int:
        parts = [state["splits"][split] for state in states]
        return sum(part[key] + sum(shard.get(in_shards, 0) for shard in part["shards"]) for part in parts)

    start_over = f"or remove {path} to start over"
    train, in_val = (total(split, "tokens", "tokens") for split in ("train", "val"))
    documents = sum(total(split, "documents", "documents") for split in ("train", "val"))
    if not documents:
        raise Error(f"{path}: there are no documents")
    if val and not (train and in_val):
        raise Error(
            f"val={val} of {documents} documents leaves {train} tokens for train and {in_val} for val, because documents are not divided: "
            f"add documents with resume=True, {start_over} with another val"
        )
    if any("mask" in (state["arrays"] or {}) for state in states) and train and not total("train", "ones", "mask_ones"):
        raise Error(f"the mask is 0 for all {train} tokens of train, so nothing would be learned: add documents with resume=True, {start_over}")


def _check_free(directory: str) -> None:
    for name in sorted(os.listdir(directory)):
        if _TOKEN_FILE.fullmatch(name):
            raise Error(f"{os.path.join(directory, name)} already exists: move it away, or choose another directory")


def _describe(tokenizer: Any, vocab_size: SupportsIndex | None) -> _State:
    """Returns a manifest without files."""
    found = None if tokenizer is None else vocabulary(tokenizer)
    size = len(found.tokens) if found else integer("vocab_size", vocab_size or 0, 1, 1 << 32)
    manifest: _State = {
        "tokenizer": found.name if found else "",
        "format": "headerless",
        "splits": {},
        "kind": "bpe" if found else "ids",
        "vocab_size": size,
        "token_dtype": "uint16" if size <= 1 << 16 else "uint32",
    }
    if found:
        if found.eot is not None:
            manifest["eot"] = found.eot
        manifest["eot_at"] = "none"
        manifest["token_bytes"] = [base64.b64encode(token).decode() for token in found.tokens]
    return manifest


def _digest(manifest: _State) -> str:
    """Returns a hash of what tokens stand for. The name of a tokenizer may be a path, which differs between hosts."""
    return hashlib.sha256(json.dumps({**manifest, "tokenizer": ""}).encode()).hexdigest()


def _write_manifest(work: _Work, manifest: _State, splits: dict[str, list[_State]]) -> None:
    manifest["splits"] = {
        name: {"tokens": sum(s["tokens"] for s in shards), "documents": sum(s["documents"] for s in shards), "shards": shards}
        for name, shards in splits.items()
        if shards
    }
    work.write("vocab.json", manifest)


def _in_order(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the order in which files get their final names: the manifest first, and each token file after its index and its mask.

    A mount rejects token files as long as the manifest lists others that are missing.
    """
    return sorted(moves, key=lambda move: move[1], reverse=True)


def _publish(directory: str, work: _Work, moves: list[tuple[str, str]]) -> None:
    for old, new in moves:
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
def _explained(path: str, advice: str = "") -> Generator[None]:
    try:
        yield
    except OSError as e:
        raise Error(f"{path}: {e}: look at the directory and its disk{advice}") from e


def _unlock(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # if it is empty
        fcntl.flock(fd, fcntl.LOCK_UN)  # processes that were forked have the descriptor too
    os.close(fd)
