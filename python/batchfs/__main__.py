"""Runs the program: ``python -m batchfs doctor`` is ``batchfs doctor``."""

import os
import sys

from ._errors import Error
from ._program import not_started, program

try:
    path = program()
except Error as e:
    sys.exit(f"batchfs: {e}")
try:
    os.execv(path, ["batchfs", *sys.argv[1:]])
except OSError as e:
    e.filename = path
    sys.exit(f"batchfs: {not_started(e)}")
