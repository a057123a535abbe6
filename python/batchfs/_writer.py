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
import sys
import threading
import time
import warnings
from collections.abc import Generator
from io import FileIO
from numbers import Real
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from ._batch import Array
from ._errors import ArgumentError, Error
from ._finish import COUNTS, check_end, documents_of, file_names, published, write_manifest
from ._settings import PathLike, integer
from ._tokenizer import vocabulary
from ._workdir import FINISH_STATE, SHARD, WORK, WRITER_STATE, State, WorkDirectory, absolute, check_free, explained, read_state, shard_name

_OWN_ARRAYS = "x y tokens rows cu_seqlens positions document_numbers lengths source".split()
_ARRAY_NAME = re.compile(f"(?!({'|'.join(_OWN_ARRAYS)})$)[a-z0-9_]{{1,32}}")
# The file train.NAME.bin of an array with such a name would have the name of a token file.
_SPLIT_NAME = re.compile("((.*_)?(train|val)(_*(of)?_*[0-9]+)*|(_*(of)?_*[0-9]+)+)((_text|_content)?_(document|sentence))?")
_BFLOAT16: np.dtype[Any] = np.dtype([("bfloat16", "<u2")])  # NumPy has no such dtype
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()

_BUFFER = 8 << 20  # bytes
_OVERHEAD = 256  # bytes of memory that a document takes in addition to its arrays
_PROCESSES = "in several processes, give each one its own writer(..., shard=(i, n))"
_FIRST_CHECKPOINT, _CHECKPOINTS = 1.0, 10.0  # seconds


