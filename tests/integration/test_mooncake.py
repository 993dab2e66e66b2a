"""One vLLM worker computes a prompt, another decodes it, through MooncakeConnector: both get the request at once.

The engines are scripted (tests/support/mooncake_engine.py).
"""
import json
import sys

import pytest

from conftest import ROOT, Router, events, http, wait_for
from test_prefill_decode import LONG, PD, chat

sys.path.insert(0, str(ROOT / "tests/support"))
from mooncake_engine import MooncakeEngine, MooncakeFleet  # noqa: E402


class Mooncake(PD):
    def __init__(self, programs):
        super().__init__(programs)
        self.fleet = MooncakeFleet()

    def start(self, n_prefill=1, n_decode=1, *args, ranks=1, is_ready=True):
        for role, n in (("prefill", n_prefill), ("decode", n_decode)):
            for i in range(n):
                self.engines[f"{role}{i}"] = MooncakeEngine(self.fleet, f"{role}{i}", role, ranks)
        self.fleet.engines = list(self.engines.values())
        prefill = [str(word) for i in range(n_prefill) for word in (self[f"prefill{i}"].url, self[f"prefill{i}"].bootstrap_port)]
        decode = [self[f"decode{i}"].url for i in range(n_decode)]
        if not is_ready:
            self["prefill0"].faults.add("unready")
        self.router = self.programs(Router, "--kv-connector", "MooncakeConnector", "--prefill", *prefill, "--decode", *decode,
                                    "--engine-metrics-interval", "50ms", *args).ready(n_prefill + n_decode)
        if is_ready:
            self.found(n_prefill)
        return self

    def found(self, n=1):
        """The engines' ids are known."""
        wait_for(lambda: self.router.log.count("bootstrap_found") >= n, "the bootstrap servers' answers")

    def first_bodies(self):
        return [b for name, e in self.engines.items() if name.startswith("prefill") for b, _ in e.seen]

    def assert_answered_alone(self, answer):
        """By a worker that decodes, from the plain request."""
        assert answer.code == 200 and answer.json["choices"][0]["message"]["content"].strip().startswith("decode")
        assert chat(LONG) in [b for b, _ in self["decode0"].seen]  # the one that was left may be seen later


@pytest.fixture
def pd(programs):
    it = Mooncake(programs)
    yield it
    it.stop()


