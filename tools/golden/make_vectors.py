#!/usr/bin/env python3
"""Golden vectors for a synthetic checkpoint, from transformers (float32, dequantised weights) and mlx-lm (quantised weights).

    make_vectors.py OUT --shape tiny --seed 1                       -> OUT/vectors.json, OUT/data.bin
    make_vectors.py OUT --shape qwen36 --layers 4 --seed 1 --prompts 1,17,130,600 --decode-from 17 --mlx-tokens 150

The checkpoint is made by synth.py in a temporary folder (--work DIR keeps it there). tests/golden/README.md describes the files.
Needs torch, transformers 5, mlx and mlx-lm.
"""
import argparse
import json
import os
import platform
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
import synth  # noqa: E402

COLUMNS, RESIDUAL_COLUMNS, TOP = 24, 8, 4
NEAR_TIE = 2e-5     # of router logits of about 2; implementations in float32 differ by a few 1e-6


def tokens_for(name, seed, vocab, count):
    """Prompt tokens: draws of docs/SYNTH.md's generator, so that the prompts need no other source of randomness."""
    return [int(x) for x in synth.draws(f"prompt.{name}", seed, 0, count) % np.uint64(vocab)]


def columns_for(name, width, count):
    seen = []
    for x in synth.draws(name, 0, 0, 4 * count):
        c = int(x % np.uint64(width))
        if c not in seen:
            seen.append(c)
    return sorted(seen[:count])


class Data:
    """data.bin: raw little-endian arrays, each described by {dtype, shape, offset}."""

    def __init__(self):
        self.parts, self.size = [], 0

    def add(self, a):
        a = np.ascontiguousarray(a)
        a = a.astype(np.int32 if np.issubdtype(a.dtype, np.integer) else np.float32)
        entry = dict(dtype="i32" if a.dtype == np.int32 else "f32", shape=list(a.shape), offset=self.size)
        self.parts.append(a.tobytes())
        self.size += a.nbytes
        return entry


def best_ids(logits):
    """[rows, TOP] the ids of the largest logits, ties by index."""
    some = np.sort(np.argpartition(logits, -4 * TOP, axis=1)[:, -4 * TOP:], axis=1)
    order = np.argsort(-np.take_along_axis(logits, some, 1), axis=1, kind="stable")[:, :TOP]
    return np.take_along_axis(some, order, 1)


def reduce_logits(data, logits, columns):
    """What is kept of logits [rows, vocab]: sums in float64, then float32."""
    top = best_ids(logits)
    sums, norms = np.empty(len(logits)), np.empty(len(logits))
    for i, row in enumerate(logits):
        wide, peak = row.astype(np.float64), float(row.max())
        sums[i] = peak + np.log(np.exp(wide - peak).sum())
        norms[i] = np.sqrt(wide @ wide)
    return dict(top_ids=data.add(top), top_logits=data.add(np.take_along_axis(logits, top, 1)), logsumexp=data.add(sums),
                norm=data.add(norms), columns=data.add(logits[:, columns]))


def compare(reference, other):
    """How far `other` is from `reference` over [rows, vocab]."""
    difference = np.linalg.norm(other - reference, axis=1)
    norm = np.linalg.norm(reference, axis=1)
    mine, theirs = reference.argmax(1), other.argmax(1)
    rows = np.arange(len(mine))
    gaps = (reference[rows, mine] - reference[rows, theirs])[mine != theirs]
    return dict(rows=len(mine), relative=float(np.sqrt((difference ** 2).sum() / (norm ** 2).sum())), worst_row=float((difference / norm).max()),
                top1=float((mine == theirs).mean()), widest_gap_of_a_disagreement=float(gaps.max()) if len(gaps) else 0.0)


