"""Requests of the other APIs with anything in the place of anything: an answer or a 400 that names a field, in the form of the API."""
import copy
import json
import os
import random

import httpx
import pytest

from server_process import Server

CASES = int(os.environ.get("LILY_MALFORMED", "300"))
JUNK = [None, 0, -1, 1e308, 2**70, True, "", [], {}, "x", [[]], [{}], [None], {"type": "text"}, {"type": 5}, "\ud800", [1, "a"], {"a": {"b": []}}]
TEXT = {"type": "text", "text": "x"}
MESSAGES = {
    "model": "m", "max_tokens": 2, "system": [TEXT], "temperature": 0.5, "stop_sequences": ["a"], "thinking": {"type": "enabled", "budget_tokens": 5},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "output_config": {"format": None},
    "messages": [
        {"role": "user", "content": [TEXT, {"type": "tool_result", "tool_use_id": "a", "content": [
            TEXT, {"type": "document", "source": {"type": "content", "content": [TEXT]}}]}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1]}}]},
        {"role": "user", "content": [{"type": "search_result", "title": "t", "source": "s", "content": [TEXT]},
                                     {"type": "document", "source": {"type": "text", "data": "d"}}]}]}
RESPONSES = {
    "model": "m", "max_output_tokens": 2, "instructions": "i", "tool_choice": "auto", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
    "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}, "top_logprobs": 1,
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}},
              {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}],
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
              {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "r"}], "encrypted_content": "lily:x"},
              {"role": "assistant", "content": [{"type": "refusal", "refusal": "n"}]},
              {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]}]}
COMPLETIONS = {"model": "m", "prompt": [[1, 2, 3]], "max_tokens": 2, "stop": ["a"], "echo": True, "suffix": "", "n": 1, "best_of": 1, "logit_bias": {"5": 1}}


@pytest.fixture(scope="module")
def server():
    with Server(None, "--ctx", "1024", "--parallel", "4", "--queue", "64") as running:
        yield running


def spots(value, path=()):
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from spots(value[key], path + (key,))


def spoil(body, source):
    for _ in range(source.choice([1, 1, 2, 3])):
        places = list(spots(body))
        if not places:
            return
        *way, last = source.choice(places)
        owner = body
        for key in way:
            owner = owner[key]
        act = source.random()
        if act < 0.2 and isinstance(owner, dict):
            del owner[last]
        elif act < 0.3 and isinstance(owner, list):
            owner.append(copy.deepcopy(owner[last]))
        else:
            owner[last] = copy.deepcopy(source.choice(JUNK))


@pytest.mark.parametrize("path, body", [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES), ("/v1/completions", COMPLETIONS)])
def test_anything_in_the_place_of_anything(server, path, body):
    source = random.Random(path)
    seen = {200: 0, 400: 0}
    with httpx.Client(timeout=60) as client:
        for _ in range(CASES):
            spoiled = copy.deepcopy(body)
            spoil(spoiled, source)
            spoiled["stream"] = source.random() < 0.3
            answer = client.post(server.url(path), content=json.dumps(spoiled).encode())
            assert answer.status_code in seen, (answer.status_code, answer.text, spoiled)
            seen[answer.status_code] += 1
            if answer.status_code == 400:
                error = answer.json()["error"]
                assert error["message"] and error["type"] == "invalid_request_error", (error, spoiled)
                assert "param" in error or answer.json()["type"] == "error"
        assert client.post(server.url(path), json=body).status_code == 200
    assert all(seen.values()), seen
