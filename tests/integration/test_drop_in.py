"""What command lines of vLLM and SGLang ask of a worker, it does: names, keys, chat templates, sampling defaults, seeds,
paths. Flags that are only accepted are test_flags.py's."""
import http.server as http_server
import json
import signal
import subprocess
import threading

import pytest

from conftest import BUILD, PATIENCE_S, ROOT, Program, Router, Worker, http, wait_for

MODEL = str(ROOT / "deploy/demo/model")
CHAT = [{"role": "user", "content": "hello"}]


def sim(programs, *args):
    return programs(Worker, MODEL, "--backend", "sim", "--num-gpu-blocks-override", "512", *args).ready()


def shown_prompt(worker, **more):
    """The text that the chat template makes of CHAT."""
    tokens = worker.post("/tokenize", {"messages": CHAT, "add_special_tokens": False, **more}).json["tokens"]
    return worker.post("/detokenize", {"tokens": tokens}).json["prompt"]


def test_several_names_are_all_the_models(programs):
    worker = sim(programs, "--served-model-name", "first", "second", "org/third")
    assert [m["id"] for m in worker.get("/v1/models").json["data"]] == ["first", "second", "org/third"]
    for name in ("first", "second", "org/third"):
        answer = worker.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
        assert answer.code == 200 and answer.json["model"] == "first"
        assert worker.get("/v1/models/" + name.replace("/", "%2F")).json["id"] == name
    assert worker.post("/v1/completions", {"model": "fourth", "prompt": "a"}).code == 404
    assert worker.get("/v1/models/fourth").code == 404


def test_several_names_are_routed_to_the_model(programs):
    worker = sim(programs, "--served-model-name", "first", "second")
    router = programs(Router, "--worker-urls", worker.url).ready(1)
    assert [m["id"] for m in router.get("/v1/models").json["data"]] == ["first", "second"]
    for name in ("first", "second"):
        answer = router.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
        assert answer.code == 200 and answer.json["model"] == "first"
    assert router.get("/v1/models/second").json["id"] == "second"
    assert router.post("/v1/completions", {"model": "third", "prompt": "a"}).code == 404


class Foreign(http_server.BaseHTTPRequestHandler):
    """An engine that lists a model under two names, and an adapter of it."""
    names = [{"id": "base", "parent": None}, {"id": "alias", "parent": None}, {"id": "adapter", "parent": "base"}]

    def do_GET(self):
        self.answer(*{"/health": (200, {}), "/v1/models": (200, {"data": self.names})}.get(self.path, (404, {})))

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(200, {})

    def answer(self, code, body):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


def test_several_names_of_another_engine_are_routed(programs):
    with http_server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        router = programs(Router, "--worker-urls", f"http://127.0.0.1:{server.server_port}").ready(1)
        ask = lambda name: router.post("/v1/completions", {"model": name, "prompt": "a"}).code
        assert [ask(name) for name in ("base", "alias", "adapter")] == [200, 200, 404]
        server.shutdown()


def test_a_chat_template_is_taken_from_a_file_or_from_the_command_line(programs, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}<{{ m.role }}|{{ m.content }}>\n{% endfor %}{% if add_generation_prompt %}!{% endif %}")
    from_file = sim(programs, "--chat-template", str(file))
    assert shown_prompt(from_file) == "<user|hello>\n!"
    inline = sim(programs, "--chat-template", r"{{ messages[0].content }}\n{{ tone | default('calm') }}",
                 "--default-chat-template-kwargs", '{"tone": "loud"}')
    assert shown_prompt(inline) == "hello\nloud"
    assert shown_prompt(inline, chat_template_kwargs={"tone": "low"}) == "hello\nlow"


@pytest.mark.parametrize("given, reason", [
    ("llama-4", "neither a file nor a template nor a built-in name"),
    ("{% for x in %}", "--chat-template"),
])
def test_a_chat_template_that_cannot_be_used_ends_the_start(programs, given, reason):
    refused(programs, reason, "--chat-template", given)


def refused(programs, reason, *args):
    worker = programs(Worker, MODEL, "--backend", "sim", "--num-gpu-blocks-override", "512", *args)
    worker.process.wait(PATIENCE_S)
    assert worker.stop() == 2 and reason in worker.log


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_needed_for_all_but_probes_and_metrics(programs, tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# of the team\nfrom-file\n")
    monkeypatch.setenv("VLLM_API_KEY", "unused")
    worker = sim(programs, "--api-key", "alpha", "beta", "--api-key-file", str(file))

    def ask(key=None, path="/v1/completions", body={"prompt": "a", "max_tokens": 1}):
        return worker.post(path, body, headers=bearer(key) if key else {})
    for key in ("alpha", "beta", "from-file"):
        assert ask(key).code == 200
    for key in (None, "gamma", "alph", "alphaa", "unused", "of the team"):
        answer = ask(key)
        assert answer.code == 401 and answer.json["error"]["type"], key
    for path in ("/generate", "/tokenize", "/v1/chat/completions", "/reset_prefix_cache", "/flush_cache", "/cache/explain", "/abort_request", "/nothing"):
        assert ask(None, path, {}).code == 401, path
    for path in ("/v1/models", "/v1/models/model", "/kv_events", "/request_events", "/get_server_info", "/health_generate"):
        assert worker.get(path).code == 401, path
    for path in ("/health", "/ping", "/readyz", "/livez", "/metrics", "/version", "/load", "/server_info"):
        assert worker.get(path).code == 200, path
    assert worker.get("/v1/models", headers=bearer("beta")).code == 200
    assert worker.metric("incipit_requests_denied_total") == 20
    wait_for(lambda: " request_denied " in worker.log, "the refusals in the log")
    assert "--api-key shows in the process list" in worker.log and "gamma" not in worker.log and "alpha" not in worker.log

    file.write_text("new\n")
    worker.process.send_signal(signal.SIGHUP)
    wait_for(lambda: ask("new").code == 200, "the keys to be read again")
    assert ask("from-file").code == 401 and ask("alpha").code == 200
    file.write_text("")
    worker.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "api_keys_not_reloaded" in worker.log, "the file to be refused")
    assert ask("new").code == 200 and ask("alpha").code == 200


