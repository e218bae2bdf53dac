#!/usr/bin/env python3
"""Compares `lily convert` with mlx-lm's converter on a whole small checkpoint in the published layout.

    check_convert.py LILY [--layers 8] [--dtype bfloat16|float16|float32] [--seed 0]

Makes random weights with an MTP layer in a temporary folder, converts them with both, and compares every tensor byte for byte and
the configuration key by key. mlx-lm drops the MTP tensors; those of lily are checked for presence only (tests/unit/weights checks
their values). Needs numpy, mlx and mlx-lm.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from synth import SHAPES, config_of, modules_and_vectors, Storage, to_bf16

MTP = "language_model.mtp."


def published_tensors(layers):
    """[(name, shape)] of the published layout, experts fused."""
    modules, vectors = modules_and_vectors(SHAPES["tiny"], layers, mtp=True)
    out = []

    def name_of(name):
        if name.startswith("language_model.model."):
            return "model.language_model." + name[len("language_model.model."):]
        return name[len("language_model."):]

    for module, rows, columns in modules:
        name = name_of(module)
        if ".switch_mlp." in name:
            head, tail = name.split(".switch_mlp.")
            experts, inner = rows
            if tail == "gate_proj":
                out.append((f"{head}.experts.gate_up_proj", [experts, 2 * inner, columns]))
            elif tail == "down_proj":
                out.append((f"{head}.experts.down_proj", [experts, inner, columns]))
        else:
            out.append((f"{name}.weight", rows + [columns]))
    for tensor, shape in vectors:
        out.append((name_of(tensor), [shape[0], 1, 4] if tensor.endswith("conv1d.weight") else shape))
    out.append(("model.visual.pos_embed.weight", [16, 8]))
    return out


def write_published(folder, layers, dtype, seed):
    rng = np.random.default_rng(seed)
    kind, size = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}[dtype]
    header, offset, blobs = {}, 0, []
    for name, shape in published_tensors(layers):
        n = math.prod(shape)
        values = (rng.standard_normal(n, np.float32) * np.float32(0.05)).astype(np.float32)
        blob = to_bf16(values) if kind == "BF16" else values.astype(np.float16) if kind == "F16" else values
        header[name] = dict(dtype=kind, shape=shape, data_offsets=[offset, offset + n * size])
        offset += n * size
        blobs.append(blob.tobytes())
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.writelines(blobs)
    config = config_of(SHAPES["tiny"], layers, 4, 64, Storage("bf16"), [])
    del config["quantization"], config["quantization_config"]
    config["text_config"]["dtype"] = dtype
    config["vision_config"] = {"depth": 27}
    config["image_token_id"] = 1
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def convert_with_mlx(source, destination):
    """What mlx_lm.convert does, without the tokenizer, for which it wants the hub."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(pathlib.Path(source), lazy=True)
    dtype = config.get("torch_dtype") or config["text_config"].get("dtype")
    if dtype in ("float16", "bfloat16", "float32"):
        wanted, keep = getattr(mx, dtype), model.cast_predicate
        model.update(tree_map_with_path(
            lambda k, v: v.astype(wanted) if keep(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    model, config = quantize_model(model, config, None, None)
    save_model(destination, model)
    save_config(config, pathlib.Path(destination) / "config.json")


def read(folder):
    out = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        for name, e in header.items():
            begin, end = e["data_offsets"]
            out[name] = (e["dtype"], e["shape"], data[8 + size + begin:8 + size + end])
    with open(os.path.join(folder, "config.json")) as f:
        return out, json.load(f)


def compare(ours, theirs):
    faults = []
    (a, config_a), (b, config_b) = read(ours), read(theirs)
    mtp = {name for name in a if name.startswith(MTP)}
    if not mtp:
        faults.append("lily dropped the MTP layer")
    for name in sorted((set(a) - mtp) ^ set(b)):
        faults.append(f"{name}: only in {'lily' if name in a else 'mlx-lm'}'s")
    for name in sorted(set(a) & set(b)):
        if a[name] != b[name]:
            faults.append(f"{name}: {a[name][:2]} and {b[name][:2]}, data {'equal' if a[name][2] == b[name][2] else 'differs'}")
    for key in ("quantization", "quantization_config"):
        for path in [p for p in config_a[key] if p.startswith(MTP)]:
            del config_a[key][path]
    for config in (config_a, config_b):   # mlx-lm renames rope_type to type while it builds the model, and saves that
        rope = config["text_config"]["rope_parameters"]
        rope["type"] = rope.pop("rope_type", rope.get("type"))
    for key in sorted(set(config_a) | set(config_b)):
        if config_a.get(key) != config_b.get(key):
            faults.append(f"config {key}: {config_a.get(key)} and {config_b.get(key)}")
    return faults, len(set(a) & set(b))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lily")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "published")
        os.mkdir(source)
        write_published(source, a.layers, a.dtype, a.seed)
        subprocess.run([a.lily, "convert", source, os.path.join(folder, "lily")], check=True, stdout=subprocess.DEVNULL)
        convert_with_mlx(source, os.path.join(folder, "mlx"))
        faults, count = compare(os.path.join(folder, "lily"), os.path.join(folder, "mlx"))
    print("\n".join(faults) if faults else f"{count} tensors and the configuration are equal")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
