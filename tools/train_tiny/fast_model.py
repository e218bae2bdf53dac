"""kTiny of Qwen3.6-35B-A3B for training: the same function as transformers' Qwen3_5MoeForCausalLM, arranged to be fast.

- Parameters carry transformers' names (and the published names for mtp.*), so a state dict fits both.
- All 32 experts are computed as one dense layer of width 32 x 64 whose columns are scaled by the routing weights (zero for
  an expert not chosen): 32 small experts cost less that way than their gather and scatter. The shared expert is block 33.
- The gated delta rule is the chunked form of the transformers code (equations 10-18 of the model's description), with the
  inverse of the unit triangular matrix built from 16 x 16 blocks.
- Rows hold several documents. `pos` counts from 0 in each; the recurrent state decays to nothing at position 0, the
  convolution does not look across it, and attention is told where documents begin (`cu`).
Shapes: B rows, T tokens a row (a multiple of 64), D = 256.
"""
import math

import torch
import torch.nn.functional as F

D, LAYERS, VOCAB = 256, 8, 8192
HEADS, HEAD = 8, 256
KH, VH, LH = 4, 8, 128  # linear attention: key heads, value heads, head size
EXPERTS, TOP, WIDE, SHARED = 32, 8, 64, 64
EPS, THETA, ROT, CHUNK = 1e-6, 1e7, 64, 64
FULL = [i for i in range(LAYERS) if i % 4 == 3]


def shapes():
    """name -> shape of every parameter."""
    out = {"model.embed_tokens.weight": (VOCAB, D), "lm_head.weight": (VOCAB, D), "model.norm.weight": (D,)}

    def layer(p, full):
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (D,)
        if full:
            out[p + "self_attn.q_proj.weight"] = (HEADS * HEAD * 2, D)
            out[p + "self_attn.k_proj.weight"] = out[p + "self_attn.v_proj.weight"] = (HEAD, D)
            out[p + "self_attn.o_proj.weight"] = (D, HEADS * HEAD)
            out[p + "self_attn.q_norm.weight"] = out[p + "self_attn.k_norm.weight"] = (HEAD,)
        else:
            c = (2 * KH + VH) * LH
            out[p + "linear_attn.in_proj_qkv.weight"] = (c, D)
            out[p + "linear_attn.in_proj_z.weight"] = (VH * LH, D)
            out[p + "linear_attn.in_proj_a.weight"] = out[p + "linear_attn.in_proj_b.weight"] = (VH, D)
            out[p + "linear_attn.conv1d.weight"] = (c, 1, 4)
            out[p + "linear_attn.A_log"] = out[p + "linear_attn.dt_bias"] = (VH,)
            out[p + "linear_attn.norm.weight"] = (LH,)
            out[p + "linear_attn.out_proj.weight"] = (D, VH * LH)
        out[p + "mlp.gate.weight"] = (EXPERTS, D)
        out[p + "mlp.experts.gate_up_proj"] = (EXPERTS, 2 * WIDE, D)
        out[p + "mlp.experts.down_proj"] = (EXPERTS, D, WIDE)
        out[p + "mlp.shared_expert.gate_proj.weight"] = out[p + "mlp.shared_expert.up_proj.weight"] = (SHARED, D)
        out[p + "mlp.shared_expert.down_proj.weight"] = (D, SHARED)
        out[p + "mlp.shared_expert_gate.weight"] = (1, D)

    for i in range(LAYERS):
        layer(f"model.layers.{i}.", i in FULL)
    out["mtp.fc.weight"] = (D, 2 * D)
    out["mtp.pre_fc_norm_embedding.weight"] = out["mtp.pre_fc_norm_hidden.weight"] = out["mtp.norm.weight"] = (D,)
    layer("mtp.layers.0.", True)
    return out


