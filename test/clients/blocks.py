"""Runs blocks of code, each in a fork of this process, which has imported PyTorch, because importing it takes seconds.

A line of the input is the code of a block, as a JSON string. For each, an object with its wait status and output is printed."""

import gc
import json
import os
import sys
import tempfile

import torch.utils.data

gc.freeze()  # a collection in a fork would copy all objects
for line in sys.stdin:
    with tempfile.TemporaryFile() as output:
        if (child := os.fork()) == 0:
            for fd in (1, 2):
                os.dup2(output.fileno(), fd)
            break
        _, status = os.waitpid(child, 0)
        output.seek(0)
        print(json.dumps({"status": status, "output": output.read().decode(errors="replace")}), flush=True)
else:
    sys.exit()
exec(json.loads(line))