def checksum(raw):
    """sum over i of (i + 1) * u16_i, modulo 2^64, of the little-endian 16-bit words of a tensor."""
    total = 0
    words = np.asarray(raw).view("<u2") if raw.flags["C_CONTIGUOUS"] else np.ascontiguousarray(raw).view("<u2")
    for i in range(0, len(words), 1 << 22):
        part = words[i:i + (1 << 22)].astype(np.uint64)
        total += int((part * np.arange(i + 1, i + len(part) + 1, dtype=np.uint64)).sum(dtype=np.uint64))
    return f"{total & synth.MASK:016x}"


def without_near_ties(args, state, name, tokens):
    """Replaces the first token whose router nearly ties, until there is none: on such a row two correct implementations may choose different
    experts. Returns (tokens, logits, residual, margins)."""
    replacements = iter(tokens_for(f"{name}.replacements", args.seed, state["vocab"], 1000))
    while True:
        with models.RouterMargins(state["hf"]) as m:
            logits, residual = models.transformers_prefill(state["hf"], tokens)
        margins = m.array()
        near = np.flatnonzero(margins.min(axis=0) < NEAR_TIE)
        if not len(near) or len(tokens) > args.repair_tokens:
            return tokens, logits, residual, margins
        tokens = tokens.copy()
        for position in near:        # the first is certainly one; replacing the later ones too saves passes
            tokens[position] = next(replacements)


def prefill_case(args, state, name, tokens):
    data, cols = state["data"], state["columns"]
    tokens, logits, residual, margins = without_near_ties(args, state, name, tokens)
    entry = dict(name=name, tokens=tokens, smallest_router_margin=float(margins.min()), transformers=reduce_logits(data, logits, cols))
    entry["router_margins"] = data.add(margins.min(axis=0))
    entry["residual_norms"] = data.add(np.linalg.norm(residual.astype(np.float64), axis=2))
    if len(tokens) <= args.residual_tokens:
        entry["residual_columns"] = data.add(residual[:, :, state["residual_columns"]])
    if len(tokens) in args.full_rows:
        entry["last_row"] = data.add(logits[-1])
    if len(tokens) <= args.mlx_tokens:
        other = models.mlx_logits(state["mlx"], tokens)
        entry["mlx"] = reduce_logits(data, other, cols)
        entry["comparison"] = dict(mlx_float32=compare(logits, other))
        if state["mlx_bf16"] is not None and len(tokens) <= 7:      # slow
            entry["comparison"]["mlx_bfloat16_cpu"] = compare(logits, models.mlx_logits(state["mlx_bf16"], tokens))
    return entry


def decode_case(args, state, name, tokens):
    """256 greedy steps through transformers' cache; then the same tokens through mlx-lm's, one at a time, and through one pass without a
    cache, which says how far transformers' two forms of the delta rule (chunked, recurrent) are apart."""
    data, cols = state["data"], state["columns"]
    with models.RouterMargins(state["hf"]) as m:
        made, rows = models.transformers_greedy(state["hf"], tokens, args.steps)
    margins = m.array().min(axis=0)
    entry = dict(name=name, tokens=tokens, smallest_router_margin=float(margins.min()), greedy=made,
                 transformers=reduce_logits(data, rows, cols), router_margins=data.add(margins))
    fed = tokens + made[:-1]
    whole, _ = models.transformers_prefill(state["hf"], fed)
    entry["comparison"] = dict(transformers_one_pass=compare(rows, whole[len(tokens) - 1:]))
    if args.mlx_decode:
        head = models.mlx_logits(state["mlx"], fed, chunk=1)
        other = head[len(tokens) - 1:]
        entry["mlx"] = reduce_logits(data, other, cols)
        entry["comparison"]["mlx_float32"] = compare(rows, other)
    return entry


