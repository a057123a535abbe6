"""Writes the rows of tokenized datasets with batchfs.writer: python ids.py TOKENIZER.

Each line of standard input is a JSON object with a directory, the writer's arguments, and rows with input_ids and perhaps
attention_mask and labels. Ids without attention are dropped, and labels become the mask. If vocab_size is 0, the tokenizer has a
token for each byte, and an end-of-text token.
"""

import json
import sys
from unittest import mock

import numpy as np

sys.path.insert(0, "../python")

import batchfs
from batchfs._tokenizer import Vocabulary

EOT = 256
described = Vocabulary(sys.argv[1], [*(bytes([b]) for b in range(EOT)), b"<|endoftext|>"], EOT)
mock.patch("batchfs._writer.vocabulary", return_value=described).start()
for line in sys.stdin:
    job = json.loads(line)
    size = {"vocab_size": job["vocab_size"]} if job["vocab_size"] else {"tokenizer": sys.argv[1]}
    with batchfs.writer(job["dir"], val=job["val"], shard_tokens=job["shard_tokens"] or None, **size) as out:
        for row in job["rows"]:
            ids = np.array(row["input_ids"], np.int64)
            kept = np.array(row.get("attention_mask", np.ones(len(ids))), bool)
            if kept.any():
                out.add(ids[kept], **({"mask": np.array(row["labels"])[kept] != -100} if "labels" in row else {}))
