"""Writes documents with batchfs.writer: python writer.py TOKENIZER SHARD_TOKENS TEXT...

The documents are those of batchfs prepare TEXT... --by TOKENIZER --mask p:0,c:1 --eot begin, if tokens are bytes; those of
files that are called val are val. For each line "COMMAND DIRECTORY" of standard input, a child process writes them, so that it
can be killed. Then, a line says how it ended: "0 ", "1 ERROR" or "-9 ".
"""

import json
import os
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, "../python")

import batchfs
from batchfs._tokenizer import Vocabulary

EOT = 256
CHECKPOINT = 100  # documents


def read(path):
    for line in path.read_text().splitlines():
        prompt, completion = (list(json.loads(line)[key].encode()) for key in "pc")
        yield [EOT, *prompt, *completion], [0] * (1 + len(prompt)) + [1] * len(completion), path.stem if path.stem == "val" else "train"


def write(directory, shard=None):
    i, n = shard or (0, 1)
    mine = documents[i * len(documents) // n : (i + 1) * len(documents) // n]
    with batchfs.writer(directory, tokenizer=tokenizer, shard_tokens=shard_tokens, shard=shard, resume=True) as out:
        while out.documents < len(mine):
            if out.documents % CHECKPOINT == CHECKPOINT - 1:
                out._due = 0
            ids, mask, split = mine[out.documents]
            out.add(ids, split=split, **({} if shard else {"mask": mask}))


def write_shards(directory):
    """Writes two shards, without masks, and joins them."""
    for i in range(2):
        write(directory, (i, 2))
    batchfs.finish(directory)


tokenizer, shard_tokens, texts = sys.argv[1], int(sys.argv[2]), map(Path, sys.argv[3:])
documents = [document for path in texts for document in read(path)]
commands = {"write": write, "shards": write_shards, "finish": batchfs.finish}
described = Vocabulary(tokenizer, [*(bytes([b]) for b in range(EOT)), b"<|endoftext|>"], EOT)
mock.patch("batchfs._writer.vocabulary", return_value=described).start()
# Checkpoints depend on documents, not on time.
mock.patch("batchfs._writer._FIRST_CHECKPOINT", float("inf")).start()
mock.patch("batchfs._writer._CHECKPOINTS", float("inf")).start()
mock.patch("batchfs._workdir._LOCK_LIMIT", 0.1).start()
print("ready", flush=True)
for line in sys.stdin:
    command, directory = line.split()
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        status = 0
        try:
            commands[command](directory)
        except Exception as e:
            status = 1
            os.write(writing, str(e).encode())
        os._exit(status)
    os.close(writing)
    with open(reading) as said:
        error = said.read()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), error, flush=True)
