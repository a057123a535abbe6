"""Writes random conversations, and what examples/prepare_chat.py makes of them: chat.py FAMILY MODEL N DIR

DIR/chat.jsonl has N conversations for the chat template of MODEL, a directory with tokenizer.json,
tokenizer_config.json and perhaps chat_template.jinja. DIR/want has the tokens of each conversation
that has an assistant turn (train.bin), a mask that is 1 for those that the assistant generates
(train.mask.bin), and the ends of conversations (train.bin.index). The mask is found by the special
tokens of the FAMILY.
"""
import itertools
import json
import os
import random
import re
import sys
import time

import jinja2.ext
import jinja2.sandbox
import numpy as np
from tokenizers import Tokenizer

family, model, n, out = sys.argv[1:]
tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
config = json.load(open(os.path.join(model, "tokenizer_config.json")))
rng = random.Random(1)

# No special token of a family is among them, because the mask is found by these.
SNIPPETS = ["Hello", "wörld", " the", " it's", "\n", "\n\n", " ", "  ", "\t", "1234", "...", "def f(x):\n    return x\n", "中文", "👍🏽", "e\u0301", "\u0301", "\ufeff",
            "<think>\nwhy\n</think>\n\n", "<tool_call>", "</tool_response>", "user", "assistant", "model\n", "<|", "|>", "{% for message in messages %}", "{{", "</",
            "\n\nassistant\n\n", "[INS", "start", "end_of_turn>"]


def text():
    return "".join(rng.choices(SNIPPETS, k=rng.choice([0, 1, 2, 5, 20])))


def turn():
    """Yields what follows a user's message."""
    while family != "gemma" and rng.random() < 0.3:
        calls = [{"id": "%09d" % rng.randrange(10**9), "type": "function", "function": {"name": rng.choice(["search", "run"]), "arguments": {"q": text(), "n": rng.randrange(9)}}}
                 for _ in range(1 if family in ("llama", "gpt-oss") else rng.randint(1, 3))]
        yield {"role": "assistant", "content": text() if family == "qwen" else "", "tool_calls": calls}
        for call in calls:
            yield {"role": "tool", "name": call["function"]["name"], "content": text(), "tool_call_id": call["id"]}
    key = {"qwen": "reasoning_content", "gpt-oss": "thinking"}.get(family)
    yield {"role": "assistant", "content": text(), **({key: text()} if key and rng.random() < 0.5 else {})}


def messages():
    if rng.random() < 0.5:
        yield {"role": "system", "content": text()}
    if rng.random() < 0.05:
        yield {"role": "user", "content": text()}
        return
    for _ in range(rng.randint(1, 4)):
        yield {"role": "user", "content": text()}
        yield from turn()
    if rng.random() < 0.1:
        yield {"role": "user", "content": text()}


def conversation():
    chat = {"messages": list(messages())}
    if rng.random() < 0.5:
        parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
        chat["tools"] = [{"type": "function", "function": {"name": "search", "description": text(), "parameters": parameters}}]
    if rng.random() < 0.5:
        chat["chat_template_kwargs"] = {"date_string": "1 Jan 2025", "enable_thinking": False}
    return chat


def fail(message):
    raise ValueError(message)


# The environment in which transformers renders chat templates.
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
environment.filters["tojson"] = lambda x, indent=None, **_: json.dumps(x, ensure_ascii=False, indent=indent)
environment.globals["raise_exception"] = fail
environment.globals["strftime_now"] = time.strftime
if os.path.exists(path := os.path.join(model, "chat_template.jinja")):
    config["chat_template"] = re.sub("{% (end)?generation %}", "", open(path).read())
template = environment.from_string(config["chat_template"])
names = {key: config[key] for key in ("bos_token", "eos_token") if config.get(key)}


def ids(text):
    return tokenizer.encode(text, add_special_tokens=False).ids


# The header of an assistant turn, what else the generation prompt may have, and what ends it.
FAMILIES = {
    "llama": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>"),
    "gemma": ("<start_of_turn>model\n", "", "<end_of_turn>"),
    "qwen": ("<|im_start|>assistant", "\n", "<|im_end|>"),
    "chatml": ("<|im_start|>assistant", "\n", "<|im_end|>"),
    "gpt-oss": ("<|start|>assistant", "", "<|end|><|call|><|return|>"),
}


def generated(tokens, without_thinking):
    """Returns a mask on the tokens that the assistant generates."""
    if family == "mistral":  # all that is not in brackets, such as [INST]...[/INST]
        brackets = {ids(f"[{slash}{name}]")[0]: len(slash) for slash in ("", "/") for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")}
        mask, outside = [], 1
        for token in tokens:
            mask.append(int(outside and token not in brackets and token != ids("<s>")[0]))
            outside = brackets.get(token, outside)
        return mask
    header, prompt, ends = map(ids, FAMILIES[family])
    if family == "qwen" and without_thinking:
        prompt = ids("\n<think>\n\n</think>\n\n")
    mask, i = [0] * len(tokens), 0
    while i < len(tokens):
        if tokens[i:i + len(header)] != header:
            i += 1
            continue
        i += len(header)
        same = (a == b for a, b in zip(prompt, tokens[i:]))
        i += sum(itertools.takewhile(bool, same))
        # gpt-oss ends a thought, and continues with another header.
        while tokens[i] not in ends or tokens[i + 1:i + 1 + len(header)] == header:
            mask[i] = 1
            i += 1
        mask[i] = 1
    return mask


tokens, mask, ends = [], [], []
with open(os.path.join(out, "chat.jsonl"), "w") as lines:
    for _ in range(int(n)):
        chat = conversation()
        lines.write(json.dumps(chat) + "\n")
        if not any(message["role"] == "assistant" for message in chat["messages"]):
            continue
        options = chat.get("chat_template_kwargs", {})
        found = ids(template.render(**names, messages=chat["messages"], tools=chat.get("tools"), **options))
        by_assistant = generated(found, "enable_thinking" in options)
        assert any(by_assistant), chat
        tokens += found
        mask += by_assistant
        ends.append(len(tokens))

want = os.path.join(out, "want")
os.mkdir(want)
np.array(tokens, "<u4" if tokenizer.get_vocab_size() > 1 << 16 else "<u2").tofile(os.path.join(want, "train.bin"))
np.array(mask, "u1").tofile(os.path.join(want, "train.mask.bin"))
np.array(ends, "<u8").tofile(os.path.join(want, "train.bin.index"))
