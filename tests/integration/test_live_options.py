"""Options that change while the router runs: by PUT /config and by SIGHUP, under load, all or nothing."""
import json
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

from conftest import BUILD, Program, Worker, http, wait_for

KEY, OTHER_KEY, ADMIN, WORKER_KEY = "sk-alpha-3b1f9c5d", "sk-beta-77aa01", "adm-5c0ffee1", "wrk-9d41e0"
BODY = {"prompt": "a sentence about quinces, and nothing else", "max_tokens": 1}
both = pytest.mark.parametrize("way", ["put", "file"])


def bearer(key):
    return {"Authorization": "Bearer " + key}


class Live:
    """A router with a --config file, before simulated workers. Clients have KEY, operators ADMIN."""

    def __init__(self, programs, tmp_path, urls, *args, **options):
        self.folder, self.path = tmp_path, tmp_path / "router.yaml"
        (tmp_path / "keys").write_text(KEY + " tenant=a\n")
        (tmp_path / "admin").write_text(ADMIN + "\n")
        self.base = {"api-keys-file": str(tmp_path / "keys"), "admin-api-key-file": str(tmp_path / "admin"),
                     "worker-urls": urls, "log-requests-rate": 100000, "drain-settle": 0, **options}
        self.write({})
        self.router = programs(Program, "incipit-router", ["--port", 0, "--admin-port", 0, "--config", self.path, *args])
        self.url = f"http://127.0.0.1:{self.router.field('router_listening', 'port')}"
        self.admin_url = f"http://127.0.0.1:{self.router.field('router_listening', 'admin_port')}"
        wait_for(lambda: self.admin("/workers").json["stats"]["healthy_workers"] == len(urls), "the workers")

    def write(self, options):
        self.path.write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in {**self.base, **options}.items()))

    def admin(self, path, body=None, method=None, key=ADMIN):
        return http(self.admin_url + path, body, bearer(key) if key else {}, method)

    def put(self, options, key=ADMIN):
        return self.admin("/config", options, "PUT", key)

    def config(self):
        return self.admin("/config").json["options"]

    def reload(self):
        """Sends SIGHUP; the log line about its result."""
        n = self.router.log.count(" config_reloaded ") + self.router.log.count(" config_not_reloaded ")
        self.router.process.send_signal(signal.SIGHUP)
        ended = lambda: self.router.log.count(" config_reloaded ") + self.router.log.count(" config_not_reloaded ")
        wait_for(lambda: ended() > n, "the end of a reload")
        return [line for line in self.router.log.splitlines() if " config_reloaded " in line or " config_not_reloaded " in line][-1]

    def change(self, way, options):
        if way == "put":
            answer = self.put(options)
            assert answer.code == 200, answer.body
        else:
            self.write(options)
            assert " config_reloaded " in self.reload(), self.router.log[-2000:]

    def back(self, way, names):
        self.change(way, dict.fromkeys(names) if way == "put" else {})

    def post(self, body=None, key=KEY, **more):
        return http(self.url + "/v1/completions", body or BODY, {**bearer(key), **more.pop("headers", {})}, **more)


@pytest.fixture
def live(programs, tmp_path):
    def start(*args, n=2, speed=20, worker_args=(), **options):
        workers = [programs(Worker, "--backend", "sim", "--sim-speed", speed, *worker_args).ready() for _ in range(n)]
        return Live(programs, tmp_path, [w.url for w in workers], *args, **options)
    return start


class Load:
    """A few clients that ask without a pause until they are stopped; what did not end with 200."""

    def __init__(self, live, n=3):
        self.live, self.n_asked, self.failures, self.is_over = live, 0, [], False
        self.clients = [threading.Thread(target=self.ask) for _ in range(n)]

    def ask(self):
        while not self.is_over:
            answer = self.live.post({**BODY, "prompt": f"question {self.n_asked} about quinces " * 20})
            self.n_asked += 1
            if answer.code != 200:
                self.failures.append((answer.code, answer.body))

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for client in self.clients:
            client.join()


