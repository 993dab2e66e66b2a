"""Who may send requests: keys, their limits, their reload, and that nothing of them leaks."""
import hashlib
import os
import signal
import socket
import subprocess

import pytest

from conftest import BUILD, PATIENCE_S, Router, events, http, wait_for

KEY = "sk-alpha-3b1f9c5d"
BODY = {"prompt": "an unmistakable sentence about quinces", "max_tokens": 1}


def bearer(key):
    return {"Authorization": "Bearer " + key}


@pytest.fixture
def keyed(programs, sim, tmp_path):
    """A router before one simulated worker; its keys are in `router.keys_file`."""
    def start(text, *args):
        path = tmp_path / "keys"
        path.write_text(text)
        router = programs(Router, "--worker-urls", sim.url, "--api-keys-file", path, *args).ready(1)
        router.keys_file = path
        return router
    return start


def test_without_a_key_nothing_but_probes_is_answered(keyed):
    router = keyed(KEY + "\n")
    for headers in ({}, bearer("sk-wrong"), bearer(KEY + "x"), {"Authorization": "Basic " + KEY}):
        for answer in (router.post("/v1/completions", BODY, headers=headers), router.get("/v1/models", headers=headers),
                       router.get("/metrics", headers=headers), router.get("/workers", headers=headers)):
            assert answer.code == 401 and answer.json["error"]["type"] == "AuthenticationError", answer.body
            assert {k.lower(): v for k, v in answer.headers.items()}["www-authenticate"] == "Bearer"
    assert router.get("/health").code == router.get("/readyz").code == router.get("/livez").code == 200
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 200
    assert router.post("/v1/completions", BODY, headers={"X-Api-Key": KEY}).code == 200
    assert router.get("/v1/models", headers=bearer(KEY)).code == 200
    assert http(router.admin_url + "/metrics").code == 200  # loopback


def test_the_refusal_comes_before_the_body(keyed):
    router = keyed(KEY + "\n")
    with socket.create_connection(("127.0.0.1", int(router.url.rsplit(":", 1)[1])), PATIENCE_S) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n{")
        assert s.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_limit_is_named_with_its_value_and_a_time(keyed):
    router = keyed(f"{KEY} rps=0.01\n")
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 200
    refused = router.post("/v1/completions", BODY, headers=bearer(KEY))
    headers = {k.lower(): v for k, v in refused.headers.items()}
    assert refused.code == 429 and "rps=0.01" in refused.json["error"]["message"]
    assert 90 <= int(headers["retry-after"]) <= 100 and 90000 <= int(headers["retry-after-ms"]) <= 100000
    assert http(router.admin_url + "/metrics").body.count('incipit_requests_refused_total{limit="key"} 1') == 1


def test_the_file_is_read_again_on_sighup(keyed):
    router = keyed(KEY + "\n")
    router.keys_file.write_text("sk-beta\n")
    router.process.send_signal(signal.SIGHUP)
    router.field("keys_reloaded", "keys")
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 401
    assert router.post("/v1/completions", BODY, headers=bearer("sk-beta")).code == 200
    router.keys_file.write_text("sk-gamma frobnicate=1\n")
    router.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "keys_not_reloaded" in router.log, "the complaint")
    assert "line 1" in router.log and "sk-gamma" not in router.log
    assert router.post("/v1/completions", BODY, headers=bearer("sk-beta")).code == 200


def test_a_secret_that_kubernetes_renews_is_read_again_without_a_signal(keyed, tmp_path):
    router = keyed(KEY + "\n")
    for version, key in (("..1", KEY), ("..2", "sk-beta")):  # as the kubelet mounts it: a link that is swapped
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(key + "\n")
    (tmp_path / "..data_tmp").symlink_to("..2/keys")
    (tmp_path / "..data_tmp").rename(router.keys_file)
    router.field("keys_reloaded", "keys")
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 401
    assert router.post("/v1/completions", BODY, headers=bearer("sk-beta")).code == 200


