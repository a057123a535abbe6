"""Runs the program: ``python -m batchfs doctor`` is ``batchfs doctor``."""

import os
import sys

from ._errors import Error
from ._program import program

try:
    path = program()
except Error as e:
    sys.exit(f"batchfs: {e}")
os.execv(path, ["batchfs", *sys.argv[1:]])
