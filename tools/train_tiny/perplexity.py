#!/usr/bin/env python3
"""Perplexity of held-out text with the bf16 weights and with their 4-bit form, in float32 on the CPU (fast_model)."""
import argparse
import math

import torch

import evaluate
import fast_model as fm
import train


@torch.no_grad()
def perplexity(params, rows):
    model, w = fm.Model(), fm.prepare(params, torch.float32)
    total = n = 0
    for at in range(0, len(rows), 4):
        ids = rows[at:at + 4]
        pos = torch.arange(ids.shape[1], dtype=torch.int32).expand_as(ids)
        h = model.hidden(ids, pos, None, None, torch.zeros_like(ids), w, [])
        logits = (h @ w["head"].t())[:, :-1]
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        n += ids[:, 1:].numel()
    return math.exp(total / n), n


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("shards")
    args.add_argument("--tokenizer", required=True)
    args.add_argument("--heldout", required=True)
    args.add_argument("--tokens", type=int, default=40960)
    args = args.parse_args()
    from tokenizers import Tokenizer
    rows = evaluate.heldout_rows(Tokenizer.from_file(args.tokenizer), args.heldout, 512, args.tokens)
    params = {k: v.float() for k, v in train.load_shards(args.shards).items()}
    four = {k: fm.dequantize(*fm.mlx_quantize(v, fm.quantized(k))) if fm.quantized(k) else v for k, v in params.items()}
    (a, n), (b, _) = perplexity(params, rows), perplexity(four, rows)
    print(f"{n} tokens: bf16 {a:.3f}, 4 bits {b:.3f}, ratio {b / a:.4f}")
