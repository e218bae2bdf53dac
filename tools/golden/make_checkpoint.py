#!/usr/bin/env python3
"""Random checkpoints from transformers' own initialisation, in the published bf16 layout and in the MLX layout.

    make_checkpoint.py DST --shape tiny|qwen36 [--layers N] [--seed S] [--mtp fused|per-expert] [--shards N] [--no-mlx]
                       [--bits 4|8] [--group 32|64|128] [--dtype bfloat16|float16|float32] [--mixed]

writes DST/hf (published layout) and DST/mlx (quantised by mlx_lm's own functions, in the order of mlx_lm.convert). --mixed gives every
module its own bits and group. With --mtp the MLX folder also holds the MTP tensors, which mlx_lm itself drops: they are added in the
naming of docs/QUANTIZATION.md, quantised by mx.quantize. Needs torch, transformers 5, mlx and mlx-lm.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import synth  # noqa: E402


def published_config(shape, layers):
    modules, _ = synth.modules_and_vectors(shape, layers)
    config = synth.config_of(shape, layers, 4, 64, synth.Storage("bf16"), modules)
    config.pop("quantization")
    config.pop("quantization_config")
    config["transformers_version"] = "4.57.1"
    return config


def rescale(name, p, shape, generator):
    """transformers initialises every matrix with one deviation, norms with 0 (or 1), dt_bias with 1; a model of such weights is nearly
    linear and routes evenly. Spread them as docs/SYNTH.md does, keeping the random values."""
    import torch
    module = name.removesuffix(".weight")
    noise = lambda: torch.randn(p.shape, generator=generator)  # noqa: E731
    if name.endswith("conv1d.weight"):
        p.copy_(torch.rand(p.shape, generator=generator) - 0.5)
        p[:, :, 3] += 0.75
    elif name.endswith("dt_bias"):
        p.copy_(torch.rand(p.shape, generator=generator) * 5 - 4)
    elif name.endswith(("q_norm.weight", "k_norm.weight")):
        p.copy_(0.5 + 0.2 * noise())
    elif name.endswith("linear_attn.norm.weight"):
        p.copy_(1 + 0.15 * noise())
    elif p.dim() == 1 and not name.endswith("A_log"):
        p.copy_(0.15 * noise())
    elif p.dim() >= 2:
        fan = 1 if name.endswith("embed_tokens.weight") else p.shape[-1]
        if module.endswith("down_proj") and ".experts" in module:
            gain = 1.5
        else:
            gain = synth.gain_of("." + module)
        p.mul_(gain / (0.02 * fan ** 0.5))


def transformers_tensors(shape, layers, seed):
    """{published name: bf16 tensor} of a seeded Qwen3_5MoeForCausalLM."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
    fields = dict(published_config(shape, layers)["text_config"])
    for k in ("dtype", "model_type"):
        fields.pop(k)
    torch.manual_seed(seed)
    model = Qwen3_5MoeForCausalLM._from_config(Qwen3_5MoeTextConfig(**fields), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed + 1)
    out = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            rescale(name, p, shape, generator)
            out[re.sub(r"^model\.", "model.language_model.", name)] = p.data
    return out


def mtp_tensors(tensors, shape, seed, per_expert):
    """The MTP tensors: a full-attention layer of a second model, and the four of the head."""
    import torch
    h = shape["hidden_size"]
    g = torch.Generator().manual_seed(seed + 2)
    out = {"mtp.fc.weight": (torch.randn(h, 2 * h, generator=g) / (2 * h) ** 0.5).bfloat16()}
    for v in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        out[f"mtp.{v}.weight"] = (0.15 * torch.randn(h, generator=g)).bfloat16()
    prefix = "model.language_model.layers.3."
    for name, t in tensors.items():
        if not name.startswith(prefix):
            continue
        t = t.flip(0).contiguous() if t.dim() > 1 else t.clone()
        name = "mtp.layers.0." + name.removeprefix(prefix)
        if per_expert and ".experts." in name:
            stem = name.rsplit(".", 1)[0]
            for e in range(t.shape[0]):
                if name.endswith("gate_up_proj"):
                    half = t.shape[1] // 2
                    out[f"{stem}.{e}.gate_proj.weight"] = t[e, :half].contiguous()
                    out[f"{stem}.{e}.up_proj.weight"] = t[e, half:].contiguous()
                else:
                    out[f"{stem}.{e}.down_proj.weight"] = t[e].contiguous()
        else:
            out[name] = t
    return out


