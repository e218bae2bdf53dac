"""The model that comes with lily, when none is named: it answers, thinks, calls tools and stops."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from server_process import LILY

BEHAVIOUR = Path(__file__).parent.parent / "behaviour"


def test_run_answers_without_a_model():
    done = subprocess.run([LILY, "run", "-p", "What is 17 plus 25?", "--temperature", "0", "--no-think", "--json"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "42" in answer["text"] and answer["finish"] == "stop", answer


def test_it_thinks_and_then_answers(tiny):
    client = OpenAI(base_url=tiny.url("/v1"), api_key="none")
    stream = client.chat.completions.create(model="lily-tiny", stream=True, temperature=0, max_tokens=400,
                                            messages=[{"role": "user", "content": "What is 8 plus 9?"}])
    reasoning, content, finish = "", "", None
    for chunk in stream:
        choice = chunk.choices[0]
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
    assert reasoning and "17" in content and finish == "stop", (reasoning, content, finish)


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@pytest.mark.parametrize("thinking", [False, True])
def test_it_calls_a_tool_and_uses_the_result(tiny, thinking):
    client = OpenAI(base_url=tiny.url("/v1"), api_key="none")
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]

    def ask(**more):
        return client.chat.completions.create(model="lily", messages=messages, tools=[WEATHER], temperature=0, max_tokens=400,
                                              extra_body={"chat_template_kwargs": {"enable_thinking": thinking}}, **more)

    first = ask().choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "get_weather", {"city": "Oslo"})

    arguments, name, finish = "", "", None
    for chunk in ask(stream=True):
        choice = chunk.choices[0]
        for part in choice.delta.tool_calls or []:
            name += part.function.name or ""
            arguments += part.function.arguments or ""
        finish = choice.finish_reason or finish
    assert (name, json.loads(arguments), finish) == ("get_weather", {"city": "Oslo"}, "tool_calls")

    messages += [first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "4 degrees, rain"}]
    second = ask().choices[0]
    assert second.finish_reason == "stop" and not second.message.tool_calls
    assert "rain" in second.message.content, second.message


def test_the_behaviour_suite_passes(tiny):
    done = subprocess.run([sys.executable, str(BEHAVIOUR / "run.py"), tiny.url("/v1"), "--show"],
                          capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr


def parse(text: str, *options: str) -> list[dict]:
    done = subprocess.run([LILY, "parse", *options], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_parse_takes_a_transcript_apart(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([WEATHER]))
    text = "hm\n</think>\n\nI look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call><|im_end|>"
    whole = {"reasoning": "hm", "content": "I look.", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}], "finish": "tool_calls"}
    assert parse(text, "--tools", str(tools)) == [whole]
    events = parse(text, "--tools", str(tools), "--split")
    assert "".join(e.get("reasoning", "") for e in events) == "hm"
    assert "".join(e.get("content", "") for e in events) == "I look."
    assert "".join(e.get("tool_call", {}).get("arguments", "") for e in events) == '{"city": "Oslo"}'
    assert events[-1] == {"finish": "tool_calls"} and len(events) > 15
    [without] = parse(text, "--start", "off")
    assert without["reasoning"] == "" and without["tool_calls"] == [] and "<tool_call>" in without["content"]
    assert parse("let me se") == [{"reasoning": "let me se", "content": "", "tool_calls": [], "finish": "length"}]


def test_run_shows_calls(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([WEATHER]))
    command = [LILY, "run", "-p", "What is the weather in Oslo?", "--temperature", "0", "--no-think", "--tools", str(tools)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == 'get_weather({"city": "Oslo"})\n', done.stdout + done.stderr
    answer = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120).stdout)
    assert answer["tool_calls"] == [{"name": "get_weather", "arguments": '{"city": "Oslo"}'}] and answer["finish"] == "tool_calls"