def provenance(args):
    import mlx.core as mx
    import mlx_lm
    import torch
    import transformers
    return dict(command="tools/golden/make_vectors.py " + " ".join(args.command), python=platform.python_version(), numpy=np.__version__,
                torch=torch.__version__, transformers=transformers.__version__, mlx=mx.__version__, mlx_lm=mlx_lm.__version__,
                machine=platform.machine(), transformers_precision="float32 on dequantised weights, eager attention and experts",
                mlx_precision="quantised weights, every float tensor cast to float32 (exact); CPU")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ints = lambda s: [int(x) for x in s.split(",") if x]  # noqa: E731
    p.add_argument("out")
    p.add_argument("--shape", choices=synth.SHAPES, default="tiny")
    p.add_argument("--layers", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--prompts", type=ints, default=[1, 2, 7, 63, 64, 65, 200, 600], metavar="N,N", help="lengths")
    p.add_argument("--full-rows", type=ints, default=[7, 65], metavar="N,N", help="prompts whose last row is kept whole")
    p.add_argument("--decode-from", type=ints, default=[1, 64], metavar="N,N", help="prompt lengths")
    p.add_argument("--steps", type=int, default=256)
    p.add_argument("--residual-tokens", type=int, default=65)
    p.add_argument("--mlx-tokens", type=int, default=10 ** 6, help="longest prompt given to mlx-lm, which is slow at full width")
    p.add_argument("--repair-tokens", type=int, default=10 ** 6, help="longest prompt that is freed of near-ties of the router")
    p.add_argument("--no-mlx-decode", dest="mlx_decode", action="store_false")
    p.add_argument("--work")
    args = p.parse_args()
    args.command = [a for i, a in enumerate(sys.argv[1:]) if a != "--work" and sys.argv[i] != "--work"]

    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(args.work or temporary, f"{args.shape}-{args.layers or 'all'}-{args.seed}")
        if not os.path.exists(folder):
            synth.synthesise(folder, args.shape, args.layers, args.seed)
        ckpt = models.Checkpoint(folder)
        vocab, hidden = ckpt.text_config["vocab_size"], ckpt.text_config["hidden_size"]
        state = dict(data=Data(), vocab=vocab, columns=columns_for("columns.logits", vocab, COLUMNS),
                     residual_columns=columns_for("columns.residual", hidden, RESIDUAL_COLUMNS), hf=models.transformers_model(folder),
                     mlx=models.mlx_model(folder, True), mlx_bf16=models.mlx_model(folder, False) if args.shape == "tiny" else None)
        result = dict(about="Golden vectors; the format is described in tests/golden/README.md.", provenance=provenance(args),
                      checkpoint=dict(shape=args.shape, layers=ckpt.text_config["num_hidden_layers"], seed=args.seed, bits=4, group=64),
                      columns=state["columns"], residual_columns=state["residual_columns"], prompts=[], decode=[])
        small = {n: e for n, e in ckpt.entries.items() if len(e[2]) < 64 << 20}
        result["checksums"] = {n: checksum(e[2]) for n, e in small.items() if args.shape == "tiny" or ".layers.0." in n or ".layers.3." in n}
        started = time.time()

        def say(what, entry):
            print(f"{time.time() - started:7.1f} s  {what} {entry['name']}: margin {entry['smallest_router_margin']:.2g} {json.dumps(entry['comparison'] if 'comparison' in entry else {})}",
                  flush=True)

        for n in args.prompts:
            name = f"prompt-{n}"
            entry = prefill_case(args, state, name, tokens_for(name, args.seed, vocab, n))
            result["prompts"].append(entry)
            say("prefill", entry)
        for n in args.decode_from:
            name = f"decode-{n}"
            entry = decode_case(args, state, name, tokens_for(name, args.seed, vocab, n))
            result["decode"].append(entry)
            say("decode", entry)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "data.bin"), "wb") as f:
        f.write(b"".join(state["data"].parts))
    with open(os.path.join(args.out, "vectors.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: " + ("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in v) + "\n]"
                if k in ("prompts", "decode") else json.dumps(v, indent=1 if k == "provenance" else None)) for k, v in result.items()) + "\n}\n")


if __name__ == "__main__":
    main()
