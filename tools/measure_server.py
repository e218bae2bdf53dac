#!/usr/bin/env python3
"""Tries a running server over HTTP: a conversation that goes on from what was kept, the time to the first token of a prompt
of about 2,048 tokens, and the tokens per second of one streamed answer.

Usage: measure_server.py URL        exit status 1 if the conversation was not kept; figures in lines that begin with two spaces.
"""
import http.client
import json
import sys
import time
from urllib.parse import urlparse

PROMPT_TOKENS, ANSWER_TOKENS, REPEATS = 2048, 256, 5


def connect(url):
    return http.client.HTTPConnection(url.hostname, url.port, timeout=60)


def wait_until_up(url):
    for _ in range(600):
        try:
            connection = connect(url)
            connection.request("GET", "/v1/models")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("the server did not come up")


def ask(url, messages, tokens):
    connection = connect(url)
    body = {"model": "lily", "messages": messages, "max_tokens": tokens, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    if "choices" not in answer:
        sys.exit(f"the server answered {answer}")
    return answer


def stream(url, messages, tokens):
    """Seconds to the first piece, seconds from it to the last, tokens of prompt and answer."""
    connection = connect(url)
    body = {"model": "lily", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    first = last = None
    usage = {}
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        delta = event["choices"][0]["delta"] if event.get("choices") else {}
        if delta.get("content") or delta.get("reasoning_content"):
            last = time.perf_counter()
            first = first or last
    return (first or 0) - begin, (last or 0) - (first or 0), usage


def words(count, seed):
    return " ".join(str((i * 7919 + seed * 104729) % 10) for i in range(count))


def main():
    url = urlparse(sys.argv[1])
    wait_until_up(url)
    talk = [{"role": "user", "content": "Count: " + words(200, 1)}]
    said = ask(url, talk, 24)["choices"][0]["message"]
    talk += [{"role": "assistant", "content": said.get("content") or "one"}, {"role": "user", "content": "And then?"}]
    once, twice = ask(url, talk, 24), ask(url, talk, 24)
    kept = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (once, twice)]
    same = once["choices"][0]["message"] == twice["choices"][0]["message"]
    print(f"  second turn: {kept[0]} of {once['usage']['prompt_tokens']} tokens kept, asked again {kept[1]}; same answer: {same}")
    if min(kept) < 100 or not same:
        sys.exit("the conversation was not kept: FAILED")
    per_word = ask(url, [{"role": "user", "content": words(500, 2)}], 1)["usage"]["prompt_tokens"] / 500
    times = sorted(stream(url, [{"role": "user", "content": words(int(PROMPT_TOKENS / per_word), 3 + i)}], 2)
                   for i in range(REPEATS))
    seconds, _, usage = times[REPEATS // 2]
    print(f"  first token of {usage.get('prompt_tokens')} tokens: {seconds * 1e3:.1f} ms (median of {REPEATS}, "
          f"{times[0][0] * 1e3:.1f} to {times[-1][0] * 1e3:.1f})")
    rates = []
    for i in range(REPEATS):
        _, seconds, usage = stream(url, [{"role": "user", "content": f"Tell me a story, number {i}."}], ANSWER_TOKENS)
        if seconds > 0:
            rates.append((usage.get("completion_tokens", 0) - 1) / seconds)
    rates.sort()
    if rates:
        print(f"  streamed: {rates[len(rates) // 2]:.0f} tokens/s to one client (median of {len(rates)}, "
              f"{rates[0]:.0f} to {rates[-1]:.0f})")
    print("PASSED")


main()
