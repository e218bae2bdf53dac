"""First minutes on a GPU: are the kernels right, how fast is a step, where does its time go?"""
import time

import numpy as np
import torch

import data
import fast_model as fm
import train

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def flash_is_right():
    torch.manual_seed(0)
    B, T = 4, 256
    lengths = [[100, 28, 128], [256], [1, 255], [64, 64, 64, 64]]
    doc = torch.zeros(B, T, dtype=torch.long)
    begins = []
    for r, row in enumerate(lengths):
        at = 0
        for i, n in enumerate(row):
            doc[r, at:at + n] = i
            begins.append(r * T + at)
            at += n
    cu = torch.full((65,), B * T, dtype=torch.int32)
    cu[:len(begins)] = torch.tensor(sorted(begins), dtype=torch.int32)
    q, k, v = (torch.randn(B, T, h, fm.HEAD, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (8, 1, 1))
    g = torch.randn(B, T, 8 * fm.HEAD, device="cuda", dtype=torch.bfloat16)
    outs = []
    for f in (fm.attend_dense, fm.attend_flash):
        o = f(q, k, v, cu.cuda(), T, doc.cuda())
        outs.append([o.detach().float()] + [x.float() for x in torch.autograd.grad(o, (q, k, v), g)])
    for name, a, b in zip(("o", "dq", "dk", "dv"), *outs):
        print("flash", name, ((a - b).norm() / a.norm()).item(), flush=True)


def model_is_right(loader):
    params = fm.init(7)
    tokens, pos, weight, cu = (torch.from_numpy(x.astype(np.int64)).cuda() for x in loader.next())
    flat = train.Flat(params, "cuda")
    want = None
    for name, dtype, mm in (("float32", torch.float32, torch.float32), ("bf16+tf32", torch.bfloat16, torch.float32), ("bf16", torch.bfloat16, torch.bfloat16)):
        model = fm.Model(dtype, mm, fm.attend_dense if dtype == torch.float32 else fm.attend_flash)
        w = fm.prepare(flat.views(False), dtype)
        with torch.no_grad():
            n = 8
            h = model.hidden(tokens[:n], pos[:n].int(), torch.where(cu < n * 1024, cu, n * 1024).int(), 1024, (pos[:n] == 0).cumsum(1), w, [])
        want = h if want is None else want
        print("hidden", name, ((h - want).norm() / want.norm()).item(), flush=True)


def main(paths):
    loader = data.Loader(paths, 7, 99, 14, 64, 1024)
    flash_is_right()
    model_is_right(loader)
    began = time.time()
    n = 0
    while time.time() - began < 4:
        loader.next()
        n += 1
    print(f"loader {n * 65536 / (time.time() - began):.0f} tokens/s (with what had been made before)", flush=True)
    loader.close()


if __name__ == "__main__":
    import sys
    main((sys.argv[1], sys.argv[2], sys.argv[3]))
