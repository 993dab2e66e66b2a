"""What one client can learn of another's prompts: each row of SECURITY.md's table, and an attack on every default.

Everything that a client may send is sent to two deployments that are equal except one thing: in one the other tenant has
sent a secret prompt, in the other an innocent one of the same length. What differs between the answers is what can be
learned, bit by bit. GUESSES=100000 makes the attack as long as that (default 400 for each deployment).
"""
import http.client
import itertools
import json
import os
import re
import subprocess
import urllib.parse

import pytest

from conftest import ROOT, Program, Router, Worker, http as ask, wait_for
from test_foreign import Shim

GUESSES = int(os.environ.get("GUESSES", 400))
SECRET = "The merger of Quince and Medlar is announced on Thursday, and the price is 4711. " * 3
INNOCENT = "Many things may be said of the weather here: none of them is worth much to anyone" * 3
SECRET, INNOCENT = SECRET[:160], INNOCENT[:160]
N_SECRETS = 32  # with a number in front: a guesser's own guesses are cached too, and hide the rest of what they were made for
KEYS = "sk-alice\nsk-bob\n"
SIM = ["--backend", "sim", "--sim-speed", 1000, "--max-model-len", 4096]
ADMIN = "an-admin-key-of-its-own"


# --- deployments ------------------------------------------------------------------------------------------------------

def without(text, *names):
    """A file of options, less some of them and the items of their lists."""
    kept, is_out = [], False
    for line in text.splitlines():
        if not line.startswith((" ", "-")):
            is_out = re.match(r"([\w-]+):", line) is not None and line.startswith(names)
        if not is_out:
            kept.append(line)
    return "\n".join(kept) + "\n"


def made_for_loopback(text):
    """Options as deployed: all but where it listens and where workers are found."""
    return without(text, "host", "admin-host", "port", "admin-port", "k8s-", "service-discovery", "worker-urls",
                   "share-redis", "state-dir", "drain-", "log-format", "max-worker-requests")


def yaml_args(path):
    """The arguments of the worker's container."""
    block = re.search(r"\n( +)args:\n((?:\1  ?-? .*\n|\1  - .*\n)+)", path.read_text())[2]
    return [re.sub(r"\s+#.*", "", line).strip()[2:] for line in block.splitlines()]


def rendered_chart():
    """The router's options and the worker's arguments in the Helm chart with its own values."""
    yaml = pytest.importorskip("yaml")
    render = ROOT / "build/deploy/render"
    if not render.exists():
        pytest.skip("SKIPPED the chart: there is no renderer: make deps-deploy deploy-check")
    text = subprocess.run([render, ROOT / "deploy/helm/incipit"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
                          env={**os.environ, "RELEASE": "incipit"}).stdout
    objects = [o for o in yaml.safe_load_all(text) if o]
    options = next(o["data"]["router.yaml"] for o in objects if o["kind"] == "ConfigMap")
    containers = [c for o in objects if o["kind"] == "Deployment" for c in o["spec"]["template"]["spec"]["containers"]]
    return options, next(c["args"] for c in containers if "--trust-router" in c["args"])


def about_the_cache(args):
    return [a for a in args if a.startswith(("--trust-router", "--cache-explain", "--kv-events", "--enable"))]


def make_run():
    """The flags of `make run`, for the router and for the workers that it launches."""
    command = re.search(r"^set -- (--launch (?:.*\\\n)*.*)\n", (ROOT / "deploy/demo/start").read_text(), re.M)[1]
    words = command.replace("\\\n", " ").split()
    args = [w for w in words if w.startswith("--worker-arg=") and "--backend" not in w]
    assert "--launch" in words and words[-1] == '"$@"'
    return args


def started(router):
    """As Router.ready, for one that may have an admin key."""
    router.url, router.admin_url = (f"http://127.0.0.1:{router.field('router_listening', name)}" for name in ("port", "admin_port"))
    wait_for(lambda: router.get("/readyz").code == 200, "its worker")
    return router


class Deployment:
    """A router and what is behind it, as one of our deployments has them by default; two keys."""

    def __init__(self, programs, folder, kind, keys=KEYS, more=(), worker_more=(), only_key=None):
        self.kind, self.shim = kind, None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "keys").write_text(keys)
        args = [*(["--api-keys-file", folder / "keys"] if keys else []), "--threads", 1, *more]
        if kind == "make run":
            self.router = programs(Router, "--launch", 1, *(f"--worker-arg={a}" for a in (*SIM, *worker_more)), *make_run(), *args)
            self.worker_url = started(self.router).workers()["workers"][0]["url"]
            return
        config, worker_args = folder / "router.yaml", []
        if kind == "systemd":
            config.write_text(made_for_loopback((ROOT / "deploy/systemd/router.yaml").read_text()).replace("@SYSCONFDIR@", str(folder)))
            (folder / "incipit").mkdir()
            (folder / "incipit/admin-key").write_text("admin-secret\n")
            worker_args = ["--config", ROOT / "deploy/systemd/worker.yaml"]
        elif kind in ("kustomize", "kustomize vllm"):
            overlay = "base" if kind == "kustomize" else "overlays/vllm"
            config.write_text(made_for_loopback((ROOT / f"deploy/kustomize/{overlay}/router-options.yaml").read_text()))
            if kind == "kustomize":
                worker_args = about_the_cache(yaml_args(ROOT / "deploy/kustomize/worker/worker.yaml"))
                assert "--trust-router" in worker_args
        elif kind == "helm":
            options, worker_args = rendered_chart()
            config.write_text(made_for_loopback(options))
            worker_args = about_the_cache(worker_args)
        else:
            config.write_text(f"api-key: {only_key}\n" if only_key else "")
        worker = programs(Worker, *SIM, *worker_args, *worker_more).ready()
        self.worker_url = worker.url
        if kind == "kustomize vllm":
            self.shim = Shim("vllm-details", [worker])
        url = self.shim.urls[0] if self.shim else worker.url
        self.router = programs(Router, "--config", config, "--worker-urls", url, *args)
        started(self.router)

    def close(self):
        if self.shim:
            self.shim.stop()


