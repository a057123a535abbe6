"""Encodes texts with a library: tokens.py tiktoken|tokenizers|mistral_common FILE [special]

Each text on standard input comes after its length in bytes. For each, the program prints the number
of its tokens and the tokens. All numbers are little-endian uint32.
"""
import array
import os
import struct
import sys

library, path, *special = sys.argv[1:]
if library == "tiktoken":
    import tiktoken
    import tiktoken.load
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no cache, so the next line supplies the vocabulary
    tiktoken.load.read_file = lambda url: open(path, "rb").read()
    encoding = tiktoken.get_encoding(os.path.basename(path).removesuffix(".tiktoken"))

    def encode(text):
        return encoding.encode(text, allowed_special="all") if special else encoding.encode_ordinary(text)
elif library == "mistral_common":
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    tekken = Tekkenizer.from_file(path)

    def encode(text):
        return tekken.encode(text, bos=False, eos=False)
else:
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = not special

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

while size := sys.stdin.buffer.read(4):
    text = sys.stdin.buffer.read(struct.unpack("<I", size)[0])
    tokens = array.array("I", encode(text.decode()))
    sys.stdout.buffer.write(struct.pack("<I", len(tokens)) + tokens.tobytes())
sys.stdout.flush()
