"""`incipit-worker batch` and `inspect`: files in, files out."""
import json
import os
import signal
import subprocess

import pytest

from conftest import BUILD, Program, wait_for

WORKER = str(BUILD / "incipit-worker")
DEMO = "deploy/demo/model"


def line(i, **more):
    request = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
               "body": {"prompt": f"number {i}", "max_tokens": 4, "temperature": 0}}
    return json.dumps({**request, **more}) + "\n"


def chat(i):
    return line(i, url="/v1/chat/completions", body={"messages": [{"role": "user", "content": f"{i}"}], "max_tokens": 3})


def run(tmp_path, *args):
    return subprocess.run([WORKER, "batch", "--backend", "sim", "--sim-speed", "100", "--input-file", tmp_path / "in",
                           "--output-file", tmp_path / "out", *map(str, args)], capture_output=True, text=True, timeout=60)


def answers(tmp_path):
    return [json.loads(text) for text in (tmp_path / "out").read_text().splitlines()]


def test_every_request_of_a_file_has_its_line(tmp_path):
    (tmp_path / "in").write_text("".join(chat(i) if i % 2 else line(i) for i in range(200)) + "\n")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = answers(tmp_path)
    assert sorted(a["custom_id"] for a in lines) == sorted(f"r{i}" for i in range(200))
    for a in lines:
        is_chat = int(a["custom_id"][1:]) % 2
        assert a["error"] is None and a["id"].startswith("batch_req_") and a["response"]["status_code"] == 200
        assert a["response"]["body"]["object"] == ("chat.completion" if is_chat else "text_completion")
        assert a["response"]["body"]["usage"]["completion_tokens"] == (3 if is_chat else 4)
    assert "batch_progress done=200 total=200 refused=0" in done.stderr


def test_a_refused_request_is_an_answer_too(tmp_path):
    (tmp_path / "in").write_text(line(1) + line(2, body={"prompt": "a", "temperature": -1}) + line(3, url="/v1/nothing"))
    done = run(tmp_path)
    assert done.returncode == 0 and "refused=2" in done.stderr
    by_id = {a["custom_id"]: a["response"] for a in answers(tmp_path)}
    assert [by_id[f"r{i}"]["status_code"] for i in (1, 2, 3)] == [200, 400, 404]
    assert by_id["r2"]["body"]["error"]["param"] == "temperature"


def test_answered_requests_are_not_sent_again(tmp_path):
    (tmp_path / "in").write_text("".join(line(i) for i in range(20)))
    run(tmp_path)
    whole = (tmp_path / "out").read_text().splitlines(keepends=True)
    (tmp_path / "out").write_text("".join(whole[:7]) + whole[7][:25])  # the end of a run that was killed
    done = run(tmp_path)
    assert done.returncode == 0 and "batch_started requests=20 answered_before=7" in done.stderr
    again = (tmp_path / "out").read_text().splitlines(keepends=True)
    assert again[:7] == whole[:7] and len(again) == 20
    assert sorted(a["custom_id"] for a in answers(tmp_path)) == sorted(f"r{i}" for i in range(20))
    assert run(tmp_path).returncode == 0 and len(answers(tmp_path)) == 20  # nothing left to do


def started(tmp_path, n):
    """A run with some answers, and some still to come."""
    (tmp_path / "in").write_text("".join(line(i, body={"prompt": f"number {i}", "max_tokens": 200, "ignore_eos": True})
                                         for i in range(n)))
    program = Program("incipit-worker", ["batch", "--backend", "sim", "--sim-speed", 3, "--max-num-seqs", 4, "--input-file",
                                         tmp_path / "in", "--output-file", tmp_path / "out"])
    wait_for(lambda: (tmp_path / "out").exists() and len((tmp_path / "out").read_text().splitlines()) > 2, "some answers")
    return program


def test_a_killed_run_goes_on(tmp_path):
    program = started(tmp_path, 60)
    program.process.kill()
    program.process.wait()
    n = (tmp_path / "out").read_text().count("\n")
    assert 2 < n < 60
    done = run(tmp_path)
    assert done.returncode == 0 and f"answered_before={n}" in done.stderr
    assert sorted(a["custom_id"] for a in answers(tmp_path)) == sorted(f"r{i}" for i in range(60))


def test_a_signal_lets_running_requests_be_written(tmp_path):
    program = started(tmp_path, 60)
    assert program.stop(signal.SIGINT) == 1
    lines = answers(tmp_path)
    assert 2 < len(lines) < 60 and all(a["response"]["status_code"] == 200 for a in lines)
    assert f"stopped after {len(lines)} of 60 requests: run the same command to continue" in program.log
    assert run(tmp_path).returncode == 0 and len(answers(tmp_path)) == 60


