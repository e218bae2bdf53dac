#!/usr/bin/env python3
"""Evaluates a checkpoint's shards: a development suite (another seed than the shipped one) or the suite, and perplexity."""
import argparse
import json
import time

import torch

import evaluate
import fast_model as fm
import make_suite
import train
from hf_config import hf_model


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("shards")
    args.add_argument("--tokenizer", required=True)
    args.add_argument("--heldout")
    args.add_argument("--suite", help="a suite's file; without it a development suite is made")
    args.add_argument("--seed", type=int, default=4711)
    args.add_argument("--per-kind", type=int, default=20)
    args.add_argument("--exact", action="store_true", help="without quantisation")
    args.add_argument("--device", default="cuda")
    args.add_argument("--show", type=int, default=1)
    args.add_argument("--tokens", type=int, default=100000)
    args.add_argument("--batch", type=int, default=320)
    args.add_argument("--limit", type=int, default=400, help="longest answer in tokens")
    args.add_argument("--out")
    args = args.parse_args()
    from tokenizers import Tokenizer
    began = time.time()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    params = {k: v.float() for k, v in train.load_shards(args.shards).items()}
    plain = hf_model(params).to(args.device)
    quantised = {k: fm.dequantize(*fm.mlx_quantize(v, fm.quantized(k))) if fm.quantized(k) else v for k, v in params.items()}
    model = plain if args.exact else hf_model(quantised).to(args.device)
    out = {}
    if args.heldout:
        rows = evaluate.heldout_rows(tokenizer, args.heldout, limit=args.tokens)
        out["perplexity_bf16"], _ = evaluate.perplexity(plain, rows, args.device)
        out["perplexity_4bit"], out["tokens"] = evaluate.perplexity(model, rows, args.device)
        out["experts"] = evaluate.expert_use(model, rows[:32], args.device)
        print(json.dumps(out), flush=True)
    cases = json.load(open(args.suite)) if args.suite else make_suite.suite(args.seed, args.per_kind, (("one", 30), ("two", 20), ("result", 16), ("none", 8), ("missing", 8)))
    out["behaviour"], answers = evaluate.behaviour(model, tokenizer, cases, args.device, args.show, args.batch, args.limit)
    print(json.dumps({k: v["share"] for k, v in out["behaviour"]["kinds"].items()}), json.dumps({k: v for k, v in out["behaviour"].items() if k != "kinds"}), f"{time.time() - began:.0f} s", flush=True)
    if args.out:
        json.dump({**out, "answers": answers}, open(args.out, "w"), indent=1)


if __name__ == "__main__":
    main()