def test_vllms_variable_is_a_key(programs, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "from-environment")
    worker = sim(programs)
    body = {"prompt": "a", "max_tokens": 1}
    assert worker.post("/v1/completions", body).code == 401
    assert worker.post("/v1/completions", body, headers=bearer("from-environment")).code == 200
    assert "process list" not in worker.log


def test_a_root_path_is_passed_over(programs):
    worker = sim(programs, "--root-path", "/llm/", "--api-key", "k")
    for path in ("/llm/v1/models", "/v1/models"):
        assert worker.get(path).code == 401
        assert worker.get(path, headers=bearer("k")).code == 200
    assert worker.get("/llm/health").code == 200
    assert worker.get("/llmv1/models", headers=bearer("k")).code == 404


def test_tokens_of_logprobs_are_named_by_their_ids_for_all(programs):
    worker = sim(programs, "--return-tokens-as-token-ids")
    body = {"prompt": "a", "max_tokens": 2, "logprobs": 1}
    tokens = lambda **more: worker.post("/v1/completions", {**body, **more}).json["choices"][0]["logprobs"]["tokens"]
    assert all(t.startswith("token_id:") for t in tokens())
    assert not any(t.startswith("token_id:") for t in tokens(return_tokens_as_token_ids=False))


def texts(programs, *args, n=3, **body):
    worker = programs(Worker, MODEL, "--backend", "cpu", "--kv-cache-memory-bytes", "32MiB", *args).ready()
    return [worker.post("/v1/completions", {"prompt": "Once", "max_tokens": 24, **body}).json["choices"][0]["text"] for _ in range(n)]


def test_sampling_defaults_are_overridden_for_requests_without_the_field(programs, tmp_path):
    assert len(set(texts(programs, "--override-generation-config", '{"temperature": 0}'))) == 1
    hot = '{"temperature": 2, "top_k": 0, "top_p": 1}'
    assert len(set(texts(programs, "--override-generation-config", hot))) == 3
    (tmp_path / "generation_config.json").write_text(hot)
    assert len(set(texts(programs, "--generation-config", str(tmp_path)))) == 3
    assert len(set(texts(programs, "--generation-config", str(tmp_path), temperature=0))) == 1
    refused(programs, "--generation-config /nowhere has no generation_config.json", "--generation-config", "/nowhere")
    refused(programs, "--override-generation-config", "--override-generation-config", '{"temperature": -1}')


def quantised(folder, kind="gptq"):
    """A quantised checkpoint whose 64 tokens are letters."""
    for file in (ROOT / f"tests/data/models/quant-{kind}").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    letters = [chr(c) for c in range(ord("A"), ord("A") + 64)]
    model = {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "decoder": {"type": "ByteLevel"}}))
    return str(folder)


@pytest.mark.parametrize("flags", [[], ["--quantization", "gptq_marlin"], ["-q", "GPTQ"], ["--quantization=none"]])
def test_a_quantised_checkpoint_answers_as_it_is(programs, tmp_path, flags):
    worker = programs(Worker, quantised(tmp_path), "--backend", "ref", "--num-gpu-blocks-override", "64", *flags).ready()
    answer = worker.post("/v1/completions", {"prompt": "ABC", "max_tokens": 3, "temperature": 0, "ignore_eos": True})
    assert answer.code == 200 and answer.json["usage"]["completion_tokens"] == 3
    assert "quantization=gptq" in worker.log and worker.get("/server_info").json["quantization"] == "gptq"


