"""Holding and prewarming through a router: one worker or several, owners, and what happens when a worker goes."""
import json
import socket

import pytest

from conftest import ROOT, Router, Worker, http, wait_for
from test_hold import PATIENT, slow  # noqa: F401

PROMPT = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 12


class Fleet:
    def __init__(self, programs, n_workers, *router_args, worker_args=()):
        self.programs = programs
        self.workers = [self.start(*worker_args) for _ in range(n_workers)]
        self.router = programs(Router, "--worker-urls", *(w.url for w in self.workers), *router_args).ready(n_workers)

    def start(self, *args, port=0):
        return self.programs(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 10000, "--max-model-len", 1024,
                             "--num-gpu-blocks-override", 100, "--kv-offload-bytes", "8MiB", *args, port=port).ready()

    def call(self, path, body=None, key=None, **headers):
        if key:
            headers["authorization"] = f"Bearer {key}"
        return http(self.router.url + path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def hold(self, **fields):
        answer = self.call("/cache/hold", {"prompt": PROMPT, **fields})
        assert answer.code == 200, answer.body
        return answer.json

    def holders(self, workers=None):
        """The workers that hold something."""
        return [w for w in workers or self.workers if w.get("/cache").json["holds"]]


def test_hold_goes_to_the_worker_that_gets_the_prompt(programs):
    fleet = Fleet(programs, 3)
    held = fleet.hold(ttl=600)
    assert held["object"] == "cache.hold" and held["copies"] == 1 and held["tokens"] > 100 and held["ttl_s"] == 600
    assert len(fleet.holders()) == 1
    answer = fleet.call("/v1/completions", {"prompt": PROMPT + " More.", "max_tokens": 1})
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == held["tokens"]
    page = fleet.call("/cache").json
    assert [h["id"] for h in page["holds"]] == [held["id"]]
    row = page["holds"][0]
    assert row["hits"] == 1 and row["saved_tokens"] == held["tokens"] and row["saved_s"] > 0 and row["bytes"] == held["bytes"]
    assert fleet.hold(ttl=600)["id"] == held["id"]
    released = fleet.call("/cache/release", {"id": held["id"]})
    assert released.code == 200 and released.json == {"object": "cache.release", "id": held["id"]}
    assert fleet.holders() == [] and fleet.call("/cache").json["holds"] == []
    assert fleet.call("/cache/release", {"id": held["id"]}).code == 404


@pytest.mark.parametrize("path, field", [("/cache/hold", "copies"), ("/cache/prewarm", "workers")])
def test_several_workers_get_the_prompt(programs, path, field):
    fleet = Fleet(programs, 3)
    answer = fleet.call(path, {"prompt": PROMPT, field: 2})
    assert answer.code == 200 and answer.json[field] == 2 and answer.json["cached_tokens"] == 0
    n_tokens = answer.json["prompt_tokens"]
    cached = [w.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]["prompt_tokens_details"]["cached_tokens"]
              for w in fleet.workers]
    assert sorted(cached) == [0] + 2 * [(n_tokens - 1) // 16 * 16]
    if path == "/cache/hold":
        assert len(fleet.holders()) == 2
        assert fleet.call("/cache/release", {"id": answer.json["id"]}).code == 200
        assert fleet.holders() == []


@pytest.mark.parametrize("n_copies", [1, 2])
def test_hold_that_is_asked_for_again_stays_where_it_is(programs, n_copies):
    fleet = Fleet(programs, 4, "--policy", "round_robin")  # would choose another worker each time
    first = fleet.hold(copies=n_copies)
    for _ in range(4):
        again = fleet.hold(copies=n_copies)
        assert (again["id"], again["copies"], again["bytes"]) == (first["id"], n_copies, first["bytes"])
    assert len(fleet.holders()) == n_copies and len(fleet.call("/cache").json["holds"]) == 1
    fleet.holders()[0].process.kill()
    assert fleet.hold(copies=n_copies)["id"] == first["id"]


@pytest.mark.parametrize("path, field", [("/cache/hold", "copies"), ("/cache/prewarm", "workers")])
def test_further_copies_go_to_workers_that_lack_the_prompt(programs, path, field):
    fleet = Fleet(programs, 2, "--policy", "chwbl", "--prefix-hash-load-factor", 1000)  # would choose one worker twice
    assert fleet.call(path, {"prompt": PROMPT, field: 3}).json[field] == 2
    for worker in fleet.workers:
        usage = worker.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16
    assert len(fleet.holders()) == (2 if path == "/cache/hold" else 0)


def test_hold_moves_to_another_worker_when_its_own_is_killed(programs):
    fleet = Fleet(programs, 2)
    held = fleet.hold(ttl=3600)
    lost = fleet.holders()[0]
    lost.process.kill()
    others = [w for w in fleet.workers if w is not lost]
    wait_for(lambda: fleet.holders(others), "the other worker to hold it", 60)
    wait_for(lambda: fleet.call("/cache").json["holds"][0]["copies"] == 1, "the router to know")
    assert fleet.call("/cache/release", {"id": held["id"]}).code == 200
    assert fleet.holders(others) == []


def test_restarted_worker_gets_its_hold_again(programs):
    fleet = Fleet(programs, 1)
    fleet.hold(ttl=3600)
    port = int(fleet.workers[0].url.rsplit(":", 1)[1])
    fleet.workers[0].stop()
    again = fleet.start(port=port)
    wait_for(lambda: fleet.holders([again]), "the worker to hold it again", 60)


def test_hold_that_its_worker_ended_is_forgotten(programs):
    fleet = Fleet(programs, 1)
    fleet.hold()
    assert fleet.workers[0].post("/reset_prefix_cache", {}).code == 200
    wait_for(lambda: fleet.call("/cache").json["holds"] == [], "the router to forget it")
    assert fleet.holders() == []


def test_hold_is_its_tenants_alone(programs, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-a tenant=a\nkey-a2 tenant=a\nkey-b tenant=b\n")
    fleet = Fleet(programs, 1, "--api-keys-file", keys, "--isolate-by", "tenant", worker_args=("--trust-router",))
    assert fleet.call("/cache/hold", {"prompt": PROMPT}).code == 401
    held = fleet.call("/cache/hold", {"prompt": PROMPT, "cache_salt": "s"}, key="key-a").json
    body = {"id": held["id"], "cache_salt": "s"}
    assert fleet.call("/cache", key="key-b").json["holds"] == []
    assert [h["holder"] for h in fleet.call("/cache", key="key-a2").json["holds"]] == ["a"]
    assert fleet.call("/cache/release", body, key="key-b").code == 404
    assert fleet.call("/cache/release", {"id": held["id"]}, key="key-a").code == 404
    for key, cached in (("key-b", 0), ("key-a", held["tokens"])):
        answer = fleet.call("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "cache_salt": "s"}, key=key)
        assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert fleet.call("/cache/release", body, key="key-a2").code == 200
    assert fleet.holders() == []


def test_salt_in_bodies_isolates_holds_too(programs, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-a tenant=a\nkey-b tenant=b\n")
    fleet = Fleet(programs, 1, "--api-keys-file", keys, "--isolate-by", "tenant")
    held = fleet.call("/cache/hold", {"prompt": PROMPT}, key="key-a").json
    assert fleet.call("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key="key-b").json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert fleet.call("/cache/release", {"id": held["id"]}, key="key-a").code == 200
    assert fleet.holders() == []


def test_refusals_of_workers_reach_the_client(programs):
    fleet = Fleet(programs, 1, worker_args=("--hold-bytes", 2 * 32768))
    refused = fleet.call("/cache/hold", {"prompt": PROMPT})
    assert refused.code == 429 and refused.json["error"]["param"] == "hold_quota" and refused.headers["retry-after"]
    assert fleet.call("/cache/prewarm", {"prompt": PROMPT, "ttl": "2h"}).json["error"]["param"] == "ttl"
    assert fleet.call("/cache/hold", {"prompt": PROMPT, "copies": 9}).json["error"]["param"] == "copies"
    assert fleet.call("/cache/hold", {"prompt": PROMPT, "model": "other"}).code == 404
    assert fleet.call("/cache/release", {"id": "hold-1"}).json["error"]["param"] == "id"
    assert fleet.call("/cache/hold", {"prompt": PROMPT}, origin="http://elsewhere.example").code == 403
    assert fleet.call("/cache/hold", None).code == 405
    assert fleet.call("/cache").json["holds"] == []


def test_answers_name_the_model_and_wrong_methods_are_told_the_right_ones(programs):
    fleet = Fleet(programs, 1)
    model = fleet.call("/v1/models").json["data"][0]["id"]
    assert fleet.hold()["model"] == model == fleet.call("/cache/prewarm", {"prompt": PROMPT}).json["model"]
    assert fleet.call("/cache").json["holds"][0]["model"] == model
    for path, method, allow in (("/cache/hold", "GET", "POST"), ("/cache/prewarm", "PUT", "POST"), ("/cache", "DELETE", "GET, HEAD")):
        answer = http(fleet.router.url + path, method=method)
        assert (answer.code, {k.lower(): v for k, v in answer.headers.items()}["allow"]) == (405, allow)


def test_using_a_hold_again_by_prewarming_or_holding_is_no_hit(programs):
    fleet = Fleet(programs, 1)
    fleet.hold()
    fleet.hold()
    assert fleet.call("/cache/prewarm", {"prompt": PROMPT}).code == 200
    assert fleet.call("/cache").json["holds"][0]["hits"] == 0
    assert fleet.call("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).code == 200
    assert fleet.call("/cache").json["holds"][0]["hits"] == 1


def test_operator_sees_who_holds_what_and_what_it_saves(programs, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-a tenant=a\nkey-b tenant=b\n")
    fleet = Fleet(programs, 2, "--api-keys-file", keys)

    def look():
        return http(fleet.router.admin_url + "/cache/holds").json

    held = fleet.call("/cache/hold", {"prompt": PROMPT, "copies": 2}, key="key-a").json
    fleet.call("/cache/hold", {"prompt": PROMPT[:600]}, key="key-b")
    assert fleet.call("/cache/hold", {"prompt": PROMPT[9:300]}, key="key-b").code == 200  # one worker may get both
    assert fleet.call("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key="key-a").code == 200
    assert fleet.call("/cache/holds", key="key-a").code == 403  # no API key is an admin key
    wait_for(lambda: any(h["hits"] for h in look()["holders"]) and fleet.router.metric("incipit_holds_saved_seconds") > 0, "the router to have asked")
    page = look()
    rows = {h["id"]: h for h in page["holds"]}
    assert len(rows) == 3 and rows[held["id"]]["tenant"] == "a" and set(rows[held["id"]]["workers"]) == {w.url for w in fleet.workers}
    of = {h["tenant"]: h for h in page["holders"]}
    assert of["a"]["holds"] == 1 and of["b"]["holds"] == 2 and of["a"]["bytes"] == held["bytes"] == rows[held["id"]]["bytes"]
    assert of["a"]["hits"] == 1 and of["a"]["saved_s"] > 0 and of["a"]["held_byte_s"] > 0 and of["b"]["hits"] == 0
    assert fleet.router.metric("incipit_holds") == 3 and fleet.router.metric("incipit_held_byte_seconds") > 0
    assert fleet.router.metric("incipit_held_bytes") == sum(h["bytes"] for h in page["holds"])


def ask(router, path, **fields):
    return http(router.url + path, {"model": "m", "prompt": PROMPT, **fields})


@pytest.mark.parametrize("path", ["/cache/hold", "/cache/prewarm"])
def test_prompt_that_kills_workers_is_sent_to_two(programs, slow, path):
    workers = [slow() for _ in range(4)]
    for worker in workers:
        worker.broken.add("bad")
        worker.release("bad")
    router = programs(Router, "--worker-urls", *(w.url for w in workers), *PATIENT).ready(4)
    for _ in range(2):  # and is refused at once when its client sends it again
        answer = ask(router, path, user="bad", copies=3, workers=3)
        assert answer.code == 503 and "Workers were lost" in answer.json["error"]["message"]
    assert sum(w.started.count("bad") for w in workers) == 2


def test_answer_without_a_hold_is_a_bad_gateway(programs, slow):
    worker = slow()
    worker.release("odd")
    router = programs(Router, "--worker-urls", worker.url, *PATIENT).ready(1)
    answer = ask(router, "/cache/hold", user="odd")
    assert answer.code == 502 and "no worker answered" in answer.json["error"]["message"]


def test_clients_that_left_keep_no_call(programs, slow):
    worker = slow()
    router = programs(Router, "--worker-urls", worker.url, *PATIENT).ready(1)
    host, port = router.url.split("//")[1].split(":")
    body = json.dumps({"model": "m", "prompt": PROMPT, "user": "long"})
    clients = [socket.create_connection((host, int(port))) for _ in range(64)]
    for client in clients:
        client.sendall(f"POST /cache/hold HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    wait_for(lambda: len(worker.started) == 64, "all calls to be with the worker")
    assert http(router.url + "/cache").code == 429
    for client in clients:
        client.close()
    wait_for(lambda: http(router.url + "/cache").code == 200, "room for a call")
    worker.release("long")
    assert http(router.url + "/cache").json["holds"] == []