DEPLOYMENTS = ["make run", "systemd", "kustomize", "kustomize vllm", "helm"]


@pytest.fixture
def deploy(programs, tmp_path):
    made, number = [], itertools.count()

    def start(kind, **more):
        made.append(Deployment(programs, tmp_path / str(next(number)), kind, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


# --- a client ---------------------------------------------------------------------------------------------------------

VARIES = re.compile(r'("(?:id|created|request_id|system_fingerprint|e2e_latency|ttft|router)"): ?(?:"[^"]*"|[0-9.e-]+)')
NUMBERS = re.compile(r"127\.0\.0\.1:\d+")


class Client:
    """One connection to the client port, as one key's holder. Its answers, less ids, times and ports."""

    def __init__(self, url, key):
        self.connection = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc, timeout=40)
        self.key = {"Authorization": f"Bearer {key}"} if key else {}

    def __call__(self, method, path, body=None, headers=None):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, data, {**({"Content-Type": "application/json"} if data else {}), **self.key,
                                                     **(headers or {})})
        answer = self.connection.getresponse()
        text = answer.read().decode(errors="replace")
        shown = sorted((k.lower(), v) for k, v in answer.getheaders() if k.lower() not in ("date", "x-request-id", "content-length"))
        if text.startswith("data:"):  # the events of several prompts come in the order in which these are computed
            text = "\n\n".join(sorted(text.split("\n\n")))
        return answer.status, shown, NUMBERS.sub("HOST", VARIES.sub(r'\1:"-"', text))


