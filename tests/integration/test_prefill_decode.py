"""One worker computes a prompt, another decodes it: vLLM's and SGLang's protocols, and every way in which they fail.

The engines are scripted (tests/support/pd_engines.py). A request "goes apart" when its worker decodes for others and
its prompt is long: a stream that waits in the middle of its answer makes it so.
"""
import concurrent.futures
import json
import sys
import threading
from http.client import HTTPConnection

import pytest

from conftest import ROOT, NoSample, Router, events, http, wait_for

sys.path.insert(0, str(ROOT / "tests/support"))
from pd_engines import Engine, Fleet  # noqa: E402

LONG = "word " * 20000  # 100 kB: some 25,000 tokens, 3.5 s of prefill by what is assumed of an engine


class PD:
    """Engines behind a router."""

    def __init__(self, programs):
        self.programs, self.fleet, self.engines = programs, Fleet(), {}
        self.pool = concurrent.futures.ThreadPoolExecutor(128)
        self.holders = []

    def start(self, kind, n_prefill=1, n_decode=1, *args):
        for role, n in (("prefill", n_prefill), ("decode", n_decode)):
            for i in range(n):
                self.engines[f"{role}{i}"] = Engine(self.fleet, f"{role}{i}", kind, role)
        prefill = [self[f"prefill{i}"].url for i in range(n_prefill)]
        decode = [self[f"decode{i}"].url for i in range(n_decode)]
        self.router = self.programs(Router, *(["--prefill", *prefill] if prefill else []),
                                    *(["--decode", *decode] if decode else []), *args).ready(n_prefill + n_decode)
        return self

    def __getitem__(self, name):
        return self.engines[name]

    def decoding(self):
        """From here on, until let_go, each decode worker has a sequence in its batch."""
        decodes = [e for name, e in self.engines.items() if name.startswith("decode")]
        for e in decodes:
            e.gate.clear()
            e.seen.clear()
        begun = threading.Semaphore(0)

        def hold():
            for _ in events(self.router.url + "/v1/chat/completions", chat("hold", stream=True)):
                begun.release()

        for e in decodes:  # one after the other: each goes where there is none
            self.holders.append(self.pool.submit(hold))
            assert begun.acquire(timeout=20), "its first token"
        assert all(len(e.seen) == 1 for e in decodes)
        for e in self.engines.values():
            e.seen.clear()
        return self

    def let_go(self):
        for e in self.engines.values():
            e.faults.discard("stuck")
            e.gate.set()
        while self.holders:
            self.holders.pop().result()

    def ask(self, text=LONG, **more):
        return self.router.post("/v1/chat/completions", chat(text, **more), headers={"x-request-id": "req-1"})

    def leave(self, when, what):
        """A client that asks, and leaves once `when` holds."""
        client = HTTPConnection("127.0.0.1", int(self.router.url.rsplit(":", 1)[1]))
        client.request("POST", "/v1/chat/completions", json.dumps(chat(LONG)), {"content-type": "application/json"})
        wait_for(when, what)
        client.close()

    def count(self, name, **labels):
        """A counter of the router; 0 before its first sample."""
        try:
            return self.router.metric("incipit_" + name, **labels)
        except NoSample:
            return 0

    def legs(self, outcome):
        return self.count("prefill_legs_total", outcome=outcome)

    def choices(self, choice):
        return self.count("prefill_choices_total", choice=choice)

    def assert_idle(self):
        """Nothing is left of any request."""
        self.let_go()
        wait_for(lambda: all(w["load"] == 0 for w in self.router.workers()["workers"]), "no request in flight")

    def stop(self):
        assert self.router.process.poll() is None, self.router.log[-3000:]
        self.let_go()
        for e in self.engines.values():
            e.stop()
        self.pool.shutdown()


