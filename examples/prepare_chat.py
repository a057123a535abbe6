#!/usr/bin/env python3
"""Make token files of conversations, with a mask on what the assistant generates. If it is killed, --resume continues.

    python3 examples/prepare_chat.py chats.jsonl --tokenizer MODEL --out data [--val 0.01] [--resume]

A line is {"messages": [...], "tools": [...], "chat_template_kwargs": {...}}; the last two are optional. MODEL is a name or a directory
that AutoTokenizer accepts, with its chat template as published. If the template has a {% generation %} tag, the tag decides the mask.
Otherwise the mask covers each turn of the assistant from the end of the generation prompt to the end-of-turn token.
"""
import argparse
import collections
import functools
import itertools
import json
import os
import re
import string
import sys

import numpy as np
from transformers import AutoTokenizer

import batchfs

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("files", nargs="+", help="a conversation per line")
parser.add_argument("--tokenizer", required=True, metavar="MODEL")
parser.add_argument("--out", required=True, metavar="DIR")
parser.add_argument("--val", type=float, default=0, help="the fraction of conversations for val (default: 0)")
parser.add_argument("--resume", action="store_true", help="continue an unfinished run with the same arguments")
args = parser.parse_args()

for path in args.files:
    if not os.path.exists(path):
        parser.error(f"{path}: there is no such file")
    if os.path.isdir(path):
        parser.error(f"{path}: is a directory: name the files in it")
try:
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
except (OSError, ValueError) as e:
    parser.error(f"--tokenizer: {e}")
if not tokenizer.chat_template:
    parser.error(f"--tokenizer: {args.tokenizer} has no chat template: choose a model that was trained on chats")
special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}

STRING = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""  # may contain what ends a tag
TAG = re.compile(r"\{#.*?#\}|\{\{(?:STRING|.)*?\}\}|\{%(?:STRING|.)*?%\}".replace("STRING", STRING), re.DOTALL)
LOOP = re.compile(r"\{%([-+]?)(\s*(?:for\s.*?(\w+)\W*?\bin\b.*?|endfor\s*))([-+]?%\})", re.DOTALL)
FOR = string.Template(
    "{%$trim set loop_$n = namespace(marked=false) -%}{%-$tag-%}{%- if $name is mapping and $name.number_of_message is defined -%}"
    r"{%- set loop_$n.marked = true -%}{{- '\x00$n=' ~ $name.number_of_message ~ '\x00' -}}{%- endif $end"
)
ENDFOR = string.Template(r"{%$trim$tag-%}{%- if loop_$n.marked -%}{{- '\x00$n\x00' -}}{%- endif $end")
MARK = re.compile("\0(\\d+)(?:=(\\d+))?\0")  # a loop reaches a message, or ends


@functools.cache
def with_marks(template):
    """Returns the template with marks in loops over messages. Whitespace is trimmed as in the original."""
    loops, numbers = [], itertools.count()

    def mark(tag):
        if not (loop := LOOP.fullmatch(tag[0])):
            return tag[0]
        trim, inner, name, end = loop.groups()
        if name:
            loops.append(next(numbers))
            return FOR.substitute(trim=trim, tag=inner, name=name, end=end, n=loops[-1])
        return ENDFOR.substitute(trim=trim, tag=inner, end=end, n=loops.pop())

    return TAG.sub(mark, template)


def parts(rendered, messages):
    """Splits at the marks: returns pairs of a text and the number of its message, which is None for text outside of the loops."""
    first, *rest = MARK.split(rendered)
    nowhere = (None, 0)  # the message, and the number of its mark
    found, reached = [(first, nowhere)], {}  # reached: where each open loop is
    for loop, message, text in zip(rest[::3], rest[1::3], rest[2::3]):
        while loop in reached:
            reached.popitem()
        if message:
            reached[loop] = int(message), len(found)
        # In loops within loops, the text is the assistant's only if all of their messages are.
        others = (at for at in reached.values() if messages[at[0]]["role"] != "assistant")
        found.append((text, next(others, next(reversed(reached.values()), nowhere))))
    groups = itertools.groupby((part for part in found if part[0]), key=lambda part: part[1])
    return [("".join(text for text, _ in group), at[0]) for at, group in groups]


@functools.lru_cache
def ends_of_tokens(text):
    return [end for _, end in tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]]


def conversation(line):
    chat = json.loads(line)
    messages = chat.get("messages") if isinstance(chat, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) and "role" in message for message in messages):
        raise ValueError('a line must be {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}')
    return chat