@pytest.mark.parametrize("text, words", [
    (line(1) + "{\n", "line 2"),
    (line(1) + "[]\n", "line 2: a line must be a JSON object"),
    (line(1) + line(1), "line 2: custom_id \"r1\" appears in an earlier line"),
    (line(1, custom_id=""), "line 1: custom_id is missing"),
    (line(1, url="v1"), "url must be a path"),
    (line(1, url="/v1/ completions"), "url has a space"),
    (line(1, method="GET"), "method must be \"POST\""),
    (line(1, body=None), "body is missing"),
    (line(1, body={"prompt": "a", "stream": True}), "leave \"stream\" out"),
    ("\n", "holds no requests"),
])
def test_a_wrong_file_is_refused_before_any_request_is_sent(tmp_path, text, words):
    (tmp_path / "in").write_text(text)
    done = run(tmp_path)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "out").exists() or (tmp_path / "out").read_text() == ""


def test_other_files_are_not_overwritten(tmp_path):
    (tmp_path / "in").write_text(line(1))
    (tmp_path / "out").write_text("my diary\n")
    done = run(tmp_path)
    assert done.returncode == 2 and "name a file that does not exist yet" in done.stderr
    assert (tmp_path / "out").read_text() == "my diary\n"
    (tmp_path / "in").unlink()
    done = run(tmp_path)
    assert done.returncode == 2 and "No such file" in done.stderr
    assert subprocess.run([WORKER, "batch", DEMO], capture_output=True, text=True).stderr.count("--input-file") == 1


@pytest.mark.parametrize("text", ["a line without an end", "{", line(1), line(1)[:-1]])
def test_a_file_of_another_origin_is_kept(tmp_path, text):
    (tmp_path / "in").write_text(line(1))
    (tmp_path / "out").write_text(text)
    done = run(tmp_path)
    if text == "{":  # the first byte of an answer
        assert done.returncode == 0 and len(answers(tmp_path)) == 1
    else:
        assert done.returncode == 2 and "not a response of a batch" in done.stderr, done.stderr
        assert (tmp_path / "out").read_text() == text


def test_a_batch_is_read_from_files_and_written_to_one(tmp_path):
    (tmp_path / "out").write_text("")
    done = subprocess.run([WORKER, "batch", "--backend", "sim", "--input-file", "/dev/stdin", "--output-file", tmp_path / "out"],
                          input=line(1), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "name a file, not a pipe" in done.stderr, done.stderr
    (tmp_path / "in").write_text(line(1))
    done = subprocess.run([WORKER, "batch", "--backend", "sim", "--input-file", tmp_path / "in", "--output-file", "/dev/null"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "/dev/null is not a regular file" in done.stderr, done.stderr


def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    with open(tmp_path / "in", "w") as f:
        f.write(line(1))
        f.truncate(1 << 40)  # zeros, on no disk
    done = run(tmp_path)
    assert done.returncode == 1 and "line 2: JSON of" in done.stderr, done.stderr


def test_two_runs_do_not_write_one_file(tmp_path):
    program = started(tmp_path, 60)
    done = run(tmp_path)
    assert done.returncode == 1 and "is being written by another run" in done.stderr, done.stderr
    program.stop(signal.SIGINT)


def test_a_terminal_sees_a_bar(tmp_path):
    (tmp_path / "in").write_text("".join(line(i) for i in range(30)))
    leader, follower = os.openpty()
    subprocess.run([WORKER, "batch", "--backend", "sim", "--sim-speed", "100", "--log-level", "error", "--input-file",
                    tmp_path / "in", "--output-file", tmp_path / "out"], stderr=follower, check=True, timeout=60)
    os.close(follower)
    assert "] 30/30" in os.read(leader, 65536).decode()
    os.close(leader)


def test_a_model_is_inspected_without_being_loaded():
    done = subprocess.run([WORKER, "inspect", DEMO, "--kv-cache-memory-bytes", "1MiB"], capture_output=True, text=True)
    assert done.returncode == 0
    for words in ("LlamaForCausalLM", "2.89 M in bfloat16", "4 layers of width 256", "RoPE default, theta 500000",
                  "2048 bytes in bfloat16; a block of 16 tokens 32.0 KiB", "32 blocks", "tokenizer         2048 tokens"):
        assert words in done.stdout.replace("layers            4 of", "4 layers of"), (words, done.stdout)
    assert subprocess.run([WORKER, "inspect", "/nowhere"], capture_output=True).returncode == 2
    assert "inspect MODEL" in subprocess.run([WORKER, "--help"], capture_output=True, text=True).stdout