# Of each option that is live another valid value, under which requests still pass.
PATHS = {"api-keys-file", "worker-api-key-file", "admin-api-key-file"}  # by the file alone
OTHER = {
    "cost-later-arrivals": 4, "cost-decoding": 0.2, "cost-queued": 0.9, "cost-fleet-busy": 0.1, "cost-batch-slot": 0.01,
    "home-weight": 1, "max-load-factor": 3, "load-floor": 20, "cache-threshold": 0.5, "balance-abs-threshold": 32,
    "balance-rel-threshold": 2, "prefix-min-match-length": 100, "prefix-hash-load-factor": 1.5, "chwbl-prefix-bytes": 300,
    "queue-scorer-weight": 3, "kv-cache-utilization-scorer-weight": 1, "prefix-cache-scorer-weight": 5,
    "max-prefix-blocks-to-match": 100, "aibrix-imbalance-abs-count": 4, "aibrix-stddev-factor": 2,
    "aibrix-eviction-duration": "10m",
    "probe-interval": "300ms", "probe-timeout": "5s", "probe-misses": 5, "probe-hits": 1, "probe-path": "/livez",
    "engine-metrics-interval": 0, "kv-events": "on", "slow-start": "1s", "max-retries": 3, "retry-on": ["connect", "reset"],
    "connect-timeout": "2s", "first-byte-timeout": "30s", "stream-idle-timeout": "4m", "poison-memory": "10s",
    "request-timeout": "10m", "sse-keepalive-s": 7,
    "api-keys-file": "FOLDER/keys2", "api-key": "sk-two", "worker-api-key-file": "FOLDER/worker",
    "worker-api-key": "wrk-two", "admin-api-key-file": "FOLDER/admin2", "admin-api-key": "adm-two",
    "explain-to-clients": True, "expose-worker-headers": True, "strip-client-noise": "all",
    "hold-ms": "1s", "order-aware": "on", "max-worker-requests": 50, "max-concurrent-requests": 1000, "queue-size": 2000, "queue-timeout": "50s", "session-timeout": "9m",
    "max-body-bytes": "16MiB", "max-body-memory": "64MiB", "max-connections": 1000, "head-timeout": "20s",
    "idle-timeout": "50s", "drain-timeout": "50s", "drain-settle": "1s",
    "log-level": "debug", "log-rate": 100, "log-requests": 2, "log-requests-rate": 50000,
}


@pytest.fixture
def table(live, tmp_path):
    (tmp_path / "keys2").write_text(f"{KEY} tenant=b\n{OTHER_KEY}\n")
    (tmp_path / "admin2").write_text(ADMIN + "\n# the same\n")
    (tmp_path / "worker").write_text(WORKER_KEY + "\n")
    return {name: v.replace("FOLDER", str(tmp_path)) if isinstance(v, str) else v for name, v in OTHER.items()}


def shown(name, value):
    """As GET /config shows it."""
    return "set" if name in ("api-key", "worker-api-key", "admin-api-key") else "0ms" if name.endswith("interval") and value == 0 \
        else value


@both
def test_each_live_option_is_changed_and_back_under_load_without_a_failed_request(live, table, way):
    router = live()
    before = router.config()
    assert {name for name, option in before.items() if option["live"]} == set(table)
    with Load(router) as load:
        for name, value in table.items():
            if name in PATHS and way == "put":
                assert "SIGHUP" in router.put({name: value}).json["error"]["message"]
                continue
            router.change(way, {name: value})
            now = router.config()
            assert now[name]["value"] == shown(name, value) != before[name]["value"], (name, now[name])
            assert now[name]["source"] == ("runtime" if way == "put" else "file")
            assert {k: v for k, v in now.items() if k != name} == {k: v for k, v in before.items() if k != name}
            source = "runtime" if way == "put" else "file"
            wait_for(lambda: re.search(rf" config_changed option={name} .* source={source} ", router.router.log), name)
            router.back(way, [name])
            assert router.config() == before, name
        n = load.n_asked
        wait_for(lambda: load.n_asked > n + 10, "requests after the last change")
    assert load.failures == [] and load.n_asked > 50
    assert router.post().code == 200
    for secret in ("sk-two", "wrk-two", "adm-two", KEY, ADMIN, WORKER_KEY):
        assert secret not in router.router.log + json.dumps(before)


