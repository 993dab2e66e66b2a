"""--isolate-by tenant: two tenants, one prompt, and nothing shared.

`make integration ARGS="-s -k isolation"` also prints the times to first token.
"""
import json
import socket
import statistics
import threading
import time

import pytest

from conftest import DEMO_MODEL, SANITIZER, Router, Worker, events, free_port, http

KEYS = "sk-one\nsk-two\nsk-three tenant=team\nsk-four tenant=team\n"
SECRET = "a secret that only routers know"


def bearer(key):
    return {"Authorization": "Bearer " + key}


def prompt(seed):
    """About 2,000 tokens, one a byte for the simulated worker."""
    return (f"Commentary number {seed}: Gallia est omnis divisa in partes tres. " * 60)[:2000]


@pytest.fixture
def isolated(programs, tmp_path):
    def start(*urls, more=(), keys=KEYS):
        (tmp_path / "keys").write_text(keys)
        (tmp_path / "secret").write_text(SECRET)
        return programs(Router, "--worker-urls", *urls, "--api-keys-file", tmp_path / "keys", "--isolate-by", "tenant",
                        "--isolation-secret-file", tmp_path / "secret", *more).ready(len(urls))
    return start


def cached(router, key, text, **more):
    answer = router.post("/v1/completions", {"prompt": text, "max_tokens": 1, **more}, headers=bearer(key))
    assert answer.code == 200, answer.body
    usage = answer.json["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


@pytest.mark.parametrize("trusts", [True, False])
def test_two_keys_share_nothing_and_one_key_keeps_its_own(programs, isolated, trusts):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, *(["--trust-router"] if trusts else [])).ready()
    assert worker.get("/server_info").json["trusts_router"] is trusts
    router = isolated(worker.url)
    assert cached(router, "sk-one", prompt(1))[0] == 0
    assert cached(router, "sk-two", prompt(1))[0] == 0
    for key in ("sk-one", "sk-two"):
        hit, n = cached(router, key, prompt(1))
        assert n >= 1900 and hit >= 0.9 * n
    assert cached(router, "sk-three", prompt(2))[0] == 0
    hit, n = cached(router, "sk-four", prompt(2))
    assert hit >= 0.9 * n  # of one tenant
    assert cached(router, "sk-one", prompt(1), cache_salt="mine")[0] == 0
    assert cached(router, "sk-two", prompt(1), cache_salt="mine")[0] == 0
    assert cached(router, "sk-one", prompt(1), cache_salt="mine")[0] >= 0.9 * n


