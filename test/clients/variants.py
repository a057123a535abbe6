"""Writes random tokenizer.json files and what the library tokenizers makes of texts: variants.py SEED N DIR

Each of the N files DIR/I.json comes with DIR/I.jsonl. Its lines have a text, its tokens if names of special tokens are ordinary
text, and its tokens otherwise.
"""
import json
import random
import sys

from tokenizers import Tokenizer

PARTS = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "a", "b", "ab", "c", "abc", "é", "e\u0301", "\u0301", "K", "\u212a", "汉", "字", "。", "1", "12", ".",
         "!", "(", "|", "▁", "▁▁", "_", "<x>", "<y>", "[Z]", "</s>", "<s>", "x", "y", "z", "New", " York", "👍", "\0", "\x01", "…", "،", "<0x41>", "\u200d", "²", "٣"]
EXPRESSIONS = [
    None,  # GPT-2's, as a flag of ByteLevel
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    " ?[^(\\s|[.,!?…。，、।۔،])]+",
]
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
ALPHABET = {b: chr(b) for b in VISIBLE} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in VISIBLE)}
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BLANKS = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}

seed, n, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def byte_level(rng):
    missing = set(rng.sample(range(256), rng.randint(0, 40))) if rng.random() < 0.6 else set()
    missing |= {b for b in b"abcxyz \n.e" if rng.random() < 0.2}
    vocab = {ALPHABET[b]: i for i, b in enumerate(b for b in range(256) if b not in missing)}
    model = {"unk_token": None, "fuse_unk": rng.random() < 0.5, "ignore_merges": rng.random() < 0.3}
    if rng.random() < 0.4:
        vocab["[UNK]"] = len(vocab)
        model["unk_token"] = "[UNK]"
    expression = rng.choice(EXPRESSIONS)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": expression is None}
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    stages = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level] if expression else [level]}}
    return vocab, model, stages | {"normalizer": {"type": "NFC"} if rng.random() < 0.4 else None}


def sentence_piece(rng):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3}
    for token in [*(f"<0x{b:02X}>" for b in range(256)), *(c for c in "".join(PARTS).replace(" ", "▁") if rng.random() < 0.7)]:
        vocab.setdefault(token, len(vocab))
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["first", "always", "never"]), "split": rng.random() < 0.5}
    normalizer, pre = rng.choice([({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None), (REPLACE, BLANKS), (REPLACE, None), (None, space)])
    return vocab, {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, {"normalizer": normalizer, "pre_tokenizer": pre}


def add_merges(rng, vocab):
    tokens = [token for token in vocab if token[0] not in "<["]
    common = [token for token in tokens if token in "abcxyze12.!()|▁ĠĊ"] or tokens
    merges = {}
    for _ in range(rng.randint(0, 60)):
        pair = tuple(rng.choice(common if rng.random() < 0.8 else tokens) for _ in range(2))
        both = "".join(pair)
        if len(both) <= 12:
            merges[pair] = True
            if vocab.setdefault(both, len(vocab)) == len(vocab) - 1:
                common.append(both)
    return [list(pair) for pair in merges]


def added_tokens(rng, vocab):
    contents = {rng.choice(PARTS) + rng.choice(["", rng.choice(PARTS)]) for _ in range(rng.randint(0, 7))}
    size = len(vocab)
    for content in sorted(contents):
        if content not in vocab:
            size += 1
        yield {"id": vocab.get(content, size - 1), "content": content, **{flag: rng.random() < 0.35 for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}}


for i in range(n):
    rng = random.Random(f"{seed} {i}")
    vocab, model, stages = rng.choice([byte_level, sentence_piece])(rng)
    model |= {"type": "BPE", "vocab": vocab, "merges": add_merges(rng, vocab)}
    added = list(added_tokens(rng, vocab))
    path = f"{directory}/{i}.json"
    with open(path, "w") as file:
        json.dump({"version": "1.0", "added_tokens": added, **stages, "model": model}, file)
    tokenizer = Tokenizer.from_file(path)
    with open(f"{directory}/{i}.jsonl", "w") as file:
        for _ in range(100):
            line = {"text": "".join(rng.choices(PARTS + 3 * [token["content"] for token in added], k=rng.randint(1, 12)))}
            try:
                for name in ("ordinary", "special"):
                    tokenizer.encode_special_tokens = name == "ordinary"
                    line[name] = tokenizer.encode(line["text"], add_special_tokens=False).ids
            except BaseException:  # the library panics if white space belongs to several tokens
                continue
            print(json.dumps(line), file=file)
