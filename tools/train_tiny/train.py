#!/usr/bin/env python3
"""Trains lily-tiny on one GPU, in runs that continue from a checkpoint. See README.md for the exact run.

Matrices inside the layers are trained with Muon (momentum, then the nearest orthogonal matrix by Newton-Schulz), the rest
with Adam. The learning rate rises, stays, and falls linearly to zero; the last part computes with the weights as MLX will
quantise them (straight-through gradient). The MTP layer learns on detached hidden states and does not disturb the model.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch

import data
import fast_model as fm


def layout():
    """Order of parameters in three flat tensors: 4-bit matrices (Muon's first, grouped by shape), routers, the rest."""
    shapes = fm.shapes()
    muon = lambda n: fm.quantized(n) == 4 and not n.endswith(("embed_tokens.weight", "lm_head.weight", "in_proj_a.weight", "in_proj_b.weight"))
    key = lambda n: (not muon(n), shapes[n][-2:], n)
    four = sorted((n for n in shapes if fm.quantized(n) == 4), key=key)
    return four, [n for n in shapes if fm.quantized(n) == 8], [n for n in shapes if not fm.quantized(n)], muon


class Flat:
    """The parameters as three flat leaves, views of them by name, and their optimiser."""

    def __init__(self, params, device):
        self.four, self.eight, self.rest, muon = layout()
        self.shapes = fm.shapes()
        cat = lambda names: torch.cat([params[n].detach().float().reshape(-1) for n in names]).to(device).requires_grad_(True)
        self.leaves = [cat(self.four), cat(self.eight), cat(self.rest)]
        size = lambda n: math.prod(self.shapes[n])
        self.groups, at = [], 0  # (begin, end, rows, columns)
        for n in self.four:
            if not muon(n):
                break
            r, c = self.shapes[n][-2:]
            if self.groups and self.groups[-1][2:] == (r, c):
                self.groups[-1] = (self.groups[-1][0], at + size(n), r, c)
            else:
                self.groups.append((at, at + size(n), r, c))
            at += size(n)
        self.muon_end = at
        self.state = {"m": torch.zeros(at, device=device)}
        for i, leaf in enumerate(self.leaves):
            n = leaf.numel() - (at if i == 0 else 0)
            self.state[f"a{i}"], self.state[f"b{i}"] = torch.zeros(n, device=device), torch.zeros(n, device=device)
        self.fake = torch.compile(fm.fake_quantize, dynamic=False) if device == "cuda" else fm.fake_quantize

    def views(self, quantize):
        """name -> tensor, differentiable; quantised values if asked."""
        out = {}
        for leaf, names, bits in zip(self.leaves, (self.four, self.eight, self.rest), (4, 8, 0)):
            flat = self.fake(leaf.view(-1, 64), bits).view(-1) if quantize and bits else leaf
            for n, part in zip(names, flat.split([math.prod(self.shapes[n]) for n in names])):
                out[n] = part.view(self.shapes[n])
        return out

    def named(self):
        with torch.no_grad():
            return {k: v.detach().clone() for k, v in self.views(False).items()}

    @torch.no_grad()
    def step(self, t, lr_muon, lr_adam, decay):
        for i, leaf in enumerate(self.leaves):
            p, g = leaf.data, leaf.grad
            if i == 0:
                self.muon(p[:self.muon_end], g[:self.muon_end], lr_muon, decay)
                p, g = p[self.muon_end:], g[self.muon_end:]
            adam(p, g, self.state[f"a{i}"], self.state[f"b{i}"], t, lr_adam * (1.0 if i == 0 else 0.5))
            leaf.grad = None

    def muon(self, p, g, lr, decay):
        m = self.state["m"]
        m.lerp_(g, 0.05)
        look = g.lerp(m, 0.95)
        p.mul_(1 - lr * decay)
        for begin, end, r, c in self.groups:
            u = newton_schulz(look[begin:end].view(-1, r, c))
            p[begin:end].view(-1, r, c).add_(u, alpha=-lr * 0.2 * math.sqrt(max(r, c)))


def adam(p, g, a, b, t, lr):
    a.lerp_(g, 0.1)
    b.mul_(0.98).addcmul_(g, g, value=0.02)
    p.addcdiv_(a, (b / (1 - 0.98 ** t)).sqrt_().add_(1e-10), value=-lr / (1 - 0.9 ** t))


def newton_schulz(x):
    """The five steps of the quintic iteration towards the nearest matrix with orthogonal rows or columns."""
    tall = x.shape[-2] > x.shape[-1]
    y = x.bfloat16()
    if tall:
        y = y.transpose(-1, -2)
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = y @ y.transpose(-1, -2)
        y = 3.4445 * y + (-4.7750 * s + 2.0315 * (s @ s)) @ y
    return (y.transpose(-1, -2) if tall else y).float()


def schedule(step, steps, warm, fall):
    """1 in the middle, from 0 in the first `warm` steps, to 0 over the last share `fall`."""
    return min(1.0, (step + 1) / warm, max(0.0, (steps - step) / (steps * fall)))


def save_shards(named, folder, shards):
    """bf16 parameters in files of under 16 MiB, and a list of them."""
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    names, at = sorted(named), 0
    total = sum(named[n].numel() for n in names)
    for s in range(shards):
        part, size = {}, 0
        while at < len(names) and size < total / shards:
            part[names[at]] = named[names[at]].bfloat16().cpu().contiguous()
            size += named[names[at]].numel()
            at += 1
        save_file(part, f"{folder}/params-{s}.safetensors")


def load_shards(folder):
    import glob

    from safetensors.torch import load_file
    out = {}
    for f in sorted(glob.glob(f"{folder}/params-*.safetensors")):
        out.update(load_file(f))
    return out


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--work", required=True, help="folder of the checkpoint")
    args.add_argument("--tokenizer", required=True)
    args.add_argument("--text")
    args.add_argument("--glosses")
    args.add_argument("--run", type=int, default=0, help="number of this run: the data differs from run to run")
    args.add_argument("--steps", type=int, required=True, help="of the whole training")
    args.add_argument("--stop", type=int, help="stop at this step")
    args.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    args.add_argument("--rows", type=int, default=64)
    args.add_argument("--length", type=int, default=1024)
    args.add_argument("--workers", type=int, default=14)
    args.add_argument("--seed", type=int, default=7)
    args.add_argument("--lr", type=float, default=6e-3)
    args.add_argument("--lr-adam", type=float, default=3e-3)
    args.add_argument("--decay", type=float, default=0.05)
    args.add_argument("--warm", type=int, default=150)
    args.add_argument("--fall", type=float, default=0.45)
    args.add_argument("--quantize-from", type=float, default=0.75, help="share of the steps after which weights are quantised")
    args.add_argument("--text-weight", type=float, default=0.3)
    args.add_argument("--mm", default="bfloat16", help="type of the delta rule's products")
    args.add_argument("--init", help="folder of bf16 shards to start from")
    args.add_argument("--device", default="cuda")
    args.add_argument("--profile", action="store_true", help="print where the time of ten steps goes")
    args = args.parse_args()
    began = time.time()
    loader = data.Loader((args.tokenizer, args.text, args.glosses), args.seed, args.run, args.workers, args.rows, args.length)
    torch.manual_seed(args.seed)
    gpu = args.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    params, first, state = fm.init(args.seed), 0, None
    path = f"{args.work}/state.pt"
    os.makedirs(args.work, exist_ok=True)
    if args.init:
        params.update({k: v.float() for k, v in load_shards(args.init).items()})
        first = json.load(open(f"{args.init}/step.json"))["step"]
    elif os.path.exists(path):
        state = torch.load(path, map_location=args.device)
        first = state["step"]
    flat = Flat(params, args.device)
    if state:
        with torch.no_grad():
            for leaf, v in zip(flat.leaves, state["leaves"]):
                leaf.copy_(v)
            for k, v in state["optimiser"].items():
                flat.state[k].copy_(v)
        del state
    dtype = torch.bfloat16 if gpu else torch.float32
    model = fm.Model(dtype, getattr(torch, args.mm) if gpu else torch.float32, fm.attend_flash if gpu else fm.attend_dense, compiled=gpu)
    values = torch.tensor([0.0, args.text_weight, 1.0], device=args.device)
    log = open(f"{args.work}/log.jsonl", "a")

    def to_device(batch):
        return [torch.from_numpy(x.astype(np.int64) if i == 0 else x.astype(np.int32) if i in (1, 3) else x.astype(np.int64)).pin_memory().to("cuda", non_blocking=True) if gpu
                else torch.from_numpy(x.astype(np.int64)) for i, x in enumerate(batch)]

    last, seen, step, sums = time.time(), 0, first, None
    end = min(args.steps, args.stop or args.steps)
    profiler = None
    while step < end and time.time() - began < args.seconds:
        if args.profile and step - first in (60, 70):
            if profiler is None:
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU])
                profiler.__enter__()
            else:
                torch.cuda.synchronize()
                profiler.__exit__(None, None, None)
                print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90), flush=True)
        tokens, pos, weight, cu = to_device(loader.next())
        if step == first:
            print(f"first batch after {time.time() - began:.1f} s, {int((cu < tokens.numel()).sum())} documents, text {float((weight == 1).float().mean()):.3f}, answers {float((weight == 2).float().mean()):.3f}", flush=True)
        pos = pos.int()
        doc = None if gpu else (pos == 0).cumsum(1)
        part = schedule(step, args.steps, args.warm, args.fall)
        quantize = step >= args.quantize_from * args.steps
        w = fm.prepare(flat.views(quantize), dtype)
        stats = []
        H = model.hidden(tokens, pos, cu.int(), args.length, doc, w, stats)
        near = torch.roll(pos, -1, 1) == pos + 1
        far = torch.roll(pos, -2, 1) == pos + 2
        v = values[weight]
        w1, w2 = torch.roll(v, -1, 1) * near, torch.roll(v, -2, 1) * far
        loss, losses = model.loss(H, w["head"], torch.roll(tokens, -1, 1), w1)
        loss = loss / w1.sum()
        ahead = model.mtp(H.detach(), tokens, pos, cu.int(), args.length, doc, w, stats)
        loss2, losses2 = model.loss(ahead, w["head"].detach(), torch.roll(tokens, -2, 1), w2)
        loss2 = loss2 / w2.sum()
        balance = torch.stack([b for b, _ in stats]).mean()
        (loss + loss2 + 0.01 * balance).backward()
        flat.step(step + 1 if not args.init else step - first + 1, args.lr * part * min(1.0, (step - first + 1) / 50), args.lr_adam * part * min(1.0, (step - first + 1) / 50), args.decay)
        with torch.no_grad():
            text, answer = (torch.roll(weight, -1, 1) == 1) & near, (torch.roll(weight, -1, 1) == 2) & near
            mean = lambda x, m: (x * m).sum() / m.sum().clamp_min(1)
            load = torch.stack([x for _, x in stats])
            use = torch.stack([loss.detach(), mean(losses, text), mean(losses, answer), loss2.detach(), mean(losses2, (torch.roll(weight, -2, 1) == 2) & far), balance.detach(),
                               (-(load * load.clamp_min(1e-9).log()).sum(-1) / math.log(32)).min(), load.min() * 32])
            sums = use if sums is None else sums + use
        step += 1
        seen += 1
        if step % 50 == 0 or step == end or step == first + 1:
            row = [round(x, 4) for x in (sums / seen).tolist()]
            now = time.time()
            entry = {"step": step, "loss": row[0], "text": row[1], "answer": row[2], "mtp": row[3], "mtp_answer": row[4], "balance": row[5], "entropy": row[6], "least": row[7], "lr": round(part, 4),
                     "quantised": quantize, "tokens_per_s": round(seen * args.rows * args.length / (now - last)), "t": round(now - began, 1)}
            log.write(json.dumps(entry) + "\n")
            log.flush()
            if step % 250 == 0 or step in (first + 1, first + 50, first + 100) or step == end:
                print(json.dumps(entry), flush=True)
            if not math.isfinite(row[0]):
                raise SystemExit("the loss is not finite")
            last, seen, sums = now, 0, None
    loader.close()
    torch.save({"step": step, "leaves": [x.detach() for x in flat.leaves], "optimiser": flat.state}, path)
    save_shards(flat.named(), f"{args.work}/shards", 4)
    json.dump({"step": step}, open(f"{args.work}/shards/step.json", "w"))
    print(f"saved step {step} after {time.time() - began:.1f} s", f"{torch.cuda.max_memory_allocated() / 2 ** 30:.1f} GiB" if gpu else "", flush=True)


if __name__ == "__main__":
    main()
