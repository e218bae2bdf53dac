#!/usr/bin/env python3
"""A checkpoint in the published bf16 layout at full size that takes no room: every tensor is zeros, and the files are holes.

    sparse_published.py DST [--layers 40] [--shards 26]

What `lily convert` does with it, it does with real weights: the same names, shapes, bytes read and bytes written. Only the values are not
real. For measuring memory and time where 70 GB of weights do not fit: docs/BENCHMARKS.md.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import synth  # noqa: E402
from make_checkpoint import published_config  # noqa: E402

HIDDEN, EXPERTS, INNER = 2048, 256, 512


def layer(prefix, attention):
    """The tensors of one decoder layer: (name, shape)."""
    yield from ((f"{prefix}.{v}_layernorm.weight", [HIDDEN]) for v in ("input", "post_attention"))
    if attention:
        m = f"{prefix}.self_attn"
        yield from ((f"{m}.{v}_proj.weight", [rows, HIDDEN]) for v, rows in (("q", 8192), ("k", 512), ("v", 512)))
        yield f"{m}.o_proj.weight", [HIDDEN, 4096]
        yield from ((f"{m}.{v}_norm.weight", [256]) for v in "qk")
    else:
        m = f"{prefix}.linear_attn"
        yield from ((f"{m}.in_proj_{v}.weight", [rows, HIDDEN]) for v, rows in (("qkv", 8192), ("z", 4096), ("a", 32), ("b", 32)))
        yield from ((f"{m}.conv1d.weight", [8192, 1, 4]), (f"{m}.A_log", [32]), (f"{m}.dt_bias", [32]), (f"{m}.norm.weight", [128]))
        yield f"{m}.out_proj.weight", [HIDDEN, 4096]
    m = f"{prefix}.mlp"
    yield f"{m}.gate.weight", [EXPERTS, HIDDEN]
    yield f"{m}.experts.gate_up_proj", [EXPERTS, 2 * INNER, HIDDEN]
    yield f"{m}.experts.down_proj", [EXPERTS, HIDDEN, INNER]
    yield from ((f"{m}.shared_expert.{v}_proj.weight", [INNER, HIDDEN]) for v in ("gate", "up"))
    yield f"{m}.shared_expert.down_proj.weight", [HIDDEN, INNER]
    yield f"{m}.shared_expert_gate.weight", [1, HIDDEN]


def tensors(layers):
    yield "model.language_model.embed_tokens.weight", [248320, HIDDEN]
    for n in range(layers):
        yield from layer(f"model.language_model.layers.{n}", n % 4 == 3)
    yield "model.language_model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [248320, HIDDEN]
    yield "mtp.fc.weight", [HIDDEN, 2 * HIDDEN]
    yield from ((f"mtp.{v}.weight", [HIDDEN]) for v in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"))
    yield from layer("mtp.layers.0", True)


def size_of(shape):
    size = 2
    for extent in shape:
        size *= extent
    return size


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dst")
    p.add_argument("--layers", type=int, default=40)
    p.add_argument("--shards", type=int, default=26)
    a = p.parse_args()
    os.makedirs(a.dst)
    whole = list(tensors(a.layers))
    total, done, placed = sum(size_of(s) for _, s in whole), 0, [[] for _ in range(a.shards)]
    for name, shape in whole:
        placed[min(a.shards - 1, done * a.shards // total)].append((name, shape))
        done += size_of(shape)
    weight_map = {}
    for i, members in enumerate(placed):
        file, header, at = f"model-{i + 1:05d}-of-{a.shards:05d}.safetensors", {"__metadata__": {"format": "pt"}}, 0
        for name, shape in members:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
            at += size_of(shape)
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(a.dst, file), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + at)
    with open(os.path.join(a.dst, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    with open(os.path.join(a.dst, "config.json"), "w") as f:
        json.dump(published_config(synth.SHAPES["qwen36"], a.layers), f, indent=2)
    print(f"{a.dst}: {len(whole)} tensors, {total} bytes in {a.shards} shards of holes")


if __name__ == "__main__":
    main()
