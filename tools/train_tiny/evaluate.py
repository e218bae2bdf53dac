#!/usr/bin/env python3
"""Measures a model with transformers: behaviour suite (greedy), perplexity of held-out text, use of the experts."""
import json
import lzma
import math
import os
import sys

import torch

import render

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "behaviour"))
import checks  # noqa: E402


def template_messages(messages):
    out = []
    for m in messages:
        m = dict(m)
        if m.get("tool_calls"):
            m["tool_calls"] = [{"function": {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}} for c in m["tool_calls"]]
        out.append(m)
    return out


def parse(text, case, finished):
    """What the model wrote after the prompt -> reasoning, content, calls."""
    reasoning = ""
    malformed = False
    if case["thinking"]:
        if "</think>" not in text:
            return {"content": "", "reasoning": text, "calls": [], "finished": finished, "malformed": True}
        reasoning, text = text.split("</think>", 1)
    content, calls, bad = checks.read_calls(text, case["tools"])
    return {"content": content, "reasoning": reasoning, "calls": calls, "finished": finished, "malformed": malformed or bad}


@torch.no_grad()
def answers(model, tokenizer, cases, device, batch=64, limit=400):
    """Greedy answers, batched by length with padding on the left."""
    stop = {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    prompts = [tokenizer.encode(render.prompt(template_messages(c["messages"]), c["tools"], c["thinking"])).ids for c in cases]
    order = sorted(range(len(cases)), key=lambda i: (cases[i]["kind"], len(prompts[i])))  # answers of a kind are of like length
    out = [None] * len(cases)
    for at in range(0, len(order), batch):
        rows = order[at:at + batch]
        longest = max(len(prompts[i]) for i in rows)
        ids = torch.full((len(rows), longest), tokenizer.token_to_id("<|endoftext|>"), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for r, i in enumerate(rows):
            ids[r, longest - len(prompts[i]):] = torch.tensor(prompts[i])
            mask[r, longest - len(prompts[i]):] = 1
        got = model.generate(ids.to(device), attention_mask=mask.to(device), max_new_tokens=limit, do_sample=False, eos_token_id=sorted(stop), pad_token_id=tokenizer.token_to_id("<|endoftext|>"))[:, longest:].tolist()
        for r, i in enumerate(rows):
            end = next((n for n, t in enumerate(got[r]) if t in stop), None)
            text = tokenizer.decode(got[r][:end], skip_special_tokens=False)
            out[i] = parse(text, cases[i], end is not None)
            out[i]["text"] = text
    return out


def behaviour(model, tokenizer, cases, device, show=0, batch=64, limit=400):
    got = answers(model, tokenizer, cases, device, batch, limit)
    results = [(c, checks.judge(c, a)) for c, a in zip(cases, got)]
    for (c, reason), a in zip(results, got):
        if reason and show:
            print("WRONG", c["id"], "|", reason, "|", c["messages"][-1]["content"][:150].replace("\n", " "), "|", a["text"][:200].replace("\n", "\\n"), flush=True)
    return checks.summary(results), [dict(id=c["id"], reason=r, text=a["text"]) for (c, r), a in zip(results, got)]


def heldout_rows(tokenizer, path, length=512, limit=None):
    """The held-out text as one stream, <|endoftext|> after each document, cut into rows."""
    end = tokenizer.token_to_id("<|endoftext|>")
    stream = []
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            stream += tokenizer.encode(json.loads(line)["text"]).ids + [end]
    if limit:
        stream = stream[:limit]
    n = len(stream) // length
    return torch.tensor(stream[:n * length]).view(n, length)


@torch.no_grad()
def perplexity(model, rows, device, batch=16):
    total, count = 0.0, 0
    for at in range(0, len(rows), batch):
        ids = rows[at:at + batch].to(device)
        logits = model(ids).logits[:, :-1].float()
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        count += ids[:, 1:].numel()
    return math.exp(total / count), count


@torch.no_grad()
def expert_use(model, rows, device, batch=16):
    """Entropy of the use of experts in each layer as a share of its maximum, and the least used expert's share times 32."""
    loads = [torch.zeros(32, dtype=torch.float64) for _ in model.model.layers]

    def count(n):
        def hook(_module, _inputs, output):  # returns nothing: a value would replace the output
            loads[n] += torch.bincount(output[2].flatten().cpu(), minlength=32)
        return hook
    hooks = [layer.mlp.gate.register_forward_hook(count(n)) for n, layer in enumerate(model.model.layers)]
    for at in range(0, len(rows), batch):
        model(rows[at:at + batch].to(device))
    for h in hooks:
        h.remove()
    out = []
    for load in loads:
        p = load / load.sum()
        out.append((round(float(-(p * p.clamp_min(1e-12).log()).sum() / math.log(32)), 4), round(float(p.min() * 32), 3)))
    return out