def chat(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def pd(programs):
    it = PD(programs)
    yield it
    it.stop()


# --- vLLM -----------------------------------------------------------------------------------------


def test_a_long_prompt_goes_apart_and_its_params_are_relayed_as_they_came(pd):
    pd.start("vllm").decoding()
    answer = pd.ask(max_tokens=7, min_tokens=3, stream_options={"include_usage": True}, stream=False, temperature=0.5)
    assert answer.code == 200 and answer.json["choices"][0]["message"]["content"].strip() == "decode0"
    (first, first_head), = pd["prefill0"].seen
    (second, second_head), = pd["decode0"].seen
    assert first["max_tokens"] == 1 and first["min_tokens"] == 1 and first["stream"] is False
    assert "stream_options" not in first and first["temperature"] == 0.5
    assert first["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                                           "remote_block_ids": None, "remote_host": None, "remote_port": None}
    assert second["kv_transfer_params"] == json.loads(pd["prefill0"].params)
    assert {k: v for k, v in second.items() if k != "kv_transfer_params"} == chat(
        LONG, max_tokens=7, min_tokens=3, stream_options={"include_usage": True}, stream=False, temperature=0.5)
    assert first_head["x-request-id"] == second_head["x-request-id"] == "req-1"
    assert pd.legs("handed") == 1 and pd.choices("apart") == 1
    assert pd.router.metric("incipit_cached_tokens_total") == 8  # of P; what was fetched is no hit
    pd.assert_idle()


def test_a_short_prompt_and_one_for_an_idle_worker_stay_together(pd):
    pd.start("vllm")
    assert pd.ask().code == 200  # idle: nobody is held up
    assert pd.choices("together") == 1
    pd.decoding()
    assert pd.ask("a short one").code == 200
    assert pd.ask().code == 200  # cached: its worker has it
    assert pd["prefill0"].seen == [] and pd.choices("together") == 4 and pd.choices("apart") == 0
    pd.assert_idle()


@pytest.mark.parametrize("fault", ["die", "500", "400", "mute", "late_die", "giant", "endless", "garbage", "redirect",
                                   "interim"])
def test_a_first_leg_that_fails_falls_back_to_the_plain_request(pd, fault):
    pd.start("vllm").decoding()
    pd["prefill0"].faults.add(fault)
    answer = pd.ask()
    assert answer.code == 200 and answer.json["choices"][0]["message"]["content"].strip() == "decode0"
    assert len(pd["prefill0"].seen) == 1
    assert [b for b, _ in pd["decode0"].seen] == [chat(LONG)]
    assert pd.legs("failed") == 1 and pd.legs("handed") == 0
    assert pd.router.field("prefill_leg_failed", "reason")
    pd.assert_idle()


def test_a_prefill_worker_that_is_gone_costs_no_answer(pd):
    pd.start("vllm").decoding()
    pd["prefill0"].stop()
    assert [pd.ask(LONG + str(i)).code for i in range(4)] == [200] * 4
    pd.assert_idle()


def test_kv_that_cannot_be_fetched_is_computed(pd):
    pd.start("vllm").decoding()
    pd["decode0"].faults.add("fetch")
    answer = pd.ask()
    assert answer.code == 200
    assert ["kv_transfer_params" in b for b, _ in pd["decode0"].seen] == [True, False]
    assert pd.router.metric("incipit_retries_total", reason="handover_failed") == 1
    assert all(w["is_healthy"] for w in pd.router.workers()["workers"])  # nobody is to blame
    pd.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_an_expired_lease_is_the_engines_to_handle(pd, policy, stream):
    pd.start("vllm").decoding()
    pd["decode0"].faults |= {"fetch", "recompute"} if policy == "recompute" else {"fetch"}
    got = list(events(pd.router.url + "/v1/chat/completions", chat(LONG, stream=True))) if stream else [pd.ask().json]
    assert "decode0" in json.dumps(got) and "error" not in json.dumps(got)
    is_sent_again = policy == "fail"
    assert ["kv_transfer_params" in b for b, _ in pd["decode0"].seen] == [True, False][:1 + is_sent_again]
    assert pd.count("retries_total", reason="handover_failed") == is_sent_again
    assert pd.count("prefill_unused_total") == is_sent_again
    assert pd.legs("handed") == 1
    pd.assert_idle()


def test_a_prompt_that_no_answer_used_is_counted(pd):
    pd.start("vllm").decoding()
    pd["decode0"].faults.add("stuck")
    pd.leave(lambda: pd["decode0"].seen, "the second leg")
    wait_for(lambda: pd.count("prefill_unused_total") == 1, "the count")
    assert pd.legs("handed") == 1 and len(pd.fleet.held) == 1
    pd.assert_idle()


def test_a_decode_worker_that_dies_costs_no_answer(pd):
    pd.start("vllm", 1, 2).decoding()
    pd["decode0"].faults.add("die")
    answers = [pd.pool.submit(pd.ask, str(i) + LONG) for i in range(12)]
    assert [a.result().code for a in answers] == [200] * 12
    assert pd["decode0"].seen, "it was asked"
    pd.assert_idle()


def test_prefill_workers_alone_answer(pd):
    pd.start("vllm", 2, 0)
    assert pd.ask().json["choices"][0]["message"]["content"].startswith("prefill")
    assert "kv_transfer_params" not in json.dumps([b for name in ("prefill0", "prefill1") for b, _ in pd[name].seen])
    pd.assert_idle()


@pytest.mark.parametrize("more", [{"n": 2}, {"max_tokens": 1}, {"tool_choice": "required"}, {"prompt_logprobs": 1}])
def test_a_request_that_cannot_be_split_is_not(pd, more):
    pd.start("vllm").decoding()
    answer = pd.ask(**more)
    assert answer.code == 200 and len(answer.json["choices"]) == more.get("n", 1)
    assert pd["prefill0"].seen == [] and pd.choices("unfit") == 1
    pd.assert_idle()


@pytest.mark.parametrize("more", [{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"},
                                  {"logprobs": True, "top_logprobs": 3}, {"n": 1, "max_completion_tokens": 9},
                                  {"max_tokens": 2, "logprobs": True, "tools": [{"type": "function", "function": {"name": "f"}}]}])
def test_tools_and_log_probabilities_go_apart(pd, more):
    pd.start("vllm").decoding()
    assert pd.ask(**more).code == 200
    assert pd.legs("handed") == 1
    (first, _), = pd["prefill0"].seen
    assert first.get("max_completion_tokens", 1) == 1 and first.get("tools") == more.get("tools")
    pd.assert_idle()


def test_a_stream_goes_apart(pd):
    pd.start("vllm").decoding()
    got = list(events(pd.router.url + "/v1/chat/completions", chat(LONG, stream=True, max_tokens=5)))
    assert len([e for e in got if "delta" in json.dumps(e)]) == 5 and pd.legs("handed") == 1
    pd.assert_idle()


def test_a_client_that_leaves_between_the_legs_releases_both(pd):
    pd.start("vllm").decoding()
    pd["prefill0"].faults.add("stuck")
    with pytest.raises(TimeoutError):
        http(pd.router.url + "/v1/chat/completions", chat(LONG), timeout=1)
    wait_for(lambda: pd["prefill0"].left == 1, "the worker that prefills is left")
    wait_for(lambda: pd.legs("aborted") == 1, "the leg is over")
    assert pd["decode0"].seen == []
    pd.assert_idle()


def test_a_silent_prefill_worker_is_given_up_after_the_first_byte_timeout(pd):
    pd.start("vllm", 1, 1, "--first-byte-timeout", "500ms").decoding()
    pd["prefill0"].faults.add("stuck")
    answer = pd.ask()
    assert answer.code == 200 and pd.legs("failed") == 1
    assert pd.router.field("prefill_leg_failed", "reason") == "first_byte_timeout"
    pd.assert_idle()


# --- SGLang ---------------------------------------------------------------------------------------


def test_both_legs_go_out_at_once_with_a_room_of_their_own(pd):
    pd.start("sglang", 2, 2)
    answers = [pd.pool.submit(pd.ask, f"prompt {i}") for i in range(20)]
    assert all(a.result().code == 200 for a in answers)
    assert all(a.result().json["choices"][0]["message"]["content"].startswith("decode") for a in answers)
    first = {b["bootstrap_room"]: b for i in range(2) for b, _ in pd[f"prefill{i}"].seen}
    second = {b["bootstrap_room"]: b for i in range(2) for b, _ in pd[f"decode{i}"].seen}
    assert len(first) == 20 and first == second
    assert len({b["rid"] for b in first.values()}) == 20
    assert all(b["bootstrap_host"] == "127.0.0.1" and b["bootstrap_port"] == 8998 and 0 <= r < 2**63 for r, b in first.items())
    wait_for(lambda: pd.legs("handed") == 20, "the legs are over")
    assert pd.router.metric("incipit_cached_tokens_total") in range(0, 161)
    pd.assert_idle()


def test_many_legs_are_open_at_one_worker(pd):
    pd.start("sglang")
    pd["prefill0"].faults.add("stuck")
    answers = [pd.pool.submit(pd.ask, f"prompt {i}") for i in range(120)]
    wait_for(lambda: len(pd["prefill0"].seen) == 120, "all first legs")
    pd["prefill0"].faults.discard("stuck")
    assert [a.result().code for a in answers] == [200] * 120
    wait_for(lambda: pd.legs("handed") == 120, "the legs are over")
    pd.assert_idle()


def test_roles_are_read_from_the_engines(pd):
    for role in ("prefill", "decode"):
        pd.engines[role + "0"] = Engine(pd.fleet, role + "0", "sglang", role)
    pd.router = pd.programs(Router, "--worker-urls", *[e.url for e in pd.engines.values()],
                            "--engine-metrics-interval", "50ms").ready(2)
    wait_for(lambda: {w["worker_type"] for w in pd.router.workers()["workers"]} == {"prefill", "decode"}, "their roles")
    assert pd.ask("x").json["choices"][0]["message"]["content"].startswith("decode0")
    pd.assert_idle()


def test_a_role_is_a_label_that_may_change(pd):
    pd.start("vllm").decoding()
    workers = {w["url"]: w["id"] for w in pd.router.workers()["workers"]}
    path = f"{pd.router.admin_url}/workers/{workers[pd['prefill0'].url]}"
    assert http(path, {"labels": {"role": "both", "kv_connector": "none"}}, method="PATCH").code == 202
    assert pd.ask().code == 200
    assert pd.choices("apart") == 0 and pd.legs("handed") == 0
    pd.assert_idle()


def test_a_batch_has_a_room_for_each_prompt(pd):
    pd.start("sglang")
    answer = pd.router.post("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"]})
    assert answer.code == 200
    (first, _), = pd["prefill0"].seen
    assert len(set(first["bootstrap_room"])) == len(set(first["rid"])) == 3 and first["bootstrap_host"] == ["127.0.0.1"] * 3
    assert first == pd["decode0"].seen[0][0]
    pd.assert_idle()


@pytest.mark.parametrize("fault", ["die", "500", "garbage", "redirect", "interim"])
def test_a_prefill_that_fails_aborts_the_other_and_goes_elsewhere(pd, fault):
    pd.start("sglang", 2, 1)
    pd["prefill0"].faults.add(fault)
    assert [pd.ask(f"prompt {i}").code for i in range(6)] == [200] * 6
    assert pd["prefill0"].seen, "it was asked"
    lost = pd["prefill0"].seen[0][0]["rid"]
    wait_for(lambda: lost in pd["decode0"].aborted, "the other leg is aborted")
    pd.assert_idle()


def test_a_decode_that_fails_aborts_the_other_and_goes_elsewhere(pd):
    pd.start("sglang", 1, 2)
    pd["decode0"].faults.add("500")
    assert [pd.ask(f"prompt {i}").code for i in range(6)] == [200] * 6
    pd.assert_idle()


def test_a_refusal_of_both_reaches_the_client(pd):
    pd.start("sglang")
    pd["prefill0"].faults.add("400")
    pd["decode0"].faults.add("400")
    assert pd.ask("x").code == 400
    pd.assert_idle()


def test_a_lone_prefill_worker_that_comes_back_costs_no_answer(pd):
    """Requests wait for it: before probes find that it is gone, and afterwards."""
    pd.start("sglang", 1, 1, "--probe-interval", "200ms")
    assert pd.ask("before").code == 200
    gone = pd["prefill0"]
    gone.stop()
    answers = [pd.pool.submit(pd.ask, f"prompt {i}") for i in range(4)]
    wait_for(lambda: pd.count("prefill_legs_total", outcome="failed") > 0, "a leg that fails")
    pd.engines["prefill0"] = Engine(pd.fleet, "prefill0", "sglang", "prefill", port=gone.port)
    assert [(a.result().code, a.result().json.get("error")) for a in answers] == [(200, None)] * 4
    pd.assert_idle()


def test_without_a_prefill_worker_requests_wait_or_fail_with_the_reason(pd):
    pd.start("sglang", 0, 1, "--queue-timeout", "200ms")
    assert pd.ask("x").code == 503
    pd.assert_idle()
