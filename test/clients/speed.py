"""Prints the processor time that a library takes to encode texts: speed.py tiktoken|gigatoken RANKS

The unit is seconds. Each text on standard input comes after its length, a little-endian uint32.
"""
import os
import struct
import sys
import time

library, path = sys.argv[1:]
if library == "tiktoken":
    import tiktoken
    import tiktoken.load
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no cache, so the next line supplies the vocabulary
    tiktoken.load.read_file = lambda url: open(path, "rb").read()
    encoding = tiktoken.get_encoding(os.path.basename(path).removesuffix(".tiktoken"))

    def encode(texts):
        for text in texts:
            encoding.encode_ordinary(text)
else:
    import gigatoken
    tokenizer = gigatoken.Tokenizer.from_tiktoken(path)

    def encode(texts):
        tokenizer.encode_batch(texts, parallel=False)

texts = []
while size := sys.stdin.buffer.read(4):
    texts.append(sys.stdin.buffer.read(struct.unpack("<I", size)[0]).decode())
began = time.process_time()
encode(texts)
print(time.process_time() - began)
