"""What lily keeps between requests: how little it reads again, and that answers do not change by it.

Prompts are the test's own (histories, tool chains), the answers those of the model that comes with lily, greedy."""
import concurrent.futures
import json
import os
import random
import re
import time

import httpx
import pytest

from server_process import Server

CONTEXT = "16384"
SLACK = 64  # tokens that may be read again although they are known
CONVERSATIONS = int(os.environ.get("LILY_CONVERSATIONS", "5"))


@pytest.fixture(scope="module")
def server():
    with Server(None, "--parallel", "4", "--ctx", CONTEXT) as running:
        yield running


@pytest.fixture(scope="module")
def cold():
    with Server(None, "--parallel", "4", "--ctx", CONTEXT, "--cache-ram", "0") as running:
        yield running


def ask(server, messages, **fields):
    body = {"messages": messages, "temperature": 0, "max_tokens": 40} | fields
    answer = httpx.post(server.url("/v1/chat/completions"), json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def message(answer) -> dict:
    return answer["choices"][0]["message"]


def reread(answer) -> int:
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def tokens(server, text: str) -> int:
    return len(httpx.post(server.url("/tokenize"), json={"content": text}).json()["tokens"])


def words(count: int, seed) -> str:
    source = random.Random(str(seed))
    return " ".join(source.choice(["river", "stone", "cloud", "lamp", "seven", "green", "house"]) for _ in range(count))


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(seed, count: int = 300) -> dict:
    return {"role": "system", "content": words(count, seed)}


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


def test_an_exact_repeat_is_not_read_again(server):  # K01
    messages = [user(words(1500, "repeat"))]
    first, second = ask(server, messages), ask(server, messages)
    assert reread(first) == first["usage"]["prompt_tokens"] > 1500
    assert reread(second) <= SLACK
    assert message(first) == message(second)


@pytest.mark.parametrize("preserve", [False, True])
def test_a_new_query_after_a_tool_chain(server, preserve):  # K02, K03
    options = {"chat_template_kwargs": {"preserve_thinking": preserve}}
    opening = [system(("chain", preserve)), user(f"What is the weather? {preserve}")]
    chain = tool_chain(8, with_reasoning=True)
    for end in range(0, len(chain) + 1, 2):
        answer = ask(server, opening + chain[:end], **options)
        if end > 0:  # within the loop only what is new is read
            new = tokens(server, json.dumps(chain[end - 2:end]))
            assert reread(answer) <= new + SLACK + 40, end
    final = message(answer)
    history = opening + chain + [{"role": "assistant", "content": final["content"],
                                  "reasoning_content": final.get("reasoning_content", "")}]
    nxt = ask(server, history + [user("And now the next question.")], **options)
    if preserve:
        assert reread(nxt) <= 2 * SLACK
        return
    known = tokens(server, opening[0]["content"] + opening[1]["content"])
    cached = nxt["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= known, "system and first query must be kept"
    assert reread(nxt) < nxt["usage"]["prompt_tokens"] - known


def test_a_client_that_drops_the_reasoning(server, cold):  # K04
    opening = [system("dropped"), user("Look it up.")]
    chain = tool_chain(4, with_reasoning=False)
    for end in range(0, len(chain) + 1, 2):
        warm = ask(server, opening + chain[:end])
        assert message(warm) == message(ask(cold, opening + chain[:end]))
        if end > 2:
            assert reread(warm) <= tokens(server, json.dumps(chain[end - 2:end])) + SLACK + 40, end


def test_plain_turns_without_thinking(server):  # K05
    options = {"chat_template_kwargs": {"enable_thinking": False}}
    messages = [system("plain")]
    last_answer = 0
    for turn in range(3):
        question = words(30, ("question", turn))
        messages.append(user(question))
        answer = ask(server, messages, **options)
        if turn > 0:
            assert reread(answer) <= last_answer + tokens(server, question) + SLACK, turn
        last_answer = answer["usage"]["completion_tokens"]
        messages.append({"role": "assistant", "content": message(answer)["content"]})


def test_an_edit_answers_like_a_server_that_kept_nothing(server, cold):  # K06
    messages = [system("edit")]
    for turn in range(5):
        messages += [user(words(50, ("edited", turn))), {"role": "assistant", "content": words(30, ("said", turn))}]
    messages[-1] = user("Well?")
    ask(server, messages)
    messages[3] = user("Something else altogether, " + words(40, "other"))
    warm, fresh = ask(server, messages), ask(cold, messages)
    assert message(warm) == message(fresh)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_side_request_evicts_nothing_long():  # K07
    with Server(None, "--ctx", "8192", "--parallel", "1", "--cache-ram", "32") as server:
        long = [user(words(2500, "long"))]
        ask(server, long)
        for i in range(30):
            ask(server, [user(f"A title for {i}, please: " + words(20, ("title", i)))], max_tokens=8)
        assert reread(ask(server, long + [{"role": "assistant", "content": "Yes."}, user("Go on.")])) < 400


def test_a_resend_after_a_disconnect_finds_what_was_read(server):  # K09
    messages = [user(words(1500, "gone"))]
    body = {"messages": messages, "stream": True, "max_tokens": 2000}
    with httpx.Client(timeout=60) as client:
        with client.stream("POST", server.url("/v1/chat/completions"), json=body) as stream:
            for line in stream.iter_lines():
                if '"reasoning_content":"' in line:
                    break
    assert reread(ask(server, messages, max_tokens=4)) <= SLACK


def test_parallel_requests_keep_to_themselves(server):  # K10
    def one(i):
        return message(ask(server, [system("shared"), user(f"Repeat the word w{i}x five times.")]))

    alone = [one(i) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == alone


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


@pytest.mark.parametrize("companions", [0, 3])
def test_random_conversations_answer_alike_cold_and_warm(server, cold, companions):
    source = random.Random(f"conversations {companions}")
    conversations = [random_history(source) for _ in range(CONVERSATIONS)]

    def run(on, requests):
        return [message(ask(on, messages, max_tokens=24,
                            chat_template_kwargs={"enable_thinking": len(messages) % 2 == 0})) for messages in requests]

    expected = [run(cold, requests) for requests in conversations]
    with concurrent.futures.ThreadPoolExecutor(companions + 1) as pool:
        found = list(pool.map(lambda requests: run(server, requests), conversations))
    assert found == expected


def test_memory_stays_flat():  # K13 in small
    with Server(None, "--ctx", "4096", "--parallel", "4", "--cache-ram", "64") as server:
        def resident() -> int:
            with open(f"/proc/{server.process.pid}/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def one(i):
            ask(server, [user(words(200 + i % 300, ("flat", i)))], max_tokens=2)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(40)))
            warmed_up = resident()
            list(pool.map(one, range(40, 110)))
        time.sleep(0.2)
        assert resident() < warmed_up + (16 << 20)


def test_the_log_says_where_a_prompt_parts_from_what_is_kept(server):
    history = [user("Count the " + words(200, "parting")), {"role": "assistant", "content": "Many."}]
    ask(server, [*history, user("Which one is green?")])
    changed = ask(server, [*history, user("Whose is the lamp?")])
    server.wait_for_log(changed["id"])
    [line] = [line for line in server.lines if changed["id"] in line]
    position, kept, own = (int(n) for n in re.search(r" parted=(\d+):(\d+)/(\d+)", line).groups())
    prompt = httpx.post(server.url("/apply-template"), json={"messages": [*history, user("Whose is the lamp?")], "tokenize": True}).json()["tokens"]
    assert prompt[position] == own != kept and position < len(prompt)
    text = httpx.post(server.url("/detokenize"), json={"tokens": prompt[position:position + 1]}).json()["content"]
    assert text == "Whose"[:len(text)], (text, line)
