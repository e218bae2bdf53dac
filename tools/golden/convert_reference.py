#!/usr/bin/env python3
"""MLX's affine quantisation, bit for bit, in numpy; docs/QUANTIZATION.md is the prose.

    convert_reference.py --check              compare with mx.quantize over kinds, bits, groups and types (needs mlx)
    convert_reference.py --write FILE.json    write tests/golden/quantize.json from mx.quantize (needs mlx)
    convert_reference.py --verify FILE.json   compare this formula with the committed file (numpy only)
    convert_reference.py --convert SRC DST [--bits 4 --group 64]   published bf16 layout -> MLX layout, MTP kept (numpy only; small models:
                                              every tensor is held in memory)
"""
import argparse
import glob
import json
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from synth import Storage, draws, from_bf16, quantisation_of, to_bf16  # noqa: E402

EPS = np.float32(1e-7)
CASES = [(bits, group) for bits in (4, 8) for group in (32, 64, 128)]


def quantize(w, bits, group):
    """w: float32 array of exactly stored values, last dimension a multiple of group.

    Returns (codes uint32 [groups, group], scale float32 [groups], bias float32 [groups]); scale and bias are not yet rounded to the
    stored type, and the codes come from the unrounded ones.
    """
    g = np.asarray(w, np.float32).reshape(-1, group)
    levels = np.float32((1 << bits) - 1)
    high, low = g.max(axis=1), g.min(axis=1)
    low_is_edge = np.abs(low) > np.abs(high)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.maximum((high - low) / levels, EPS)
        scale = np.where(low_is_edge, scale, -scale)
        edge = np.where(low_is_edge, low, high)
        steps = np.rint(edge / scale)
        whole = steps != 0
        scale = np.where(whole, edge / steps, scale).astype(np.float32)
        bias = np.where(whole, edge, np.float32(0))
        codes = np.clip(np.rint((g - bias[:, None]) / scale[:, None]), np.float32(0), levels)
    return codes.astype(np.uint32), scale, bias


def pack(codes, bits):
    """Codes in row order -> uint32 words, lowest bits first."""
    per_word = 32 // bits
    c = codes.reshape(-1, per_word)
    shifts = (np.arange(per_word, dtype=np.uint32) * np.uint32(bits))
    return np.bitwise_or.reduce(c << shifts, axis=1)


KINDS = ("normal", "negative", "positive", "constant", "constant_negative", "zero", "tiny", "tiny_negative", "huge", "subnormal",
         "sparse", "one_outlier", "mixed_scale", "integers", "opposite_edges", "near_half")


def inputs(kind, rows, columns, seed=0):
    """Deterministic test values, already rounded to bfloat16, from the same generator as synthetic checkpoints."""
    n = rows * columns
    r = draws(f"quantize.{kind}", seed, 0, n)
    parts = [((r >> np.uint64(16 * k)) & np.uint64(0xFFFF)).astype(np.float32) for k in range(4)]
    bell = ((parts[0] + parts[1]) + (parts[2] + parts[3]) - np.float32(131070)) * np.float32(1 / 37837.0)   # about normal
    flat = parts[0] * np.float32(2.0 ** -16)
    row = np.repeat(np.arange(rows), columns)
    w = {
        "normal": lambda: bell,
        "negative": lambda: -(np.abs(bell) + np.float32(1)),
        "positive": lambda: np.abs(bell) + np.float32(0.5),
        "constant": lambda: np.repeat(np.abs(bell[::columns]) + np.float32(0.01), columns),
        "constant_negative": lambda: np.repeat(-np.abs(bell[::columns]) - np.float32(0.01), columns),
        "zero": lambda: bell * np.float32(0),
        "tiny": lambda: bell * np.float32(1e-7),
        "tiny_negative": lambda: -(flat + np.float32(1)) * np.float32(2e-7),
        "huge": lambda: bell * np.float32(1e30),
        "subnormal": lambda: bell * np.float32(1e-39),
        "sparse": lambda: np.where(parts[1] < 3000, bell, np.float32(0)),
        "one_outlier": lambda: np.where(np.arange(n) % 32 == 5, bell * np.float32(100), bell * np.float32(0.01)),
        "mixed_scale": lambda: bell * np.float32(10.0) ** (-(row % 9)).astype(np.float32),
        "integers": lambda: np.floor(flat * 16) - np.float32(8),
        "opposite_edges": lambda: np.clip(bell, -1, 1),                  # |min| == |max| in many groups: the upper edge wins
        "near_half": lambda: np.floor(flat * 31) * np.float32(0.5) - np.float32(7.5),   # ties in the rounding of codes
    }[kind]()
    return from_bf16(to_bf16(w.astype(np.float32))).reshape(rows, columns)


