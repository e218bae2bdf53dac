"""Clients as people use them, each through a whole tool loop with the model that comes with lily. OpenAI's and Anthropic's
own are in test_lily_tiny.py, test_responses.py and test_messages.py."""
import json
import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices
os.environ["LANGSMITH_TRACING"] = "false"

import litellm
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


QUESTION = "What is the weather in Oslo?"
RESULT = "4 degrees, rain"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def joined(chunks) -> object:
    return litellm.stream_chunk_builder(list(chunks))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_litellm(tiny, provider, stream):
    options = {"base_url": tiny.url("/v1")} if provider == "openai" else {"base_url": tiny.base}
    messages = [{"role": "user", "content": QUESTION}]

    def ask():
        answer = litellm.completion(model=f"{provider}/lily", api_key="any", messages=messages, tools=[WEATHER], temperature=0, max_tokens=400,
                                    stream=stream, num_retries=0, **options)
        return (joined(answer) if stream else answer).choices[0]

    first = ask()
    assert first.finish_reason == "tool_calls", first
    [call] = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    messages += [first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    second = ask()
    assert second.finish_reason == "stop" and "rain" in second.message.content


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_langchain(tiny, api, stream):
    @tool
    def get_weather(city: str) -> str:
        """Get the current weather for a city"""
        return RESULT

    model = ChatOpenAI(model="lily", base_url=tiny.url("/v1"), api_key="any", temperature=0, max_tokens=400, max_retries=0,
                       use_responses_api=api == "responses", stream_usage=True).bind_tools([get_weather])
    messages = [HumanMessage(QUESTION)]

    def ask():
        if not stream:
            return model.invoke(messages)
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    first = ask()
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"}), first
    assert first.usage_metadata["output_tokens"] > 3
    messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    second = ask()
    text = second.content if isinstance(second.content, str) else "".join(part.get("text", "") for part in second.content)
    assert "rain" in text and not second.tool_calls
