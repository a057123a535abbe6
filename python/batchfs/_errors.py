"""The errors of the package."""

from __future__ import annotations


class Error(Exception):
    """The base class of batchfs's errors. The text says what happened and what to do.

    Attributes:
        kind: the kind of failure that the program reported, such as "no_fuse", "config" or "data", or "failed": see the exit statuses in
            docs/commands.md.
    """

    def __init__(self, *args: object, kind: str = "failed") -> None:
        super().__init__(*args)
        self.kind = kind


class MountError(Error):
    """There is no mount to read from: it could not be made, or it is gone."""


class ArgumentError(Error, TypeError, ValueError):
    """An argument, an environment variable or a saved state has a wrong type or value. The text names it."""


class ReadError(Error):
    """A batch or its description could not be read. The cause is the OSError, if there was one."""
