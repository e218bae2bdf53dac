"""The two independent implementations, run on one MLX checkpoint.

transformers_model(): Qwen3_5MoeForCausalLM in float32 on the dequantised weights. mlx_model(): mlx-lm on the quantised checkpoint, either
as it is (bfloat16 activations) or with every float tensor cast to float32, which changes no weight.
"""
import glob
import json
import os

import numpy as np

NORM_SUFFIXES = (".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")


class Checkpoint:
    """Reads the tensors of a folder of safetensors files with numpy, whatever their number, and dequantises modules."""

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "config.json")) as f:
            self.config = json.load(f)
        self.text_config = self.config.get("text_config", self.config)
        self.quantization = self.config.get("quantization") or self.config["quantization_config"]
        self.entries = {}
        files = sorted(glob.glob(os.path.join(folder, "model*.safetensors")))
        if not files:
            raise FileNotFoundError(f"no model*.safetensors in {folder}")
        for path in files:
            with open(path, "rb") as f:
                size = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(size))
            data = np.memmap(path, np.uint8, "r", offset=8 + size)
            header.pop("__metadata__", None)
            for name, e in header.items():
                begin, end = e["data_offsets"]
                self.entries[name] = (e["dtype"], e["shape"], data[begin:end])

    def raw(self, name):
        dtype, shape, data = self.entries[name]
        kind = {"U32": np.uint32, "BF16": np.uint16, "F16": np.float16, "F32": np.float32}[dtype]
        return dtype, np.frombuffer(data, kind).reshape(shape)

    def array(self, name, pick=slice(None)):
        """A stored float tensor (or one slice of its first dimension) as float32."""
        dtype, a = self.raw(name)
        a = a[pick]
        if dtype == "BF16":
            return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return a.astype(np.float32)

    def module(self, module, expert=None):
        """The weight of a module (or of one expert of a stacked module) in float32, dequantised if it has scales:
        w = scale * code + bias, each step in float32."""
        pick = slice(None) if expert is None else expert
        if f"{module}.scales" not in self.entries:
            return self.array(f"{module}.weight", pick)
        words = self.raw(f"{module}.weight")[1][pick]
        scales, biases = self.array(f"{module}.scales", pick), self.array(f"{module}.biases", pick)
        override = self.quantization.get(module)
        bits = (override if isinstance(override, dict) else self.quantization)["bits"]
        data = np.ascontiguousarray(words).view(np.uint8)
        if bits == 4:
            out = np.empty((*data.shape, 2), np.float32)
            out[..., 0] = data & 15
            out[..., 1] = data >> 4
        else:
            out = data.astype(np.float32)
        out = out.reshape(*scales.shape, -1)
        out *= scales[..., None]
        out += biases[..., None]
        return out.reshape(*words.shape[:-1], -1)


class LazyExperts:
    """Stands in for an expert parameter [experts, rows, columns] of transformers, whose eager code only indexes it by one expert:
    dequantises that expert when asked, so that a full-width model fits in memory. The numbers are the same."""

    def __init__(self, ckpt, *modules):
        self.ckpt, self.modules = ckpt, modules

    def __getitem__(self, expert):
        import torch
        parts = [self.ckpt.module(m, int(expert)) for m in self.modules]
        return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])


def transformers_state(ckpt, lazy):
    """(name, float32 array or LazyExperts) in the naming of Qwen3_5MoeForCausalLM; norms are zero-centred again."""
    layers = ckpt.text_config["num_hidden_layers"]
    root = "language_model.model"

    def norm(name):
        # float64, so that 1 + (w - 1) in the model's float32 arithmetic is w again (exact for |w| in [0.5, 2]; half an ulp else).
        return (ckpt.array(name).astype(np.float64) - 1.0).astype(np.float32)

    yield "model.embed_tokens.weight", ckpt.module(f"{root}.embed_tokens")
    yield "lm_head.weight", ckpt.module("language_model.lm_head")
    yield "model.norm.weight", norm(f"{root}.norm.weight")
    for n in range(layers):
        s, d = f"{root}.layers.{n}", f"model.layers.{n}"
        for v in ("input_layernorm", "post_attention_layernorm"):
            yield f"{d}.{v}.weight", norm(f"{s}.{v}.weight")
        if n % ckpt.text_config.get("full_attention_interval", 4) == 3:
            for m in ("q_proj", "k_proj", "v_proj", "o_proj"):
                yield f"{d}.self_attn.{m}.weight", ckpt.module(f"{s}.self_attn.{m}")
            for v in ("q_norm", "k_norm"):
                yield f"{d}.self_attn.{v}.weight", norm(f"{s}.self_attn.{v}.weight")
        else:
            for m in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"):
                yield f"{d}.linear_attn.{m}.weight", ckpt.module(f"{s}.linear_attn.{m}")
            conv = ckpt.array(f"{s}.linear_attn.conv1d.weight")
            yield f"{d}.linear_attn.conv1d.weight", conv.reshape(conv.shape[0], 1, 4)
            for v in ("A_log", "dt_bias", "norm.weight"):
                yield f"{d}.linear_attn.{v}", ckpt.array(f"{s}.linear_attn.{v}")
        yield f"{d}.mlp.gate.weight", ckpt.module(f"{s}.mlp.gate")
        yield f"{d}.mlp.shared_expert_gate.weight", ckpt.module(f"{s}.mlp.shared_expert_gate")
        for m in ("gate_proj", "up_proj", "down_proj"):
            yield f"{d}.mlp.shared_expert.{m}.weight", ckpt.module(f"{s}.mlp.shared_expert.{m}")
        e = f"{s}.mlp.switch_mlp"
        if lazy:
            yield f"{d}.mlp.experts.gate_up_proj", LazyExperts(ckpt, f"{e}.gate_proj", f"{e}.up_proj")
            yield f"{d}.mlp.experts.down_proj", LazyExperts(ckpt, f"{e}.down_proj")
            continue
        gate = ckpt.module(f"{s}.mlp.switch_mlp.gate_proj")
        yield f"{d}.mlp.experts.gate_up_proj", np.concatenate([gate, ckpt.module(f"{s}.mlp.switch_mlp.up_proj")], axis=1)
        yield f"{d}.mlp.experts.down_proj", ckpt.module(f"{s}.mlp.switch_mlp.down_proj")


