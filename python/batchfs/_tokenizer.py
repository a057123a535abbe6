"""What the tokens of a tokenizer stand for, and tokenizers as files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ._errors import ArgumentError
from ._settings import PathLike, path_text

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\u2581"  # what SentencePiece writes for a space


class Vocabulary(NamedTuple):
    """The bytes of each token, by id. The bytes of an id that is no token are empty."""

    name: str
    tokens: list[bytes]
    eot: int | None  # end-of-text token
    definition: str = ""  # equal for tokenizers that encode equally


def vocabulary(tokenizer: Any) -> Vocabulary:
    """Returns the vocabulary of a tokenizer from transformers, tokenizers, tiktoken or sentencepiece.

    Raises:
        ArgumentError: the tokenizer is of another kind, or has no tokens.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)  # a processor wraps its tokenizer
    packages = _packages(inner)
    found = None
    if "tiktoken" in packages:
        found = _tiktoken(inner)
    elif "sentencepiece" in packages:
        eot = inner.eos_id()
        found = Vocabulary("sentencepiece", _sentencepiece(inner), eot if eot >= 0 else None, repr(inner.serialized_model_proto()))
    elif "tokenizers" in packages:
        found = _tokenizers(inner)
    elif "transformers" in packages:
        found = _transformers(inner)
    if found is None:
        raise ArgumentError(
            f"tokenizer must be a fast transformers tokenizer, or one from tokenizers, tiktoken or sentencepiece (got a {type(tokenizer).__name__}): "
            "for any other, give vocab_size instead"
        )
    if not found.tokens:
        raise ArgumentError("tokenizer must have tokens (got an empty vocabulary)")
    return found


def _transformers(tokenizer: Any) -> Vocabulary | None:
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        found = _tokenizers(backend)
    elif model := getattr(tokenizer, "sp_model", None):
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        tokens = _by_id([*enumerate(_sentencepiece(model)), *((i, str(token).encode()) for i, token in added.items())])
        found = Vocabulary("", tokens, None, repr(model.serialized_model_proto()))
    else:
        return None
    return found._replace(name=str(tokenizer.name_or_path or "transformers"), eot=tokenizer.eos_token_id)


def save_tokenizer(tokenizer: Any, path: PathLike) -> None:
    """Writes a tokenizer.json, from which prepare, view and the library tokenizers get the same tokens.

        with open("tokenizer.pkl", "rb") as f:  # nanochat saves it there
            batchfs.save_tokenizer(pickle.load(f), "tokenizer.json")

    Args:
        tokenizer: a tiktoken.Encoding, or a tokenizer of tokenizers or transformers (a fast one), which is copied.
        path: the file to write. It is replaced only when the new one is complete.

    Raises:
        ArgumentError: the tokenizer is of another kind, or its ids cannot be kept.
    """
    packages = _packages(tokenizer)
    if "tiktoken" in packages:
        text = json.dumps(_from_tiktoken(tokenizer), ensure_ascii=False)
    elif "tokenizers" in packages or hasattr(tokenizer, "backend_tokenizer"):
        text = str(getattr(tokenizer, "backend_tokenizer", tokenizer).to_str())
    else:
        raise ArgumentError(f"tokenizer must be a tiktoken.Encoding, or one of tokenizers or a fast one of transformers (got a {type(tokenizer).__name__})")
    target = os.path.realpath(path_text("path", path))
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or device, such as /dev/stdout
        Path(path).write_text(text, encoding="utf-8")
        return
    # Several processes may write the same file.
    new = Path(f"{target}.{secrets.token_hex(8)}.new")
    try:
        new.write_text(text, encoding="utf-8")
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(target, new)
        new.rename(target)
    finally:
        new.unlink(missing_ok=True)


def _packages(tokenizer: Any) -> set[str]:
    return {base.__module__.partition(".")[0] for base in type(tokenizer).__mro__}


