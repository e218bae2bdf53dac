#!/usr/bin/env python3
"""Writes tests/data/qwen36/encodings.jsonl: texts and their ids by the `tokenizers` library with the real vocabulary.

Usage: pip install -r tests/requirements.txt; make_encodings.py
"""
import json
import tempfile
from pathlib import Path
import subprocess
import sys

from texts import load_library_tokenizer, fixed_texts, random_text

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, ROOT / "tools/tokenizer/build_qwen36.py", folder], check=True)
        tokenizer = load_library_tokenizer(Path(folder))
    texts = fixed_texts() + [random_text(seed) for seed in range(1200)]
    with (ROOT / "tests/data/qwen36/encodings.jsonl").open("w", encoding="utf-8") as out:
        for text in texts:
            row = {"text": text, "ids": tokenizer.encode(text).ids}
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