def transformers_model(folder, dtype="float32", lazy=None):
    """lazy: dequantise experts on demand; by default for models whose experts exceed 2 GB in float32."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    ckpt = Checkpoint(folder)
    fields = dict(ckpt.text_config)
    for k in ("dtype", "torch_dtype", "quantization", "quantization_config", "architectures", "model_type"):
        fields.pop(k, None)
    config = Qwen3_5MoeTextConfig(**fields)
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    if lazy is None:
        lazy = config.num_hidden_layers * config.num_experts * 3 * config.moe_intermediate_size * config.hidden_size * 4 > 2e9
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM._from_config(config, dtype=torch.float32)
    parameters = dict(model.named_parameters())
    seen = set()
    for name, value in transformers_state(ckpt, lazy):
        owner, leaf = model.get_submodule(name.rsplit(".", 1)[0]), name.rsplit(".", 1)[1]
        if isinstance(value, LazyExperts):
            del owner._parameters[leaf]
            object.__setattr__(owner, leaf, value)
        else:
            if tuple(parameters[name].shape) != value.shape:
                raise ValueError(f"{name}: the model expects {tuple(parameters[name].shape)}, the checkpoint gives {value.shape}")
            owner._parameters[leaf] = torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(value)), requires_grad=False)
        seen.add(name)
    if missing := set(parameters) - seen:
        raise ValueError(f"not in the checkpoint: {sorted(missing)[:5]}")
    # the rotary table is a buffer that the meta device left empty
    rotary = type(model.model.rotary_emb)(config)
    model.model.rotary_emb = rotary
    model = model.to(getattr(torch, dtype)) if dtype != "float32" else model
    return model.eval()


class RouterMargins:
    """Collects, while in use, the router logit of the last chosen expert minus that of the first not chosen, per layer and token. Where it
    is as small as rounding, correct implementations may choose differently, which changes the row by a percent."""

    def __init__(self, model):
        self.layers = [[] for _ in model.model.layers]
        self.hooks = [layer.mlp.gate.register_forward_hook(self.keep(rows)) for layer, rows in zip(model.model.layers, self.layers)]

    @staticmethod
    def keep(rows):
        def hook(module, _, output):
            best = output[0].float().topk(module.top_k + 1, dim=-1).values
            rows.append((best[:, -2] - best[:, -1]).numpy())
        return hook

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for h in self.hooks:
            h.remove()

    def array(self):
        """[layers, tokens]"""
        return np.stack([np.concatenate(rows) for rows in self.layers])


def transformers_prefill(model, ids):
    """One pass without a cache. Returns (logits [tokens, vocab], residual [1 + 2 * layers, tokens, hidden]): the residual stream after the
    embedding, then after the mixer and after the experts of each layer, before the final norm."""
    import torch
    residual = []

    def after(_, __, output):
        residual.append((output[0] if isinstance(output, tuple) else output)[0].numpy())

    def before(_, inputs):
        residual.append(inputs[0][0].numpy())

    hooks = [model.model.embed_tokens.register_forward_hook(after)]
    for layer in model.model.layers:   # its input is the stream after the mixer
        hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(before))
        hooks.append(layer.register_forward_hook(after))
    try:
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    finally:
        for h in hooks:
            h.remove()
    return logits, np.stack(residual)


def transformers_greedy(model, ids, steps):
    """Greedy decode with the cache (recurrent form). Returns (tokens [steps], logits [steps, vocab]): row i made token i."""
    import torch
    from transformers import DynamicCache
    tokens, rows = [], []
    cache = DynamicCache(config=model.config)
    feed = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(steps):
            out = model(feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            row = out.logits[0, -1].numpy()
            rows.append(row.copy())
            tokens.append(int(row.argmax()))
            feed = torch.tensor([[tokens[-1]]])
    return tokens, np.stack(rows)


def mlx_model(folder, float32):
    import pathlib

    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    model, _ = load_model(pathlib.Path(folder))
    if float32:
        model.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, model.parameters()))
    mx.eval(model.parameters())
    return model


def mlx_logits(model, ids, chunk=None):
    """[tokens, vocab] float32: one pass without a cache, or through the cache in chunks."""
    import mlx.core as mx
    if chunk is None:
        out = model(mx.array([ids]))[0].astype(mx.float32)
        return np.array(out)
    cache, rows = model.make_cache(), []
    for i in range(0, len(ids), chunk):
        rows.append(np.array(model(mx.array([ids[i:i + chunk]]), cache=cache)[0].astype(mx.float32)))
    return np.concatenate(rows)
