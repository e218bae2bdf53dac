#!/usr/bin/env python3
"""Holds `lily eval logits` against two independent implementations.

    lily eval logits MODEL --tokens IDS.json --out LOGITS.npy
    check_logits.py MODEL LOGITS.npy IDS.json [--json] [--no-mlx] [--no-transformers] [--mlx-as-is] [--relative 1e-4]

MODEL is a folder in the MLX layout, of any seed, bits, groups and types. The references are transformers' Qwen3_5MoeForCausalLM in float32 on
the dequantised weights, and mlx-lm on the quantised weights with its float tensors cast to float32 (exact).

Exit status 0 if
  - |lily - transformers| / |transformers| <= 1e-4 (--relative: for a backend whose own types allow more), over all logits and for every row, and the best token differs only at near-ties;
  - the best token is mlx-lm's in at least 99 % of the rows, and the other rows are near-ties.
1 if not, 2 if the inputs do not fit each other. A near-tie: the reference's own logits of the two candidates differ by at most 1e-3 of
the row's standard deviation, 100 times what the implementations differ by.

A router that nearly ties between its 8th and 9th expert can go either way in correct implementations and then changes a row by percents. Such
margins are reported (in logits of the router, from transformers), the smallest first, so that a row that is off can be told from a fault;
they do not change the verdict.

--mlx-as-is adds mlx-lm with the file's own types, for information: on the CPU its quantised matrix product then accumulates in bfloat16, an
error of 5 % per product, so it says little.
"""
import argparse
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402

RELATIVE, TOP1, NEAR_TIE = 1e-4, 0.99, 1e-3


def report(reference, ours):
    """All figures of `ours` against `reference`, both [rows, vocab]."""
    difference, norm = np.empty(len(ours)), np.empty(len(ours))
    for i in range(len(ours)):       # row by row: a full-width matrix in float64 would be gigabytes
        difference[i] = np.linalg.norm(ours[i].astype(np.float64) - reference[i])
        norm[i] = np.linalg.norm(reference[i].astype(np.float64))
    best, got = reference.argmax(1), ours.argmax(1)
    ties = []
    for i in np.flatnonzero(best != got):
        row = reference[i]
        gap = float(row[best[i]] - row[got[i]])
        ties.append(dict(row=int(i), reference=int(best[i]), ours=int(got[i]), gap=gap, gap_in_deviations=gap / float(row.std())))
    second = np.partition(reference, -2, axis=1)[:, -2]
    gaps = (reference.max(1) - second) / reference.std(1)
    worst = int((difference / norm).argmax())
    return dict(rows=len(ours), relative=float(np.sqrt((difference ** 2).sum() / (norm ** 2).sum())),
                worst_row=worst, worst_row_relative=float(difference[worst] / norm[worst]),
                top1=float((best == got).mean()), disagreements=ties, all_disagreements_near_ties=all(t["gap_in_deviations"] <= NEAR_TIE for t in ties),
                rows_with_a_near_tie=int((gaps <= NEAR_TIE).sum()), median_gap_in_deviations=float(np.median(gaps)))


def judge(name, r, bound):
    faults = []
    if name == "transformers":
        if not r["relative"] <= bound:
            faults.append(f"relative difference {r['relative']:.3g} > {bound:g}")
        if not r["worst_row_relative"] <= bound:
            faults.append(f"row {r['worst_row']}: relative difference {r['worst_row_relative']:.3g} > {bound:g}")
    elif not r["top1"] >= TOP1:
        faults.append(f"top-1 agreement {r['top1']:.4f} < {TOP1}")
    if not r["all_disagreements_near_ties"]:
        faults.append("a best token differs that is no near-tie")
    return faults


def show(name, r, faults, counts=True):
    print(f"{name}: {r['rows']} rows, relative difference {r['relative']:.3g} (worst row {r['worst_row']}: {r['worst_row_relative']:.3g}), "
          f"top-1 agreement {r['top1']:.4f}")
    for t in r["disagreements"][:10]:
        print(f"  row {t['row']}: best {t['reference']}, ours {t['ours']}, apart by {t['gap']:.3g} = {t['gap_in_deviations']:.3g} deviations")
    print(f"  {r['rows_with_a_near_tie']} rows have a near-tie; the median gap of the best two is {r['median_gap_in_deviations']:.3g} deviations")
    if "smallest_router_margins" in r:
        print("  smallest router margins: " + ", ".join(f"{m['margin']:.2g} (layer {m['layer']}, row {m['row']})" for m in r["smallest_router_margins"]))
    for f in faults:
        print(f"  FAULT: {f}")
    if not counts:
        print("  (for information)")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("logits")
    p.add_argument("ids")
    p.add_argument("--json", action="store_true")
    p.add_argument("--no-mlx", action="store_true")
    p.add_argument("--no-transformers", action="store_true")
    p.add_argument("--mlx-as-is", action="store_true")
    p.add_argument("--relative", type=float, default=RELATIVE)
    a = p.parse_args()
    with open(a.ids) as f:
        ids = json.load(f)
    ours = np.load(a.logits, mmap_mode="r")
    vocab = models.Checkpoint(a.model).text_config["vocab_size"]
    if ours.dtype != np.float32 or ours.shape != (len(ids), vocab) or not ids or not all(isinstance(t, int) and 0 <= t < vocab for t in ids):
        print(f"{a.logits}: float32 [{len(ids)}, {vocab}] expected, {ours.dtype} {list(ours.shape)} found, or ids outside the vocabulary")
        return 2
    if not np.isfinite(ours).all():
        print(f"{a.logits}: not all finite")
        return 1

    references, margins = {}, []
    if not a.no_transformers:
        def with_transformers():
            model = models.transformers_model(a.model)
            with models.RouterMargins(model) as m:
                logits = models.transformers_prefill(model, ids)[0]
            margins.append(m.array())
            return logits
        references["transformers"] = with_transformers
    if not a.no_mlx:
        references["mlx-lm"] = lambda: models.mlx_logits(models.mlx_model(a.model, True), ids)
    if a.mlx_as_is:
        references["mlx-lm as is"] = lambda: models.mlx_logits(models.mlx_model(a.model, False), ids)
    results, failed = {}, False
    for name, make in references.items():
        r = report(make(), ours)
        r["faults"] = judge(name, r, a.relative) if name != "mlx-lm as is" else []
        failed = failed or bool(r["faults"])
        if name == "transformers":
            m = margins[0]
            order = np.argsort(m, axis=None)[:5]
            r["smallest_router_margins"] = [dict(layer=int(i // m.shape[1]), row=int(i % m.shape[1]), margin=float(m.flat[i])) for i in order]
        results[name] = r
        if not a.json:
            show(name, r, r["faults"], name != "mlx-lm as is")
    if a.json:
        print(json.dumps(results, indent=1))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
