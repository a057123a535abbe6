"""Writes random conversations and their tokens: chat.py TOKENIZER CONFIG N DIR

DIR/chat.jsonl has one line per conversation, with its turns: the text that the chat template in
CONFIG (a tokenizer_config.json) renders for each message. DIR/want has what Hugging Face's tokenizers
makes of the whole conversations: the tokens (train.bin), a mask that is 1 for tokens of the
assistant (train.mask.bin), and the end of each conversation (train.bin.index).
"""
import json
import os
import random
import re
import sys

import jinja2
import jinja2.sandbox
import numpy as np
from tokenizers import Tokenizer

path, config, n, out = sys.argv[1:]
tokenizer = Tokenizer.from_file(path)
config = json.load(open(config))
rng = random.Random(1)

SNIPPETS = ["Hello", "wörld", " the", " it's", "\n", "\n\n", " ", "  ", "\t", "1234", "...", "def f(x):\n    return x\n", "中文", "👍🏽", "e\u0301", "\u0301", "\ufeff",
            "<think>\nwhy\n</think>\n\n", "<tool_call>", "</tool_response>", "user", "assistant", "<|", "|>", "[INST]", "[/INST]", "</s>", "<s>", "[TOOL_CALLS]",
            "<|im_start|>", "<|im_end|>\n", "<|im_start|>assistant\n", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|begin_of_text|>"]


def text():
    return "".join(rng.choices(SNIPPETS, k=rng.choice([0, 1, 2, 5, 20])))


def call():
    name, arguments = rng.choice(["search", "run"]), {"q": text(), "n": rng.randrange(9)}
    return {"id": "%09d" % rng.randrange(10**9), "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation():
    if rng.random() < 0.5:
        yield {"role": "system", "content": text()}
    for _ in range(rng.randint(1, 4)):
        yield {"role": "user", "content": text()}
        while rng.random() < 0.3:
            calls = [call() for _ in range(rng.randint(1, 3))]
            yield {"role": "assistant", "content": "", "tool_calls": calls}
            for c in calls:
                yield {"role": "tool", "content": text(), "tool_call_id": c["id"]}
        yield {"role": "assistant", "content": text()}


def tools():
    if rng.random() < 0.5:
        return None
    return [{"type": "function", "function": {"name": "search", "description": text(), "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}]


def fail(message):
    raise ValueError(message)


# The environment in which transformers renders chat templates.
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
environment.globals["raise_exception"] = fail
plain = environment.from_string(config["chat_template"])
marked, marks = re.subn(r"(for message in \w*messages -?%})", r'\1{{ "\\0" ~ message.role ~ "\\0" }}', config["chat_template"])
assert marks == 1, f"the template has {marks} loops over the messages, want 1"
marked = environment.from_string(marked)
names = {key: config[key] for key in ("bos_token", "eos_token") if config.get(key)}

tokens, mask, ends = [], [], []
with open(os.path.join(out, "chat.jsonl"), "w") as lines:
    for _ in range(int(n)):
        given = dict(names, messages=list(conversation()), tools=tools())
        whole = plain.render(given)
        before, *turns = re.split("\0(.*?)\0", marked.render(given))
        turns = [("", before), *zip(turns[::2], turns[1::2])]
        assert "".join(t for _, t in turns) == whole, "the turns are not the whole conversation"
        json.dump({"turns": [{"role": role, "text": t} for role, t in turns]}, lines)
        lines.write("\n")

        by_assistant = np.repeat([role == "assistant" for role, _ in turns], [len(t) for _, t in turns])
        encoding = tokenizer.encode(whole, add_special_tokens=False)
        for token, (begin, end) in zip(encoding.ids, encoding.offsets):
            assert by_assistant[begin] == by_assistant[end - 1], f"a token crosses turns at {begin}: {whole!r}"
            tokens.append(token)
            mask.append(by_assistant[begin])
        ends.append(len(tokens))

want = os.path.join(out, "want")
os.mkdir(want)
np.array(tokens, "<u4").tofile(os.path.join(want, "train.bin"))
np.array(mask, "u1").tofile(os.path.join(want, "train.mask.bin"))
np.array(ends, "<u8").tofile(os.path.join(want, "train.bin.index"))