def teach(deployment, key, prompt):
    client = Client(deployment.router.url, key)
    for path, body in (("/v1/completions", {"prompt": prompt}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
                       ("/generate", {"text": prompt})):
        if "prompt" in body:
            body = {"prompt": [prompt, *(f"{i:02} {prompt}" for i in range(N_SECRETS))]}
        answer = client("POST", path, {**body, **({"max_tokens": 1, "temperature": 0} if path != "/generate" else {"sampling_params": {"max_new_tokens": 1, "temperature": 0}})})
        assert answer[0] == 200, answer


FORGED = [{}, {"x-incipit-route": "1"}, {"X-Incipit-Salt": "ab" * 32}, {"x-incipit-tenant": "sk-alice"},
          {"x-smg-tenant-id": "sk-alice"}, {"x-incipit-chain": "1 2 3"}, {"x-incipit-route": "1", "x-incipit-admin-key": "sk-bob"},
          {"x-incipit-cached-tokens": "1"}, {"x-forwarded-for": "127.0.0.1"}, {"x-session-id": "alice"}]
MORE = [{}, {"cache_explain": True}, {"n": 2}, {"cache_salt": "guess"}, {"cache_salt": "guess", "cache_explain": True},
        {"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}, {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "cache_explain": True, "stream_options": {"include_usage": True}}, {"user": "alice"},
        {"prompt_cache_key": "alice"}, {"return_token_ids": True}, {"kv_transfer_params": {"remote_host": "10.0.0.1"}},
        {"ca\\u0063he_explain": True}, {"extra_key": "guess"}]
READS = ["/workers", "/cache/holds", "/workers/0", "/list_workers", "/get_loads", "/metrics", "/ui", "/config", "/debug/route", "/v1/models", "/version",
         "/get_model_info", "/model_info", "/get_server_info", "/server_info", "/health_generate", "/load", "/kv_events", "/kv_events/digest",
         "/request_events", "/v1/kv_events", "/health", "/readyz", "/livez", "/ping", "/flush_cache", "/"]
WRITES = ["/cache/explain", "/v1/cache/explain", "/v1/..%2fcache/explain", "/v1/%2e%2e%2fcache%2fexplain", "/v1/\\..\\cache\\explain",
          "/v1//cache/explain", "/v1/completions/", "/v1/completions/../../cache/explain", "/debug/route", "/tokenize", "/detokenize",
          "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank", "/pooling", "/v1/load_lora_adapter",
          "/reset_prefix_cache", "/v1/reset_prefix_cache", "/abort_request", "/drain", "/workers", "/add_worker"]


def dumps(body):
    return json.dumps(body).replace("\\\\u0063", "\\u0063").encode()


def calls(prompt):
    """Everything that a client may send with this prompt in it."""
    for more in MORE:
        for body in ({"prompt": prompt}, {"prompt": [prompt, prompt[:48]]}):
            yield "POST", "/v1/completions", {**body, "max_tokens": 1, "temperature": 0, **more}, {}
        yield "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0, **more}, {}
    for headers in FORGED:
        yield "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}, headers
    for more in ({}, {"stream": True}, {"extra_key": "guess"}, {"cache_explain": True}, {"return_logprob": True}):
        yield "POST", "/generate", {"text": prompt, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, **more}, {}
    for path in WRITES:
        yield "POST", path, {"prompt": prompt, "text": prompt, "input": prompt, "messages": [{"role": "user", "content": prompt}],
                             "max_tokens": 1, "temperature": 0}, {}
    for path in READS:
        yield "GET", path, None, {}
    yield "OPTIONS", "/v1/completions", None, {}
    yield "HEAD", "/metrics", None, {}


def observe(deployment, key, prompts):
    """(call, answer) of all of it, for each prompt."""
    client = Client(deployment.router.url, key)
    for prompt in prompts:
        for method, path, body, headers in calls(prompt):
            yield (method, path, body, headers), client(method, path, body and dumps(body), headers)


def guesses(n):
    """Prefixes of the secret and of nothing, character by character, over the calls that look at a cache."""
    ways = [("/v1/completions", lambda p: {"prompt": p, "max_tokens": 1, "temperature": 0}, {}),
            ("/v1/completions", lambda p: {"prompt": p, "max_tokens": 1, "temperature": 0, "cache_explain": True}, {}),
            ("/v1/completions", lambda p: {"prompt": p, "max_tokens": 1, "temperature": 0}, {"x-incipit-route": "1"}),
            ("/v1/completions", lambda p: {"prompt": [p, p + "?"], "max_tokens": 1, "temperature": 0, "cache_salt": "s"}, {}),
            ("/v1/chat/completions", lambda p: {"messages": [{"role": "user", "content": p}], "max_tokens": 1, "temperature": 0}, {}),
            ("/generate", lambda p: {"text": p, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}, {}),
            ("/cache/explain", lambda p: {"prompt": p}, {}), ("/debug/route", lambda p: {"prompt": p}, {})]
    letters = "abcdefghijklmnopqrstuvwxyz 0123456789."
    for i in range(n):
        secret = f"{i % N_SECRETS:02} {SECRET}"
        at = 16 + (i // N_SECRETS * 7 + 100) % (len(secret) - 20)
        tail = secret[at] if i % 3 else letters[i % len(letters)]
        path, body, headers = ways[(i + i // N_SECRETS) % len(ways)]
        yield path, body(secret[:at] + tail + f" {i}"), headers


def bits(one, other, n):
    """How many of n guesses distinguish the two, and the first that does."""
    clients, n_bits, first = [Client(d.router.url, "sk-bob") for d in (one, other)], 0, None
    for path, body, headers in guesses(n):
        here = [client("POST", path, body, headers) for client in clients]
        if here[0] != here[1]:
            n_bits, first = n_bits + 1, first or (path, body, headers, here)
    return n_bits, first


def taught(deploy, kind, **more):
    """Two of them: in the first Alice has sent the secret, in the second something else."""
    pair = [deploy(kind, **more) for _ in range(2)]
    for one, prompt in zip(pair, (SECRET, INNOCENT)):
        teach(one, "sk-alice", prompt)
    return pair


def differences(pair, key="sk-bob", prompts=(SECRET, SECRET[:64] + "!")):
    found = [(a, here, there) for (a, here), (_, there) in zip(*(observe(d, key, prompts) for d in pair)) if here != there]
    for call, here, there in found[:2]:
        print(call, here, there, sep="\n")  # shown when a test fails
    return found


# --- every default ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", DEPLOYMENTS)
def test_nothing_that_a_key_is_answered_depends_on_another_keys_prompts(deploy, kind):
    pair = taught(deploy, kind)
    assert len(differences(pair)) == 0
    n_bits, first = bits(*pair, GUESSES)
    assert n_bits == 0, first
    own = [here for (_, path, body, _), here in observe(pair[0], "sk-alice", [SECRET]) if path == "/v1/completions" and here[0] == 200]
    assert any(re.search(r'"cached_tokens":1[0-9]{2}', body) for _, _, body in own)  # the attack looks where something is


def test_the_same_attack_finds_the_secret_where_an_operator_opens_everything(deploy):
    pair = taught(deploy, "plain", more=("--isolate-by", "none", "--explain-to-clients"), worker_more=("--cache-explain", "position"))
    client = Client(pair[0].router.url, "sk-bob")
    here = client("POST", "/v1/completions", {"prompt": SECRET[:64] + "!" * 20, "max_tokens": 1, "cache_explain": True}, {"x-incipit-route": "1"})
    assert '"cause":"differs"' in here[2] and '"token":64,' in here[2] and '"cached_tokens":64' in here[2]
    assert "x-incipit-route" in dict(here[1])
    assert bits(*pair, 2 * N_SECRETS)[0] >= N_SECRETS // 2


# --- the modes ------------------------------------------------------------------------------------------------------------

USAGE = re.compile(r'"cached_tokens":\s*\d+')


def without_cached_tokens(here):
    return here[0], here[1], USAGE.sub("", here[2])


@pytest.mark.parametrize("mode", ["no keys", "one key", "keys that share"])
def test_a_client_of_a_shared_cache_learns_which_whole_blocks_are_cached_and_no_more(deploy, mode):
    keys, more, key = {"no keys": ("", (), None), "one key": ("", (), "sk-only"),
                       "keys that share": (KEYS, ("--isolate-by", "none"), "sk-bob")}[mode]
    pair = [deploy("plain", keys=keys, more=more, only_key=key if mode == "one key" else None) for _ in range(2)]
    for one, prompt in zip(pair, (SECRET, INNOCENT)):
        teach(one, "sk-alice" if keys else key, prompt)
    found = differences(pair, key)
    assert found and all(without_cached_tokens(here) == without_cached_tokens(there) for _, here, there in found)
    client = Client(pair[0].router.url, key)
    for n, wanted in ((40, 32), (47, 32), (96, 80)):  # blocks of 16 tokens, less the last token
        here = client("POST", "/v1/completions", {"prompt": SECRET[:n] + "\u00fc", "max_tokens": 1, "temperature": 0})
        assert json.loads(here[2])["usage"]["prompt_tokens_details"]["cached_tokens"] in (wanted, wanted + 16), n


def test_tenants_named_by_a_gateway_learn_nothing_of_each_other(deploy):
    pair = [deploy("plain", keys="", more=("--trust-tenant-header",)) for _ in range(2)]
    for one, prompt in zip(pair, (SECRET, INNOCENT)):
        answer = ask(one.router.url + "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}, headers={"X-Smg-Tenant-Id": "alice"})
        assert answer.code == 200
    here = [ask(d.router.url + "/v1/completions", {"prompt": SECRET, "max_tokens": 1, "temperature": 0}, headers={"X-Smg-Tenant-Id": "bob"}).json["usage"]
             for d in pair]
    assert here[0] == here[1] and here[0]["prompt_tokens_details"]["cached_tokens"] == 0


def test_keys_of_one_tenant_share(deploy):
    one = deploy("plain", keys="sk-alice tenant=t\nsk-bob tenant=t\n")
    teach(one, "sk-alice", SECRET)
    here = Client(one.router.url, "sk-bob")("POST", "/v1/completions", {"prompt": SECRET, "max_tokens": 1, "temperature": 0})
    assert json.loads(here[2])["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128


def test_a_prompt_under_a_cache_salt_is_found_under_no_other(deploy):
    pair = [deploy("plain", keys="", worker_more=("--cache-explain", "position")) for _ in range(2)]
    for one, prompt in zip(pair, (SECRET, INNOCENT)):
        client = Client(one.router.url, None)
        assert client("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": "alice's"})[0] == 200
    assert len(differences(pair, None)) == 0
    dry = [ask(d.worker_url + "/cache/explain", {"prompt": SECRET, "cache_salt": salt}).json["cache_explain"] for d in pair for salt in ("x", "y")]
    assert all(x == dry[0] and x["cause"] == "never_seen" for x in dry)


# --- explanations -----------------------------------------------------------------------------------------------------------

def test_an_explanation_is_refused_without_an_admin_key(deploy, monkeypatch):
    for admin in (None, ADMIN):
        if admin:
            monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", admin)
        one = deploy("plain")
        post = lambda body, **headers: ask(one.router.url + "/v1/completions", {"prompt": SECRET, "max_tokens": 1, "temperature": 0, **body},
                                           headers={"Authorization": "Bearer sk-bob", **headers})
        for answer in (post({}, **{"x-incipit-route": "1"}), post({"cache_explain": True}), post({"cache_explain": 1}),
                       post({}, **{"x-incipit-route": "1", "x-incipit-admin-key": "sk-bob"}),
                       post({"cache_explain": True}, **{"x-incipit-admin-key": ""})):
            assert answer.code == 403 and "--explain-to-clients" in answer.json["error"]["message"], answer.body
        assert post({"cache_explain": False}, **{"x-incipit-route": "0"}).code == 200
        wait_for(lambda: "request_forbidden" in one.router.log, "the line")
        page = ask(one.router.admin_url + "/metrics").body
        assert 'incipit_requests_forbidden_total{why="explanation"} 5' in page
    answer = post({"cache_explain": True}, **{"x-incipit-route": "1", "x-incipit-admin-key": ADMIN})
    assert answer.code == 200 and "matched=" in {k.lower(): v for k, v in answer.headers.items()}["x-incipit-route"]
    assert answer.json["usage"]["prompt_tokens_details"]["cache_explain"]["cause"] in ("none", "never_seen")  # under the tenant's salt


def test_isolated_clients_with_explanations_learn_nothing_of_each_others_prompts(deploy):
    pair = taught(deploy, "plain", more=("--explain-to-clients",))
    time = re.compile(r"\b((?:next_)?(?:u_s|cost_s|wait_s|mem_s))=[0-9.e-]+")  # learned speed and load, not prompts
    hide = lambda here: (here[0], [(k, time.sub(r"\1", v)) for k, v in here[1]], here[2])
    assert sum(hide(here) != hide(there) for _, here, there in differences(pair)) == 0


# --- who opens what ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("keys", ["", KEYS], ids=["no keys", "keys"])
def test_the_client_port_shows_nothing_of_the_fleet_to_clients(deploy, monkeypatch, keys):
    for admin in (None, ADMIN):
        if admin:
            monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", admin)
        one = deploy("plain", keys=keys)
        headers = {"Authorization": "Bearer sk-bob"} if keys else {}
        for path in ("/workers", "/workers/0", "/list_workers", "/get_loads", "/metrics", "/ui", "/debug/route", "/debug/x"):
            answer = ask(one.router.url + path, headers=headers)
            assert answer.code in (401, 403) and one.worker_url not in answer.body, path
            if admin and path not in ("/ui", "/debug/route", "/debug/x"):
                assert ask(one.router.url + path, headers={"Authorization": f"Bearer {ADMIN}"}).code == 200, path
        for path in ("/get_server_info", "/load", "/kv_events", "/request_events", "/model_info"):
            assert ask(one.router.url + path, headers=headers).code == 404, path
        assert ask(one.router.url + "/health").code == ask(one.router.url + "/readyz").code == ask(one.router.url + "/livez").code == 200
        for path in ("/v1/models", "/version", "/get_model_info"):
            assert ask(one.router.url + path).code == (401 if keys else 200), path


def test_without_an_admin_key_the_admin_port_is_on_loopback_and_opens_all(programs, deploy):
    one = deploy("plain")
    assert ask(one.router.admin_url + "/workers").code == 200  # to every process of this machine: SECURITY.md states it
    refused = programs(Program, "incipit-router", ["--admin-host", "0.0.0.0", "--worker-urls", "http://127.0.0.1:9"])
    assert refused.process.wait(40) != 0 and wait_for(lambda: "--admin-host" in refused.log, "the reason")


# --- what goes on to workers ------------------------------------------------------------------------------------------------------

def test_calls_that_are_not_on_the_list_of_a_kind_end_here(deploy):
    for kind, served, refused in (("plain", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"],
                                   ["/v1/embeddings", "/rerank"]),
                                  ("kustomize vllm", ["/v1/embeddings", "/v1/responses", "/pooling", "/v1/score"],
                                   ["/v1/messages", "/v1/moderations", "/encode"])):
        one = deploy(kind)
        client = Client(one.router.url, "sk-bob")
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/files", "/v1/completions/x", "/v1//completions"):
            here = client("POST", path, {"prompt": "a"})
            assert here[0] == 404 and "--forward-path" in here[2], here
        for path in refused:
            here = client("POST", path, {"prompt": "a"})
            assert here[0] in (403, 404) and "--forward-path" in here[2], here
        for path in served:
            assert "--forward-path" not in client("POST", path, {"prompt": "a"})[2], path
    opened = deploy("plain", more=("--forward-path", "/v1/things/*", "--forward-path", "/v1/embeddings"))
    client = Client(opened.router.url, "sk-bob")
    for path in ("/v1/embeddings", "/v1/things/x"):  # the worker's own answer
        assert "--forward-path" not in client("POST", path, {"prompt": "a"})[2], path
    for path in ("/v1/things/", "/v1/things/a%2fb", "/v1/things/a\\b"):
        assert "--forward-path" in client("POST", path, {"prompt": "a"})[2], path


def test_fields_that_steer_a_worker_are_refused(deploy):
    one, other = deploy("plain"), deploy("plain", more=("--forward-field", "kv_transfer_params"))
    client, freed = Client(one.router.url, "sk-bob"), Client(other.router.url, "sk-bob")
    for name in ("kv_transfer_params", "ec_transfer_params", "bootstrap_host", "session_params", "custom_logit_processor"):
        for spelt in (name, name[:3] + "\\u%04x" % ord(name[3]) + name[4:]):
            here = client("POST", "/v1/completions", f'{{"prompt": "a", "max_tokens": 1, "temperature": 0, "{spelt}": {{"remote_host": "10.0.0.1"}}}}'.encode())
            assert here[0] == 403 and f"--forward-field {name}" in here[2], here
        assert client("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0, name: None})[0] == 200
    assert freed("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0, "kv_transfer_params": {}})[0] == 200
    assert freed("POST", "/v1/completions", {"prompt": "a", "bootstrap_host": "b"})[0] == 403
    assert 'incipit_requests_forbidden_total{why="field"} 10' in ask(one.router.admin_url + "/metrics").body


# --- the page ------------------------------------------------------------------------------------------------------------

def test_every_row_of_the_page_names_a_test_that_exists():
    page = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in re.findall(r"^\|.*\|$", page, re.M) if not re.match(r"\|[ -]+\|", line)]
    tables = re.split(r"\n(?!\|)", page)
    n_rows = 0
    for table in (t for t in tables if "| test |" in t):
        for row in [r for r in table.splitlines() if r.startswith("|")][2:]:
            names = re.findall(r"`(test_\w+)(?:\.py)?(?:::(\w+))?`", row.rstrip("|").rsplit("|", 1)[1])
            assert names, row
            for first, second in names:
                file, name = (first, second) if second else ("test_reveal", first)
                assert re.search(rf"^def {name}\(", (ROOT / f"tests/integration/{file}.py").read_text(), re.M), row
            n_rows += 1
    assert n_rows >= 15 and rows
