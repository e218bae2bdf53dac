"""OpenAI's responses API, as its own client and as Codex use it, against the model that comes with lily."""
import json

import httpx
import pytest
from openai import OpenAI


WEATHER = {"type": "function", "name": "get_weather", "description": "Get the current weather for a city", "strict": False,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}
QUIET = {"effort": "none"}


@pytest.fixture
def client(tiny):
    return OpenAI(base_url=tiny.url("/v1"), api_key="any", max_retries=0)


def post(tiny, body, path="/v1/responses"):
    return httpx.post(tiny.url(path), json={"temperature": 0, "max_output_tokens": 400} | body, timeout=120)


def prompt(tiny, body) -> int:
    answer = post(tiny, body, "/v1/responses/input_tokens")
    assert answer.status_code == 200, answer.text
    return answer.json()["input_tokens"]


def events(tiny, body) -> list[dict]:
    answer = post(tiny, body | {"stream": True})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.text
    out = []
    for block in answer.text.strip().split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {out[-1]['type']}"
    assert [event["sequence_number"] for event in out] == list(range(len(out)))
    return out


def check_lifecycle(got: list[dict]) -> dict:
    """Every item and part is opened, filled and closed, in this order; the last event has them all. Returns its response."""
    assert [event["type"] for event in got[:2]] == ["response.created", "response.in_progress"]
    assert got[0]["response"]["status"] == "in_progress" and got[0]["response"]["output"] == []
    items, part, text = [], None, ""
    for event in got[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert part is None and event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append(event["item"])
            text = ""
        elif kind == "response.output_item.done":
            assert part is None and event["output_index"] == len(items) - 1
            assert event["item"]["id"] == items[-1]["id"] and event["item"]["status"] == "completed"
            whole = event["item"]["arguments"] if event["item"]["type"] == "function_call" else event["item"]["content"][0]["text"]
            assert whole == text
            items[-1] = event["item"]
        elif kind == "response.content_part.added":
            part = event["part"]
            assert event["item_id"] == items[-1]["id"] and part["text"] == ""
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == text
            part = None
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            text += event["delta"]
        else:
            assert kind in ("response.output_text.done", "response.reasoning_text.done", "response.function_call_arguments.done"), kind
            assert event.get("text", event.get("arguments")) == text
    last = got[-1]["response"]
    assert last["output"] == [item for item in items if item["status"] == "completed"]
    assert sum(event["type"] in ("response.completed", "response.incomplete", "response.failed") for event in got) == 1
    return last


def test_text(client):
    answer = client.responses.create(model="gpt-x", input="What is 17 plus 25?", temperature=0, reasoning=QUIET)
    assert [item.type for item in answer.output] == ["message"]
    assert "42" in answer.output_text and answer.status == "completed" and answer.model == "gpt-x"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens < answer.usage.input_tokens


def test_it_thinks_first(client):
    answer = client.responses.create(model="m", input="What is 8 plus 9?", temperature=0)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text and "17" in answer.output_text
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


@pytest.mark.parametrize("effort", ["none", "medium"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(client, effort, stream):
    items = [QUESTION]

    def ask():
        fields = dict(model="m", input=items, tools=[WEATHER], temperature=0, max_output_tokens=400, reasoning={"effort": effort})
        if not stream:
            return client.responses.create(**fields)
        with client.responses.stream(**fields) as running:
            return running.get_final_response()

    first = ask()
    call = first.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Oslo"})
    assert (first.output[0].type == "reasoning") == (effort != "none")
    items += [item.to_dict() for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees, rain"})
    second = ask()
    assert "rain" in second.output_text and second.status == "completed"
    assert second.usage.input_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("body", [{"input": "What is 8 plus 9?"}, {"input": [QUESTION], "tools": [WEATHER]},
                                  {"input": [QUESTION], "tools": [WEATHER], "reasoning": QUIET}])
def test_the_events_of_a_stream(tiny, body):
    last = check_lifecycle(events(tiny, body))
    assert last["status"] == "completed" and last["usage"]["output_tokens"] > 3
    whole = post(tiny, body).json()
    texts = [item.get("arguments") or item["content"][0]["text"] for item in whole["output"]]
    assert texts == [item.get("arguments") or item["content"][0]["text"] for item in last["output"]]


def test_an_answer_that_is_cut(tiny):
    last = check_lifecycle(events(tiny, {"input": "What is 8 plus 9?", "max_output_tokens": 4}))
    assert last["status"] == "incomplete" and last["incomplete_details"] == {"reason": "max_output_tokens"}
    for most in range(1, 40):
        got = events(tiny, {"input": [QUESTION], "tools": [WEATHER], "reasoning": QUIET, "max_output_tokens": most})
        last = check_lifecycle(got)
        for item in last["output"]:
            json.loads(item.get("arguments", "{}"))
        if last["status"] == "completed":
            break
    assert last["status"] == "completed"


def test_what_codex_sends_is_taken(tiny):
    body = {
        "model": "gpt-5-codex", "instructions": "You are a coding agent.", "store": False, "parallel_tool_calls": False, "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": {"effort": "medium", "summary": "auto"},
        "text": {"verbosity": "low"}, "service_tier": "auto", "client_metadata": {"x": "y"},
        "tools": [WEATHER, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "web_search"},
                  {"type": "image_generation"}, {"type": "local_shell"}, {"type": "tool_search"},
                  {"type": "namespace", "name": "mcp", "description": "d", "tools": [WEATHER | {"name": "deep"}, {"type": "custom", "name": "x"}]}],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be safe."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "lily:hm"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\":\"Rome\"}"},
            {"type": "function_call", "call_id": "c2", "namespace": "mcp", "name": "deep", "arguments": "{"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}, {"type": "input_image", "image_url": "data:"}]},
            {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*"},
            {"type": "web_search_call", "status": "completed"}]}
    last = check_lifecycle(events(tiny, body | {"max_output_tokens": 30}))
    assert last["instructions"] == "You are a coding agent." and len(last["tools"]) == 7 and last["store"] is False
    assert prompt(tiny, body) > 60