class Writer:
    """Writes token files: train.bin, val.bin, their document indexes and aligned arrays, and vocab.json.

        with batchfs.writer("data", tokenizer=tok) as out:
            for ids, mask in conversations:
                out.add(ids, mask=mask)

    Unfinished work is in .prepare in the directory. A ``with`` that ends normally completes the files; one that ends with an
    exception keeps what was added, so that ``resume=True`` continues there. A writer belongs to one process, whose threads may share it.

    Args:
        dir: the directory to write to, which is created if missing. It must not have token files yet.
        tokenizer: a tokenizer from transformers, tokenizers, tiktoken or sentencepiece. vocab.json says what its tokens stand for.
        vocab_size: all ids are below it. Give it if there is no tokenizer.
        val: the fraction of documents for val, chosen by a hash of their ids.
        shard_tokens: a shard, such as train_000001.bin, ends with the document that reaches this number of tokens. Default: one file.
        shard: (i, n) if n processes write to dir, this one as number i. When all are complete, `finish` joins their shards.
        resume: continue an unfinished writer with the same arguments. ``documents`` is then the number of documents that
            are safe. If the files are complete already, the writer is closed.

    Attributes:
        directory: dir, as an absolute path.
        documents: the number of documents that were added, including those before a resume.

    Raises:
        ArgumentError: an argument is wrong.
        Error: dir has token files or an unfinished writer, or another process writes there.
    """

    _status = "closed"  # or "open", or "failed" if the files may be incomplete

    def __init__(
        self, dir: PathLike, *, tokenizer: Any = None, vocab_size: SupportsIndex | None = None, val: float = 0.0,
        shard_tokens: SupportsIndex | None = None, shard: tuple[SupportsIndex, SupportsIndex] | None = None, resume: bool = False
    ) -> None:
        if not isinstance(val, Real) or not 0 <= val < 1:  # pyright: ignore
            raise ArgumentError(f"val must be a number from 0 to below 1, such as 0.01 (got {val!r})")
        limit = None if shard_tokens is None else integer("shard_tokens", shard_tokens, 1)
        given: Any = shard
        if shard is not None and not (isinstance(given, (tuple, list)) and len(shard) == 2):
            raise ArgumentError(f"shard must be (i, n), the number of this process and of all (got {shard!r})")
        self._shards = None if shard is None else integer("the number of shards", shard[1], 1, 99_999)
        self._index = 0 if shard is None else integer("the number of the shard", shard[0], 0, (self._shards or 0) - 1)
        self._manifest, hashed = _describe(tokenizer, vocab_size)
        size = self._manifest["vocab_size"]
        self._settings: State = {"vocab_size": size, "tokenizer": hashed, "val": float(val), "shard_tokens": limit, "shards": self._shards}
        self._pid = os.getpid()
        # Reentrant, because a handler of a signal may close the writer while its thread adds to it.
        self._lock = threading.RLock()
        self._columns: list[_Column] = []  # empty until the first document
        self._buffered = 0  # bytes
        self._due = time.monotonic() + _FIRST_CHECKPOINT
        self.directory = absolute(dir)
        with explained(self.directory), contextlib.ExitStack() as at_end:
            os.makedirs(self.directory, exist_ok=True)
            path = os.path.join(self.directory, WORK)
            self._directory_lock = self._work = WorkDirectory(path, fcntl.LOCK_EX if self._shards is None else fcntl.LOCK_SH)
            at_end.callback(self._directory_lock.unlock)
            entries = os.listdir(path)
            if resume and WRITER_STATE not in entries and (documents := self._complete_documents()) is not None:
                self.documents = documents
                return
            if FINISH_STATE in entries or (any(map(SHARD.fullmatch, entries)) if self._shards is None else WRITER_STATE in entries):
                other = "a writer of the whole directory" if WRITER_STATE in entries else "writers of shards"
                raise Error(f"{path} belongs to {other}: complete that work first, or remove the directory")
            if self._shards is not None:
                self._work = WorkDirectory(os.path.join(path, shard_name(self._index, self._shards)), fcntl.LOCK_EX)
                at_end.callback(self._work.unlock)
            self._state = self._resume(resume)
            self.documents = documents_of(self._state)
            if self._shards is None and self._state["moves"]:
                self._work.publish(self.directory, self._state["moves"])
                return
            numbered, eot = bool(limit or self._shards), self._manifest.get("eot")
            self._splits = {name: _Split(self._work, name, numbered, limit, eot, state) for name, state in self._state["splits"].items()}
            self._status = "open"
            at_end.pop_all()

    def _complete_documents(self) -> int | None:
        """Returns the number of documents of this writer if the directory, or at least all shards, were completed with the same settings."""
        state = read_state(self._directory_lock.path, FINISH_STATE)
        made = state["writer"] if state else published(self.directory)
        return made["documents"][self._index] if made and made["settings"] == self._settings else None

    def _resume(self, resume: bool) -> State:
        """Returns the state to continue from."""
        path, state = self._work.path, read_state(self._work.path, WRITER_STATE)
        if not (state and state["moves"]):
            check_free(self.directory)
        if not state:
            self._work.clear()
            return {"settings": self._settings, "arrays": None, "splits": {name: _new_split() for name in ("train", "val")}, "moves": None}
        if not resume:
            what = "a complete shard" if state["moves"] else "unfinished work"
            raise Error(f"{path} has {what} of {documents_of(state)} documents: continue with resume=True, or remove the directory to start over")
        for key, now in self._settings.items():
            if (then := state["settings"].get(key)) != now:
                was = "another tokenizer: pass the same one" if key == "tokenizer" else f"{key}={then} (now {now}): pass the same value"
                raise Error(f"{path} was started with {was}, or remove the directory to start over")
        if not state["moves"]:
            for name in (name for split in state["splits"].values() for shard in split["shards"] for name in file_names(shard)):
                if not os.path.exists(os.path.join(path, name)):
                    raise Error(f"{path} lacks {name}, which was complete: restore the file, or remove the directory to start over")
        if state["arrays"] is not None:
            self._columns = self._all_columns(state["arrays"])
        return state

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
        with self._locked():
            self._check_open()
            self._add(ids, split, arrays)

    def _add(self, ids: Any, split: str | None, arrays: dict[str, Any]) -> None:
        tokens = self._tokens(ids)
        # Processes may name the arrays in another order.
        columns = self._columns or self._all_columns({name: self._element(name, value) for name, value in sorted(arrays.items())})
        if {column.name for column in columns[1:]} != arrays.keys():
            raise self._wrong(f"has the arrays {[*arrays]}, but the first document has {[column.name for column in columns[1:]]}")
        values = [tokens, *(self._aligned(column, arrays[column.name], len(tokens)) for column in columns[1:])]
        if split is None:
            val = self._settings["val"]
            hashed = hashlib.blake2b(tokens.data, digest_size=8).digest() if val else b""
            split = "val" if int.from_bytes(hashed, "little") < val * 2**64 else "train"
        elif split not in ("train", "val"):
            raise self._wrong(f"has split={split!r}: must be 'train' or 'val'")
        if not self._columns:
            self._columns, self._state["arrays"] = columns, {c.name: [_dtype_name(c.dtype), c.shape] for c in columns[1:]}
        self._state["moves"] = None  # from now on, a complete shard is not complete
        self._splits[split].pending.append(values)
        self.documents += 1
        self._buffered += sum(value.nbytes for value in values) + _OVERHEAD
        if self._buffered >= _BUFFER or time.monotonic() >= self._due:
            with self._writing():
                self._write()

    def close(self) -> None:
        """Completes the files. Without a ``with``, call it at the end."""
        if self._status == "closed":
            return
        with self._locked():
            if self._status == "closed":  # another thread was faster
                return
            try:
                self._check_open()
                with self._writing():
                    self._write()
                if self._shards is None:
                    check_end(self._work.path, [self._state])
                    check_free(self.directory)
                with self._writing():
                    if not self._state["moves"]:
                        self._complete()
                    if self._shards is None:
                        self._work.publish(self.directory, self._state["moves"])
                self._release()
            finally:
                self._keep()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._keep()

    def __del__(self) -> None:
        if self._status != "closed" and os.getpid() == self._pid:
            # Not a ResourceWarning, which Python does not show: documents are lost.
            why = "a writer was not closed, so its files are incomplete: close it at the end, and continue with writer(..., resume=True)"
            warnings.warn(f"{self.directory}: {why}", RuntimeWarning, source=self)

    def __reduce__(self) -> Any:
        raise TypeError(f"a writer cannot be copied or pickled: {_PROCESSES}")

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Holds the lock of a writer of this process."""
        if os.getpid() != self._pid:
            raise Error(f"this writer belongs to process {self._pid}: {_PROCESSES}")
        with self._lock:
            yield

    def _check_open(self) -> None:
        if self._status == "failed":
            raise Error(f"{self._work.path}: an earlier write failed or was interrupted: continue with writer(..., resume=True)")
        if self._status == "closed":
            raise Error(f"{self.directory}: this writer is closed")

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Marks the writer as failed until the block succeeds: the files may be incomplete."""
        self._status = "failed"
        with explained(self._work.path):
            yield
        self._status = "open"

    def _wrong(self, words: str) -> ArgumentError:
        return ArgumentError(f"document {self.documents} {words}")

    def _tokens(self, ids: Any) -> Array:
        tokens, size = self._array("ids", ids), self._settings["vocab_size"]
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            got = f"{_dtype_name(tokens.dtype)} of shape {tokens.shape}"
            raise ArgumentError(f"the ids of document {self.documents} must be a non-empty one-dimensional list of integers (got {got})")
        if tokens.max() >= size or tokens.min() < 0:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= size))[0])
            raise self._wrong(f"has the id {tokens[at]} at position {at}: ids must be from 0 to {size - 1}")
        return tokens.astype(self._manifest["token_dtype"], "C")

    def _array(self, name: str, value: Any) -> Array:
        if isinstance(value, np.ma.MaskedArray):
            raise self._wrong(f"has {name} that is a masked array: fill it first")
        if hasattr(value, "detach"):
            value = value.detach().cpu()  # a tensor
            if str(value.dtype) == "torch.bfloat16":
                return value.view(sys.modules["torch"].int16).numpy().view(_BFLOAT16)
        try:
            array: Any = np.asarray(value)
        except (TypeError, ValueError) as e:
            raise self._wrong(f"has {name} that NumPy cannot represent: {e}") from e
        return array.view(_BFLOAT16) if str(array.dtype) == "bfloat16" else array  # from JAX

    def _element(self, name: str, value: Any) -> list[Any]:
        """Returns the dtype and the shape of an element of an array of the first document."""
        if not _ARRAY_NAME.fullmatch(name):
            raise ArgumentError(f"{name!r} cannot name an array: use 1 to 32 of a-z, 0-9 and _, and none of batchfs's own names ({', '.join(_OWN_ARRAYS)})")
        if _SPLIT_NAME.fullmatch(name):
            raise ArgumentError(f"{name!r} cannot name an array: train.{name}.bin would be taken for a file of tokens")
        if name == "mask":
            return ["uint8", ()]
        array = self._array(name, value)
        dtype, shape = _dtype_name(array.dtype), array.shape
        if dtype not in _DTYPES or 0 in shape:
            raise self._wrong(f"has the array {name} with dtype {dtype} and shape {shape}: elements must not be empty; dtypes are {', '.join(_DTYPES)}")
        return [dtype, shape[1:]]

    def _aligned(self, column: _Column, value: Any, length: int) -> Array:
        array, shape = self._array(column.name, value), (length, *column.shape)
        if array.shape != shape:
            raise self._wrong(f"has the array {column.name} of shape {array.shape}: must be {shape}, one element for each id")
        if column.name == "mask":
            if array.dtype.kind not in "biu" or array.max() > 1 or array.min() < 0:
                raise self._wrong("has a mask that is not 0 or 1 everywhere")
        elif not np.can_cast(array.dtype, column.dtype, "safe"):
            raise self._wrong(f"has the array {column.name} of {_dtype_name(array.dtype)}, but in the first document it is {_dtype_name(column.dtype)}")
        return array.astype(column.dtype, "C")

    def _all_columns(self, arrays: dict[str, list[Any]]) -> list[_Column]:
        token = _Column("", np.dtype(self._manifest["token_dtype"]), ())
        return [token, *(_Column(name, _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in arrays.items())]

    def _write(self) -> None:
        """Writes the documents that are in memory, and saves a checkpoint if it is due."""
        for split in self._splits.values():
            split.write(self._columns)
        self._buffered = 0
        if time.monotonic() >= self._due:
            self._save()

    def _save(self) -> None:
        for split in self._splits.values():
            split.sync()
        self._work.save(WRITER_STATE, self._state)
        self._due = time.monotonic() + _CHECKPOINTS

    def _complete(self) -> None:
        for split in self._splits.values():
            split.complete_shard(self._columns)
        shards = {name: split.state["shards"] for name, split in self._splits.items()}
        write_manifest(self._work, self._manifest, shards, [self._state])
        names = ["vocab.json", *(name for split in shards.values() for shard in split for name in file_names(shard))]
        self._state["moves"] = [(name, name) for name in names]
        self._save()

    def _keep(self) -> None:
        """Saves a last checkpoint, unless a write failed, and releases the locks."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._status == "closed":
                return
            try:
                with contextlib.suppress(OSError, Error):
                    if self._status != "failed" and self.documents:
                        self._write()
                        self._save()
                    if not os.path.exists(os.path.join(self._work.path, WRITER_STATE)):
                        self._work.clear()
            finally:
                self._release()

    def _release(self) -> None:
        self._status = "closed"
        for split in self._splits.values():
            split.close()
        self._work.unlock()
        self._directory_lock.unlock()


class _Column(NamedTuple):
    """The tokens, whose name is empty, or an aligned array."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # axes of an element

    def file(self, stem: str) -> str:
        return f"{stem}.{self.name}.bin" if self.name else f"{stem}.bin"


class _Split:
    """The files of train or val in a work directory, and the documents not yet written.

    Attributes:
        state: the complete shards; the tokens, documents and tokens with mask 1 in the current shard and in total; and the number of
            end-of-text tokens, and of documents that end or begin with one.
    """

    def __init__(self, work: WorkDirectory, name: str, numbered: bool, limit: int | None, eot: int | None, state: State) -> None:
        self.work, self.name, self.numbered, self.limit, self.eot, self.state = work, name, numbered, limit, eot, state
        self.pending: list[list[Array]] = []
        self.files: list[FileIO] = []  # one per column, then the document index

    def _stem(self) -> str:
        return f"{self.name}_{len(self.state['shards']) + 1:06d}" if self.numbered else self.name

    def _open(self, columns: list[_Column]) -> None:
        """Opens the files of the current shard, and truncates them to what the state says."""
        stem, current = self._stem(), self.state["current"]
        sizes = {column.file(stem): current["tokens"] * column.dtype.itemsize * math.prod(column.shape) for column in columns}
        sizes[f"{stem}.bin.index"] = 8 * current["documents"]
        for name, size in sizes.items():
            path = os.path.join(self.work.path, name)
            file = FileIO(path, "ab")
            self.files.append(file)
            if file.tell() < size:
                raise Error(f"{path} has {file.tell()} bytes, but had {size}: remove {self.work.path} and start over")
            file.truncate(size)

    def write(self, columns: list[_Column]) -> None:
        """Writes the pending documents."""
        current, total, eot = self.state["current"], self.state["total"], self.state["eot"]
        while self.pending:
            lengths = np.cumsum([len(document[0]) for document in self.pending])
            room = math.inf if self.limit is None else self.limit - current["tokens"]
            n = min(len(lengths), int(np.searchsorted(lengths, room)) + 1)
            lengths = lengths[:n]
            arrays: list[Array] = [np.concatenate(arrays) for arrays in zip(*self.pending[:n])]
            del self.pending[:n]
            if not self.files:
                self._open(columns)
            for file, array in zip(self.files, [*arrays, (lengths + current["tokens"]).astype(np.uint64)]):
                rest = np.frombuffer(array, np.uint8).data
                while rest:
                    rest = rest[file.write(rest) :]
            is_eot = arrays[0] == (-1 if self.eot is None else self.eot)
            for key, found in (("all", is_eot), ("end", is_eot[lengths - 1]), ("begin", is_eot[np.append(0, lengths[:-1])])):
                eot[key] += int(np.count_nonzero(found))
            ones = sum(int(array.sum()) for column, array in zip(columns, arrays) if column.name == "mask")
            for key, count in zip(COUNTS, (int(lengths[-1]), n, ones)):
                current[key] += count
                total[key] += count
            if self.limit is not None and current["tokens"] >= self.limit:
                self.complete_shard(columns)

    def sync(self) -> None:
        for file in self.files:
            os.fsync(file.fileno())

    def complete_shard(self, columns: list[_Column]) -> None:
        """Ends the current shard, unless it is empty."""
        current = self.state["current"]
        if not current["tokens"]:
            return
        if not self.files:  # after a resume, nothing may have been added
            self._open(columns)
        self.sync()
        self.close()
        stem, hashed = self._stem(), hashlib.sha256()
        with open(os.path.join(self.work.path, f"{stem}.bin"), "rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        arrays = [
            {"name": c.name, "file": c.file(stem), "dtype": _dtype_name(c.dtype), **({"shape": c.shape} if c.shape else {})} for c in columns[1:]
        ]
        described: State = {"arrays": arrays} if arrays else {}
        if current["ones"]:
            described["mask_ones"] = current["ones"]
        sizes = {key: current[key] for key in ("tokens", "documents")}
        self.state["shards"].append({"name": f"{stem}.bin", **sizes, "sha256": hashed.hexdigest(), **described})
        current.update(dict.fromkeys(COUNTS, 0))

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = []


def _new_split() -> State:
    return {"shards": [], "current": dict.fromkeys(COUNTS, 0), "total": dict.fromkeys(COUNTS, 0), "eot": {"all": 0, "end": 0, "begin": 0}}


def _dtype_name(dtype: Any) -> str:
    return "bfloat16" if dtype == _BFLOAT16 else dtype.name


def _describe(tokenizer: Any, vocab_size: SupportsIndex | None) -> tuple[State, str]:
    """Returns a manifest without files, and a hash of how the tokenizer encodes."""
    if (tokenizer is None) == (vocab_size is None):
        raise ArgumentError("tokenizer and vocab_size: give one of them")
    name, tokens, eot, definition = ("", None, None, "") if tokenizer is None else vocabulary(tokenizer)
    size = integer("vocab_size", vocab_size or 0, 1, 1 << 32) if tokens is None else len(tokens)
    manifest: State = {"tokenizer": name, "format": "headerless", "splits": {}, "kind": "ids" if tokens is None else "bpe", "vocab_size": size}
    manifest["token_dtype"] = "uint16" if size <= 1 << 16 else "uint32"
    if eot is not None:
        manifest["eot"] = eot
    if tokens is not None:
        manifest["eot_at"], manifest["token_bytes"] = "none", [base64.b64encode(token).decode() for token in tokens]
    # The name of a tokenizer may be a path, which differs between hosts.
    return manifest, hashlib.sha256(json.dumps([{**manifest, "tokenizer": ""}, definition]).encode()).hexdigest()
