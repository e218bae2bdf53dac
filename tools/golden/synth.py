#!/usr/bin/env python3
"""Synthetic checkpoints in the MLX layout: the numpy twin of `lily synth`, written from docs/SYNTH.md.

    synth.py DST --shape tiny|qwen36 [--layers N] [--seed S] [--bits 4] [--group 64] [--scales bf16] [--mtp]

Needs numpy only.
"""
import argparse
import concurrent.futures
import json
import math
import os

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1

SHAPES = {
    "tiny": dict(vocab_size=8192, hidden_size=256, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=1,
                 head_dim=256, linear_num_key_heads=4, linear_num_value_heads=8, num_experts=32, num_experts_per_tok=8,
                 moe_intermediate_size=64, shared_expert_intermediate_size=64),
    "qwen36": dict(vocab_size=248320, hidden_size=2048, num_hidden_layers=40, num_attention_heads=16, num_key_value_heads=2,
                   head_dim=256, linear_num_key_heads=16, linear_num_value_heads=32, num_experts=256, num_experts_per_tok=8,
                   moe_intermediate_size=512, shared_expert_intermediate_size=512),
}


# --- random numbers -------------------------------------------------------------------------------------------------

def mix_int(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fnv1a(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def key(name, seed):
    return mix_int(fnv1a(name) ^ mix_int(seed))


def draws(name, seed, begin, end):
    """draw(name, seed, i) for i in [begin, end), as a uint64 array."""
    z = np.arange(begin + 1, end + 1, dtype=np.uint64)
    z *= np.uint64(GOLDEN)
    z += np.uint64(key(name, seed))
    t = z >> np.uint64(30)
    z ^= t
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=t)
    z ^= t
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t
    return z


# --- number formats -------------------------------------------------------------------------------------------------

def to_bf16(x):
    """float32 -> the 16 bits of bfloat16, round to nearest, ties to even (finite values)."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bf16(b):
    return (b.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Storage:
    """One of bf16, f16, f32: how scales, biases and unquantised tensors are stored."""

    def __init__(self, name):
        self.name = name
        self.dtype = {"bf16": "BF16", "f16": "F16", "f32": "F32"}[name]
        self.size = 4 if name == "f32" else 2

    def store(self, x):
        x = np.asarray(x, np.float32)
        return to_bf16(x) if self.name == "bf16" else x.astype(np.float16) if self.name == "f16" else x

    def load(self, x):
        return from_bf16(x) if self.name == "bf16" else x.astype(np.float32)


# --- the tensors ----------------------------------------------------------------------------------------------------

GAIN = {"embed_tokens": 1.0, "lm_head": 4.0, "o_proj": 1.5, "out_proj": 0.75, "gate": 2.0, "shared_expert_gate": 1.0, "fc": 1.0}
HEAD_DIM_LINEAR = 128


def gain_of(module):
    tail = module.rsplit(".", 1)[1]
    if tail == "down_proj":
        return 1.5 if ".switch_mlp." in module else 1.0
    return GAIN.get(tail, 1.0)


def modules_and_vectors(shape, layers, mtp=False):
    """[(module, [leading dims..., out], in)], [(tensor, shape)] in the MLX naming."""
    h, inter, shared, experts = (shape[k] for k in ("hidden_size", "moe_intermediate_size",
                                                    "shared_expert_intermediate_size", "num_experts"))
    q_out = shape["num_attention_heads"] * shape["head_dim"]
    kv_out = shape["num_key_value_heads"] * shape["head_dim"]
    k_dim = shape["linear_num_key_heads"] * HEAD_DIM_LINEAR
    v_heads = shape["linear_num_value_heads"]
    v_dim = v_heads * HEAD_DIM_LINEAR
    modules, vectors = [], []

    def layer(p, full):
        vectors.append((f"{p}.input_layernorm.weight", [h]))
        vectors.append((f"{p}.post_attention_layernorm.weight", [h]))
        if full:
            modules.extend([(f"{p}.self_attn.q_proj", [2 * q_out], h), (f"{p}.self_attn.k_proj", [kv_out], h),
                            (f"{p}.self_attn.v_proj", [kv_out], h), (f"{p}.self_attn.o_proj", [h], q_out)])
            vectors.append((f"{p}.self_attn.q_norm.weight", [shape["head_dim"]]))
            vectors.append((f"{p}.self_attn.k_norm.weight", [shape["head_dim"]]))
        else:
            a = f"{p}.linear_attn"
            modules.extend([(f"{a}.in_proj_qkv", [2 * k_dim + v_dim], h), (f"{a}.in_proj_z", [v_dim], h),
                            (f"{a}.in_proj_a", [v_heads], h), (f"{a}.in_proj_b", [v_heads], h), (f"{a}.out_proj", [h], v_dim)])
            vectors.extend([(f"{a}.conv1d.weight", [2 * k_dim + v_dim, 4, 1]), (f"{a}.A_log", [v_heads]),
                            (f"{a}.dt_bias", [v_heads]), (f"{a}.norm.weight", [HEAD_DIM_LINEAR])])
        m = f"{p}.mlp"
        modules.extend([(f"{m}.gate", [experts], h), (f"{m}.switch_mlp.gate_proj", [experts, inter], h),
                        (f"{m}.switch_mlp.up_proj", [experts, inter], h), (f"{m}.switch_mlp.down_proj", [experts, h], inter),
                        (f"{m}.shared_expert.gate_proj", [shared], h), (f"{m}.shared_expert.up_proj", [shared], h),
                        (f"{m}.shared_expert.down_proj", [h], shared), (f"{m}.shared_expert_gate", [1], h)])

    root = "language_model"
    modules.append((f"{root}.model.embed_tokens", [shape["vocab_size"]], h))
    modules.append((f"{root}.lm_head", [shape["vocab_size"]], h))
    vectors.append((f"{root}.model.norm.weight", [h]))
    for n in range(layers):
        layer(f"{root}.model.layers.{n}", n % 4 == 3)
    if mtp:
        modules.append((f"{root}.mtp.fc", [h], 2 * h))
        for v in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            vectors.append((f"{root}.mtp.{v}.weight", [h]))
        layer(f"{root}.mtp.layers.0", True)
    return modules, vectors


def quantisation_of(module, columns, bits, group):
    """(bits, group) of a module: the router and the shared gate are 8-bit in groups of 64."""
    if module.endswith((".mlp.gate", ".mlp.shared_expert_gate")):
        return 8, 64
    while columns % group:
        group //= 2
    return bits, group


def scales_and_biases(module, seed, bits, columns, storage, begin, end):
    r = draws(f"{module}.scales", seed, begin, end)
    fan = 1.0 if module.endswith(".embed_tokens") else float(columns)
    levels = 1 << bits
    base = np.float32(gain_of(module) / (math.sqrt(fan) * math.sqrt((levels * levels - 1) / 12.0)))
    u = (r >> np.uint64(48)).astype(np.float32)
    sign = (r >> np.uint64(47)) & np.uint64(1)
    v = ((r >> np.uint64(32)) & np.uint64(0xFF)).astype(np.float32)
    m = np.float32(0.75) + u * np.float32(2.0 ** -17)
    magnitude = storage.load(storage.store(base * m))
    s = np.where(sign == 1, -magnitude, magnitude)
    if bits == 4:
        c = np.float32(7.5) + (v - np.float32(128)) * np.float32(2.0 ** -8)
    else:
        c = np.float32(127.5) + (v - np.float32(128)) * np.float32(2.0 ** -4)
    return storage.store(s), storage.store(-(s * c))


def vector_values(name, seed, count, begin, end):
    u = (draws(name, seed, begin, end) >> np.uint64(48)).astype(np.float32)
    if name.endswith(".conv1d.weight"):
        w = (u - np.float32(32768)) * np.float32(2.0 ** -16)
        tap = np.arange(begin, end) % 4
        return np.where(tap == 3, w + np.float32(0.75), w)
    if name.endswith(".A_log"):
        return np.float32(-4.5) + u * np.float32(7.25) * np.float32(2.0 ** -16)
    if name.endswith(".dt_bias"):
        return np.float32(-4.0) + u * np.float32(5.0) * np.float32(2.0 ** -16)
    if name.endswith((".q_norm.weight", ".k_norm.weight")):
        return np.float32(1.125) + u * np.float32(1.5) * np.float32(2.0 ** -17)
    return np.float32(0.75) + u * np.float32(2.0 ** -17)


# --- the file -------------------------------------------------------------------------------------------------------

def config_of(shape, layers, bits, group, storage, modules):
    text = dict(model_type="qwen3_5_moe_text", dtype={"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[storage.name],
                attention_bias=False, attention_dropout=0.0, attn_output_gate=True, bos_token_id=0, eos_token_id=0,
                pad_token_id=None, full_attention_interval=4, hidden_act="silu", initializer_range=0.02,
                layer_types=["full_attention" if n % 4 == 3 else "linear_attention" for n in range(layers)],
                linear_conv_kernel_dim=4, linear_key_head_dim=HEAD_DIM_LINEAR, linear_value_head_dim=HEAD_DIM_LINEAR,
                mamba_ssm_dtype="float32", max_position_embeddings=262144, mtp_num_hidden_layers=1,
                mtp_use_dedicated_embeddings=False, output_router_logits=False, partial_rotary_factor=0.25,
                rms_norm_eps=1e-6, router_aux_loss_coef=0.001, tie_word_embeddings=False, use_cache=True,
                rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25,
                                     mrope_interleaved=True, mrope_section=[11, 11, 10]))
    text.update(shape)
    text["num_hidden_layers"] = layers
    if shape["vocab_size"] == 248320:
        text["bos_token_id"] = text["eos_token_id"] = 248044
    quantization = dict(group_size=group, bits=bits, mode="affine")
    for module, _, columns in modules:
        b, g = quantisation_of(module, columns, bits, group)
        if (b, g) != (bits, group):
            quantization[module] = dict(group_size=g, bits=b)
    return dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", tie_word_embeddings=False,
                text_config=text, quantization=quantization, quantization_config=quantization)


def jobs_for(shape, layers, seed, bits, group, storage, mtp):
    """[(tensor, dtype, shape, bytes, fill)]; fill(begin, end) makes the bytes of elements [begin, end)."""
    modules, vectors = modules_and_vectors(shape, layers, mtp)
    out = []
    for module, rows, columns in modules:
        b, g = quantisation_of(module, columns, bits, group)
        total = math.prod(rows)
        out.append((f"{module}.weight", "U32", rows + [columns * b // 32], total * columns * b // 8, 8,
                    lambda i, j, m=module: draws(f"{m}.weight", seed, i, j)))
        for which, tail in enumerate(("scales", "biases")):
            out.append((f"{module}.{tail}", storage.dtype, rows + [columns // g], total * (columns // g) * storage.size,
                        storage.size, lambda i, j, m=module, b=b, c=columns, w=which:
                        scales_and_biases(m, seed, b, c, storage, i, j)[w]))
    for name, dims in vectors:
        n = math.prod(dims)
        out.append((name, storage.dtype, dims, n * storage.size, storage.size,
                    lambda i, j, name=name, n=n: storage.store(vector_values(name, seed, n, i, j))))
    return out, modules


def synthesise(dst, shape_name, layers=None, seed=0, bits=4, group=64, scales="bf16", mtp=False, threads=2):
    shape = SHAPES[shape_name]
    layers = layers or shape["num_hidden_layers"]
    storage = Storage(scales)
    jobs, modules = jobs_for(shape, layers, seed, bits, group, storage, mtp)
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    pieces = []
    for name, dtype, dims, size, unit, fill in jobs:
        header[name] = dict(dtype=dtype, shape=dims, data_offsets=[offset, offset + size])
        step = (8 << 20) // unit
        pieces.extend((offset, unit, i, min(i + step, size // unit), fill) for i in range(0, size // unit, step))
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(dst, exist_ok=True)
    path = os.path.join(dst, "model.safetensors")
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + offset)
    fd = os.open(path, os.O_WRONLY)

    def write(piece):
        start, unit, i, j, fill = piece
        os.pwrite(fd, fill(i, j).tobytes(), 8 + len(text) + start + i * unit)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(write, pieces):
            pass
    os.close(fd)
    with open(os.path.join(dst, "config.json"), "w") as f:
        json.dump(config_of(shape, layers, bits, group, storage, modules), f, indent=2)
    return path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dst")
    p.add_argument("--shape", choices=SHAPES, default="tiny")
    p.add_argument("--layers", type=int)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--bits", type=int, choices=(4, 8), default=4)
    p.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    p.add_argument("--scales", choices=("bf16", "f16", "f32"), default="bf16")
    p.add_argument("--mtp", action="store_true")
    a = p.parse_args()
    print(synthesise(a.dst, a.shape, a.layers, a.seed, a.bits, a.group, a.scales, a.mtp))


if __name__ == "__main__":
    main()
