#!/usr/bin/env python3
"""Writes models/lily-tiny from bf16 shards, in the layout of a 4-bit MLX checkpoint of the large model.

Names: model.X -> language_model.model.X, lm_head -> language_model.lm_head, mtp.X -> language_model.mtp.X (MLX's own
converter drops mtp.*; here they are kept under the published name behind the common prefix and quantised by the same rules).
experts.gate_up_proj is split into switch_mlp.gate_proj and .up_proj, conv1d is [C, 4, 1], norms of the (1 + w) kind have
the 1 folded in, A_log and linear_attn.norm stay. 4 bits in groups of 64, 8 bits for routers and shared gates.
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file

import fast_model as fm
import train
from hf_config import TEXT


def pack(codes, bits):
    """Codes [..., groups, 64] -> uint32 [..., in * bits / 32], the first element in the lowest bits."""
    per = 32 // bits
    c = codes.to(torch.int64).reshape(*codes.shape[:-2], -1, per)
    words = (c << (torch.arange(per) * bits)).sum(-1)
    return words.to(torch.uint32)


def source_tensors(params):
    """MLX name (without .weight for matrices to quantise) -> (tensor, bits)."""
    for name, w in params.items():
        bits = fm.quantized(name)
        out = "language_model." + name
        if name.endswith("experts.gate_up_proj"):
            base = out[:-len("experts.gate_up_proj")] + "switch_mlp."
            gate, up = w.chunk(2, 1)
            yield base + "gate_proj", gate, bits
            yield base + "up_proj", up, bits
        elif name.endswith("experts.down_proj"):
            yield out[:-len("experts.down_proj")] + "switch_mlp.down_proj", w, bits
        elif bits:
            yield out[:-len(".weight")], w, bits
        elif name.endswith("conv1d.weight"):
            yield out, w.moveaxis(2, 1), 0
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") or ".pre_fc_norm" in name:
            yield out, (w.float() + 1).bfloat16(), 0
        else:
            yield out, w, 0


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("shards")
    args.add_argument("out", help="models/lily-tiny, where the tokenizer already is")
    args = args.parse_args()
    params = {k: v.bfloat16() for k, v in train.load_shards(args.shards).items()}
    assert params.keys() == fm.shapes().keys()
    tensors, overrides = {}, {}
    for name, w, bits in source_tensors(params):
        if not bits:
            tensors[name] = w.bfloat16().contiguous()
            continue
        codes, scales, biases = fm.mlx_quantize(w, bits)
        tensors[name + ".weight"], tensors[name + ".scales"], tensors[name + ".biases"] = pack(codes, bits), scales.contiguous(), biases.contiguous()
        if bits == 8:
            overrides[name] = {"group_size": 64, "bits": 8}
    os.makedirs(args.out, exist_ok=True)
    save_file(dict(sorted(tensors.items())), f"{args.out}/model.safetensors", metadata={"format": "mlx"})
    quantization = {"group_size": 64, "bits": 4, "mode": "affine", **dict(sorted(overrides.items()))}
    special = {t["content"]: int(i) for i, t in json.load(open(f"{args.out}/tokenizer_config.json"))["added_tokens_decoder"].items()}
    end, turn = special["<|endoftext|>"], special["<|im_end|>"]
    text = {**TEXT, "bos_token_id": end, "eos_token_id": end}
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": special["<|image_pad|>"], "model_type": "qwen3_5_moe", "quantization": quantization, "quantization_config": quantization, "text_config": text,
              "tie_word_embeddings": False, "transformers_version": "4.57.1", "video_token_id": special["<|video_pad|>"], "vision_end_token_id": special["<|vision_end|>"], "vision_start_token_id": special["<|vision_start|>"]}
    dump = lambda value, name: open(f"{args.out}/{name}", "w").write(json.dumps(value, indent=4) + "\n")
    dump(config, "config.json")
    dump({"bos_token_id": end, "do_sample": True, "eos_token_id": [turn, end], "pad_token_id": end, "temperature": 0.3, "top_k": 20, "top_p": 0.9}, "generation_config.json")
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    print(len(tensors), "tensors,", total, "bytes,", sum(p.numel() for n, p in params.items() if not n.startswith("mtp.")), "parameters and", sum(p.numel() for n, p in params.items() if n.startswith("mtp.")), "of the MTP layer")


if __name__ == "__main__":
    main()
