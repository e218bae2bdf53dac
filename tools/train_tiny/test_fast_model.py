"""fast_model against transformers on the CPU: packed rows against single documents, and the gradient against its own."""
import torch

import fast_model as fm
from hf_config import hf_model


def packed(docs, T):
    """Rows of one batch from lists of documents: tokens, pos, doc."""
    tokens, pos, doc = (torch.zeros(len(docs), T, dtype=torch.long) for _ in range(3))
    for r, row in enumerate(docs):
        at = 0
        for i, d in enumerate(row):
            tokens[r, at:at + len(d)] = d
            pos[r, at:at + len(d)] = torch.arange(len(d))
            doc[r, at:at + len(d)] = i
            at += len(d)
        pos[r, at:] = torch.arange(T - at)
        doc[r, at:] = len(row)
    return tokens, pos, doc


def test_same_logits_as_transformers():
    torch.manual_seed(0)
    params = fm.init(3)
    for k, v in params.items():
        if v.ndim == 1 or "conv" in k:
            v += torch.randn_like(v) * 0.1
    hf = hf_model(params)
    docs = [[torch.randint(8192, (n,)) for n in lengths] for lengths in ((70, 1, 50), (128,), (3, 100))]
    tokens, pos, doc = packed(docs, 128)
    model = fm.Model()
    w = fm.prepare(params, torch.float32)
    stats = []
    h = model.hidden(tokens, pos, None, None, doc, w, stats)
    logits = h @ w["head"].t()
    for r, row in enumerate(docs):
        at = 0
        for d in row:
            want = hf(d[None]).logits[0]
            got = logits[r, at:at + len(d)]
            error = ((got - want).norm() / want.norm()).item()
            print(r, len(d), error)
            assert error < 1e-4
            at += len(d)


def test_inverse():
    torch.manual_seed(1)
    A = (torch.rand(2, 3, 64, 64) * 0.9).tril(-1).requires_grad_(True)
    x = fm.TriangularInverse.apply(A)
    want = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + A.double())
    assert (x - want).abs().max() < 2e-3 * want.abs().max()
    g = torch.randn_like(x)
    (x * g).sum().backward()
    B = A.detach().double().requires_grad_(True)
    (torch.linalg.inv(torch.eye(64) + B) * g).sum().backward()
    assert ((A.grad.tril(-1) - B.grad.tril(-1)).norm() / B.grad.tril(-1).norm()) < 1e-3


if __name__ == "__main__":
    test_inverse()
    test_same_logits_as_transformers()
