"""lily's text layer against the `tokenizers` library and jinja2, through build/tests/tools/text_tool.

Every code point in every context, tens of thousands of random strings, thousands of random conversations.
Usage: pip install -r tests/requirements.txt; pytest tests/live --build BUILD_FOLDER [--text-scale 0.1]
"""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/golden"))
import conversations  # noqa: E402
import texts  # noqa: E402


@pytest.fixture(scope="session")
def folder(build):
    target = build / "qwen36_tokenizer"
    subprocess.run([sys.executable, ROOT / "tools/tokenizer/build_qwen36.py", target], check=True)
    return target


@pytest.fixture(scope="session")
def library(folder):
    return texts.load_library_tokenizer(folder)


@pytest.fixture(scope="session")
def tool(build):
    def ask(rows: list, *arguments) -> list:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        done = subprocess.run([build / "tests/tools/text_tool", *arguments], input=lines.encode(), capture_output=True,
                              check=True)
        # Not splitlines(): the answers hold U+2028 and its like.
        answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
        assert len(answers) == len(rows)
        return answers

    return ask


def assert_same_ids(tool, library, folder, rows):
    expected = [encoding.ids for encoding in library.encode_batch(rows)]
    different = [(text, found, ids) for text, found, ids in zip(rows, tool(rows, "encode", folder), expected) if found != ids]
    assert not different, f"{len(different)} of {len(rows)} differ, the first: {different[0]!r}"


@pytest.mark.parametrize("left,right", texts.CONTEXTS)
def test_every_code_point(tool, library, folder, scale, left, right):
    points = texts.CODE_POINTS if scale >= 1 else texts.CODE_POINTS[::max(1, round(1 / scale))]
    rows = ["\u4e00!".join(left + chr(c) + right for c in points[i:i + 64]) for i in range(0, len(points), 64)]
    assert_same_ids(tool, library, folder, rows)


def test_random_strings(tool, library, folder, scale):
    assert_same_ids(tool, library, folder, texts.fixed_texts())
    assert_same_ids(tool, library, folder, [texts.random_text(seed) for seed in range(10_000, 10_000 + int(20_000 * scale))])


def test_long_pieces(tool, library, folder):
    """Beyond the length at which merging changes its method."""
    letters = "etaoinshrdlu"
    rows = ["".join(letters[(i * i * 31 + i * seed) % 97 % len(letters)] for i in range(20_000)) for seed in range(3)]
    rows += ["<>=!(){}"[i % 3::2] * 3000 for i in range(4)] + ["漂流瓶的海" * 3000, "приветмир" * 2000, " " * 10_001 + "x", "\n\t" * 9000]
    assert_same_ids(tool, library, folder, rows)


def test_decode(tool, library, folder, scale):
    import random

    r = random.Random(5)
    rows = [{"ids": [r.choice([r.randrange(256), r.randrange(248_044), r.randrange(248_044, 248_077)])
                     for _ in range(r.randint(0, 12))], "skip_special": r.random() < 0.5} for _ in range(int(20_000 * scale))]
    for row, found in zip(rows, tool(rows, "decode", folder)):
        assert found == library.decode(row["ids"], skip_special_tokens=row["skip_special"]), row


@pytest.fixture(scope="session")
def template():
    return conversations.compile_template((ROOT / "tests/data/qwen36/chat_template.jinja").read_text(encoding="utf-8"))


CONVERSION = {"Unexpected content type.", "Unexpected item type in content.", "Can only get item pairs from a mapping."}


def test_conversations(tool, template, scale):
    cases = [conversations.Source(seed).conversation() for seed in range(100_000, 100_000 + int(5_000 * scale))]
    for case, found in zip(cases, tool(cases, "render")):
        expected = conversations.render(template, case)
        if "output" in expected:
            assert found.get("text") == expected["output"], case
        else:  # lily's tool finds faults of form before it renders
            assert "error" in found and (found["error"] == expected["error"] or found["error"] in CONVERSION), (case, found)


def replaced(value, old: str, new: str):
    """`value` with every string in it, keys included, changed; the parts of the form stay."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    if isinstance(value, dict):
        return {replaced(key, old, new): replaced(item, old, new) for key, item in value.items()}
    return value


def test_literal_ranges(tool, template, scale):
    """With every "<" of the messages turned into another character, those left are the template's own: exactly those
    must lie outside the literal ranges."""
    checked = 0
    cases = [conversations.Source(seed, markers=0.3).conversation() for seed in range(200_000, 200_000 + int(2_000 * scale))]
    for case, found in zip(cases, tool(cases, "render")):
        expected = conversations.render(template, case)
        changed = conversations.render(template, replaced(case, "<", "\ue000"))
        if "output" not in expected or len(changed.get("output", "")) != len(expected["output"]):
            continue  # an error, or the "<" decided how it is rendered
        checked += 1
        text = found["text"].encode()
        literal = [False] * len(text)
        for begin, end in found["literal"]:
            literal[begin:end] = [True] * (end - begin)
        at = 0
        for before, after in zip(expected["output"], changed["output"]):
            if before == "<":
                assert literal[at] == (after != "<"), (case, at)
            at += len(before.encode())
    assert checked > 500 * scale