def test_functions_of_a_namespace_are_called_by_their_own_names(tiny):
    space = {"type": "namespace", "name": "mcp__home", "description": "d", "tools": [WEATHER]}
    got = events(tiny, {"input": [QUESTION], "tools": [space], "reasoning": QUIET})
    [call] = check_lifecycle(got)["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__home", "get_weather"), call
    with_call = {"input": [QUESTION, call], "tools": [space]}
    assert prompt(tiny, with_call) > prompt(tiny, {"input": [QUESTION], "tools": [space]})


def test_reasoning_that_is_sent_back_is_found_again(tiny):
    first = post(tiny, {"input": [QUESTION], "tools": [WEATHER], "include": ["reasoning.encrypted_content"]}).json()
    reasoning, call = first["output"][0], first["output"][-1]
    assert reasoning["encrypted_content"].startswith("lily:")
    kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}  # as Codex does
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "4 degrees, rain"}
    second = post(tiny, {"input": [QUESTION, kept, call, result], "tools": [WEATHER]}).json()["usage"]
    # The opening of the answer may be read again.
    assert second["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 64


@pytest.mark.parametrize("probe", [[], ""])
def test_an_empty_input_is_answered(tiny, probe):
    assert post(tiny, {"input": probe, "max_output_tokens": 2}).status_code == 200


def test_input_tokens_are_what_an_answer_costs(tiny, client):
    fields = dict(model="m", input=[QUESTION], instructions="Be brief.", tools=[WEATHER])
    assert client.responses.create(max_output_tokens=16, **fields).usage.input_tokens == prompt(tiny, fields)


def test_logprobs(tiny):
    body = {"input": "What is 17 plus 25?", "reasoning": QUIET, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    part = post(tiny, body).json()["output"][0]["content"][0]
    assert "".join(token["token"] for token in part["logprobs"]) == part["text"]
    assert all(len(token["top_logprobs"]) == 2 for token in part["logprobs"])
    streamed = check_lifecycle(events(tiny, body))["output"][0]["content"][0]
    assert [t["token"] for t in streamed["logprobs"]] == [t["token"] for t in part["logprobs"]]


@pytest.mark.parametrize("change, param", [
    ({"input": 5}, "input"),
    ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]}]}, "input[0].content[1]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"background": True}, "background"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
    ({"temperature": 9}, "temperature"),
    ({"input": "word " * 4000}, "input"),
])
def test_errors_name_the_field_of_this_api(tiny, change, param):
    answer = post(tiny, {"input": [QUESTION]} | change)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and error["type"] == "invalid_request_error", error
    if param == "input" and isinstance(change["input"], str):
        assert error["code"] == "context_length_exceeded"