def with_mlx(w, bits, group, storage="bf16"):
    import mlx.core as mx
    kind = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}[storage]
    q, s, b = mx.quantize(mx.array(w).astype(kind), group_size=group, bits=bits, stream=mx.cpu)
    raw = (lambda a: np.array(a.view(mx.uint16))) if storage != "f32" else (lambda a: np.array(a.view(mx.uint32)))
    return np.array(q).reshape(-1), raw(s).reshape(-1), raw(b).reshape(-1)


def by_formula(w, bits, group, storage="bf16"):
    store = Storage(storage)
    codes, s, b = quantize(w, bits, group)
    raw = (lambda a: a) if storage == "bf16" else (lambda a: a.view(np.uint16 if storage == "f16" else np.uint32))
    with np.errstate(over="ignore"):
        return pack(codes, bits), raw(store.store(s)), raw(store.store(b))


def check():
    groups = 0
    for storage in ("bf16", "f16", "f32"):
        for bits, group in CASES:
            for kind in KINDS:
                for seed in range(4):
                    w = inputs(kind, 64, 512, seed)
                    if storage == "f16":
                        with np.errstate(over="ignore"):
                            w = w.astype(np.float16).astype(np.float32)
                        if not np.isfinite(w).all():
                            continue
                    elif storage == "f32":   # use all 24 bits
                        w = w * np.float32(1.0001234)
                    for what, x, y in zip(("codes", "scales", "biases"), with_mlx(w, bits, group, storage), by_formula(w, bits, group, storage)):
                        if not np.array_equal(x, y):
                            print(f"{storage} {bits}-bit group {group} {kind} seed {seed}: {what} differ at {np.flatnonzero(x != y)[:5]}")
                            return 1
                    groups += w.size // group
    print(f"{groups} groups equal to mx.quantize bit for bit")
    return 0


