"""The load generator itself: what it promises to those who compare with it."""
import json
import subprocess

from conftest import BUILD, free_port


def bench(url, *args):
    done = subprocess.run([str(BUILD / "incipit-bench"), url, *map(str, args)], stdout=subprocess.PIPE, check=True,
                          timeout=60)
    return json.loads(done.stdout)


def test_a_seed_gives_the_same_load_for_any_answers(sim, tmp_path):
    asked = []
    for i, url in enumerate([sim.url, f"http://127.0.0.1:{free_port()}"]):  # the second is a closed port
        bench(url, "--rps", 200, "--requests", 180, "--duration", "60s", "--traffic", "conversation", "--pause", "100ms", "--stream",
              "--seed", 7, "--max-tokens", 8, "--records", tmp_path / f"{i}.csv")
        lines = [line.split(",") for line in (tmp_path / f"{i}.csv").read_text().splitlines()]
        keep = [lines[0].index(name) for name in ("due_us", "session", "turn", "body_bytes", "max_tokens")]
        asked.append([[line[k] for k in keep] for line in lines])
    assert asked[0] == asked[1] and len(asked[0]) > 100
    assert any(line[2] != "0" for line in asked[0][1:]), "no session went on"


def test_streams_are_read_to_their_end_and_timed(sim):
    report = bench(sim.url, "--rps", 50, "--requests", 20, "--stream", "--max-tokens", 10)
    assert report["ok"] == report["requests"] == 20 and report["failed"] == 0
    assert report["events"] >= 20 * 3
    assert 0 < report["ttft_s"]["mean"] <= report["e2e_s"]["mean"]
    assert report["prompt_tokens"] > 0
    assert report["ttft_s"]["histogram"][-1][1] == 20


def test_failures_are_distinguished(sim):
    closed = bench(f"http://127.0.0.1:{free_port()}", "--rps", 50, "--requests", 5)
    assert closed["outcomes"] == {"connect": 5} and closed["failed"] == 5
    unknown = bench(sim.url, "--rps", 50, "--requests", 5, "--model", "nobody-serves-this")
    assert unknown["outcomes"] == {"http_error": 5} and unknown["codes"] == {"404": 5}
    left = bench(sim.url, "--rps", 50, "--requests", 5, "--stream", "--max-tokens", 2000, "--abort-share", 1, "--abort-after",
                 "20ms")
    assert left["outcomes"] == {"aborted": 5} and left["failed"] == 0
    late = bench(sim.url, "--rps", 50, "--requests", 2, "--max-tokens", 20000, "--timeout", "100ms")
    assert late["outcomes"] == {"timeout": 2}


def test_a_closed_loop_keeps_its_connections(sim):
    report = bench(sim.url, "--mode", "closed", "--connections", 4, "--requests", 100, "--max-tokens", 1)
    assert report["ok"] == 100 and report["connections"] == 4 and report["resent"] == 0