@both
def test_all_live_options_are_changed_at_once_under_load(live, table, way):
    router = live()
    before = router.config()
    if way == "put":
        table = {name: value for name, value in table.items() if name not in PATHS}
    with Load(router) as load:
        for _ in range(5):
            router.change(way, table)
            now = router.config()
            assert {name: now[name]["value"] for name in table} == {name: shown(name, value) for name, value in table.items()}
            router.back(way, table)
            assert router.config() == before
    assert load.failures == []
    assert router.router.stop() == 0, router.router.log[-3000:]


# --- what a change does -----------------------------------------------------------------------------

@both
def test_the_log_level_and_the_rate_of_lines_hold_at_once(live, way):
    router = live()

    def ask(id, n):
        """How many of n requests have a line in the log by the time that the last one is answered."""
        for i in range(n):
            assert router.post(headers={"x-request-id": f"{id}-{i}"}).code == 200
        return lines(id)

    def lines(id):
        return len(re.findall(rf"id={id}-", router.router.log))

    ask("open", 10)
    wait_for(lambda: lines("open") == 10, "a line about each request")
    router.change(way, {"log-level": "error"})
    ask("quiet", 10)
    router.change(way, {"log-level": "info", "log-requests-rate": 1})
    n = 0
    while lines("slow") < 2:  # one of many: the rate is for each loop
        ask("slow", 20)
        n += 20
    assert n > 3 * lines("slow") and lines("quiet") == 0
    router.back(way, ["log-requests-rate", "log-level"])
    ask("again", 1)
    wait_for(lambda: ask("again", 10) > 10, "all lines")


@both
def test_a_limit_of_bodies_holds_at_once(live, way):
    router = live()
    long = {**BODY, "prompt": "x" * 3000}
    with Load(router) as load:
        assert router.post(long).code == 200
        router.change(way, {"max-body-bytes": "2KiB"})
        wait_for(lambda: router.post(long).code == 413, "the limit")
        assert router.post().code == 200
        router.back(way, ["max-body-bytes"])
        wait_for(lambda: router.post(long).code == 200, "the limit to be gone")
    assert load.failures == []


def price(router):
    """Cost by prefill of a prompt that no worker holds."""
    c = router.admin("/debug/route", {"prompt": "nothing has ever been as new as this " * 50}).json["candidates"][0]
    return c["cost_s"] / c["u_s"]


@both
def test_a_cost_weight_holds_at_once(live, way):
    router = live()
    with Load(router) as load:
        assert price(router) < 50
        router.change(way, {"cost-later-arrivals": 100})
        assert price(router) > 100
        router.back(way, ["cost-later-arrivals"])
        assert price(router) < 50
    assert load.failures == []


@both
def test_a_threshold_holds_at_once(live, way):
    """Half of the prompt is on one worker: at 0.3 that is enough, at 0.9 the load decides."""
    router = live(policy="cache_aware", **{"balance-abs-threshold": 1000, "isolate-by": "none"})
    known = "what one worker holds, and it is long " * 50
    assert router.post({**BODY, "prompt": known}).code == 200

    def choices():
        return {router.admin("/debug/route", {"prompt": known + f"{i} and the rest is new " * 100}).json["worker"] for i in range(4)}
    home = choices()
    assert len(home) == 1
    router.change(way, {"cache-threshold": 0.9})
    assert choices() != home
    router.back(way, ["cache-threshold"])
    assert choices() == home


@both
def test_a_timeout_holds_for_requests_to_come(live, way):
    router = live(speed=1, n=1)
    slow = {**BODY, "max_tokens": 300, "ignore_eos": True}
    router.change(way, {"request-timeout": "100ms"})
    wait_for(lambda: router.post(slow).code == 504, "the timeout")
    router.back(way, ["request-timeout"])
    wait_for(lambda: router.post({**slow, "max_tokens": 20}).code == 200, "the timeout to be gone")