def test_both_legs_have_one_transfer_id_and_the_second_names_the_engine(pd):
    pd.start().decoding()
    answer = pd.ask(max_tokens=7, min_tokens=3, stream_options={"include_usage": True}, stream=False, temperature=0.5)
    assert answer.code == 200 and answer.json["choices"][0]["message"]["content"].strip() == "decode0"
    (first, first_head), = pd["prefill0"].seen
    (second, second_head), = pd["decode0"].seen
    transfer = first["kv_transfer_params"].pop("transfer_id")
    assert first == chat(LONG, max_tokens=1, min_tokens=1, stream=False, temperature=0.5,
                         kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    assert second == chat(LONG, max_tokens=7, min_tokens=3, stream_options={"include_usage": True}, stream=False,
                          temperature=0.5, kv_transfer_params={
                              "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": transfer,
                              "remote_engine_id": pd["prefill0"].ids[0],
                              "remote_bootstrap_addr": f"http://127.0.0.1:{pd['prefill0'].bootstrap_port}"})
    assert first_head["x-request-id"] == second_head["x-request-id"] == "req-1"
    assert "x-data-parallel-rank" not in first_head
    wait_for(lambda: pd.legs("handed") == 1, "the leg is over")
    assert pd.choices("apart") == 1 and pd.count("prefill_unused_total") == 0
    assert pd.router.metric("incipit_cached_tokens_total") in (0, 8)  # of the worker that prefills, if it answered first
    pd.assert_idle()
    assert pd.fleet.stranded() == 0


def test_many_requests_have_transfer_ids_of_their_own(pd):
    pd.start(2, 2).decoding()
    answers = [pd.pool.submit(pd.ask, f"{i} {LONG}") for i in range(20)]
    assert all(a.result().json["choices"][0]["message"]["content"].startswith("decode") for a in answers)
    ids = [b["kv_transfer_params"]["transfer_id"] for b in pd.first_bodies() if "kv_transfer_params" in b]
    assert len(ids) == len(set(ids)) > 0
    wait_for(lambda: pd.legs("handed") == len(ids), "the legs are over")
    pd.assert_idle()
    assert pd.fleet.stranded() == 0


def test_short_prompts_and_idle_workers_stay_together(pd):
    pd.start()
    assert pd.ask().code == 200  # idle: nobody is held up
    pd.decoding()
    assert pd.ask("a short one").code == 200
    assert pd["prefill0"].seen == [] and pd.choices("apart") == 0
    pd.assert_idle()


@pytest.mark.parametrize("more", [{"stream": True, "max_tokens": 5}, {"logprobs": True, "top_logprobs": 3},
                                  {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"},
                                  {"max_completion_tokens": 9}])
def test_streams_tools_and_log_probabilities_go_apart(pd, more):
    pd.start().decoding()
    if "stream" in more:
        got = list(events(pd.router.url + "/v1/chat/completions", chat(LONG, **more)))
        assert len([e for e in got if "delta" in json.dumps(e)]) == 5
    else:
        assert pd.ask(**more).code == 200
    (first, _), = pd["prefill0"].seen
    assert first["max_tokens"] == 1 and first["stream"] is False and first.get("tools") == more.get("tools")
    assert first.get("max_completion_tokens", 1) == 1
    wait_for(lambda: pd.legs("handed") == 1, "the leg is over")
    pd.assert_idle()


@pytest.mark.parametrize("more", [{"n": 2}, {"max_tokens": 1}, {"tool_choice": "required"}, {"prompt_logprobs": 1}])
def test_a_request_that_cannot_be_split_is_not(pd, more):
    pd.start().decoding()
    answer = pd.ask(**more)
    assert answer.code == 200 and len(answer.json["choices"]) == more.get("n", 1)
    assert pd["prefill0"].seen == [] and pd.choices("unfit") == 1
    pd.assert_idle()


def test_ranks_behind_one_port_are_used_in_turn(pd):
    pd.start(ranks=2).decoding()
    for i in range(4):
        assert pd.ask(f"{i} {LONG}").code == 200
    assert pd["prefill0"].ranks == [0, 1, 0, 1]
    assert [b["kv_transfer_params"]["remote_engine_id"] for b, _ in pd["decode0"].seen] == pd["prefill0"].ids * 2
    pd.assert_idle()


def test_a_client_does_not_choose_the_rank_that_computes_its_prompt(pd):
    """vLLM takes the first of two headers, and D waits for the rank of the router's choice."""
    pd.start(ranks=2).decoding()
    answer = pd.router.post("/v1/chat/completions", chat(LONG), headers={"x-data-parallel-rank": "1"})
    assert answer.code == 200 and answer.json["choices"][0]["message"]["content"].strip() == "decode0"
    assert pd["prefill0"].ranks == [0] and pd.choices("apart") == 1
    pd.assert_idle()
    assert pd.fleet.stranded() == 0


class Xoshiro:
    """xoshiro256**, as it goes on after four numbers in a row."""

    MASK = (1 << 64) - 1

    def __init__(self, seen):
        first, second, third, fourth = map(self.middle_of, seen)
        a = first ^ second  # s0 ^ s2, before the first step
        s1, s2 = second, a ^ (first << 17) & self.MASK  # after it
        s0 = third ^ s1 ^ s2
        s2_next = s2 ^ s0 ^ (s1 << 17) & self.MASK
        s3 = fourth ^ third ^ s2_next ^ s0 ^ s1
        self.s = [s0, s1, s2, s3]
        for _ in range(3):
            self.next()

    @classmethod
    def rotated(cls, x, n):
        return (x << n | x >> 64 - n) & cls.MASK

    @classmethod
    def middle_of(cls, number):
        """The second word of the state that gave it."""
        x = cls.rotated(number * pow(9, -1, 1 << 64) & cls.MASK, 64 - 7)
        return x * pow(5, -1, 1 << 64) & cls.MASK

    def next(self):
        s = self.s
        number, t = self.rotated(s[1] * 5 & self.MASK, 7) * 9 & self.MASK, s[1] << 17 & self.MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = self.rotated(s[3], 45)
        return number


def numbers_of(request_id):
    """Of "req-" and 32 digits: the lowest digit of each number is written first."""
    digits = request_id.removeprefix("req-")
    return [int(digits[i:i + 16][::-1], 16) for i in (0, 16)]


def test_transfer_ids_do_not_follow_from_request_ids(pd):
    """Each client sees request ids that the router has made; who knows a transfer id can take another's blocks."""
    pd.start(1, 1, "--threads", "1").decoding()
    made = [pd.router.post("/v1/chat/completions", chat(f"{i}")).headers["x-request-id"] for i in range(3)]
    first, second, third = map(numbers_of, made)
    known = Xoshiro(first + second)
    assert [known.next(), known.next()] == third
    assert pd.ask().code == 200
    transfer = pd.first_bodies()[-1]["kv_transfer_params"]["transfer_id"]
    assert transfer != f"incipit-{known.next() & (1 << 63) - 1:016x}{known.next():016x}"
    pd.assert_idle()


@pytest.mark.parametrize("fault", ["unready", "broken", "away"])
def test_without_its_bootstrap_server_a_worker_computes_no_prompt_for_others(pd, fault):
    pd.start(is_ready=False)
    wait_for(lambda: "bootstrap_unknown" in pd.router.log, "the line")
    if fault == "broken":
        pd["prefill0"].faults.add("broken")
    port = pd["prefill0"].bootstrap_port
    if fault == "away":
        pd["prefill0"].stop_bootstrap()
    pd.decoding()
    pd.assert_answered_alone(pd.ask())
    assert pd.choices("apart") == 0 and pd["prefill0"].seen == []
    if fault == "away":
        pd["prefill0"].start_bootstrap(port)
    pd["prefill0"].faults.clear()
    pd.found()
    assert pd.ask("again " + LONG).code == 200 and pd.choices("apart") == 1
    pd.assert_idle()


def test_a_worker_that_has_restarted_has_other_engines(pd):
    pd.start().decoding()
    pd["prefill0"].restart()  # the router does not know yet
    pd.assert_answered_alone(pd.ask())
    assert [("kv_transfer_params" in b) for b, _ in pd["decode0"].seen] == [True, False]
    assert pd.router.metric("incipit_retries_total", reason="handover_failed") == 1
    assert all(w["is_healthy"] for w in pd.router.workers()["workers"])  # nobody is to blame
    pd["prefill0"].publish()

    def went_apart(i=iter(range(1000))):
        assert pd.ask(f"{next(i)} {LONG}").code == 200
        return "kv_transfer_params" in pd["decode0"].seen[-1][0]

    wait_for(went_apart, "the new id")
    pd.assert_idle()


@pytest.mark.parametrize("fault", ["die", "500", "400", "garbage", "redirect", "interim"])
@pytest.mark.parametrize("retries", [(), ("--max-retries", "0")])
def test_a_prefill_that_fails_leaves_the_other_which_gets_the_plain_request(pd, fault, retries):
    pd.start(1, 1, *retries).decoding()
    pd["prefill0"].faults.add(fault)
    pd.assert_answered_alone(pd.ask())
    wait_for(lambda: pd["decode0"].left == 1, "the wait for the KV is given up")
    assert sorted(("kv_transfer_params" in b) for b, _ in pd["decode0"].seen) == [False, True]
    assert pd.legs("failed") == 1 and pd.legs("handed") == 0 and pd.count("prefill_unused_total") == 0
    assert pd.router.metric("incipit_retries_total", reason="prefill_failed") == 1
    pd.assert_idle()


def test_a_prefill_worker_that_is_gone_costs_no_answer(pd):
    pd.start().decoding()
    pd["prefill0"].stop()
    pd.engines.pop("prefill0")
    assert [pd.ask(LONG + str(i)).code for i in range(4)] == [200] * 4
    pd.assert_idle()


def test_a_silent_prefill_worker_is_given_up_after_the_first_byte_timeout(pd):
    pd.start(1, 1, "--first-byte-timeout", "500ms").decoding()
    pd["prefill0"].faults.add("stuck")
    pd.assert_answered_alone(pd.ask())
    assert pd.router.field("prefill_leg_failed", "reason") == "first_byte_timeout"
    wait_for(lambda: pd["prefill0"].left == 1 and pd["decode0"].left == 1, "both are left")
    pd.assert_idle()


def test_a_decode_worker_that_dies_costs_no_answer(pd):
    pd.start(1, 2).decoding()
    pd["decode0"].faults.add("die")
    answers = [pd.pool.submit(pd.ask, str(i) + LONG) for i in range(12)]
    assert [a.result().code for a in answers] == [200] * 12
    assert pd["decode0"].seen, "it was asked"
    pd.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_kv_that_cannot_be_fetched_is_computed(pd, stream):
    pd.start().decoding()
    pd["decode0"].faults.add("fetch")
    pd["prefill0"].faults.add("stuck")
    if stream:
        got = json.dumps(list(events(pd.router.url + "/v1/chat/completions", chat(LONG, stream=True))))
        assert "decode0" in got and "error" not in got
    else:
        pd.assert_answered_alone(pd.ask())
    assert ["kv_transfer_params" in b for b, _ in pd["decode0"].seen] == [True, False]
    assert pd.router.metric("incipit_retries_total", reason="handover_failed") == 1
    wait_for(lambda: pd["prefill0"].left == 1, "the worker that prefills is left")
    pd.assert_idle()


def test_a_prompt_that_no_answer_used_is_counted(pd):
    pd.start().decoding()
    pd["decode0"].faults.add("stuck")
    pd.leave(lambda: pd["decode0"].seen and pd.legs("handed"), "both legs")
    wait_for(lambda: pd.count("prefill_unused_total") == 1, "the count")
    assert pd.legs("handed") == 1 and pd.fleet.stranded() == 1
    pd.assert_idle()


def test_a_client_that_leaves_ends_both_legs(pd):
    pd.start().decoding()
    pd["prefill0"].faults.add("stuck")
    pd.leave(lambda: pd["decode0"].seen and pd["prefill0"].seen, "both legs")
    wait_for(lambda: pd["prefill0"].left == 1 and pd["decode0"].left == 1, "both are left")
    wait_for(lambda: pd.legs("aborted") == 1, "the leg is over")
    assert pd.count("prefill_unused_total") == 0
    pd.assert_idle()


def test_a_label_names_the_connector_of_a_worker(pd):
    pd.start()
    workers = {w["url"]: w["id"] for w in pd.router.workers()["workers"]}
    path = f"{pd.router.admin_url}/workers/{workers[pd['decode0'].url]}"
    assert http(path, {"labels": {"role": "decode", "kv_connector": "NixlConnector"}}, method="PATCH").code == 202
    pd.decoding()
    assert pd.ask().code == 200 and pd.choices("apart") == 0  # no pair: they have different connectors
    pd.assert_idle()


def test_workers_of_both_roles_are_added_and_drained_while_it_runs(pd, tmp_path):
    """POST /workers, in smg's words."""
    pd.engines = {f"{role}0": MooncakeEngine(pd.fleet, f"{role}0", role) for role in ("prefill", "decode")}
    pd.fleet.engines = list(pd.engines.values())
    (tmp_path / "none").write_text("")
    pd.router = pd.programs(Router, "--worker-file", tmp_path / "none", "--engine-metrics-interval", "50ms")
    pd.router.url = f"http://127.0.0.1:{pd.router.field('router_listening', 'port')}"
    pd.router.admin_url = f"http://127.0.0.1:{pd.router.field('router_listening', 'admin_port')}"
    for role, more in (("prefill", {"bootstrap_port": pd["prefill0"].bootstrap_port}), ("decode", {"labels": {"zone": "a"}})):
        body = {"url": pd[f"{role}0"].url, "worker_type": role, "kv_connector": "MooncakeConnector", **more}
        assert http(pd.router.admin_url + "/workers", body).code == 202
    wait_for(lambda: [w["status"] for w in pd.router.workers()["workers"]] == ["ready"] * 2, "both")
    found = {w["worker_type"]: w for w in pd.router.workers()["workers"]}
    assert set(found) == {"prefill", "decode"} and found["decode"]["labels"]["zone"] == "a"
    pd.found()
    pd.decoding()
    assert pd.ask().code == 200 and pd.choices("apart") == 1
    pd["prefill0"].faults.add("stuck")
    answer = pd.pool.submit(pd.ask, "another " + LONG)
    wait_for(lambda: pd["decode0"].seen[1:], "its second leg")
    path = f"{pd.router.admin_url}/workers/{found['prefill']['worker_id']}"
    assert http(path, method="DELETE").code == 202
    wait_for(lambda: http(path).json["status"] == "draining", "it finishes what it has")
    assert pd.ask("a third " + LONG).code == 200 and pd.choices("apart") == 2  # it gets no more
    pd["prefill0"].faults.clear()
    assert answer.result().code == 200 and pd.legs("failed") == 0
    wait_for(lambda: [w["worker_type"] for w in pd.router.workers()["workers"]] == ["decode"], "it is gone")
    pd.assert_idle()
