"""The order of prompts in a worker: what it publishes, takes and logs."""
import pytest

from conftest import Worker, wait_for

# Under its own name and those of others.
POLICIES = [((), "srpt"), (("--schedule-policy", "fcfs"), "fcfs"), (("--schedule-policy", "lpm"), "srpt"),
            (("--scheduling-policy", "priority"), "priority"), (("--enable-priority-scheduling",), "priority"),
            (("--schedule-policy", "lof"), "fcfs")]


@pytest.mark.parametrize("flags,policy", POLICIES)
def test_server_info_has_the_order(programs, flags, policy):
    info = programs(Worker, "--backend", "sim", "--max-num-batched-tokens", 777, *flags).ready().get("/server_info").json
    assert (info["schedule_policy"], info["chunk_tokens"], info["itl_target_ms"]) == (policy, 777, 0)
    assert info["prefill_tokens_per_s"] > 0 and info["attn_context"] > 0


def test_a_request_logs_what_the_order_meant_for_it(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 50, "--schedule-policy", "srpt", "--itl-target-ms", 80).ready()
    before = worker.get("/server_info").json
    assert before["itl_target_ms"] == 80
    answers = [worker.post("/v1/completions", {"prompt": "word " * n, "max_tokens": 3, "priority": n % 2}) for n in (10, 600, 2)]
    assert all(a.code == 200 for a in answers)
    lines = lambda: [line for line in worker.lines if " prompt_computed " in line]
    wait_for(lambda: len(lines()) == 3, "a line for each request")
    for line, answer in zip(lines(), answers):
        assert f"id={answer.json['id']} " in line and " order=srpt " in line
        assert f" prompt_tokens={answer.json['usage']['prompt_tokens']} " in line
        assert " ahead=0 went_before=0 passed_steps=0 " in line


def test_without_an_order_nothing_is_logged_and_priorities_are_refused(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 50, "--schedule-policy", "fcfs").ready()
    refused = worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "priority": 3})
    assert refused.code == 400 and "--schedule-policy priority or srpt" in refused.body
    assert worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).code == 200
    assert not [line for line in worker.lines if " prompt_computed " in line]