@both
def test_client_keys_hold_at_once(live, way):
    router = live()
    assert router.post(key=OTHER_KEY).code == 401
    with Load(router) as load:
        router.change(way, {"api-key": OTHER_KEY})
        assert router.post(key=OTHER_KEY).code == 200
        (router.folder / "more").write_text(f"{KEY}\nsk-third rps=0.01\n")
        if way == "file":
            router.change(way, {"api-key": OTHER_KEY, "api-keys-file": str(router.folder / "more")})
            assert router.post(key="sk-third").code == 200 and router.post(key="sk-third").code == 429  # its rate
        router.back(way, ["api-key"])
        assert router.post(key=OTHER_KEY).code == router.post(key="sk-third").code == 401
    assert load.failures == []


@both
def test_the_admin_key_holds_at_once(live, way):
    router = live()
    router.change(way, {"admin-api-key": "adm-new"})
    assert router.admin("/config", key="adm-new").code == 200
    assert router.put({"admin-api-key": None} if way == "put" else {}, key="adm-new").code == 200
    if way == "file":
        router.back(way, [])
    assert router.admin("/config", key="adm-new").code == 401


@both
def test_the_key_of_the_workers_holds_at_once(live, way):
    router = live(worker_args=["--api-key", WORKER_KEY], **{"worker-api-key": WORKER_KEY})
    assert router.post().code == 200
    router.change(way, {"worker-api-key": "wrk-wrong"})
    wait_for(lambda: router.post().code == 401, "the workers to refuse")
    if way == "put":
        router.put({"worker-api-key": None})
    else:
        router.back(way, [])
    wait_for(lambda: router.post().code == 200, "the workers to take it")


def test_the_file_of_the_workers_key_is_read_again_on_sighup(live, tmp_path):
    (tmp_path / "worker").write_text("wrk-old\n")
    router = live(worker_args=["--api-key", WORKER_KEY], **{"worker-api-key-file": str(tmp_path / "worker")})
    assert router.post().code == 401
    (tmp_path / "worker").write_text(WORKER_KEY + "\n")
    router.reload()
    wait_for(lambda: router.post().code == 200, "the new key")
    assert " worker_key_reloaded" in router.router.log and WORKER_KEY not in router.router.log


