"""Conversations on disk: found after a restart, the same text from cold, memory and disk, alone and in company, and no harm
from a process that is killed while it writes."""
import concurrent.futures
import contextlib
import itertools
import os
import random
import subprocess
import time

import httpx
import pytest

from kept import SLACK, Agent, ask, metrics, message, random_history, reread, said, system, user, words
from server_process import LILY, Server

# The case asks for 200; "50:100": those from the 51st to the 100th.
FIRST, _, LAST = os.environ.get("LILY_CONVERSATIONS", "0:5").rpartition(":")
CONVERSATIONS = range(int(FIRST or 0), int(LAST))
KILLS = int(os.environ.get("LILY_KILLS", "3"))
COMPANIONS = 8
OPTIONS = ["--parallel", "9", "--ctx", "16384"]


def conversation(server, number: int, history: list) -> list:
    """What is said in a random conversation with edits, branches, regenerations and tool chains, and in one with an agent that
    returns what it was told."""
    found = []
    for messages in history:
        thinks = {"enable_thinking": len(messages) % 2 == 0}
        found.append(message(ask(server, messages, max_tokens=16, chat_template_kwargs=thinks)))
    agent = Agent(server, ("transcript", number), with_reasoning=number % 2 == 0)
    for _ in range(3):
        found.append(said(agent.turn()))
    if number % 3 == 0:  # back to the first question, and another one
        agent.messages = [*agent.messages[:1], user("What is the weather in Minsk?")]
        found.append(said(agent.ask()))
    return found


def transcript(server, companions: int = 0) -> list:
    """All conversations, each in the company of so many others that are under way at the same time."""
    source = random.Random("conversations")
    histories = [random_history(source) for _ in range(CONVERSATIONS.stop)]
    with concurrent.futures.ThreadPoolExecutor(1 + companions) as pool:
        return list(pool.map(conversation, itertools.repeat(server), CONVERSATIONS, histories[CONVERSATIONS.start:]))


@pytest.fixture(scope="module")
def expected():
    """What is said alone where nothing is kept."""
    with Server(None, *OPTIONS, "--cache-ram", "0") as server:
        return transcript(server)


# Where answers are put back as they were generated, a prompt depends on what is remembered: compared without.
@pytest.mark.parametrize("companions", [0, COMPANIONS])
@pytest.mark.parametrize("kept", ["cold", "memory", "disk"])
def test_the_text_is_the_same(expected, tmp_path, kept, companions):
    options = {"cold": ["--cache-ram", "0"], "memory": ["--no-recall"], "disk": ["--no-recall", "--cache-dir", str(tmp_path)]}[kept]
    if kept == "disk":
        with Server(None, *OPTIONS, *options) as server:
            assert transcript(server, companions) == expected
        options += ["--chunk", "128"]  # how a prompt is cut into passes changes nothing either
    with Server(None, *OPTIONS, *options) as server:
        assert transcript(server, companions) == expected
        found = metrics(server)
        assert (found["lily_cache_tokens_total"] > 0) == (kept != "cold")
        if kept == "disk":
            assert found['lily_disk_operations_total{what="read"}'] > 0
            assert found['lily_disk_operations_total{what="failed"}'] == 0


def test_answers_are_remembered_over_a_restart(tmp_path):
    agent = None
    for start in range(3):
        with Server(None, *OPTIONS, "--cache-dir", str(tmp_path)) as server:
            agent = agent or Agent(server, "restart", with_reasoning=False, temperature=1.0, top_k=0)
            agent.server = server
            for _ in range(4):
                answer = agent.turn()
                in_loop = agent.messages[-2]["role"] == "tool"
                if in_loop and len(agent.ends) > 2:
                    assert reread(answer) <= max(answer["usage"]["prompt_tokens"] - agent.ends[-2], 0) + SLACK, start
            agent.messages.pop()  # the last answer is asked for again after the restart
            agent.ends.pop()
        if start > 0:
            assert "+disk" in server.log()


def test_a_process_that_is_killed_while_it_writes_leaves_no_damage(tmp_path):
    source = random.Random("kills")
    conversation = [system("kept", 200), user("What is the weather in Rome?")]
    for kill in range(KILLS + 1):
        with Server(None, *OPTIONS, "--cache-dir", str(tmp_path)) as server:
            assert "damaged" not in server.log() and "lacks" not in server.log(), server.log()
            assert not list(tmp_path.rglob("*.tmp"))
            answer = ask(server, conversation, max_tokens=16)
            if kill > 0:
                assert said(answer) == first
                assert reread(answer) <= SLACK, "it was written before the first kill"
            first = said(answer)
            if kill == 0:
                server.wait_until(lambda: metrics(server)['lily_disk_operations_total{what="written"}'] > 1, "to write")
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                def load(number: int):
                    with contextlib.suppress(httpx.HTTPError, AssertionError):
                        for i in range(1000):
                            ask(server, [user(words(100 + i % 700, (kill, number, i)))], max_tokens=2)

                loads = [pool.submit(load, number) for number in range(4)]
                time.sleep(source.uniform(0.3, 1.5))
                server.process.kill()
                for one in loads:
                    one.result()


def test_the_limit_of_the_folder_holds(tmp_path):
    with Server(None, *OPTIONS, "--cache-dir", str(tmp_path), "--cache-disk", "4") as server:
        for i in range(20):
            ask(server, [user(words(300, i))], max_tokens=2)
    assert 0 < sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 4 << 20


def test_options_that_do_not_go_together(tmp_path):
    for options, words_of_error in ((["--cache-disk", "100"], "--cache-dir"),
                                    (["--cache-dir", str(tmp_path), "--cache-ram", "0"], "--cache-ram 0")):
        run = subprocess.run([LILY, "serve", "--port", "0", *options], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0 and words_of_error in run.stderr