def write(path):
    import mlx.core as mx
    cases = []
    for bits, group in CASES:
        for kind in KINDS:
            w = inputs(kind, 1, 256)
            q, s, b = with_mlx(w, bits, group)
            cases.append(dict(bits=bits, group=group, kind=kind, input=to_bf16(w).reshape(-1).tolist(), weight=q.tolist(),
                              scales=s.tolist(), biases=b.tolist()))
    with open(path, "w") as f:
        f.write('{"about": "mx.quantize on the CPU, affine mode. input, scales, biases: bfloat16 bit patterns; weight: uint32 words.",\n')
        f.write(f'"mlx": "{mx.__version__}", "command": "tools/golden/convert_reference.py --write tests/golden/quantize.json",\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")
    print(f"{len(cases)} cases")
    return 0


def verify(path):
    with open(path) as f:
        cases = json.load(f)["cases"]
    for c in cases:
        w = from_bf16(np.array(c["input"], np.uint16))
        for name, got in zip(("weight", "scales", "biases"), by_formula(w, c["bits"], c["group"])):
            if got.tolist() != c[name]:
                print(f"{c['bits']}-bit group {c['group']} {c['kind']}: {name} differ")
                return 1
    print(f"{len(cases)} cases equal")
    return 0


def load_published(folder):
    """{name: (shape, bf16 bit patterns)} of a folder in the published layout."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        with open(path, "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(size))
            data = f.read()
        header.pop("__metadata__", None)
        for name, e in header.items():
            if e["dtype"] != "BF16":
                raise ValueError(f"{name}: BF16 expected, {e['dtype']} found")
            begin, end = e["data_offsets"]
            out[name] = np.frombuffer(data[begin:end], np.uint16).reshape(e["shape"])
    return out


def mlx_names(tensors):
    """Published names and values -> ({module: weight bits}, {tensor: bits}) in the MLX layout, before quantisation."""
    modules, vectors, experts = {}, {}, {}
    for name, w in tensors.items():
        if name.startswith("model.visual."):
            continue
        mtp = name.startswith("mtp.")
        name = name.replace("model.language_model.", "language_model.model.", 1) if not mtp and name != "lm_head.weight" else f"language_model.{name}"
        if m := re.fullmatch(r"(.*\.mlp)\.experts\.(\d+)\.(\w+)\.weight", name):
            experts.setdefault(f"{m[1]}.switch_mlp.{m[3]}", {})[int(m[2])] = w
        elif name.endswith(".experts.gate_up_proj"):
            stem, half = name.replace(".experts.gate_up_proj", ".switch_mlp"), w.shape[1] // 2
            modules[f"{stem}.gate_proj"], modules[f"{stem}.up_proj"] = w[:, :half], w[:, half:]
        elif name.endswith(".experts.down_proj"):
            modules[name.replace(".experts.", ".switch_mlp.")] = w
        elif name.endswith(".conv1d.weight"):
            vectors[name] = w.reshape(w.shape[0], 4, 1)
        elif w.ndim == 1:
            plain = name.endswith((".linear_attn.norm.weight", ".A_log", ".dt_bias"))
            vectors[name] = w if plain else to_bf16(from_bf16(w) + np.float32(1))
        else:
            modules[name.removesuffix(".weight")] = w
    for module, parts in experts.items():
        modules[module] = np.stack([parts[e] for e in range(len(parts))])
    return modules, vectors


def convert(src, dst, bits, group):
    modules, vectors = mlx_names(load_published(src))
    with open(os.path.join(src, "config.json")) as f:
        config = json.load(f)
    quantization = dict(group_size=group, bits=bits, mode="affine")
    tensors = {n: ("BF16", w) for n, w in vectors.items()}
    for module, w in modules.items():
        if w.shape[-1] % group:                      # as mlx_lm does: left as it is
            tensors[f"{module}.weight"] = ("BF16", w)
            continue
        b, g = quantisation_of(module, w.shape[-1], bits, group)
        if module.endswith((".mlp.gate", ".mlp.shared_expert_gate")):
            quantization[module] = dict(group_size=g, bits=b)
        codes, s, z = quantize(from_bf16(w), b, g)
        lead = list(w.shape[:-1])
        tensors[f"{module}.weight"] = ("U32", pack(codes, b).reshape(lead + [-1]))
        tensors[f"{module}.scales"] = ("BF16", to_bf16(s).reshape(lead + [-1]))
        tensors[f"{module}.biases"] = ("BF16", to_bf16(z).reshape(lead + [-1]))
    config["quantization"] = config["quantization_config"] = quantization
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for n, (dtype, a) in tensors.items():
        header[n] = dict(dtype=dtype, shape=list(a.shape), data_offsets=[offset, offset + a.nbytes])
        offset += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(dst, exist_ok=True)
    with open(os.path.join(dst, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, a in tensors.values():
            f.write(np.ascontiguousarray(a).tobytes())
    with open(os.path.join(dst, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--write", metavar="FILE")
    p.add_argument("--verify", metavar="FILE")
    p.add_argument("--convert", nargs=2, metavar=("SRC", "DST"))
    p.add_argument("--bits", type=int, choices=(4, 8), default=4)
    p.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    a = p.parse_args()
    if a.convert:
        return convert(*a.convert, a.bits, a.group)
    if a.check:
        return check()
    if a.write:
        return write(a.write)
    if a.verify:
        return verify(a.verify)
    p.print_usage()
    return 2


if __name__ == "__main__":
    sys.exit(main())