def test_keys_in_a_file_are_kept_apart_by_default(programs, sim, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    router = programs(Router, "--worker-urls", sim.url, "--api-keys-file", tmp_path / "keys").ready(1)
    assert [cached(router, key, prompt(1))[0] for key in ("sk-one", "sk-two")] == [0, 0]
    hit, n = cached(router, "sk-one", prompt(1))
    assert hit >= 0.9 * n and "tenants_share_caches" not in router.log


def test_tenants_share_when_the_operator_allows_it_and_the_log_warns(programs, sim, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    router = programs(Router, "--worker-urls", sim.url, "--api-keys-file", tmp_path / "keys", "--isolate-by", "none").ready(1)
    assert cached(router, "sk-one", prompt(1))[0] == 0
    hit, n = cached(router, "sk-two", prompt(1))
    assert hit >= 0.9 * n and "tenants_share_caches" in router.log


@pytest.mark.parametrize("way", ["hash seed", "state folder"])
def test_salts_come_from_a_seed_that_routers_have_in_common(programs, sim, tmp_path, monkeypatch, way):
    (tmp_path / "keys").write_text(KEYS)
    args = ["--worker-urls", sim.url, "--api-keys-file", tmp_path / "keys"]
    if way == "hash seed":
        monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "0123456789abcdef")
    else:
        args += ["--state-dir", tmp_path / "state"]
        (tmp_path / "state").mkdir(mode=0o700)
    first = programs(Router, *args).ready(1)
    assert cached(first, "sk-one", prompt(1))[0] == 0
    assert first.stop() == 0 and "isolation_secret_is_random" not in first.log
    second = programs(Router, *args).ready(1)
    hit, n = cached(second, "sk-one", prompt(1))
    assert hit >= 0.9 * n and cached(second, "sk-two", prompt(1))[0] == 0


def test_routers_without_a_common_secret_are_safe_and_miss(programs, sim, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    args = ["--worker-urls", sim.url, "--api-keys-file", tmp_path / "keys"]
    one, other = programs(Router, *args).ready(1), programs(Router, *args).ready(1)
    assert [cached(r, key, prompt(1))[0] for r in (one, other) for key in ("sk-one", "sk-two")] == [0] * 4
    assert "isolation_secret_is_random" in one.log and "--isolation-secret-file" in one.log


def test_an_untrusting_worker_ignores_the_salt_and_a_trusting_one_checks_it(programs):
    ask = lambda worker, salt: http(worker.url + "/v1/completions", {"prompt": prompt(3), "max_tokens": 1},
                                    headers={"x-incipit-salt": salt} if salt else {})
    hits = lambda answer: answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    wary = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    assert hits(ask(wary, "")) == 0 and hits(ask(wary, "a" * 64)) > 0 and hits(ask(wary, "garbage")) > 0
    trusting = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--trust-router").ready()
    assert hits(ask(trusting, "")) == 0 and hits(ask(trusting, "a" * 64)) == 0
    assert hits(ask(trusting, "b" * 64)) == 0 and hits(ask(trusting, "a" * 64)) > 0
    assert ask(trusting, "garbage").code == 400


def test_a_client_cannot_choose_its_salt(programs, isolated):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--trust-router").ready()
    router = isolated(worker.url)
    forge = lambda key: router.post("/v1/completions", {"prompt": prompt(4), "max_tokens": 1},
                                    headers={**bearer(key), "X-Incipit-Salt": "c" * 64})
    for key in ("sk-one", "sk-two"):
        assert forge(key).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


class ScriptedVllm:
    """Answers as vLLM would, and keeps the bodies that it was sent."""

    def __init__(self):
        self.bodies, self.heads = [], []
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(16)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(c,), daemon=True).start()

    def talk(self, c):
        data = b""
        with c:
            while True:
                while b"\r\n\r\n" not in data:
                    more = c.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                               if line.startswith(b"content-length")), 0)
                while len(data) < length:
                    data += c.recv(65536)
                body, data = data[:length], data[length:]
                code, out = b"200 OK", b"{}"
                if head.startswith(b"POST"):
                    self.bodies.append(body)
                    self.heads.append(head.lower())
                elif head.startswith(b"GET /v1/models"):
                    out = b'{"data":[{"id":"m"}]}'
                elif head.startswith(b"GET /server_info"):
                    code = b"404 Not Found"
                c.sendall(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" %
                          (code, len(out), out))


@pytest.fixture
def vllm():
    server = ScriptedVllm()
    yield server
    server.listener.close()


