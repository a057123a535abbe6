"""Settings and other arguments: their types, and how they are checked and passed to the program and in paths."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Mapping
from typing import Any, SupportsIndex, TypeAlias, cast

from ._errors import ArgumentError

Setting: TypeAlias = "str | SupportsIndex | float | bool | list[str]"
PathLike: TypeAlias = "str | os.PathLike[str]"

_PATH_KEY = re.compile("[a-z_]+")
_PATH_VALUE = re.compile("[A-Za-z0-9_.-]+")
_UNEXPANDED = re.compile(r"^~(/|$)|(^|/)\$([A-Z_][A-Z0-9_]*|\{\w+\})(/|$)")


def flags(data: PathLike | None, config: PathLike | None, settings: Mapping[str, Setting], keys: Mapping[str, Setting]) -> list[str]:
    """Returns the flags that say what to serve. settings are keys of [batch]; keys are any keys of config.toml, such as memory.access."""
    args: list[str] = []
    if config is not None:
        args += ["-c", path_text("config", config)]
    if data is not None:
        args += ["--data", path_text("data", data)]
    for key, value in {**{f"batch.{key}": value for key, value in settings.items()}, **keys}.items():
        if "=" in key:
            raise ArgumentError(f"{key!r} is not a key of config.toml: it contains an equals sign")
        args += ["--set", f"{key}={text(key, value)}"]
    return args


def integer(name: str, value: SupportsIndex, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Returns an integer of any type as an int, because NumPy's integers overflow and its arrays change in place.

    Raises:
        ArgumentError: value is not an integer from low to high.
    """
    if type(value) is not int:
        try:
            value = int(operator.index(value))
        except TypeError as e:
            raise ArgumentError(f"{name} must be an integer (got {value!r}, a {type(value).__name__})") from e
    if not low <= value <= high:
        raise ArgumentError(f"{name} must be from {low} to {high} (got {value})")
    return value


def text(key: str, value: Setting) -> str:
    """Returns the value of a setting in the form that --set takes."""
    # A string of JSON is one of TOML if it has no escaped surrogates, and DEL is escaped.
    words = value if isinstance(value, str) else json.dumps(_plain(key, value), ensure_ascii=False).replace("\x7f", r"\u007f")
    return _without_null(key, words)


def path_text(name: str, value: PathLike) -> str:
    """Returns a path as text. Raises ArgumentError if no file can have it."""
    return _without_null(name, os.fsdecode(value))


def absolute_path(name: str, value: PathLike) -> str:
    """Returns a path as absolute text. Raises ArgumentError if it is empty, or has a ~ or a variable, which only a shell expands, and does not exist."""
    path = path_text(name, value)
    if not path:
        raise ArgumentError(f"{name}: the path is empty, perhaps because a variable is not set")
    if _UNEXPANDED.search(path) and not os.path.lexists(path):
        raise ArgumentError(f"{name}: ~ and variables are not expanded here: write the path out (got {path!r})")
    return os.path.abspath(path)


def _without_null(name: str, words: str) -> str:
    if "\0" in words:
        raise ArgumentError(f"{name} must not contain a null character (got {words!r})")
    return words


def path_settings(settings: Mapping[str, Setting]) -> str:
    """Returns settings as one component of a path in a mount.

    Raises:
        ArgumentError: a key or a value could add another setting or lead out of the split.
    """
    pairs = {key: text(key, value) for key, value in settings.items()}
    for key, words in pairs.items():
        if not _PATH_KEY.fullmatch(key):
            raise ArgumentError(f"{key!r} is not the name of a setting, such as batch_size")
        if not _PATH_VALUE.fullmatch(words) or words in (".", ".."):
            raise ArgumentError(f"{key} must be one word or number of letters, digits, '_', '.' and '-' (got {words!r})")
    return ",".join(f"{key}={words}" for key, words in pairs.items())


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, (str, bool, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(key, v) for v in cast("list[Any]", value)]
    try:
        value = operator.index(value)
    except TypeError as e:
        hint = "; write a table as the text of one in TOML, as in '{web = 9, math = 1}'" if isinstance(value, Mapping) else ""
        raise ArgumentError(f"{key} must be text, a number, a bool or a list of these (got {value!r}){hint}") from e
    return integer(key, value)
