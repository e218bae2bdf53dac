#!/usr/bin/env python3
"""Writes the behaviour suite: held-out prompts of the twelve kinds with what a right answer must be. Reproducible by seed."""
import argparse
import json
import random

import conversations

KINDS = ["small_talk", "facts", "arithmetic", "counting", "spelling", "sorting", "translation", "stories", "memory", "json", "thinking"]


def openai(messages):
    """Tool calls with ids and arguments as a JSON string, as a client sends them."""
    out, n = [], 0
    for m in messages:
        m = {k: v for k, v in m.items() if k != "reasoning_content"}
        if m.get("tool_calls"):
            calls = []
            for c in m["tool_calls"]:
                n += 1
                calls.append({"id": f"call_{n}", "type": "function", "function": {"name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}})
            m["tool_calls"] = calls
            waiting = [c["id"] for c in calls]
        elif m["role"] == "tool":
            m["tool_call_id"] = waiting.pop(0)
        out.append(m)
    return out


def suite(seed, per_kind=15, tools=(("one", 24), ("two", 12), ("result", 12), ("none", 6), ("missing", 6))):
    import tools as T
    rng = random.Random(seed)
    cases, seen = [], set()

    def add(kind, make, count):
        made = 0
        while made < count:
            c = make()
            key = json.dumps(c["messages"][:-1])
            if key in seen:
                continue
            seen.add(key)
            made += 1
            cases.append({"id": f"{kind}-{made}" if kind != "tools" else f"tools-{c['shape']}-{made}", "kind": kind, "thinking": c["thinking"], "tools": c["tools"], "messages": openai(c["messages"][:-1]),
                          "check": c["check"], "max_tokens": 400})

    for kind in KINDS:
        add(kind, lambda: conversations.conversation(rng, kind, True), per_kind)
    for shape, count in tools:
        add("tools", lambda: T.conversation(rng, True, shape), count)
    return cases


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("out")
    args.add_argument("--seed", type=int, default=2026)
    args = args.parse_args()
    cases = suite(args.seed)
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    print(len(cases), "prompts")
