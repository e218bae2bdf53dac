#!/usr/bin/env python3
"""Runs the behaviour suite against an OpenAI-compatible server, greedy, and fails below the wanted shares.

  run.py http://127.0.0.1:8080/v1 [--suite suite.json] [--kind tools] [--show]

Only the standard library is used. Exit status 0 if at least 90 % are right over all, 80 % in each kind, and 95 % of the tool calls.
"""
import argparse
import concurrent.futures
import json
import os
import sys
import urllib.request

import checks


def request(url, body, key):
    headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=600) as reply:
        return json.load(reply)


def answer(base, model, key, case, as_text=False):
    body = {"model": model, "messages": case["messages"], "temperature": 0, "max_tokens": case["max_tokens"],
            "chat_template_kwargs": {"enable_thinking": case["thinking"]}}
    if case["tools"]:
        body["tools"] = case["tools"]
    choice = request(base + "/chat/completions", body, key)["choices"][0]
    message = choice["message"]
    calls, malformed = [], False
    for call in message.get("tool_calls") or []:
        try:
            calls.append({"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])})
        except (ValueError, KeyError):
            malformed = True
    content = message.get("content") or ""
    if as_text and not calls:  # a server that does not separate tool calls yet
        content, calls, malformed = checks.read_calls(content, case["tools"])
    return {"content": content, "reasoning": message.get("reasoning_content") or "", "calls": calls,
            "malformed": malformed or "<tool_call>" in content, "finished": choice["finish_reason"] in ("stop", "tool_calls")}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("base", help="e.g. http://127.0.0.1:8080/v1")
    args.add_argument("--suite", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "suite.json"))
    args.add_argument("--model", default="lily-tiny")
    args.add_argument("--api-key", default="")
    args.add_argument("--kind", help="only this kind")
    args.add_argument("--parallel", type=int, default=4)
    args.add_argument("--calls-as-text", action="store_true", help="read tool calls from the content, for a server that leaves them there")
    args.add_argument("--show", action="store_true", help="print every wrong answer")
    args = args.parse_args()
    cases = [c for c in json.load(open(args.suite)) if args.kind in (None, c["kind"])]
    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        answers = list(pool.map(lambda c: answer(args.base.rstrip("/"), args.model, args.api_key, c, args.calls_as_text), cases))
    results = [(c, checks.judge(c, a)) for c, a in zip(cases, answers)]
    for (case, reason), a in zip(results, answers):
        if reason and args.show:
            print(case["id"], reason, "|", case["messages"][-1]["content"][:80], "|", a["content"][:120], file=sys.stderr)
    s = checks.summary(results)
    print(json.dumps(s, indent=1))
    good = s["share"] >= 0.9 and all(k["share"] >= 0.8 for k in s["kinds"].values()) and (not s["tool_calls"]["of"] or s["tool_calls"]["share"] >= 0.95)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
