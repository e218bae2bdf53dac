"""Answers that a client returns are put back as they were generated: nothing is read again, whatever form they come in."""
import pytest

from kept import SLACK, TOOLS, Agent, ask, cached, message, metrics, reread, said, user, words
from server_process import Server

# Hot enough that tokens are not those of a tokenizer, and answers have odd spaces.
HOT = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}


@pytest.fixture(scope="module")
def server():
    with Server(None, "--parallel", "4", "--ctx", "16384") as running:
        yield running


@pytest.mark.parametrize("with_reasoning", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_a_conversation_with_tools_is_never_read_twice(server, with_reasoning, preserve):
    agent = Agent(server, ("twice", with_reasoning, preserve), with_reasoning, **HOT,
                  chat_template_kwargs={"preserve_thinking": preserve})
    calls = 0
    for i in range(12):
        asked = len(agent.messages)
        answer = agent.turn()
        new = answer["usage"]["prompt_tokens"] - agent.ends[-2]  # what the conversation grew by
        in_loop = agent.messages[-2]["role"] == "tool"
        calls += in_loop
        if i > 0 and (in_loop or preserve):
            assert reread(answer) <= max(new, 0) + SLACK, (i, agent.messages[asked:])
        elif i > 0:  # a new question drops the reasoning of the last answer: from there it is read again
            assert cached(answer) > 0
    assert calls > 1, "the model was expected to call its tool"


def test_reasoning_that_the_client_drops_is_in_the_prompt_all_the_same(server):
    with_it, without = (Agent(server, "dropped", keeps) for keeps in (True, False))
    for _ in range(2):
        first, second = with_it.turn(), without.turn()
        assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
        assert said(first) == said(second)
    assert message(first)["content"], "after the tool's result comes an answer"
    assert metrics(server)["lily_cache_recalled_answers_total"] > 0


def test_a_client_that_goes_back_finds_the_reasoning_that_later_prompts_dropped(server):
    agent = Agent(server, "back", with_reasoning=False)
    agent.turn()
    first = agent.turn()
    assert agent.messages[-2]["role"] == "tool", "the model was expected to call its tool"
    there = agent.messages[:-1]
    agent.turn()  # a new question: the template drops the reasoning before it
    again = ask(server, there, tools=TOOLS, max_tokens=100)
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"] and said(again) == said(first)
    assert reread(again) <= SLACK


def test_what_the_client_changed_counts(server):
    agent = Agent(server, "changed", with_reasoning=True)
    first = agent.turn()
    assert message(first)["tool_calls"]
    honest = [*agent.messages, {"role": "tool", "tool_call_id": "x", "content": "sunny"}]
    edited = [dict(m) for m in honest]
    edited[2]["reasoning_content"] = "I do not know."
    a, b = (ask(server, messages, tools=TOOLS) for messages in (honest, edited))
    assert b["usage"]["prompt_tokens"] < a["usage"]["prompt_tokens"], "the prompt has the client's own reasoning"
    assert reread(a) < reread(b)


def test_without_recall_prompts_are_what_clients_send():
    with Server(None, "--ctx", "8192", "--no-recall") as server:
        with_it, without = (Agent(server, "plain", keeps) for keeps in (True, False))
        for agent in (with_it, without):
            agent.turn()
        first, second = with_it.turn(), without.turn()
        assert second["usage"]["prompt_tokens"] < first["usage"]["prompt_tokens"], "the reasoning is not there"
        assert metrics(server)["lily_cache_recalled_answers_total"] == 0


def test_the_log_says_what_was_kept_and_why_not_more(server):
    for last in ("One", "Two"):
        ask(server, [user(words(200, "log") + " " + last)], max_tokens=4)
    server.wait_for_log("(parted in turn 0 user) parted=")
    assert metrics(server)['lily_cache_parted_total{turn="user"}'] > 0
