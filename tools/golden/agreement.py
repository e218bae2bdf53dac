#!/usr/bin/env python3
"""How often two implementations of one checkpoint choose the same token of a text, and how far their distributions are apart.

    agreement.py MODEL --text FILE [--tokens 20480] [--window 1024] [--lily build/apps/lily/lily] [--device cpu]
                 --of lily|mlx-float32|mlx-bfloat16|mlx-bfloat16-wide-products [--top1 0.995] [--kl 1e-3]

The reference is transformers' Qwen3_5MoeForCausalLM in float32 on the dequantised weights (scale * code + bias). The text is tokenised by
`tokenizers` with MODEL's own tokenizer.json and cut into windows, each computed from an empty state; all positions count. --of is

    lily                       `lily eval logits` with --device, on the file as it is
    mlx-float32                mlx-lm on the file, its float tensors cast to float32 (which changes no weight), products MLX's quantised ones
    mlx-bfloat16               mlx-lm on the file, in the file's own types; on a CPU MLX's quantised product then accumulates in bfloat16
    mlx-bfloat16-wide-products  mlx-lm in bfloat16 but for the quantised products, which take and give bfloat16 and accumulate in float32,
                               as its kernels for Metal do

KL is that of the reference's distribution from the other's, in nats, meant over the positions. A near-tie is a position where the
reference's own log-probabilities of the two candidates differ by less than 0.25. Exit status 1 if --top1 or --kl is given and missed.
Needs numpy, tokenizers, torch, transformers 5; mlx[cpu] and mlx-lm for the mlx kinds.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402

NEAR_TIE = 0.25


def windows_of(folder, text, tokens, window):
    from tokenizers import Tokenizer
    with open(text, encoding="utf-8") as f:
        ids = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(f.read(), add_special_tokens=False).ids[:tokens]
    return [ids[at:at + window] for at in range(0, len(ids), window)]


def transformers_logits(folder):
    model = models.transformers_model(folder)

    def logits(ids):
        import torch
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return logits


def lily_logits(folder, lily, device):
    def logits(ids):
        with tempfile.TemporaryDirectory() as scratch:
            given, out = os.path.join(scratch, "ids.json"), os.path.join(scratch, "logits.npy")
            with open(given, "w") as f:
                json.dump(ids, f)
            subprocess.run([lily, "eval", "logits", folder, "--tokens", given, "--out", out, "--device", device], check=True, capture_output=True)
            return np.load(out)
    return logits


def widen(module):
    """A quantised module of mlx that computes in float32 and rounds its result to bfloat16."""
    import mlx.core as mx
    for name in ("scales", "biases"):
        module[name] = module[name].astype(mx.float32)
    kind = type(module)

    class Wide(kind):
        def __call__(self, x, *rest, **more):
            return kind.__call__(self, x.astype(mx.float32), *rest, **more).astype(mx.bfloat16)
    module.__class__ = Wide


def mlx_logits(folder, kind):
    import mlx.core as mx
    mx.set_default_device(mx.cpu)
    model = models.mlx_model(folder, kind == "mlx-float32")
    if kind == "mlx-bfloat16-wide-products":
        for module in model.modules():
            if "scales" in module and "Embedding" not in type(module).__name__:
                widen(module)
    return lambda ids: models.mlx_logits(model, ids)


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


class Figures:
    def __init__(self):
        self.tokens = self.same = self.near_ties = 0
        self.kl = self.largest = 0.0

    def add(self, reference, other):
        p, q = log_softmax(reference), log_softmax(other)
        kl = (np.exp(p) * (p - q)).sum(1)
        best, got = p.argmax(1), q.argmax(1)
        rows = np.flatnonzero(best != got)
        self.tokens += len(p)
        self.same += len(p) - len(rows)
        self.near_ties += int((p[rows, best[rows]] - p[rows, got[rows]] < NEAR_TIE).sum())
        self.kl += float(kl.sum())
        self.largest = max(self.largest, float(kl.max()))

    @property
    def top1(self):
        return self.same / self.tokens

    @property
    def mean_kl(self):
        return self.kl / self.tokens

    def __str__(self):
        return (f"{self.tokens} tokens, top-1 agreement {self.top1:.4%} ({self.tokens - self.same} differ, {self.near_ties} of them near-ties), "
                f"KL mean {self.mean_kl:.2e}, largest {self.largest:.2e}")


def compare(reference, other, windows, progress=False):
    figures = Figures()
    for ids in windows:
        figures.add(reference(ids), other(ids))
        if progress:
            print(f"{figures}", file=sys.stderr, flush=True)
    return figures


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--text", required=True)
    p.add_argument("--tokens", type=int, default=20480)
    p.add_argument("--window", type=int, default=1024)
    p.add_argument("--of", required=True, choices=("lily", "mlx-float32", "mlx-bfloat16", "mlx-bfloat16-wide-products"))
    p.add_argument("--lily", default="build/apps/lily/lily")
    p.add_argument("--device", default="cpu")
    p.add_argument("--top1", type=float)
    p.add_argument("--kl", type=float)
    a = p.parse_args()
    other = lily_logits(a.model, a.lily, a.device) if a.of == "lily" else mlx_logits(a.model, a.of)
    figures = compare(transformers_logits(a.model), other, windows_of(a.model, a.text, a.tokens, a.window), progress=True)
    print(f"{a.of}{' ' + a.device if a.of == 'lily' else ''} against transformers float32: {figures}")
    return int((a.top1 is not None and figures.top1 < a.top1) or (a.kl is not None and figures.mean_kl > a.kl))


if __name__ == "__main__":
    sys.exit(main())