def test_inspect_refuses_what_ranks_cannot_divide_as_the_start_does(programs, tmp_path):
    model, flags = quantised(tmp_path), ["--backend", "cpu", "--tensor-parallel-size", "2"]
    why = "quantised o matrices have their inputs in an order of their own (desc_act), which ranks cannot divide"
    done = subprocess.run([BUILD / "incipit-worker", "inspect", model, *flags], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0 and f"fits              no: {why}" in done.stdout
    worker = programs(Worker, model, "--num-gpu-blocks-override", "64", *flags)
    worker.process.wait(PATIENCE_S)
    assert worker.stop() == 2 and why in worker.log


def test_quantization_that_the_files_do_not_have_is_refused(programs, tmp_path):
    refused(programs, "--quantization fp8 would change the answers: the checkpoint is not quantised", "--quantization", "fp8")
    refused(programs, "--quantization bitsandbytes would change the answers", "--quantization", "bitsandbytes")
    for word in ["awq", "modelopt_fp8", "w8a8_fp8", "W8A8_INT8"]:
        worker = programs(Program, "incipit-worker", [quantised(tmp_path), "--port", "0", "--backend", "ref", "-q", word])
        worker.process.wait(PATIENCE_S)
        assert worker.stop() == 2 and f"--quantization {word} would change the answers: the checkpoint is quantised by gptq" in worker.log


@pytest.mark.parametrize("kind, word", [("fp8-block", "w8a8_fp8"), ("w8a8", "w8a8_int8")])
def test_words_of_sglang_name_the_method_of_the_files(programs, tmp_path, kind, word):
    worker = programs(Worker, quantised(tmp_path, kind), "--backend", "ref", "--num-gpu-blocks-override", "64", "-q", word).ready()
    assert "quantization=" in worker.log


def inspected(folder, **config):
    """What inspect prints of the demonstration model with more in its config.json."""
    for file in (ROOT / "deploy/demo/model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    return subprocess.run([BUILD / "incipit-worker", "inspect", folder, "--backend", "ref"], capture_output=True, text=True)


def test_a_model_whose_modules_are_all_plain_is_inspected_as_plain(tmp_path):
    done = inspected(tmp_path, quantization_config={"quant_method": "fp8", "modules_to_not_convert": ["model"]})
    assert "M in bfloat16\n" in done.stdout and "quantised" not in done.stdout, done.stdout + done.stderr


def test_control_characters_of_a_checkpoint_do_not_reach_the_terminal(tmp_path):
    done = inspected(tmp_path, quantization_config={"quant_method": "\x1b[31mred\u202e"})
    assert done.returncode == 2 and "quant_method '\\u001b[31mred\\u202e'" in done.stderr, done.stderr
    done = inspected(tmp_path, quantization_config=None, architectures=['\x1b]0;"quoted"'])
    assert done.returncode == 2 and "\x1b" not in done.stderr and '0;"quoted"' in done.stderr, done.stderr


def test_a_seed_makes_starts_alike(programs):
    hot = {"temperature": 2}
    seeded = texts(programs, "--seed", "7", **hot)
    assert len(set(seeded)) == 3 and texts(programs, "--seed", "7", **hot) == seeded
    assert texts(programs, "--seed", "8", **hot) != seeded and texts(programs, **hot) != seeded


def test_vllms_config_file_is_taken(programs, tmp_path):
    file = tmp_path / "vllm.yaml"
    file.write_text(f"""
model: {MODEL}
served-model-name: [one, two]
max-model-len: 2k
trust-remote-code: true
enforce_eager: true
tensor-parallel-size: 1
quantization: none
compilation-config: {{mode: 3, cudagraph_capture_sizes: [1, 2]}}
override-generation-config:
  temperature: 0.5
limit-mm-per-prompt: {{image: 2}}
enable-lora: false
api-key: k
""")
    worker = programs(Worker, "--config", str(file), "--backend", "sim", "--num-gpu-blocks-override", "512").ready()
    models = worker.get("/v1/models", headers=bearer("k")).json["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [("one", 2000), ("two", 2000)]
    assert "--compilation-config has no effect" in worker.log


def test_serve_is_accepted_as_the_first_argument(programs):
    worker = programs(Program, "incipit-worker", ["serve", MODEL, "--port", "0", "--backend", "sim", "--num-gpu-blocks-override", "512"])
    assert http(f"http://127.0.0.1:{worker.field('worker_ready', 'port')}/health").code == 200


@pytest.mark.parametrize("more", [["--forward-authorization"], []])
def test_a_router_replaces_the_clients_key_by_the_workers(programs, tmp_path, more):
    key = tmp_path / "key"
    key.write_text("# of the fleet\nfleet-key\n")
    key.chmod(0o600)
    worker = sim(programs, "--api-key-file", str(key), "--kv-events")
    body = {"prompt": "a", "max_tokens": 1}
    without = programs(Router, "--worker-urls", worker.url).ready(1)
    assert without.post("/v1/completions", body).code == 401
    router = programs(Router, "--worker-urls", worker.url, "--worker-api-key-file", str(key), *more).ready(1)
    assert router.post("/v1/completions", body).code == 200
    assert router.post("/v1/completions", body, headers=bearer("a-clients-own")).code == 200
    assert http(router.admin_url + "/flush_cache", {}).json["workers"][0]["flushed"] is True


def test_several_routers_follow_workers_that_need_a_key(programs, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "fleet-key")
    worker = sim(programs)
    one, other = (programs(Router, "--worker-urls", worker.url, "--share", "workers").ready(1) for _ in range(2))
    wait_for(lambda: worker.metric("incipit_request_events_subscribers") == 2, "both to follow the worker")
    assert one.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).code == 200
