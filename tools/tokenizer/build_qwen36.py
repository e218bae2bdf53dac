#!/usr/bin/env python3
"""Writes tokenizer.json and tokenizer_config.json of Qwen3.6 from the parts in tests/data/qwen36 (README there).

Usage: build_qwen36.py OUT_FOLDER      Python's standard library only; does nothing when the files are there already.
"""
import hashlib
import json
import lzma
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "tests/data/qwen36"
TOKENIZER_SHA256 = "820ba8a49b5fd26ca013faf2a3e369d031b0a99f4f3f784b83bf753b6cafe77d"


def byte_symbols() -> list[str]:
    """GPT-2's alphabet, in the order of its ids: printable Latin-1 first, then the other bytes as U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def tokenizer_json(parts: dict, merges: list[str]) -> bytes:
    orphans = {int(i): text for i, text in parts["orphans"].items()}  # in the vocabulary, made by no merge
    made = iter(merge.replace(" ", "") for merge in merges)
    tokens = byte_symbols()
    while len(tokens) < 256 + len(merges) + len(orphans):
        tokens.append(orphans.get(len(tokens)) or next(made))
    tokenizer = parts["tokenizer"]
    tokenizer["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    tokenizer["model"]["merges"] = merges
    return json.dumps(tokenizer, indent=2, ensure_ascii=False).encode()


def tokenizer_config_json(parts: dict) -> bytes:
    table = {str(token.pop("id")): token for token in map(dict, parts["tokenizer"]["added_tokens"])}
    for i, text in parts["config_tokens"].items():
        table[i] = {"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                    "special": True}
    config = {"add_prefix_space": False, "added_tokens_decoder": table, "bos_token": None,
              "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
              "pad_token": "<|endoftext|>", "unk_token": None}
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def main() -> None:
    folder = Path(sys.argv[1])
    target = folder / "tokenizer.json"
    if (folder / "tokenizer_config.json").exists() and target.exists() and \
            hashlib.sha256(target.read_bytes()).hexdigest() == TOKENIZER_SHA256:
        return
    parts = json.loads((DATA / "tokenizer_parts.json").read_text(encoding="utf-8"))
    merges = lzma.decompress((DATA / "merges.txt.xz").read_bytes()).decode().splitlines()
    text = tokenizer_json(parts, merges)
    found = hashlib.sha256(text).hexdigest()
    if found != TOKENIZER_SHA256:
        sys.exit(f"build_qwen36: tokenizer.json has sha256 {found}, expected {TOKENIZER_SHA256}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_bytes(tokenizer_config_json(parts))
    target.write_bytes(text)


if __name__ == "__main__":
    main()
