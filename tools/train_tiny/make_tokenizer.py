#!/usr/bin/env python3
"""Trains lily-tiny's byte-level BPE on the corpus and on generated conversations, and writes it in Qwen's layout.

ids: 256 bytes in GPT-2's order, merges in order, then the 33 added tokens in Qwen's order, the last of them row 8,191.
As in the published files, tokenizer.json lists the first 26 added tokens and tokenizer_config.json all 33.
"""
import argparse
import json
import lzma
import os
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import conversations
import render

ROWS = 8192
REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>""".split()
PLAIN = """<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>""".split()  # special: false, kept when special tokens are skipped
AUDIO = """<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>""".split()


def added_tokens(first):
    return [{"id": first + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": t not in PLAIN} for i, t in enumerate(SPECIAL + PLAIN + AUDIO)]


def training_text(corpus, seed):
    rng = random.Random(seed)
    with lzma.open(corpus, "rt") as lines:
        for line in lines:
            if rng.random() < 0.4:
                yield json.loads(line)["text"]
    kinds = list(conversations.SIMPLE) + ["tools"]
    for i in range(60000):
        text, _ = render.document(conversations.conversation(rng, kinds[i % len(kinds)], False))
        yield text


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("corpus", help="text-train.jsonl.xz of corpus.py")
    args.add_argument("out")
    args = args.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    byte_level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(REGEX), "isolated"), pre_tokenizers.ByteLevel(**byte_level)])
    tokenizer.decoder = decoders.ByteLevel(**byte_level)
    base = ROWS - len(SPECIAL + PLAIN + AUDIO)
    trainer = trainers.BpeTrainer(vocab_size=base, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator((t for d in training_text(args.corpus, 1) for t in strip_added(d)), trainer)
    data = json.loads(tokenizer.to_str())
    assert len(data["model"]["vocab"]) == base and sorted(data["model"]["vocab"].values()) == list(range(base))
    # Qwen's files: merges as "a b" strings, no model fields beyond these, a ByteLevel post-processor.
    model = data["model"]
    tokens = added_tokens(base)
    byte_level = {"type": "ByteLevel", **byte_level}
    out = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens[:26], "normalizer": {"type": "NFC"}, "pre_tokenizer": data["pre_tokenizer"], "post_processor": byte_level, "decoder": byte_level,
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                     "vocab": dict(sorted(model["vocab"].items(), key=lambda x: x[1])), "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]}}
    config = {"add_bos_token": False, "add_prefix_space": False,
              "added_tokens_decoder": {str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")} for t in tokens},
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
                                            "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
              "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 262144, "pad_token": "<|endoftext|>", "split_special_tokens": False,
              "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    os.makedirs(args.out, exist_ok=True)
    json.dump(out, open(f"{args.out}/tokenizer.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1)
    json.dump(config, open(f"{args.out}/tokenizer_config.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1)


def strip_added(text):
    """The added tokens are matched before the BPE, so it must not learn from their letters."""
    for t in SPECIAL + PLAIN + AUDIO:
        text = text.replace(t, "\0")
    return [p for p in text.split("\0") if p]


if __name__ == "__main__":
    main()
