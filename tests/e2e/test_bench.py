"""`lily bench`: what it prints, and that it prints the same tokens whenever it is asked the same. No timing is asserted."""
import json
import subprocess
from pathlib import Path

import pytest

from server_process import LILY

TINY = ["--random", "--shape", "tiny", "--prompt", "64", "--decode", "8", "--depth", "0,128", "--parallel", "1,2"]
ROW = {"device", "phase", "prompt", "depth", "parallel", "tok_s", "spread", "bytes_per_token", "gb_s", "share_of_limit", "ttft_s",
       "peak_bytes"}
POSITIVE = ROW - {"device", "phase", "prompt", "depth", "spread"}


def bench(*options: str, status: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([LILY, "bench", *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stderr
    return done


def measured(*options: str) -> dict:
    return json.loads(bench(*options, "--json").stdout)


@pytest.fixture(scope="module")
def two_threads() -> dict:
    return measured(*TINY, "--threads", "2")


def test_every_row_is_there_and_consistent(two_threads):
    result = two_threads
    assert {"machine", "limits", "fingerprint", "rows"} <= set(result)
    assert result["machine"]["description"] and result["machine"]["memory_bytes"] > 0
    limits = result["limits"]
    assert limits["read_bytes_per_second"] > 0 and limits["multiply_adds_per_second"] > 0 and limits["multiply"]
    rows = result["rows"]
    expected = [(phase, prompt, depth, parallel) for depth in (0, 128) for phase, prompt in (("prefill", 64), ("decode", 0))
                for parallel in (1, 2)]
    assert [(row["phase"], row["prompt"], row["depth"], row["parallel"]) for row in rows] == expected
    for row in rows:
        assert set(row) == ROW
        assert row["device"] == "cpu"
        assert all(row[name] > 0 for name in POSITIVE), row
        assert row["spread"] >= 0
        assert row["gb_s"] == pytest.approx(row["tok_s"] * row["bytes_per_token"] / 1e9)
        tokens = (64 if row["phase"] == "prefill" else 8) * row["parallel"]
        assert row["ttft_s"] <= tokens / row["tok_s"] * 1.0001  # the first token comes before the last: so do medians of 3
        if row["phase"] == "decode":
            assert row["share_of_limit"] == pytest.approx(row["gb_s"] * 1e9 / limits["read_bytes_per_second"])


def test_the_bytes_of_a_token_follow_what_it_needs(two_threads):
    rows = {(row["phase"], row["depth"], row["parallel"]): row for row in two_threads["rows"]}
    weights = two_threads["run"]["weight_bytes"]
    # Deeper: 128 more rows of keys and values (2 attention layers, 2 x 256 values of bf16), whatever experts were chosen.
    shallow, deep = (rows["decode", depth, 1]["bytes_per_token"] for depth in (0, 128))
    assert shallow < weights and deep < weights + 1e6
    # Two sequences share the weights that both need, and each has a state of its own.
    one, two = (rows["decode", 0, parallel]["bytes_per_token"] for parallel in (1, 2))
    assert one / 2 < two < one
    # A pass of 64 rows reads no tensor twice: less than all weights and the states, for 64 tokens.
    assert rows["prefill", 0, 1]["bytes_per_token"] < (weights + 3e6) / 64
    peaks = [row["peak_bytes"] for row in two_threads["rows"]]
    assert peaks == sorted(peaks)


def test_the_same_tokens_in_every_run_and_for_any_number_of_threads(two_threads):
    assert len(two_threads["fingerprint"]) == 16
    assert measured(*TINY, "--threads", "2")["fingerprint"] == two_threads["fingerprint"]
    assert measured(*TINY, "--threads", "1", "--repeats", "1")["fingerprint"] == two_threads["fingerprint"]
    assert measured(*TINY, "--seed", "1", "--repeats", "1")["fingerprint"] != two_threads["fingerprint"]


def test_random_weights_are_those_of_synth_and_leave_no_file(two_threads, tmp_path):
    folder = tmp_path / "tiny"
    subprocess.run([LILY, "synth", str(folder), "--shape", "tiny"], check=True, capture_output=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = [option for option in TINY if option not in ("--random", "--shape", "tiny")]
    assert measured(str(folder), *options, "--repeats", "1")["fingerprint"] == two_threads["fingerprint"]
    assert measured(*TINY, "--repeats", "1", "--scratch", str(scratch))["fingerprint"] == two_threads["fingerprint"]
    assert not list(scratch.iterdir())
    assert not list(Path("/dev/shm").glob("lily-bench-*"))


def test_the_table(two_threads):
    lines = bench(*TINY, "--repeats", "1").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("prefill", "decode"))] == ["prefill", "prefill", "decode", "decode"] * 2
    assert lines[-1].split() == ["fingerprint", two_threads["fingerprint"]]


def test_only_what_is_asked_for():
    result = measured("--random", "--shape", "tiny", "--layers", "4", "--prompt", "0", "--decode", "3", "--repeats", "1", "--device",
                      "reference", "--threads", "1")
    assert [(row["device"], row["phase"], row["depth"]) for row in result["rows"]] == [("reference", "decode", 0)]
    assert result["run"]["layers"] == 4 and result["run"]["decode"] == 3


@pytest.mark.parametrize("options, status, message", [
    (["--random", "--prompt", "64,"], 2, "'64,'"),
    (["--random", "--parallel", "0"], 2, "from 1 to 256"),
    (["--random", "--depth", "300000"], 2, "from 0 to 262144"),
    (["--random", "--prompt", "0", "--decode", "0"], 1, "nothing is left to measure"),
    (["--random", "--depth", "262000", "--prompt", "2048"], 1, "lower --depth"),
    (["--random", "model"], 1, "not both"),
    (["--random", "--shape", "tiny", "--layers", "5"], 1, "5"),
    (["--random", "--device", "abacus"], 1, "abacus"),
    (["no-such-folder"], 1, "no folder 'no-such-folder'"),
])
def test_what_cannot_be_is_refused(options, status, message):
    done = bench(*options, status=status)
    assert message in done.stderr
    assert done.stdout == ""


def test_weights_without_room_are_refused_with_the_numbers():
    done = bench("--random", "--shape", "qwen36", "--scratch", "/proc", status=1)  # a file system without any
    assert "random weights of 40 layers of 'qwen36' take 19." in done.stderr
    assert "'/proc' has 0.00 GB free" in done.stderr


def test_a_conversation_is_read_once():
    run = bench("--conversation", "--turns", "8", "--length", "2500", "--cold-every", "4", "--json")
    turns = json.loads(run.stdout)["turns"]
    assert [turn["turn"] for turn in turns] == 3 * list(range(1, 9))
    for turn in turns:
        if turn["turn"] > 1:
            assert turn["reread"] <= turn["least"] + 64, turn
        assert (turn.get("cold_s", 0) > 0) == (turn["turn"] % 4 == 0)
    by = {(turn["history"], turn["turn"]): turn for turn in turns}
    # With the reasoning kept in the prompt it only grows; without, a new query costs what was said since the last one.
    assert by["preserved", 7]["least"] < by["preserved", 7]["prompt"] / 4 < by["returned", 7]["least"]
    assert by["returned", 7]["kind"] == "query" and by["returned", 6]["kind"] == "result"
    assert not any("disk" in turn for turn in turns)
    # Reasoning that was not returned is put back within the turns of a query.
    assert by["dropped", 5]["least"] == by["returned", 5]["least"]


def test_a_conversation_is_found_on_disk(tmp_path):
    run = bench("--conversation", "--turns", "4", "--length", "2500", "--cold-every", "2", "--cache-dir", str(tmp_path), "--json")
    turns = json.loads(run.stdout)["turns"]
    assert len(turns) == 12
    for turn in turns:
        assert ("disk" in turn) == (turn["turn"] % 2 == 0)
        if "disk" in turn:
            assert turn["disk"]["first_token_s"] > 0
            assert turn["disk"]["reread"] <= turn["disk"]["least"] + 64 < turn["prompt"], turn
    assert not list(tmp_path.iterdir())
