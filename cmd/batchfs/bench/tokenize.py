# Encodes texts with tiktoken or gigatoken. Each line of standard input names the library (kind) and a vocabulary (path); the answer is the tokens,
# their checksum, and the seconds of one processor that encoding took.
import importlib.metadata
import json
import os
import sys
import time
import zlib

import numpy as np
import tiktoken
import tiktoken.load

try:
    import gigatoken
except ImportError:
    gigatoken = None

with open(sys.argv[1]) as f:
    texts = json.load(f)
raw = [text.encode() for text in texts]


def encoder(library, path):
    if library == "gigatoken":  # a new one each time, because it remembers whole words
        tokenizer = gigatoken.Tokenizer.from_tiktoken(path)
        return lambda: tokenizer.encode_batch(raw, parallel=False)
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no cache: the vocabulary is here
    tiktoken.load.read_file = lambda url: open(path, "rb").read()
    encode = tiktoken.get_encoding(os.path.basename(path).removesuffix(".tiktoken")).encode_ordinary
    return lambda: [encode(text) for text in texts]


versions = {name: importlib.metadata.version(name) for name in ("tiktoken", "gigatoken") if name in globals() and globals()[name]}
print(json.dumps(versions), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    encode = encoder(command["kind"], command["path"])
    began = time.process_time()
    encoded = encode()
    seconds = time.process_time() - began
    tokens, checksum = 0, 0
    for part in encoded:
        tokens += len(part)
        checksum = zlib.crc32(np.asarray(part, np.uint32).tobytes(), checksum)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "checksum": checksum}), flush=True)
