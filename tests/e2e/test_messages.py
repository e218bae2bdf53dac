"""Anthropic's messages API, as its own client and as Claude Code use it, against the model that comes with lily."""
import json

import anthropic
import httpx
import pytest

from server_process import Server

WEATHER = {"name": "get_weather", "description": "Get the current weather for a city",
           "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}
GREEDY = {"temperature": 0}
THINK = {"type": "enabled", "budget_tokens": 1024}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00af3;"}


@pytest.fixture
def client(tiny):
    return anthropic.Anthropic(base_url=tiny.base, api_key="any", max_retries=0)


def post(tiny, body, path="/v1/messages"):
    return httpx.post(tiny.url(path), json=body, timeout=120)


def prompt(tiny, body) -> int:
    return post(tiny, body, "/v1/messages/count_tokens").json()["input_tokens"]


def events(tiny, body) -> list[dict]:
    answer = post(tiny, body | {"stream": True})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    out = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {out[-1]['type']}"
    return out


def test_text_comes_first_for_who_does_not_ask_for_thinking(client):
    answer = client.messages.create(model="claude-x", max_tokens=100, extra_body=GREEDY,
                                    messages=[{"role": "user", "content": "What is 17 plus 25?"}])
    assert [block.type for block in answer.content] == ["text"]
    assert "42" in answer.content[0].text
    assert (answer.stop_reason, answer.stop_sequence, answer.model, answer.role) == ("end_turn", None, "claude-x", "assistant")
    assert answer.usage.input_tokens > 5 and answer.usage.output_tokens > 1


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(client, thinking, stream):
    messages = [QUESTION]
    options = {"thinking": THINK} if thinking else {}

    def ask():
        fields = dict(model="lily", max_tokens=400, extra_body=GREEDY, tools=[WEATHER], messages=messages, **options)
        if not stream:
            return client.messages.create(**fields)
        with client.messages.stream(**fields) as running:
            return running.get_final_message()

    first = ask()
    kinds = [block.type for block in first.content]
    assert kinds[-1] == "tool_use" and first.stop_reason == "tool_use", first
    assert ("thinking" in kinds) == thinking
    call = first.content[-1]
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    if thinking:
        assert first.content[0].thinking and first.content[0].signature
    messages += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees, rain"}]}]
    second = ask()
    assert second.stop_reason == "end_turn"
    assert "rain" in second.content[-1].text
    assert second.usage.cache_read_input_tokens > 0 and second.usage.input_tokens > 0


def test_the_events_of_a_stream(tiny):
    got = events(tiny, {"model": "m", "max_tokens": 400, "temperature": 0, "thinking": THINK, "tools": [WEATHER],
                          "messages": [QUESTION]})
    got = [event for event in got if event["type"] != "ping"]
    start = got[0]["message"]
    assert got[0]["type"] == "message_start" and start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 5
    assert [event["type"] for event in got[-2:]] == ["message_delta", "message_stop"]
    assert got[-2]["delta"]["stop_reason"] == "tool_use" and got[-2]["usage"]["output_tokens"] > 5
    blocks, open_block = [], None
    for event in got[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None and event["index"] == len(blocks)
            open_block = event["content_block"] | {"deltas": []}
            blocks.append(open_block)
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(blocks) - 1
            open_block = None
        else:
            assert event["type"] == "content_block_delta" and event["index"] == len(blocks) - 1 and open_block
            open_block["deltas"].append(event["delta"])
    assert open_block is None
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
    assert [d["type"] for d in blocks[0]["deltas"][-2:]] == ["thinking_delta", "signature_delta"]
    assert blocks[1]["input"] == {} and {d["type"] for d in blocks[1]["deltas"]} == {"input_json_delta"}
    assert json.loads("".join(d["partial_json"] for d in blocks[1]["deltas"])) == {"city": "Oslo"}


def test_claude_codes_header_is_no_part_of_the_prompt(tiny):
    body = {"messages": [QUESTION], "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}
    assert prompt(tiny, body) == prompt(tiny, body | {"system": [BILLING, *body["system"]]})
    assert prompt(tiny, body) == prompt(tiny, body | {"system": "Be brief."})
    assert prompt(tiny, body) > prompt(tiny, {"messages": [QUESTION]}) == prompt(tiny, {"messages": [QUESTION], "system": [BILLING]})
    late = body["messages"] + [{"role": "assistant", "content": "Rain."}, {"role": "system", "content": [{"type": "text", "text": "In French."}]}, QUESTION]
    assert post(tiny, {"messages": late, "max_tokens": 5}).status_code == 200


def test_count_tokens_is_what_a_message_costs(tiny, client):
    fields = dict(model="m", messages=[QUESTION], system="Be brief.", tools=[WEATHER])
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(max_tokens=1, **fields).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_what_claude_code_sends_is_taken(tiny):
    body = {
        "model": "claude-opus-4-1", "max_tokens": 32000, "stream": False, "temperature": 1, "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive"}, "context_management": {"edits": []}, "betas": ["x"], "stop_sequences": ["@@"],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}, {"type": "custom", **WEATHER, "name": "other"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>hi</system-reminder>"}, {"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "anything"},
                                              {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes."},
                                              {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                                              {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                                              {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Rome"}},
                                              {"type": "tool_use", "id": "t2", "name": "other", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "sun"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True}, {"type": "text", "text": "And now?"}]}]}
    answer = post(tiny, body | {"max_tokens": 20}, "/v1/messages?beta=true")
    assert answer.status_code == 200, answer.text
    assert prompt(tiny, body) > 50


def test_the_effort_is_a_budget_of_thinking(client):
    fields = dict(model="m", max_tokens=60, messages=[QUESTION], thinking={"type": "adaptive"})
    assert client.messages.create(extra_body=GREEDY | {"output_config": {"effort": "low"}}, **fields).content[0].type == "thinking"
    with pytest.raises(anthropic.BadRequestError, match="output_config.effort"):
        client.messages.create(extra_body={"output_config": {"effort": "heroic"}}, **fields)


def test_models_have_anthropics_fields(client):
    [model] = client.models.list(limit=20)
    assert model.type == "model" and model.display_name == model.id and model.created_at.year >= 2024
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.batches.list()
    assert missing.value.body["error"]["type"] == "not_found_error"


def test_stop_sequences(client):
    answer = client.messages.create(model="m", max_tokens=100, extra_body=GREEDY, stop_sequences=["2", "nothing"],
                                    messages=[{"role": "user", "content": "What is 17 plus 25?"}])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == "2"
    assert "2" not in "".join(block.text for block in answer.content)


def test_an_answer_that_is_cut(client):
    answer = client.messages.create(model="m", max_tokens=3, extra_body=GREEDY, messages=[{"role": "user", "content": "Hello!"}])
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 3


def test_an_answer_that_is_begun(client):
    answer = client.messages.create(model="m", max_tokens=20, extra_body=GREEDY, messages=[
        {"role": "user", "content": "What is 17 plus 25?"}, {"role": "assistant", "content": "17 + 25 ="}])
    assert "42" in answer.content[0].text


@pytest.mark.parametrize("change, status, words", [
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "critic", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]}]}, 400, "messages[0].content[1]"),
    ({"messages": [{"role": "user", "content": [{"type": "riddle"}]}]}, 400, "messages[0].content[0].type"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"thinking": {"type": "sometimes"}}, 400, "thinking.type"),
    ({"stop_sequences": [5]}, 400, "stop_sequences[0]"),
    ({"tools": [{"description": "x"}]}, 400, "tools[0].name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, 400, "'any' needs constrained decoding"),
    ({"messages": [{"role": "user", "content": "word " * 4000}]}, 400, "prompt is too long: "),
])
def test_errors_have_anthropics_form(tiny, change, status, words):
    answer = post(tiny, {"model": "m", "max_tokens": 5, "messages": [QUESTION]} | change)
    error = answer.json()
    assert answer.status_code == status and error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error" and words in error["error"]["message"], error


def test_malformed_bodies_and_methods(tiny):
    bad = httpx.post(tiny.url("/v1/messages"), content=b"{", timeout=30)
    assert bad.status_code == 400 and bad.json()["type"] == "error"
    wrong = httpx.get(tiny.url("/v1/messages"))
    assert wrong.status_code == 405 and wrong.json()["error"]["type"] == "invalid_request_error"


def test_a_key_is_taken_from_the_header_of_anthropics(model):
    with Server(model, "--ctx", "512", "--api-key", "sesame") as server:
        fields = dict(model="m", max_tokens=1, messages=[QUESTION])
        assert anthropic.Anthropic(base_url=server.base, api_key="sesame", max_retries=0).messages.create(**fields)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            anthropic.Anthropic(base_url=server.base, api_key="wrong", max_retries=0).messages.create(**fields)
        assert refused.value.body["error"]["type"] == "authentication_error"
