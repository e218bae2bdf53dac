#!/usr/bin/env python3
"""Writes tests/golden/synth.json: the SHA-256 of every tensor that synth.py (docs/SYNTH.md) makes, for a few small checkpoints.

    synth_sums.py FILE.json
"""
import hashlib
import json
import sys

from synth import SHAPES, Storage, jobs_for

CASES = [dict(shape="tiny", layers=8, seed=7, bits=4, group=64, scales="bf16", mtp=True),
         dict(shape="tiny", layers=4, seed=2**64 - 1, bits=8, group=128, scales="f16", mtp=False),
         dict(shape="tiny", layers=4, seed=1, bits=4, group=32, scales="f32", mtp=True)]


def sums(case):
    jobs, _ = jobs_for(SHAPES[case["shape"]], case["layers"], case["seed"], case["bits"], case["group"],
                       Storage(case["scales"]), case["mtp"])
    return {name: hashlib.sha256(fill(0, size // unit).tobytes()).hexdigest() for name, _, _, size, unit, fill in jobs}


def main():
    cases = [dict(case, tensors=sums(case)) for case in CASES]
    with open(sys.argv[1], "w") as f:
        json.dump(dict(command="tools/golden/synth_sums.py tests/golden/synth.json", cases=cases), f, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
