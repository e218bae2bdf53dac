"""Many mixed requests, some of which leave: memory stays flat, every request ends in exactly one way, and no answer has another's text.

LILY_LOAD_REQUESTS sets how many (10,000 for the whole test; fewer here, so that the suite stays quick)."""
import asyncio
import json
import os
import random
import re
from collections import Counter

import httpx
import pytest

from server_process import Server

REQUESTS = int(os.environ.get("LILY_LOAD_REQUESTS", "800"))
AT_ONCE = 24
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CITIES = ["Oslo", "Rome", "Paris", "Lima", "Cairo", "Tokyo", "Delhi", "Quito"]


def question(kind: int) -> dict:
    """Greedy requests of limited kinds: each has one right answer, whoever shares the batch."""
    rng = random.Random(kind)
    city, a, b = rng.choice(CITIES), rng.randrange(100), rng.randrange(100)
    body = {"model": "m", "temperature": 0, "max_tokens": rng.choice([4, 12, 24]), "chat_template_kwargs": {"enable_thinking": bool(kind % 3 == 0)}}
    if kind % 4 == 0:
        return body | {"tools": [WEATHER], "messages": [{"role": "user", "content": f"What is the weather in {city}?"}], "max_tokens": 48}
    if kind % 4 == 1:
        return body | {"messages": [{"role": "user", "content": f"Say {city}."}, {"role": "assistant", "content": city}, {"role": "user", "content": f"What is {a} plus {b}?"}]}
    return body | {"messages": [{"role": "user", "content": f"Repeat the word {city}{a} five times."}]}


def text_of(message: dict) -> tuple:
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return message.get("reasoning_content") or "", message.get("content") or "", calls


def joined(events: list[str]) -> tuple:
    reasoning, content, calls = "", "", []
    for event in events:
        for choice in json.loads(event)["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
    return reasoning, content, [tuple(call) for call in calls]


def whole_calls(answer: tuple) -> tuple:
    """A call that max_tokens cut is in a stream only."""
    def is_json(text):
        try:
            return isinstance(json.loads(text), dict)
        except ValueError:
            return False
    return answer[0], answer[1], [c for c in answer[2] if is_json(c[1])]


def resident(server) -> int:
    status = open(f"/proc/{server.process.pid}/status").read()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


async def one(client: httpx.AsyncClient, number: int, expected: list[tuple], ends: Counter):
    rng = random.Random(1_000_003 * number)
    kind = rng.randrange(len(expected))
    body = question(kind)
    what = rng.choices(["whole", "stream", "leave", "leave_stream", "wrong", "long"], [30, 30, 12, 12, 8, 8])[0]
    if what == "wrong":
        reply = await client.post("/v1/chat/completions", json=body | {"temperature": 9})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "temperature"
    elif what == "long":
        reply = await client.post("/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": "word " * 4000}]})
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
    elif what == "leave":
        try:
            await client.post("/v1/chat/completions", json=body | {"max_tokens": 400}, timeout=rng.uniform(0.001, 0.2))
        except httpx.TimeoutException:
            pass
    elif what == "leave_stream":
        async with client.stream("POST", "/v1/chat/completions", json=body | {"max_tokens": 400, "stream": True}) as reply:
            assert reply.status_code in (200, 429)
            async for _ in reply.aiter_lines():
                if rng.random() < 0.3:
                    break
    elif what == "whole":
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code in (200, 429), reply.text
        if reply.status_code == 429:
            assert int(reply.headers["retry-after"]) >= 1
        else:
            assert text_of(reply.json()["choices"][0]["message"]) == expected[kind], body
    else:
        async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
            assert reply.status_code in (200, 429)
            if reply.status_code == 200:
                events = [line[6:] async for line in reply.aiter_lines() if line.startswith("data: ")]
                assert events.pop() == "[DONE]"
                assert sum(c["finish_reason"] is not None for e in events for c in json.loads(e)["choices"]) == 1
                assert whole_calls(joined(events)) == expected[kind], body
    ends[what] += 1


async def load(server, expected: list[tuple]) -> tuple[Counter, list[int]]:
    ends, memory, numbers = Counter(), [], iter(range(REQUESTS))
    async with httpx.AsyncClient(base_url=server.base, timeout=120, limits=httpx.Limits(max_connections=AT_ONCE)) as client:
        async def worker():
            for number in numbers:
                await one(client, number, expected, ends)
                if number % max(1, REQUESTS // 20) == 0:
                    memory.append(resident(server))
        await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
    return ends, memory


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_many_requests():
    with Server(None, "--parallel", "8", "--queue", "64", "--ctx", "1024", "--cache-ram", "256") as server:
        expected = []
        for kind in range(24):
            reply = httpx.post(server.url("/v1/chat/completions"), json=question(kind), timeout=60)
            assert reply.status_code == 200, reply.text
            expected.append(text_of(reply.json()["choices"][0]["message"]))
        ends, memory = asyncio.run(load(server, expected))
        assert ends.total() == REQUESTS and len(ends) == 6
        warm = max(memory[: len(memory) // 2])
        assert max(memory[len(memory) // 2:]) < warm + (48 << 20), [m >> 20 for m in memory]
        assert server.healthy()
    log = server.log()
    lines = re.findall(r"(chatcmpl-\w+) (\d+)( stream)? finish=(\S+)", log)
    assert len({line[0] for line in lines}) == len(lines), "a request ended twice"
    assert REQUESTS * 0.85 <= len(lines) <= REQUESTS + len(expected)  # who leaves at once was perhaps never heard
    ends_of_log = {"stop", "length", "tool_calls", "cancelled", "left", "unread", "error", "context_length_exceeded", "queue_full"}
    assert {line[3] for line in lines} <= ends_of_log
    print(f"{REQUESTS} requests: {dict(ends)}, ended {dict(Counter(line[3] for line in lines))}, memory in MiB {[m >> 20 for m in memory]}")
