"""What the tests of kept conversations share: requests, made-up histories, and a conversation with tools as a client has it."""
import json
import os
import random

import httpx

SLACK = 64  # tokens that may be read again although they are known
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
CITIES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Madrid", "Berlin", "Vienna", "Lisbon"]


def ask(server, messages, **fields) -> dict:
    body = {"messages": messages, "temperature": 0, "max_tokens": 40} | fields
    answer = httpx.post(server.url("/v1/chat/completions"), json=body, timeout=3600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def message(answer) -> dict:
    return answer["choices"][0]["message"]


def said(answer) -> tuple:
    """What a message says, without the ids of calls, which are new each time."""
    found = message(answer)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in found.get("tool_calls") or []]
    return found.get("reasoning_content"), found["content"], calls


def cached(answer) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def reread(answer) -> int:
    return answer["usage"]["prompt_tokens"] - cached(answer)


def tokens(server, text: str) -> int:
    return len(httpx.post(server.url("/tokenize"), json={"content": text}).json()["tokens"])


def words(count: int, seed) -> str:
    source = random.Random(str(seed))
    return " ".join(source.choice(["river", "stone", "cloud", "lamp", "seven", "green", "house"]) for _ in range(count))


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(seed, count: int = 300) -> dict:
    return {"role": "system", "content": words(count, seed)}


def metrics(server) -> dict[str, float]:
    lines = httpx.get(server.url("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def resident(server) -> int:
    """Bytes of memory that the server holds."""
    with open(f"/proc/{server.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tool_chain(pairs: int, with_reasoning: bool) -> list[dict]:
    chain = []
    for i in range(pairs):
        call = {"id": f"call_{i}", "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps({"city": words(2, ("city", i))})}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        if with_reasoning:
            turn["reasoning_content"] = words(60, ("thought", i))
        chain += [turn, {"role": "tool", "tool_call_id": call["id"], "content": words(40, ("result", i))}]
    return chain


def random_history(source: random.Random) -> list[list[dict]]:
    """The message lists of one conversation's requests: turns, edits, branches, repeats, tool chains."""
    messages = [system(source.random(), source.randrange(20, 400))] if source.random() < 0.7 else []
    requests = []
    for _ in range(source.randrange(3, 7)):
        deed = source.random()
        if deed < 0.15 and requests:
            requests.append(requests[-1])  # regenerate
            continue
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        if deed < 0.35 and len(users) > 1:
            at = source.choice(users)
            messages = messages[:at]  # edit, or branch off
        messages = messages + [user(words(source.randrange(1, 120), source.random()))]
        if source.random() < 0.3:
            messages = messages + tool_chain(source.randrange(1, 4), source.random() < 0.5)
        requests.append(messages)
        reply = {"role": "assistant", "content": words(source.randrange(1, 40), source.random())}
        if source.random() < 0.5:
            reply["reasoning_content"] = words(source.randrange(1, 40), source.random())
        messages = messages + [reply]
    return requests


class Agent:
    """A client with tools: asks, and returns what it was told, with its reasoning or without, in its own JSON."""

    def __init__(self, server, seed, with_reasoning: bool, **fields):
        self.server, self.with_reasoning, self.fields = server, with_reasoning, fields
        self.source = random.Random(str(seed))
        self.messages = [system(("agent", seed), 150)]
        self.ends = [0]  # tokens known after each request

    def ask(self) -> dict:
        answer = ask(self.server, self.messages, tools=TOOLS, max_tokens=100, seed=self.source.randrange(1 << 32), **self.fields)
        self.ends.append(answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"])
        found = message(answer)
        turn = {"role": "assistant", "content": found["content"]}
        if self.with_reasoning:
            turn["reasoning_content"] = found.get("reasoning_content")
        if found.get("tool_calls"):
            turn["tool_calls"] = [self.rewritten(call) for call in found["tool_calls"]]
        self.messages.append(turn)
        return answer

    @staticmethod
    def rewritten(call: dict) -> dict:
        """As a client that parses arguments and writes them again: other spaces, other order."""
        arguments = json.loads(call["function"]["arguments"])
        arguments = dict(reversed(arguments.items()))
        return call | {"function": {"name": call["function"]["name"], "arguments": json.dumps(arguments, separators=(",", ":"))}}

    def turn(self) -> dict:
        """One request: with results when calls wait for them, else with a new question."""
        calls = self.messages[-1].get("tool_calls") or []
        for call in calls:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": words(12, self.source.random())})
        if not calls:
            self.messages.append(user(f"What is the weather in {self.source.choice(CITIES)}?"))
        return self.ask()
