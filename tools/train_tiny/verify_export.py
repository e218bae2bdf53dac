#!/usr/bin/env python3
"""Checks models/lily-tiny against three others: MLX's own quantiser, mlx-lm on the same file, transformers in float32.

  1. mx.quantize of the bf16 shards gives the same codes, scales and biases as the file (if the shards are given).
  2. Every tensor has the name, type and shape that the layout asks for, and the config the right overrides.
  3. mlx-lm loads the folder unchanged; its logits and transformers' (float32, dequantised) agree on held-out text.
Needs mlx[cpu], mlx-lm, torch, transformers.
"""
import argparse
import json

import numpy as np
import torch
from safetensors import safe_open

import evaluate
import fast_model as fm
import train
from export import source_tensors
from hf_config import hf_model


def unpack(words, bits):
    """uint32 [..., n] -> codes [..., n * 32 / bits] (lowest bits first)."""
    w = words.to(torch.int64) & 0xFFFFFFFF
    c = (w[..., None] >> (torch.arange(32 // bits) * bits)) & (2 ** bits - 1)
    return c.reshape(*words.shape[:-1], -1)


def load(folder):
    config = json.load(open(f"{folder}/config.json"))
    with safe_open(f"{folder}/model.safetensors", "pt") as f:
        tensors = {k: f.get_tensor(k) for k in f.keys()}
    return config, tensors


def dequantised(folder):
    """The file as transformers names it, float32: what a loader of the published layout would hold."""
    config, t = load(folder)
    out, parts = {}, {}
    for name in t:
        if name.endswith((".scales", ".biases")):
            continue
        hf = name[len("language_model."):]
        base = name[:-len(".weight")]
        if base + ".scales" in t:
            bits = config["quantization"].get(base, config["quantization"])["bits"]
            q = unpack(t[name], bits).float()
            w = fm.dequantize(q.reshape(*q.shape[:-1], -1, 64), t[base + ".scales"], t[base + ".biases"])
        elif name.endswith("conv1d.weight"):
            w = t[name].float().moveaxis(1, 2)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") or ".pre_fc_norm" in name:
            w = t[name].float() - 1
        else:
            w = t[name].float()
        if "switch_mlp" in hf:
            parts[hf] = w
        else:
            out[hf] = w
    for name in [n for n in parts if "gate_proj" in n]:
        pre = name[:-len("switch_mlp.gate_proj.weight")]
        out[pre + "experts.gate_up_proj"] = torch.cat([parts[name], parts[pre + "switch_mlp.up_proj.weight"]], 1)
        out[pre + "experts.down_proj"] = parts[pre + "switch_mlp.down_proj.weight"]
    assert {k: tuple(v.shape) for k, v in out.items()} == fm.shapes(), "names or shapes differ from the published layout"
    return out


def same_as_mlx_quantize(shards, folder):
    import mlx.core as mx
    _, t = load(folder)
    params = {k: v.bfloat16() for k, v in train.load_shards(shards).items()}
    worst, codes, n = 0, 0, 0
    for name, w, bits in source_tensors(params):
        if not bits:
            continue
        q, s, b = mx.quantize(mx.array(w.float().numpy()).astype(mx.bfloat16), group_size=64, bits=bits)
        mine = [t[name + x] for x in (".weight", ".scales", ".biases")]
        theirs = [torch.from_numpy(np.array(q).astype(np.int64)), torch.from_numpy(np.array(s.astype(mx.float32))), torch.from_numpy(np.array(b.astype(mx.float32)))]
        for a, c in zip(mine[1:], theirs[1:]):
            worst += int((a.float() != c).sum())
        codes += int((unpack(mine[0], bits) != unpack(theirs[0], bits)).sum())
        n += mine[0].numel() * 32 // bits
    print(f"mx.quantize: {codes} of {n} codes and {worst} scales or biases differ", flush=True)


@torch.no_grad()
def agreement(folder, heldout, tokens, bf16, length=128):
    from pathlib import Path

    import mlx.core as mx
    from mlx_lm.utils import load_model
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    rows = evaluate.heldout_rows(tokenizer, heldout, length, tokens)
    mx.set_default_device(mx.cpu)
    theirs, _ = load_model(Path(folder))
    if not bf16:
        theirs.set_dtype(mx.float32)  # as it comes it computes in bf16, whose rounding hides whether the weights are the same
    mine = hf_model(dequantised(folder))
    same = n = 0
    kl = close = 0.0
    for row in rows:
        a = mine(row[None]).logits[0]
        b = torch.from_numpy(np.array(theirs(mx.array(row[None].numpy())).astype(mx.float32)))[0]
        hit = a.argmax(-1) == b.argmax(-1)
        same, n = same + int(hit.sum()), n + len(row)
        p = a.log_softmax(-1)
        kl += float((p.exp() * (p - b.log_softmax(-1))).sum())
        top = a.topk(2).values
        close += int(((top[:, 0] - top[:, 1])[~hit] < 0.25).sum())
    print(f"mlx-lm in {'bf16' if bf16 else 'float32'} against transformers float32 on {n} held-out tokens: top-1 agreement {same / n:.4%}, KL {kl / n:.2e}; of {n - same} differences {int(close)} are near-ties (margin under 0.25)", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("folder")
    args.add_argument("--shards")
    args.add_argument("--heldout")
    args.add_argument("--tokens", type=int, default=2048)
    args.add_argument("--bf16", action="store_true", help="let mlx-lm compute in bf16, as it does by default (very slow on a CPU)")
    args = args.parse_args()
    values = dequantised(args.folder)
    print(len(values), "tensors of the published layout, all shapes right", flush=True)
    if args.shards:
        params = {k: v.float() for k, v in train.load_shards(args.shards).items()}
        off = max(float((values[k] - (fm.dequantize(*fm.mlx_quantize(v, fm.quantized(k))) if fm.quantized(k) else v)).abs().max()) for k, v in params.items() if "norm" not in k)
        print(f"dequantised file against the weights of training: largest difference {off}", flush=True)
        same_as_mlx_quantize(args.shards, args.folder)
    if args.heldout:
        agreement(args.folder, args.heldout, args.tokens, args.bf16)


if __name__ == "__main__":
    main()
