#!/usr/bin/env python3
"""Attention within documents with cu_seqlens, as FlashAttention's varlen functions take it.

    python3 examples/attention_varlen.py MOUNTPOINT/SPLIT [--batch 0]

The split has documents = true, mask_targets = true and dtype = "int64". The exit status is 1 unless
the loss of the batch equals that of a loop over its documents.
"""
import argparse
import sys

import numpy as np
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("split", help="its path in the mount")
parser.add_argument("--batch", type=int, default=0, help="its number (default: 0)")
args = parser.parse_args()


def load(name):
    return torch.from_numpy(np.load(f"{args.split}/batch/{args.batch}{name}.npy"))


x, y = load("")                    # (B, T) each; y is -100 where a document ends
positions = load(".positions")     # (B, T): position of each token in its document
cu_seqlens = load(".cu_seqlens")   # (B, T+1): 0, the ends of the row's documents, then T

# Concatenate all rows into one list of B*T tokens, and the ends of their documents likewise.
B, T = x.shape
ends = [row.unique()[1:] + j * T for j, row in enumerate(cu_seqlens)]
cu_seqlens = F.pad(torch.cat(ends), (1, 0)).int()

torch.manual_seed(0)
V, H, D = int(max(x.max(), y.max())) + 1, 2, 16  # tokens, heads, width of a head
embed, where = torch.randn(V, H * D), torch.randn(T, H * D)
qkv, out = torch.randn(H * D, 3 * H * D) / D ** 0.5, torch.randn(H * D, V) / D ** 0.5


def attend(q, k, v, cu_seqlens):
    """q, k and v are (tokens, H, D). On a GPU, use flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, T, T, causal=True)."""
    documents = []
    for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        part = (a[begin:end].transpose(0, 1) for a in (q, k, v))
        documents.append(F.scaled_dot_product_attention(*part, is_causal=True).transpose(0, 1))
    return torch.cat(documents)


def logits(x, positions, cu_seqlens):
    h = embed[x] + where[positions.long()]
    q, k, v = (h @ qkv).view(-1, 3, H, D).unbind(1)
    return (h + attend(q, k, v, cu_seqlens).flatten(1)) @ out


loss = F.cross_entropy(logits(x.flatten(), positions.flatten(), cu_seqlens), y.flatten(), reduction="sum")

alone = torch.zeros(())
for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):  # each document alone
    n = end - begin
    one = logits(x.flatten()[begin:end], torch.arange(n), torch.tensor([0, n]))
    alone += F.cross_entropy(one, y.flatten()[begin:end], reduction="sum")

targets = int((y != -100).sum())
print(f"{len(cu_seqlens) - 1} documents, {targets} targets: loss {loss / targets:.6f}, one by one {alone / targets:.6f}")
if not torch.allclose(loss, alone, rtol=1e-4):
    sys.exit("the losses differ")