def test_a_foreign_engine_gets_the_salt_in_the_body_and_nothing_else_changes(isolated, vllm):
    router = isolated(vllm.url)
    bodies = [b'{ "prompt" : "caf\\u00e9 \\ud83d\\ude00",  "unknown":1.0e3 }', b'{"messages":[{"role":"user","content":"hi"}]}',
              b'  {"prompt":"a","cache_salt" : "mine"}', b'{"prompt":"a","cache_salt":null,"stream":false}']
    salts = {}
    for key in ("sk-one", "sk-two", "sk-one"):
        for i, raw in enumerate(bodies):
            assert router.post("/v1/completions", raw, headers=bearer(key)).code == 200
            sent, mine = json.loads(vllm.bodies[-1]), json.loads(raw)
            salt = sent.pop("cache_salt")
            mine.pop("cache_salt", None)
            assert sent == mine and len(salt) == 64
            assert salts.setdefault((key, i), salt) == salt  # the same for the same
            shown = json.dumps(salt).encode()
            if b"cache_salt" in raw:
                assert vllm.bodies[-1] in (raw.replace(b'"mine"', shown), raw.replace(b"null", shown))
            else:
                at = raw.index(b"{") + 1
                assert vllm.bodies[-1] == raw[:at] + b'"cache_salt":' + shown + b"," + raw[at:]
    assert salts["sk-one", 0] == salts["sk-one", 1]  # no salt of the client's
    assert len(set(salts.values())) == 6  # per key: none, "mine", null
    assert router.post("/generate", b'{"text":"a"}', headers=bearer("sk-one")).code == 200
    assert json.loads(vllm.bodies[-1]).keys() == {"text", "extra_key"}
    assert router.post("/tokenize", b'{"prompt":"a"}', headers=bearer("sk-one")).code == 200
    assert vllm.bodies[-1] == b'{"prompt":"a"}'
    assert not any(b"x-incipit" in head or b"authorization" in head for head in vllm.heads)


def test_a_gateway_may_name_the_tenant_of_a_request(programs, vllm):
    router = programs(Router, "--worker-urls", vllm.url, "--trust-tenant-header", "--isolate-by", "tenant").ready(1)
    assert "isolation_secret_is_random" in router.log
    salt = {}
    for name in ("a", "b", "a"):
        assert router.post("/v1/completions", {"prompt": "x"}, headers={"X-Smg-Tenant-Id": name}).code == 200
        value = json.loads(vllm.bodies[-1])["cache_salt"]
        assert salt.setdefault(name, value) == value
    assert salt["a"] != salt["b"]
    assert router.post("/v1/completions", {"prompt": "x"}, headers={"X-Smg-Tenant-Id": "a" * 65}).code == 400


def test_launched_workers_trust_their_router(programs, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    router = programs(Router, "--launch", 1, "--worker-base-port", free_port(), "--worker-arg=--backend=sim",
                      "--worker-arg=--sim-speed=20", "--api-keys-file", tmp_path / "keys", "--isolate-by", "tenant").ready(1)
    assert http(router.workers()["workers"][0]["url"] + "/server_info").json["trusts_router"] is True
    assert [cached(router, key, prompt(5))[0] for key in ("sk-one", "sk-two")] == [0, 0]


@pytest.mark.skipif(bool(SANITIZER), reason="timings under a sanitizer are meaningless")
@pytest.mark.skipif(not (DEMO_MODEL / "model.safetensors").exists(), reason="deploy/demo/model has no weights")
def test_timing_of_other_tenants_prompts_is_printed(programs, isolated):
    """Times to first token of another's prompt, beside cold and warm ones: printed, not judged."""
    worker = programs(Worker, DEMO_MODEL, "--kv-cache-memory-bytes", "64MiB", "--trust-router").ready()
    router = isolated(worker.url)

    def ttft(key, text):
        began = time.monotonic()
        for _ in events(router.url + "/v1/completions", {"prompt": text, "max_tokens": 1, "stream": True}, bearer(key)):
            return (time.monotonic() - began) * 1e3

    cold, foreign, warm = [], [], []
    for i in range(5):
        cold.append(ttft("sk-one", prompt(100 + i)))
        foreign.append(ttft("sk-two", prompt(100 + i)))
        warm.append(ttft("sk-one", prompt(100 + i)))
    print(f"\nTTFT, medians of 5: cold {statistics.median(cold):.1f} ms, another tenant's prompt "
          f"{statistics.median(foreign):.1f} ms, one's own again {statistics.median(warm):.1f} ms")
    assert [cached(router, "sk-two", prompt(200))[0], cached(router, "sk-one", prompt(200))[0]] == [0, 0]