@both
def test_admission_holds_at_once(live, way):
    router = live(speed=1, n=1)
    body = json.dumps({**BODY, "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    asked = urllib.request.Request(router.url + "/v1/completions", body, {"Content-Type": "application/json", **bearer(KEY)})
    with urllib.request.urlopen(asked) as stream:
        stream.readline()
        assert router.post().code == 200
        router.change(way, {"max-concurrent-requests": 1, "queue-size": 0})
        assert router.post().code == 429
        router.back(way, ["max-concurrent-requests", "queue-size"])
        assert router.post().code == 200


# --- what is refused --------------------------------------------------------------------------------

BAD = [  # a change, and the options at fault
    ({"log-level": "loud"}, ["log-level"]),
    ({"log-level": "debug", "queue-size": -1}, ["queue-size"]),
    ({"log-level": "debug", "tpyo": 1}, ["tpyo"]),
    ({"log-level": "debug", "api-kye": "0123456789abcdef0123"}, ["api-kye"]),
    ({"log-level": "debug", "retry-on": ["nonsense"]}, [None]),
    ({"probe-path": "health"}, ["probe-path"]),
    ({"threads": 7, "max-index-bytes": "2MiB", "queue-size": 7, "policy": "random"}, ["threads", "max-index-bytes", "policy"]),
    ({"api-keys-file": "/nowhere"}, ["api-keys-file"]),
    ({"api-key": "two words"}, ["api-key"]),
    ({"worker-api-key": "two words"}, ["worker-api-key"]),
    ({"prefix-hash-seed": "0123456789abcdef0123"}, ["prefix-hash-seed"]),
]


@both
def test_a_bad_change_changes_nothing_and_names_the_fault(live, way):
    router = live()
    before = router.config()
    with Load(router) as load:
        for options, at_fault in BAD:
            n = router.router.log.count(" config_changed ")
            if way == "put":
                answer = router.put(options)
                assert answer.code == 400 and answer.json["error"]["type"] == "BadRequestError", answer.body
                assert "nothing has changed" in answer.json["error"]["message"]
                refused = {r["option"]: r for r in answer.json["refused"]}
                assert all(r["reason"] for r in refused.values())
                assert "0123456789abcdef0123" not in answer.body
                assert set(refused) >= {name for name in at_fault if name}, answer.body
            else:
                router.write(options)
                assert " config_not_reloaded " in router.reload()
                for name in at_fault:
                    wait_for(lambda: f" config_refused option={name or ''}" in router.router.log, f"{name} in the log")
            assert router.config() == before, options
            assert router.router.log.count(" config_changed ") == n
    assert load.failures == [] and "0123456789abcdef0123" not in router.router.log
    assert router.router.stop() == 0, router.router.log[-3000:]


def test_a_file_that_is_no_configuration_changes_nothing(live):
    router = live()
    before = router.config()
    for text in ("log-level: [\n", "- a\n- b\n", "log-level: debug\nlog-level: info\n", "\0"):
        router.path.write_text(text)
        assert " config_not_reloaded " in router.reload()
        assert router.config() == before
    router.path.unlink()
    assert " config_not_reloaded " in router.reload()
    assert "option=config " in router.router.log and router.config() == before
    router.write({"log-level": "debug"})
    assert " config_reloaded " in router.reload() and router.config()["log-level"]["value"] == "debug"


def test_a_body_that_is_no_object_is_refused(live):
    router = live(n=1)
    for body in (b"", b"{", b"[]", b'"log-level"', b'{"log-level": "info"', b"{" + b" " * 70000 + b"}"):
        answer = router.put(body)
        assert answer.code in (400, 413) and answer.json["error"]["message"], body[:20]
    assert router.put({}).json == {"changed": []}
    assert router.put({"log-level": "info"}).json == {"changed": []}


def test_only_an_admin_key_sees_and_changes_options(live):
    router = live(n=1)
    for key in (None, KEY, "adm-wrong"):
        assert router.admin("/config", key=key).code == router.put({"log-level": "debug"}, key=key).code == 401
    for method, body in (("GET", None), ("PUT", {"log-level": "debug"})):
        assert http(router.url + "/config", body, bearer(KEY), method).code in (401, 403)
    assert http(router.url + "/config", {"log-level": "debug"}, bearer(ADMIN), "PUT").code == 403  # the admin port
    assert http(router.url + "/config", None, bearer(ADMIN)).json["options"] == router.config()
    assert router.admin("/config", {"log-level": "debug"}, "POST").code == 405
    assert router.config()["log-level"]["value"] == "info"


# --- where values come from ---------------------------------------------------------------------------

def test_each_source_is_shown_and_a_runtime_value_lasts_until_the_file_names_it(live, monkeypatch):
    monkeypatch.setenv("INCIPIT_QUEUE_SIZE", "77")
    router = live("--max-retries", 1, n=1, **{"queue-timeout": "9s"})
    names = ("slow-start", "queue-timeout", "queue-size", "max-retries")

    def now():
        return [(router.config()[name]["value"], router.config()[name]["source"]) for name in names]
    start = [("10s", "default"), ("9s", "file"), (77, "environment"), (1, "command line")]
    assert now() == start
    set_now = router.put({"slow-start": "1s", "queue-timeout": "1s", "queue-size": 1, "max-retries": 0}).json["changed"]
    assert set_now[-1] == {"option": "queue-timeout", "before": "9s", "after": "1s", "source": "runtime"}
    assert now() == [("1s", "runtime"), ("1s", "runtime"), (1, "runtime"), (0, "runtime")]
    router.write({"queue-size": 5})  # the environment held it at the start, and runtime holds it now
    router.reload()
    assert now() == [("1s", "runtime"), ("9s", "file"), (1, "runtime"), (0, "runtime")]
    router.put(dict.fromkeys(names))
    assert now() == start


def test_every_change_and_its_author_is_in_the_log(live):
    router = live(n=1, **{"log-rate": 1})
    router.put({"log-level": "error"})
    for i in range(5):
        router.put({"slow-start": i + 1, "api-key": f"sk-{i}"})
    wait_for(lambda: router.router.log.count(' call="PUT /config"') == 6, "all lines")
    lines = [line for line in router.router.log.splitlines() if " config_changed option=slow-start " in line]
    assert len(lines) == 5 and "before=4ms after=5ms source=runtime" in lines[-1] and "client=127.0.0.1" in lines[-1]
    assert "option=api-key before=unset after=set " in router.router.log and "sk-0" not in router.router.log


# --- a worker -----------------------------------------------------------------------------------------

WORKER_OTHER = {"max-body-bytes": "16MiB", "max-body-memory": "64MiB", "max-connections": 1000, "drain-timeout": "50s", "sse-keepalive-s": 7,
                "kv-events-subscribers": 4, "cache-explain": "full", "max-waiting": 500, "return-tokens-as-token-ids": True,
                "log-level": "debug"}


@pytest.fixture
def worker(programs, tmp_path):
    path = tmp_path / "worker.yaml"
    path.write_text("max-num-seqs: 64\n")
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--config", path).ready()

    def reload(text):
        path.write_text("max-num-seqs: 64\n" + text)
        n = worker.log.count(" config_reloaded ") + worker.log.count(" config_not_reloaded ")
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: worker.log.count(" config_reloaded ") + worker.log.count(" config_not_reloaded ") > n, "the end of a reload")
        return [line.split()[2] for line in worker.log.splitlines() if "reloaded " in line][-1]
    worker.reload = reload
    return worker


def test_each_live_option_of_a_worker_is_changed_and_back_under_load(worker):
    shown = subprocess.run([BUILD / "incipit-worker", "--help-all"], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"(?m)^  --(?:\[no-\])?([a-z0-9-]+)[^\n]*\n((?:      .*\n)+)", shown)
    assert {name for name, facts in rows if "changes while running" in " ".join(facts.split())} == set(WORKER_OTHER)
    worker.failures, worker.is_over = [], False

    def ask():
        while not worker.is_over:
            answer = worker.post("/v1/completions", {"prompt": "quinces " * 40, "max_tokens": 2})
            if answer.code != 200:
                worker.failures.append(answer.body)
    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    for name, value in WORKER_OTHER.items():
        assert worker.reload(f"{name}: {json.dumps(value)}\n") == "config_reloaded"
        assert worker.reload("") == "config_reloaded"
        assert len(re.findall(rf" config_changed option={name} before=\S+ after=\S+ source=file", worker.log)) == 1
        assert len(re.findall(rf" config_changed option={name} before=\S+ after=\S+ source=default", worker.log)) == 1
    worker.is_over = True
    for client in clients:
        client.join()
    assert worker.failures == []


def test_a_workers_limit_and_level_apply_at_once_and_fixed_options_are_refused(worker):
    long = {"prompt": "x" * 3000, "max_tokens": 1}
    assert worker.reload("max-body-bytes: 2KiB\nlog-level: error\n") == "config_reloaded"
    assert worker.post("/v1/completions", long).code == 413
    n = worker.log.count(" info request ")
    assert worker.post("/v1/completions", {**long, "prompt": "x"}).code == 200
    assert worker.reload("max-body-bytes: 4KiB\nblock-size: 32\nlog-level: noisy\n") == "config_not_reloaded"
    assert worker.log.count(" info request ") == n
    assert worker.post("/v1/completions", long).code == 413
    assert worker.reload("block-size: 32\n") == "config_not_reloaded"
    assert re.search(r" config_refused option=block-size value=32 why=.*restart", worker.log)
    assert " config_refused option=log-level value=noisy " in worker.log
    assert worker.reload("") == "config_reloaded"
    assert worker.post("/v1/completions", long).code == 200
    assert worker.stop() == 0
