"""models/lily-tiny is what other programs take it for: mlx-lm loads the folder unchanged, transformers its dequantised weights, and both
compute what lily computes. The second needs torch, which is large: `make test-models` installs it; else that test is skipped."""
import os
import sys
from pathlib import Path

import pytest

from server_process import LILY

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models" / "lily-tiny")
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import agreement  # noqa: E402


def windows(tokens, window):
    return agreement.windows_of(MODEL, ROOT / "tests" / "behaviour" / "heldout.txt", tokens, window)


def lily():
    return agreement.lily_logits(MODEL, os.path.abspath(LILY), "cpu")


def test_mlx_lm_loads_the_folder_unchanged_and_agrees():
    figures = agreement.compare(agreement.mlx_logits(MODEL, "mlx-float32"), lily(), windows(256, 128))
    assert figures.tokens == 256
    assert figures.top1 >= 0.98, figures
    assert figures.mean_kl <= 1e-3, figures


def test_transformers_takes_the_dequantised_weights_and_agrees():
    pytest.importorskip("torch", reason="torch is not installed: make test-models")
    figures = agreement.compare(agreement.transformers_logits(MODEL), lily(), windows(4096, 1024))
    assert figures.tokens == 4096
    assert figures.top1 >= 0.99, figures
    assert figures.mean_kl <= 1e-3, figures
