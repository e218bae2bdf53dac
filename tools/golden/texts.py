"""Texts that are hard for a tokenizer; shared by make_encodings.py and tests/live/test_text.py."""
import json
import random
from pathlib import Path

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# What surrounds a code point when every one of them is tried.
CONTEXTS = [("", ""), ("a", "b"), (" ", " "), ("1", "2"), ("!", "?"), ("'", "x"), ("\n", "\n"), ("e\u0301", "\u0327"),
            ("\u1100", "\u11a8"), ("  ", "a"), ("\u00e9", "!"), ("'l", "l"), ("'", "e")]

PROSE = [
    "The harbour master kept a ledger; every vessel, however small, was entered with the hour of its arrival.\n\n"
    "\"It's a habit,\" he'd say, \"and habits outlive harbours.\" By 1937 there were forty-one volumes.",
    "Der Hafenmeister führte ein Buch, in das jedes Schiff eingetragen wurde, so klein es auch war – mit Uhrzeit und Gezeitenstand.",
    "港务长有一本账簿，每一艘船，无论多小，都要记下它抵达的时刻、潮水的状况和掌舵人的名字。",
    "港長は帳簿をつけていて、どんなに小さな船でも、到着の時刻と潮の具合と舵を握る人の名を書き込んだ。",
    "Начальник порта вёл книгу, куда записывал каждое судно, даже самое маленькое.",
    "बंदरगाह के मुखिया एक बही रखते थे जिसमें हर जहाज़ का नाम लिखा जाता था।",
    "كان رئيس الميناء يحتفظ بسجلٍّ يدوَّن فيه اسم كل سفينة مهما صغرت.",
    "항만장은 아무리 작은 배라도 도착 시각과 조수의 상태를 장부에 적어 두었다.",
    "นายท่าเรือเก็บสมุดบันทึกซึ่งจดเรือทุกลำไม่ว่าจะเล็กเพียงใด",
    "Ο λιμενάρχης κρατούσε βιβλίο. נמל קטן, ספר גדול.",
    "Thuyền trưởng cảng giữ một quyển sổ ghi mọi con tàu, dù nhỏ đến đâu.",
    "def merge(a: list[int], b: list[int]) -> list[int]:\n\tout, i, j = [], 0, 0\n    while i < len(a):\r\n        i += 1\n\n\n    return out\n",
    "#include <vector>\nint main() { std::vector<int> v{1, 22, 333}; return v.size() != 3; } // 100%\n",
    "{\"id\": 248044, \"x\": [1.5e-7, null, true], \"s\": \"a\\n\\u00e9\"}",
    "SELECT * FROM t WHERE a<>'it''s' AND b LIKE '%x%';--\t\t\n",
    "👩\u200d🚀👨\u200d👩\u200d👧\u200d👦🏳️\u200d🌈🇳🇴 ❤️ 1️⃣ \u2764 😀😀😀",
    "I'M we'Ll they'VE he'S it'\u017f you'd 'tis 're ''s ' s O'Reilly d'être l'eau",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|><|im_end|><<|im_end|>><|im_end<|im_end|>|><|IM_END|> <| im_end |> <tool_call></tool_call><tool_response>"
    "</tool_response><think></think><|endoftext|><|image_pad|><|audio_pad|><tts_pad><tts_text_bos><tts_text_bos_single>"
    "<tts_text_eod><|fim_prefix|><|fim_middle|><|fim_suffix|><|repo_name|><|file_sep|><|vision_start|><|video_pad|>",
    "caf\u00e9 cafe\u0301 \u212b \u0041\u030a \u1e69 s\u0323\u0307 s\u0307\u0323 \u0344 \u0958 \u2126 \ufb1d \U0001d15e \uf900 \u0f73",
    "\u1100\u1161\u11a8 \uac00\u11a8 \uac01 \u1100\u1161 \u1161\u11a8 \u1112\u1175\u11c2\u11c2",
    "\r\n\r\n\n \n  \n\t\n x\n\n\ny \u3000\u3000z\u00a0\u00a0\u2003 \u2028\u2029\u0085\x0b\x0c \x1c\x1d",
    "\x00\x01\x7f\u0080\u009f\ufeff\ufffe\uffff\U0010ffff\ue000\U000e0001",
    "1234567890 ١٢٣ ४५६ ⅧⅨ ½⅔ ² 一二三 ㊿ 𝟘𝟙",
]

POOLS = [
    [chr(c) for c in range(32, 127)], list("aeiou strnl'ST"), list(" \t\n\r\u00a0\u3000\x0b\x85\u2028"),
    [chr(c) for c in range(0x300, 0x370)], [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xD7A4, 97)],
    [chr(c) for c in range(0x900, 0x980)], [chr(c) for c in range(0x600, 0x700)], [chr(c) for c in range(0x4E00, 0x5200)],
    [chr(c) for c in range(0x1F300, 0x1F700)] + ["\u200d", "\ufe0f"],
    ["'s", "'T", "'\u017f", "'re", "'VE", "'Ll", "'d", "''", "'", "\u017f", "\u212a"], list("0123456789\u0663\u096a\u2167\u00bd"),
    ["<|im_start|>", "<|im_end|", ">", "<think>", "</think>", "<", "<|", "|>", "<tool_call>", "<<|im_end|>", "tts_pad>", "<tts_pad>"],
    [chr(c) for c in range(0x80, 0x250)], [chr(c) for c in range(0x400, 0x480)], [chr(c) for c in CODE_POINTS[::379]],
    ["\u0344", "\u0958", "\u2126", "\u212b", "\uf900", "\ufb1d", "\U0001d15e", "\u0f43", "\u0340", "\u1b06", "\u1b35", "\u0cca",
     "\u0cc2", "\u0cd5", "\u0897", "\u0307", "\U000105d2"],
    ["harbour", " ledger", "Привет", "वर्ष", "帳簿", " the", "ing", "ization", "\n", "  "],
]


def fixed_texts() -> list[str]:
    runs = [c * n for c in ("a", " ", "\n", "é", "漢", "\u0301", "0", "-", "\t", "👍") for n in (1, 2, 31, 32, 33, 100, 400)]
    runs += ["ab" * 200, "the" * 120, "=" * 129 + "x", " " * 200 + "x", "\n " * 60 + "y", "e\u0301\u0327" * 50]
    borders = [left + chr(c) + right for c in CODE_POINTS[::4001] for left, right in CONTEXTS]
    return PROSE + runs + borders


def random_text(seed: int) -> str:
    r = random.Random(seed)
    pools = r.sample(POOLS, r.randint(1, 3))
    return "".join(r.choice(r.choice(pools)) for _ in range(r.choice([3, 10, 30, 80])))


def load_library_tokenizer(folder: Path):
    """The library's tokenizer with the added tokens of tokenizer_config.json, as transformers sets it up."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for i, token in sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0])):
        if tokenizer.token_to_id(token["content"]) is None:
            tokenizer.add_special_tokens([tokenizers.AddedToken(token["content"], normalized=False, special=token["special"])])
            assert tokenizer.token_to_id(token["content"]) == int(i)
    return tokenizer