def test_nothing_of_keys_or_prompts_is_written_anywhere(keyed):
    router = keyed(f"{KEY} tenant=a rps=100\n", "--log-level", "debug", "--explain-to-clients")
    for body in (BODY, {**BODY, "stream": True}, {**BODY, "model": "nobody"}, b'{"prompt": "quinces', b"quinces"):
        for headers in (bearer(KEY), bearer("sk-wrong-71c2")):
            router.post("/v1/completions", body, headers={**headers, "x-incipit-route": "1"})
    router.process.send_signal(signal.SIGHUP)
    router.field("keys_reloaded", "keys")
    pages = "".join(http(router.admin_url + path).body for path in ("/metrics", "/workers", "/list_workers", "/v1/models"))
    assert router.stop() == 0
    for secret in (KEY, "sk-wrong-71c2", "quinces", "3b1f9c5d"):
        assert secret not in router.log + router.output + pages
    assert " tenant=a " in router.log


def test_a_key_without_a_name_leaves_nothing_of_its_digest(keyed):
    router = keyed(KEY + "\n")
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 200
    assert router.stop() == 0
    assert 'tenant=""' in router.log and hashlib.sha256(KEY.encode()).hexdigest()[:8] not in router.log


def test_a_key_that_is_taken_away_ends_its_requests_in_peace(keyed):
    router = keyed(KEY + " tenant=gone\n")
    stream = events(router.url + "/v1/completions", {**BODY, "max_tokens": 400, "stream": True, "ignore_eos": True}, bearer(KEY))
    next(stream)
    router.keys_file.write_text("sk-beta\n")
    router.process.send_signal(signal.SIGHUP)
    router.field("keys_reloaded", "keys")
    assert list(stream)[-1] == "[DONE]"
    assert router.field("request", "tenant") == "gone"
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 401


@pytest.mark.parametrize("args, text, words", [
    (["--api-key", KEY], None, ["INCIPIT_API_KEY", "process list"]),
    (["--api-keys-file", "/no/such/keys"], None, ["--api-keys-file", "/no/such/keys"]),
    (["--admin-api-key-file", "/no/such/keys"], None, ["--admin-api-key-file", "/no/such/keys"]),
    ([], "", ["holds no key", "without a key"]),
    ([], f"{KEY} rps=fast\n", ["line 1", "rps"]),
    ([], f"{KEY}\n{KEY}\n", ["line 2", "duplicate"]),
    (["--isolate-by", "tenant"], None, ["--isolate-by tenant", "--api-keys-file", "--trust-tenant-header"]),
    (["--isolate-by", "colour"], None, ["colour", "none", "tenant"]),
    (["--isolation-secret", "0123456789abcdef"], None, ["INCIPIT_ISOLATION_SECRET"]),
    (["--isolation-secret-file", "/no/such/secret"], None, ["--isolation-secret-file", "/no/such/secret"]),
    (["--isolation-secret-file", "/dev/null"], None, ["/dev/null"]),
    (["--trust-tenant-header", "--tenant-header-name", "a b"], None, ["--tenant-header-name", "a b"]),
    (["--trust-tenant-header", "--tenant-header-name", "Authorization"], None, ["carries API keys"]),
])
def test_a_sentence_and_a_nonzero_exit(tmp_path, args, text, words):
    if text is not None:
        (tmp_path / "keys").write_text(text)
        args = ["--api-keys-file", tmp_path / "keys"]
    result = subprocess.run([str(BUILD / "incipit-router"), "--worker-urls", "http://127.0.0.1:1", "--port", "0",
                             "--admin-port", "0", *map(str, args)], capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False)
    assert result.returncode != 0 and KEY not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def test_a_key_from_the_environment_is_enough(programs, sim):
    os.environ["INCIPIT_API_KEY"] = KEY
    try:
        router = programs(Router, "--worker-urls", sim.url).ready(1)
    finally:
        del os.environ["INCIPIT_API_KEY"]
    assert router.post("/v1/completions", BODY).code == 401
    assert router.post("/v1/completions", BODY, headers=bearer(KEY)).code == 200