def save_published(folder, tensors, config, shards):
    from safetensors.torch import save_file
    os.makedirs(folder)
    names = sorted(tensors)
    weight_map, size = {}, sum(t.numel() * 2 for t in tensors.values())
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    placed, done = [[] for _ in range(shards)], 0
    for n in names:
        placed[min(shards - 1, done * shards // size)].append(n)
        done += tensors[n].numel() * 2
    for file, members in zip(files, placed):
        save_file({n: tensors[n] for n in members}, os.path.join(folder, file), metadata={"format": "pt"})
        weight_map.update({n: file for n in members})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump(dict(metadata=dict(total_size=size), weight_map=weight_map), f, indent=2)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


def mixed_predicate(seed):
    r = random.Random(seed)

    def predicate(path, module):
        groups = [g for g in (32, 64, 128) if module.weight.shape[-1] % g == 0]
        return dict(group_size=r.choice(groups), bits=r.choice((4, 8)))

    return predicate


def convert_with_mlx(src, dst, bits, group, dtype, mixed, seed):
    """mlx_lm.convert without the tokenizer it insists on: load, cast, quantise, save."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model
    model, config = load_model(pathlib.Path(src), lazy=True)
    kind, may_cast = getattr(mx, dtype), model.cast_predicate
    model.update(tree_map_with_path(
        lambda k, v: v.astype(kind) if may_cast(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    # mlx_lm leaves alone what the default group does not divide, before it asks the predicate
    predicate = mixed_predicate(seed) if mixed else None
    model, config = quantize_model(model, config, 32 if mixed else group, bits, quant_predicate=predicate)
    config["text_config"]["dtype"] = dtype
    save_model(dst, model, donate_model=True)
    save_config(config, pathlib.Path(dst) / "config.json")


def add_mtp(folder, tensors, bits, group, dtype):
    """Adds language_model.mtp.* as one more shard of an MLX folder, with the overrides in config.json."""
    import mlx.core as mx
    kind, out, overrides = getattr(mx, dtype), {}, {}
    with open(os.path.join(folder, "config.json")) as f:
        default = json.load(f)["quantization"]
    array = lambda t: mx.array(t.float().numpy()).astype(mx.bfloat16)  # noqa: E731
    experts = {}
    flat = {}
    for name, t in tensors.items():
        if m := re.match(r"(mtp\.layers\.0\.mlp)\.experts\.(\d+)\.(\w+)\.weight", name):
            experts.setdefault(f"{m[1]}.switch_mlp.{m[3]}", {})[int(m[2])] = array(t)
        elif name.endswith("experts.gate_up_proj"):
            half, stem = t.shape[1] // 2, name.replace("experts.gate_up_proj", "switch_mlp")
            flat[f"{stem}.gate_proj"], flat[f"{stem}.up_proj"] = array(t[:, :half]), array(t[:, half:])
        elif name.endswith("experts.down_proj"):
            flat[name.replace("experts", "switch_mlp")] = array(t)
        elif t.dim() == 1:
            out[f"language_model.{name}"] = (array(t) + 1.0).astype(kind)
        else:
            flat[name.removesuffix(".weight")] = array(t)
    for module, parts in experts.items():
        flat[module] = mx.stack([parts[e] for e in range(len(parts))])
    for module, w in flat.items():
        module = f"language_model.{module}"
        b, g = synth.quantisation_of(module, w.shape[-1], bits, group)
        if (b, g) != (default["bits"], default["group_size"]):
            overrides[module] = dict(group_size=g, bits=b)
        q, s, z = mx.quantize(w.astype(kind), group_size=g, bits=b)
        out[f"{module}.weight"], out[f"{module}.scales"], out[f"{module}.biases"] = q, s, z
    mx.save_safetensors(os.path.join(folder, "model-mtp.safetensors"), out, metadata={"format": "mlx"})
    path = os.path.join(folder, "model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    index["weight_map"].update({n: "model-mtp.safetensors" for n in out})
    index["metadata"]["total_size"] += sum(v.nbytes for v in out.values())
    with open(path, "w") as f:
        json.dump(index, f, indent=4)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    for k in ("quantization", "quantization_config"):
        config[k].update(overrides)
    with open(path, "w") as f:
        json.dump(config, f, indent=4)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dst")
    p.add_argument("--shape", choices=synth.SHAPES, default="tiny")
    p.add_argument("--layers", type=int)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--mtp", choices=("fused", "per-expert"))
    p.add_argument("--shards", type=int, default=2)
    p.add_argument("--no-mlx", action="store_true")
    p.add_argument("--bits", type=int, choices=(4, 8), default=4)
    p.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    p.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    p.add_argument("--mixed", action="store_true")
    a = p.parse_args()
    shape = synth.SHAPES[a.shape]
    layers = a.layers or (4 if a.shape == "qwen36" else shape["num_hidden_layers"])
    src, dst = os.path.join(a.dst, "hf"), os.path.join(a.dst, "mlx")
    for folder in (src, dst):
        shutil.rmtree(folder, ignore_errors=True)
    tensors = transformers_tensors(shape, layers, a.seed)
    mtp = mtp_tensors(tensors, shape, a.seed, a.mtp == "per-expert") if a.mtp else {}
    save_published(src, {**tensors, **mtp}, published_config(shape, layers), a.shards)
    tensors.clear()
    print(src)
    if not a.no_mlx:
        convert_with_mlx(src, dst, a.bits, a.group, a.dtype, a.mixed, a.seed)
        if mtp:
            add_mtp(dst, mtp, a.bits, a.group, a.dtype)
        print(dst)


if __name__ == "__main__":
    main()
