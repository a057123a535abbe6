#!/usr/bin/env python3
"""Attention within documents with PyTorch's flex attention and a mask made from positions.

    python3 examples/attention_flex.py MOUNTPOINT/SPLIT [--batch 0]

The split has documents = true, mask_targets = true and dtype = "int64". The exit status is 1 unless
the loss of the batch equals that of a loop over its documents.
"""
import argparse
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("split", help="its path in the mount")
parser.add_argument("--batch", type=int, default=0, help="its number (default: 0)")
args = parser.parse_args()


def load(name):
    return torch.from_numpy(np.load(f"{args.split}/batch/{args.batch}{name}.npy"))


x, y = load("")                 # (B, T) each; y is -100 where a document ends
positions = load(".positions")  # (B, T): position of each token in its document
B, T = x.shape
document = (positions == 0).cumsum(1)


def within(b, head, query, key):
    return (query >= key) & (document[b, query] == document[b, key])


# Empty blocks of the mask cost nothing. In a real run, use torch.compile(flex_attention).
mask = create_block_mask(within, B, None, T, T, device=x.device)

torch.manual_seed(0)
V, H, D = int(max(x.max(), y.max())) + 1, 2, 16  # tokens, heads, width of a head
embed, where = torch.randn(V, H * D), torch.randn(T, H * D)
qkv, out = torch.randn(H * D, 3 * H * D) / D ** 0.5, torch.randn(H * D, V) / D ** 0.5


def logits(x, positions, attend):
    h = embed[x] + where[positions.long()]
    q, k, v = (a.transpose(1, 2) for a in (h @ qkv).unflatten(-1, (3, H, D)).unbind(2))
    return (h + attend(q, k, v).transpose(1, 2).flatten(2)) @ out


loss = F.cross_entropy(logits(x, positions, lambda q, k, v: flex_attention(q, k, v, block_mask=mask)).flatten(0, 1), y.flatten(), reduction="sum")

alone, documents = torch.zeros(()), 0
for j in range(B):
    for d in range(1, document[j].max() + 1):  # each document alone
        here = document[j] == d
        one = logits(x[j, here][None], torch.arange(here.sum())[None],
                     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        alone += F.cross_entropy(one[0], y[j, here], reduction="sum")
        documents += 1

targets = int((y != -100).sum())
print(f"{documents} documents, {targets} targets: loss {loss / targets:.6f}, one by one {alone / targets:.6f}")
if not torch.allclose(loss, alone, rtol=1e-4):
    sys.exit("the losses differ")
