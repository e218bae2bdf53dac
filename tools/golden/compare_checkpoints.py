#!/usr/bin/env python3
"""compare_checkpoints.py A B: whether two MLX folders hold the same tensors, byte for byte, whatever their order and shards, and the same
effective quantisation. Exit status 0 if so, 1 if not. Needs numpy only.

For `lily synth` against synth.py, and `lily convert` against make_checkpoint.py's MLX folder.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from models import Checkpoint  # noqa: E402


def effective(ckpt):
    """{module: (bits, group)} of every module with scales."""
    q, out = ckpt.quantization, {}
    for name in ckpt.entries:
        if name.endswith(".scales"):
            m = name.removesuffix(".scales")
            e = q[m] if isinstance(q.get(m), dict) else q
            out[m] = (e["bits"], e["group_size"])
    return out


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    a, b = Checkpoint(sys.argv[1]), Checkpoint(sys.argv[2])
    faults = [f"only in A: {n}" for n in sorted(set(a.entries) - set(b.entries))]
    faults += [f"only in B: {n}" for n in sorted(set(b.entries) - set(a.entries))]
    for n in sorted(set(a.entries) & set(b.entries)):
        (da, sa, xa), (db, sb, xb) = a.entries[n], b.entries[n]
        if (da, sa) != (db, sb):
            faults.append(f"{n}: {da}{sa} and {db}{sb}")
        elif not np.array_equal(xa, xb):
            i = int(np.flatnonzero(np.asarray(xa) != np.asarray(xb))[0])
            faults.append(f"{n}: {np.count_nonzero(np.asarray(xa) != np.asarray(xb))} of {len(xa)} bytes differ, first at {i}")
    qa, qb = effective(a), effective(b)
    faults += [f"quantisation of {m}: {qa.get(m)} and {qb.get(m)}" for m in sorted(set(qa) | set(qb)) if qa.get(m) != qb.get(m)]
    for f in faults[:40]:
        print(f)
    print(f"{len(a.entries)} and {len(b.entries)} tensors, {len(faults)} differences")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