def encode(chat):
    """Returns a conversation's ids, a mask on what the assistant generates, and the role of each token."""
    messages, tools = chat["messages"], chat.get("tools") or None
    template = tokenizer.get_chat_template(tools=tools)
    render = functools.partial(tokenizer.apply_chat_template, tools=tools, **chat.get("chat_template_kwargs") or {})

    def changes_text(i):
        try:
            return render([*messages[:i], {**messages[i], "content": "another text"}, *messages[i + 1:]], tokenize=False) != text
        except Exception:  # the template needs this content
            return True

    def turns(end, **options):
        # Messages that are equal stay equal, because some templates compare them.
        numbered = [{**message, "number_of_message": messages.index(message)} for message in messages[:end]]
        found = parts(render(numbered, chat_template=with_marks(template), tokenize=False, **options), messages)
        return "".join(text for text, _ in found), found

    def generated(turn, i):
        """Returns the range of a turn from the end of the generation prompt to the end-of-turn token."""
        before, _ = turns(i or None)
        prompted, found = turns(i or None, add_generation_prompt=True)
        # The prompt is what is added, or all that follows the loop.
        added = prompted.removeprefix(before) if prompted.startswith(before) else ""
        prompts = [added, *(text for text, message in found[1:][-1:] if message is None)]
        begin = max((end for prompt in prompts for end in ends_of_tokens(prompt) if turn.startswith(prompt[:end])), default=0)
        if added and not begin:
            raise ValueError(f"the template renders message {i} without its generation prompt, {added!r}")
        end = len(turn.rstrip())
        return begin, end if turn.endswith(tuple(special.values()), 0, end) else len(turn)

    try:
        original = render(messages, tokenize=False)
    except Exception as e:
        if any(message.get("content") is None for message in messages):
            raise ValueError(f'{e}; most templates need "content": "" in a message that has none') from e
        raise
    text, found = turns(None)
    if text != original:
        raise ValueError("its turns cannot be told apart, because the template renders messages with marks differently")
    # A message may be rendered outside of the loops, as a system prompt often is. Some templates
    # ignore system prompts.
    rendered = {i for _, i in found}
    for i, message in enumerate(messages):
        if str(message.get("content") or "").strip() and messages.index(message) not in rendered and not changes_text(i):
            if message["role"] != "system":
                raise ValueError(f"the template ignores message {i}, whose role is {json.dumps(message['role'])}")
            notes["system messages are ignored by the template"] += 1
    tagged = re.search(r"\{%[-+]?\s*generation\b", template) is not None
    encoded = render(messages, return_dict=True, return_assistant_tokens_mask=tagged, tokenizer_kwargs={"return_offsets_mapping": True})
    # A token that spans two turns belongs to the second.
    last = np.maximum([end - 1 for _, end in encoded["offset_mapping"]], 0)
    names = ["template" if i is None else messages[i]["role"] for _, i in found]
    roles = np.repeat(names, [len(turn) for turn, _ in found])[last]
    if tagged:
        mask = np.array(encoded["assistant_masks"])
    else:
        mask, begin = np.zeros(len(text), int), 0
        lost = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for (turn, i), name in zip(found, names):
            if name == "assistant":
                if equal := [j for j in lost if messages[j] == messages[i]]:
                    lost.remove(i := equal[0])
                first, end = generated(turn, i)
                mask[begin + first:begin + end] = 1
            begin += len(turn)
        if lost:
            raise ValueError(f"the template renders messages {lost}, which are the assistant's, outside of its loop over messages, or not at all")
        mask = mask[last]
    if not mask.any():
        raise ValueError("no token is marked as generated by the assistant")
    ends = np.flatnonzero(np.diff(mask, append=0) == -1)
    stops = np.isin(encoded["input_ids"], list(special)) & (mask == 1)
    if unended := np.sum(~(stops[ends] | stops[ends - 1])):  # a newline may follow
        notes["parts that the assistant generates do not end with a special token, so a model would not learn to stop there"] += unended
    return encoded["input_ids"], mask, roles


tokens, trained, notes = collections.Counter(), collections.Counter(), collections.Counter()
skipped = 0
try:
    with batchfs.writer(args.out, tokenizer=tokenizer, val=args.val, resume=args.resume) as out:
        resumed, added = out.documents, 0
        for path in args.files:
            for number, line in enumerate(open(path, "rb"), 1):
                if not line.strip():
                    continue
                try:
                    chat = conversation(line)
                    if not any(message["role"] == "assistant" for message in chat["messages"]):
                        skipped += 1
                        continue
                    added += 1
                    if added > resumed:
                        ids, mask, roles = encode(chat)
                        out.add(ids, mask=mask)
                        tokens.update(roles.tolist())
                        trained.update(roles[mask == 1].tolist())
                except Exception as e:  # a template may raise anything
                    sys.exit(f"{path}, line {number}: {type(e).__name__}: {e}. Correct or remove it, then continue with --resume")
        if not added:
            sys.exit("no conversation has an assistant turn: the role of its messages must be assistant")
except batchfs.Error as e:
    sys.exit(str(e).replace("resume=True", "--resume"))

print(f"{added} conversations; {skipped} without an assistant turn were skipped")
if resumed:
    print(f"the {resumed} conversations before the resume are not counted below")
for note, n in notes.items():
    print(f"{n} {note}")
print(f"{'role':12} {'tokens':>14} {'trained on':>14}")
for role, n in tokens.items():
    print(f"{role:12} {n:14,} {trained[role]:14,}")