def _from_tiktoken(encoding: Any) -> dict[str, Any]:
    ranks: dict[bytes, int] = dict(sorted(encoding._mergeable_ranks.items(), key=itemgetter(1)))
    special: dict[str, int] = dict(sorted(encoding._special_tokens.items(), key=itemgetter(1)))
    vocab = {_alphabet_text(token): rank for token, rank in ranks.items()}
    if both := sorted(vocab.keys() & special.keys()):
        raise ArgumentError(f"tokenizer has the special token {both[0]!r}, and an ordinary one that tokenizer.json writes in the same way: rename the special token")
    last = [_merge(token, lambda a, b: ranks.get(a + b), 2) for token in ranks]
    pairs = {(parts[0], parts[1]): ranks[parts[0] + parts[1]] for parts in last if len(parts) == 2}
    merges = [[_alphabet_text(part) for part in pair] for pair in pairs]
    # The library ignores the ids of added tokens and numbers them from the size of vocab on, unless
    # vocab has their names. But then a piece of ordinary text that is such a name must not be
    # looked up before it is merged.
    consecutive = [*vocab.values(), *special.values()] == [*range(len(vocab) + len(special))]
    if not consecutive:
        vocab |= special
        if whole := [token for token in ranks if len(_merge(token, lambda a, b: pairs.get((a, b)), 1)) > 1]:
            raise ArgumentError(
                f"tokenizer has ids that are not consecutive, and the token {whole[0]!r}, which no merges make: "
                "tokenizer.json cannot have both; give special tokens the ids after all others, in order"
            )
    # It would repeat {1,3} in {1,3}+. At the end of an alternative, the match is the same without
    # the possessive +.
    pattern = re.sub(r"(\{\d+,\d+\})\+(?=\||$)", r"\1", encoding._pat_str)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # Like tiktoken, the result drops text that the pattern does not match and, if that matters,
    # looks up whole pieces before it merges.
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name, **flags} for name, i in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": {"type": "BPE", "ignore_merges": consecutive, "vocab": vocab, "merges": merges},
    }


def _merge(token: bytes, rank: Callable[[bytes, bytes], int | None], least: int) -> list[bytes]:
    """Returns the parts of a token after all merges, or as soon as there are no more than `least`."""
    parts = [bytes([b]) for b in token]
    while len(parts) > least:
        found = [(r, i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if (r := rank(a, b)) is not None]
        if not found:
            break
        i = min(found)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _tiktoken(encoding: Any) -> Vocabulary:
    tokens = [b""] * encoding.n_vocab
    for i in range(len(tokens)):
        try:
            tokens[i] = encoding.decode_single_token_bytes(i)
        except KeyError:  # vocabularies have holes
            pass
    special: dict[str, int] = encoding._special_tokens
    # The ranks of tokens are their ids.
    definition = repr((encoding._pat_str, sorted(special.items())))
    return Vocabulary(encoding.name, tokens, special.get("<|endoftext|>"), definition)


def _sentencepiece(model: Any) -> list[bytes]:
    return [_piece_bytes(model.id_to_piece(i), model.is_byte(i)) for i in range(model.get_piece_size())]


def _piece_bytes(piece: str, is_byte: bool) -> bytes:
    return bytes([int(piece[3:5], 16)]) if is_byte else piece.replace(_SPACE, " ").encode()


def _tokenizers(tokenizer: Any) -> Vocabulary:
    """Returns a vocabulary with the bytes that the decoder of a tokenizer makes of each token in the middle of a text."""
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    stages = {stage["type"]: stage for key in ("decoder", "pre_tokenizer") for stage in _stages(described[key])}
    special: dict[str, int] = {token["content"]: token["id"] for token in described["added_tokens"] if token["special"]}

    def to_bytes(text: str) -> bytes:
        if text in special:
            return text.encode()
        if "ByteLevel" in stages:
            return _alphabet_bytes(text)
        if "WordPiece" in stages:
            prefix = stages["WordPiece"]["prefix"]
            return text[len(prefix) :].encode() if text.startswith(prefix) else f" {text}".encode()
        return _piece_bytes(text, "ByteFallback" in stages and _BYTE.fullmatch(text) is not None)

    ids: dict[str, int] = tokenizer.get_vocab()
    eot = next((special[name] for name in _END_OF_TEXT if name in special), None)
    # A call of the tokenizer with padding changes these.
    definition = json.dumps({**described, "truncation": None, "padding": None})
    return Vocabulary("tokenizers", _by_id((i, to_bytes(text)) for text, i in ids.items()), eot, definition)


def _stages(stage: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns a decoder or a pre-tokenizer, or the parts of a sequence of them."""
    if stage is None or stage["type"] != "Sequence":
        return [stage] if stage else []
    parts: list[dict[str, Any]] = stage.get("decoders") or stage.get("pretokenizers") or []
    return [part for inner in parts for part in _stages(inner)]


def _by_id(pairs: Any) -> list[bytes]:
    tokens: dict[int, bytes] = dict(pairs)
    return [tokens.get(i, b"") for i in range(max(tokens, default=-1) + 1)]


def _alphabet() -> dict[str, int]:
    """Returns the bytes for which characters of a byte-level vocabulary stand. Visible ones stand for themselves; others are numbered from 256."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in visible]
    return {**{chr(b): b for b in visible}, **{chr(256 + n): b for n, b in enumerate(others)}}


_ALPHABET = _alphabet()
_CHARACTERS = {b: character for character, b in _ALPHABET.items()}


def _alphabet_text(token: bytes) -> str:
    return "".join(_CHARACTERS[b] for b in token)


def _alphabet_bytes(text: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError:  # the name of a special token
        return text.encode()
