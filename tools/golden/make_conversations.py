#!/usr/bin/env python3
"""Writes tests/data/qwen36/conversations.jsonl: random conversations with the render of jinja2 3.1.6.

Usage: pip install -r tests/requirements.txt; make_conversations.py [COUNT]
"""
import json
import sys
from pathlib import Path

from conversations import Source, compile_template, render

DATA = Path(__file__).resolve().parents[2] / "tests/data/qwen36"


def main() -> None:
    template = compile_template((DATA / "chat_template.jinja").read_text(encoding="utf-8"))
    with (DATA / "conversations.jsonl").open("w", encoding="utf-8") as out:
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 400):
            case = Source(seed).conversation()
            out.write(json.dumps({"input": case, **render(template, case)}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