def init(seed, device="cpu"):
    gen = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes().items():
        if name.endswith(("A_log", "dt_bias")):
            u = torch.rand(shape, generator=gen)
            if name.endswith("A_log"):
                w = torch.log(1 + 15 * u)  # decay rates 1..16
            else:
                dt = torch.exp(u * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
                w = dt + torch.log(-torch.expm1(-dt))  # so that softplus(dt_bias) is in 0.001..0.1
        elif name.endswith("linear_attn.norm.weight"):
            w = torch.ones(shape)
        elif len(shape) == 1:
            w = torch.zeros(shape)  # a norm of the (1 + w) kind
        else:
            std = 0.05 if "embed" in name else 0.02 if name.endswith(("lm_head.weight", "o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj", "gate.weight")) else 0.3 if "conv1d" in name else 0.5 / math.sqrt(shape[-1])
            w = torch.randn(shape, generator=gen) * std
        out[name] = w.to(device)
    return out


def quantized(name):
    """Bits of a parameter in the MLX layout, or 0."""
    if name.endswith(("norm.weight", "A_log", "dt_bias", "conv1d.weight", "layernorm.weight")) or ".pre_fc_norm" in name:
        return 0
    return 8 if name.endswith(("mlp.gate.weight", "mlp.shared_expert_gate.weight")) else 4


def mlx_quantize(w, bits, group=64):
    """MLX's affine quantisation along the last axis: codes, scales, biases (the last two already rounded to bf16)."""
    g = w.reshape(*w.shape[:-1], -1, group).float()
    low, high = g.amin(-1), g.amax(-1)
    bins = float(2 ** bits - 1)
    mask = low.abs() > high.abs()
    scale = ((high - low) / bins).clamp_min(1e-7)
    scale = torch.where(mask, scale, -scale)
    edge = torch.where(mask, low, high)
    q0 = torch.round(edge / scale)
    scale = torch.where(q0 != 0, edge / torch.where(q0 != 0, q0, torch.ones_like(q0)), scale)
    bias = torch.where(q0 != 0, edge, torch.zeros_like(edge))
    codes = torch.round((g - bias[..., None]) / scale[..., None]).clamp(0, bins)
    return codes, scale.bfloat16(), bias.bfloat16()


def dequantize(codes, scale, bias):
    w = codes * scale.float()[..., None] + bias.float()[..., None]
    return w.reshape(*w.shape[:-2], -1)


def fake_quantize(w, bits):
    """The value of w after quantisation of its bf16 rounding, with the gradient of w."""
    with torch.no_grad():
        delta = dequantize(*mlx_quantize(w.bfloat16(), bits)) - w
    return w + delta


def rms(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * (1 + w)


class TriangularInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., 64, 64] in float32."""

    @staticmethod
    def forward(ctx, A):
        n = A.shape[-1] // 16
        blocks = A.unflatten(-2, (n, 16)).unflatten(-1, (n, 16)).transpose(-3, -2)  # [..., n, n, 16, 16]
        d = torch.stack([blocks[..., i, i, :, :] for i in range(n)], dim=-3)
        # Neumann series of a nilpotent block: (I - A)(I + A^2)(I + A^4)(I + A^8), as sums of products in full float32.
        mul = lambda x, y: (x.unsqueeze(-1) * y.unsqueeze(-3)).sum(-2)
        eye = torch.eye(16, device=A.device, dtype=A.dtype)
        a2 = mul(d, d)
        a4 = mul(a2, a2)
        a8 = mul(a4, a4)
        x = mul(mul(eye - d, eye + a2), mul(eye + a4, eye + a8))
        # Two blocks to one: [[P, 0], [-Q L P, Q]].
        size = 16
        while size < A.shape[-1]:
            p, q = x[..., 0::2, :, :], x[..., 1::2, :, :]
            m = A.shape[-1] // (2 * size)
            low = torch.stack([A[..., (2 * i + 1) * size:(2 * i + 2) * size, 2 * i * size:(2 * i + 1) * size] for i in range(m)], dim=-3)
            corner = -(q @ low) @ p
            x = torch.cat([torch.cat([p, torch.zeros_like(p)], -1), torch.cat([corner, q], -1)], -2)
            size *= 2
        x = x.squeeze(-3)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        xt = x.transpose(-1, -2)
        return -(xt @ grad @ xt)


def delta_rule(q, k, v, g, beta, mm):
    """q, k [B, T, 4, 128] normalised (q scaled), v [B, T, 8, 128], g, beta [B, T, 8] float32 -> [B, T, 8, 128].

    mm: the type in which the large products are computed.
    """
    B, T = q.shape[:2]
    N, R = T // CHUNK, VH // KH
    split = lambda x, h: x.view(B, N, CHUNK, h, -1).permute(0, 3, 1, 2, 4)  # [B, h, N, C, d]
    q, k, v = split(q.to(mm), KH), split(k.to(mm), KH), split(v.to(mm), VH)
    g, beta = split(g, VH), split(beta, VH)  # [B, 8, N, C, 1]
    cum = g.cumsum(-2)
    diff = cum - cum.transpose(-1, -2)
    low = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.exp(diff.masked_fill(~low, float("-inf")))
    wide = lambda x: x.repeat_interleave(R, dim=1)
    kk, qk = k @ k.transpose(-1, -2), q @ k.transpose(-1, -2)
    A = (wide(kk).float() * beta * decay).tril(-1)
    inv = TriangularInverse.apply(A).to(mm)
    kw, qw = wide(k), wide(q)
    ecum = cum.exp()
    u = inv @ (v * beta.to(mm))
    w = inv @ (kw * (beta * ecum).to(mm))
    attn = (wide(qk).float() * decay).to(mm)
    qd = qw * ecum.to(mm)
    last = cum[..., -1:, :]
    kd = kw * (last - cum).exp().to(mm)
    step = last.exp()  # [B, 8, N, 1, 1]
    S = torch.zeros(B, VH, LH, LH, device=q.device, dtype=torch.float32)
    out = []
    for u_i, w_i, q_i, k_i, a_i, s_i in zip(*(x.unbind(2) for x in (u, w, qd, kd, attn, step))):
        Sm = S.to(mm)
        new = u_i - w_i @ Sm
        out.append(q_i @ Sm + a_i @ new)
        S = S * s_i + (k_i.transpose(-1, -2) @ new).float()
    return torch.stack(out, dim=2).permute(0, 2, 3, 1, 4).reshape(B, T, VH, LH)


def l2(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def gdn_block(h, pos, ln, w_in, conv, a_log, dt_bias, norm, w_out, mm):
    B, T, _ = h.shape
    x = rms(h, ln).to(w_in.dtype)
    c = (2 * KH + VH) * LH
    mixed, z, b, a = (x @ w_in.t()).split([c, VH * LH, VH, VH], -1)
    taps = conv.to(mixed.dtype)
    y = mixed * taps[:, 0, 3]
    for back in (1, 2, 3):
        past = F.pad(mixed, (0, 0, back, 0))[:, :T]
        y = y + past * taps[:, 0, 3 - back] * (pos >= back).unsqueeze(-1)
    y = F.silu(y.float())
    q, k, v = y.split([KH * LH, KH * LH, VH * LH], -1)
    q = l2(q.view(B, T, KH, LH)) * LH ** -0.5
    k = l2(k.view(B, T, KH, LH))
    g = -a_log.exp() * F.softplus(a.float() + dt_bias)
    g = torch.where((pos == 0).unsqueeze(-1), -40.0, g)
    o = delta_rule(q, k, v.view(B, T, VH, LH), g, b.float().sigmoid(), mm).float()
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * norm
    o = o * F.silu(z.float().view(B, T, VH, LH))
    return h + (o.reshape(B, T, -1).to(w_out.dtype) @ w_out.t()).float()


def rotation(pos):
    """cos and sin of RoPE's angles, [B, T, 1, 32]."""
    inv = THETA ** (-torch.arange(0, ROT, 2, device=pos.device, dtype=torch.float32) / ROT)
    angle = pos.float()[..., None, None] * inv
    return angle.cos(), angle.sin()


def attention_in(h, cos, sin, ln, w_in, q_norm, k_norm):
    B, T, _ = h.shape
    x = rms(h, ln).to(w_in.dtype)
    qg, k, v = (x @ w_in.t()).split([2 * HEADS * HEAD, HEAD, HEAD], -1)
    q, gate = qg.view(B, T, HEADS, 2 * HEAD).chunk(2, -1)
    q, k = rms(q.float(), q_norm), rms(k.float().view(B, T, 1, HEAD), k_norm)

    def rope(t):
        x1, x2, rest = t.split([ROT // 2, ROT // 2, HEAD - ROT], -1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest], -1)
    d = w_in.dtype
    return rope(q).to(d), rope(k).to(d), v.view(B, T, 1, HEAD), gate.reshape(B, T, -1)


def attention_out(h, o, gate, w_out):
    return h + ((o * gate.float().sigmoid().to(o.dtype)).to(w_out.dtype) @ w_out.t()).float()


def moe_block(h, ln, w_gate, w_up, w_down, w_router):
    x = rms(h, ln)
    logits = x @ w_router.t()  # 32 router rows, then the shared expert's gate
    probs = logits[..., :EXPERTS].softmax(-1)
    # Rank by counting, ties by index; a sort would be slower.
    i = torch.arange(EXPERTS, device=h.device)
    a, b = probs.unsqueeze(-1), probs.unsqueeze(-2)
    rank = ((b > a) | ((b == a) & (i < i.unsqueeze(-1)))).sum(-1)
    chosen = (rank < TOP).float()
    weight = probs * chosen
    weight = weight / weight.sum(-1, keepdim=True)
    weight = torch.cat([weight, logits[..., EXPERTS:].sigmoid()], -1)
    xb = x.to(w_gate.dtype)
    gate, up = xb @ w_gate.t(), xb @ w_up.t()
    y = (F.silu(gate.float()) * up.float()).unflatten(-1, (EXPERTS + 1, WIDE)) * weight.unsqueeze(-1)
    out = h + (y.flatten(-2).to(w_down.dtype) @ w_down.t()).float()
    load = chosen.mean((0, 1)) / TOP
    balance = EXPERTS * (load.detach() * probs.mean((0, 1))).sum()
    return out, balance, load


def loss_block(h, head, target, weight):
    logits = (h.to(head.dtype) @ head.t()).float()
    losses = torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (losses * weight).sum(), losses


def attend_dense(q, k, v, cu, longest, doc):
    """The plain form, for tests: doc [B, T] numbers the documents of a row."""
    scores = torch.einsum("bqhd,bkd->bhqk", q.float(), k.squeeze(2).float()) / math.sqrt(HEAD)
    same = (doc.unsqueeze(1) == doc.unsqueeze(2)).tril()
    p = scores.masked_fill(~same.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkd->bqhd", p, v.squeeze(2).float()).flatten(-2).to(q.dtype)


def attend_flash(q, k, v, cu, longest, doc):
    """Flash attention over documents of different lengths (PyTorch's own kernel)."""
    B, T = q.shape[:2]
    q, k, v = q.reshape(B * T, HEADS, HEAD), k.reshape(B * T, 1, HEAD), v.reshape(B * T, 1, HEAD)
    k, v = k.expand(-1, HEADS, -1).contiguous(), v.expand(-1, HEADS, -1).contiguous()
    o = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, longest, longest, 0.0, True, False, scale=HEAD ** -0.5)[0]
    return o.view(B, T, -1)


class Model:
    """Forward passes over weights made by prepare(). Not an nn.Module: the blocks are plain functions that can be compiled."""

    def __init__(self, dtype=torch.float32, mm=torch.float32, attend=attend_dense, compiled=False):
        self.dtype, self.mm, self.attend = dtype, mm, attend
        c = (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if compiled else (lambda f: f)
        self.gdn, self.att_in, self.att_out, self.moe, self.loss = map(c, (gdn_block, attention_in, attention_out, moe_block, loss_block))

    def moe_layer(self, h, w, i, stats):
        h, balance, load = self.moe(h, *w[i, "moe"])
        stats.append((balance, load))
        return h

    def attention(self, h, rot, w, i, cu, longest, doc):
        ln, w_in, qn, kn, w_out = w[i, "att"]
        q, k, v, gate = self.att_in(h, *rot, ln, w_in, qn, kn)
        return self.att_out(h, self.attend(q, k, v, cu, longest, doc), gate, w_out)

    def hidden(self, tokens, pos, cu, longest, doc, w, stats):
        h = w["embed"][tokens].float()
        rot = rotation(pos)
        for i in range(LAYERS):
            h = self.attention(h, rot, w, i, cu, longest, doc) if i in FULL else self.gdn(h, pos, *w[i, "gdn"], self.mm)
            h = self.moe_layer(h, w, i, stats)
        return rms(h, w["norm"])

    def mtp(self, H, tokens, pos, cu, longest, doc, w, stats):
        """Hidden states that predict two tokens ahead: H of the main model at t, and the token at t + 1."""
        following = torch.roll(tokens, -1, 1)
        e = rms(w["embed"].detach()[following].float(), w["mtp", "e"])
        x = torch.cat([e, rms(H, w["mtp", "h"])], -1).to(self.dtype) @ w["mtp", "fc"].t()
        x = self.attention(x.float(), rotation(pos), w, "mtp", cu, longest, doc)
        x = self.moe_layer(x, w, "mtp", stats)
        return rms(x, w["mtp", "norm"])


def prepare(p, dtype):
    """The weights of one step in the forms that the blocks take, from parameters by name; differentiable."""
    get = lambda name: p[name].to(dtype) if quantized(name) == 4 else p[name]  # routers stay in float32

    w = {"embed": get("model.embed_tokens.weight"), "head": get("lm_head.weight"), "norm": p["model.norm.weight"],
         ("mtp", "fc"): get("mtp.fc.weight"), ("mtp", "e"): p["mtp.pre_fc_norm_embedding.weight"],
         ("mtp", "h"): p["mtp.pre_fc_norm_hidden.weight"], ("mtp", "norm"): p["mtp.norm.weight"]}
    for key, pre in [(i, f"model.layers.{i}.") for i in range(LAYERS)] + [("mtp", "mtp.layers.0.")]:
        if key in FULL or key == "mtp":
            s = pre + "self_attn."
            w[key, "att"] = (p[pre + "input_layernorm.weight"], torch.cat([get(s + "q_proj.weight"), get(s + "k_proj.weight"), get(s + "v_proj.weight")]),
                             p[s + "q_norm.weight"], p[s + "k_norm.weight"], get(s + "o_proj.weight"))
        else:
            s = pre + "linear_attn."
            w[key, "gdn"] = (p[pre + "input_layernorm.weight"], torch.cat([get(s + "in_proj_qkv.weight"), get(s + "in_proj_z.weight"), get(s + "in_proj_b.weight"), get(s + "in_proj_a.weight")]),
                             p[s + "conv1d.weight"], p[s + "A_log"], p[s + "dt_bias"], p[s + "norm.weight"], get(s + "out_proj.weight"))
        m = pre + "mlp."
        gate, up = get(m + "experts.gate_up_proj").chunk(2, 1)
        w[key, "moe"] = (p[pre + "post_attention_layernorm.weight"],
                         torch.cat([gate.flatten(0, 1), get(m + "shared_expert.gate_proj.weight")]),
                         torch.cat([up.flatten(0, 1), get(m + "shared_expert.up_proj.weight")]),
                         torch.cat([get(m + "experts.down_proj").permute(1, 0, 2).flatten(1), get(m + "shared_expert.down_proj.weight")], 1),
                         torch.cat([get(m + "gate.weight"), get(m + "shared_expert_gate.weight")]))
    return w
