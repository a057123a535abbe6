# Encodes texts with tiktoken. Each line of standard input names the file of a vocabulary. The reply
# has the number of tokens, their checksum, and the processor time of encoding, in seconds.
import base64
import json
import os
import sys
import time
import zlib

import numpy as np
import tiktoken
import tiktoken.load

with open(sys.argv[1]) as f:
    texts = [base64.b64decode(text).decode() for text in json.load(f)]
os.environ["TIKTOKEN_CACHE_DIR"] = ""  # disables the cache, because the vocabulary is a local file

print(json.dumps({"tiktoken": tiktoken.__version__}), flush=True)
for line in sys.stdin:
    path = json.loads(line)["path"]
    tiktoken.load.read_file = lambda url: open(path, "rb").read()
    encode = tiktoken.get_encoding(os.path.basename(path).removesuffix(".tiktoken")).encode_ordinary
    began = time.process_time()
    encoded = [encode(text) for text in texts]
    seconds = time.process_time() - began
    tokens, checksum = 0, 0
    for part in encoded:
        tokens += len(part)
        checksum = zlib.crc32(np.asarray(part, np.uint32).tobytes(), checksum)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "checksum": checksum}), flush=True)
