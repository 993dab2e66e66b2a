"""What clients ask to keep in the cache outlives other traffic, within its budget: at a worker and through a router."""
import pytest

from conftest import ROOT, Router, Worker, http
from test_kv_events import Stream

TEMPLATE = ("{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
N_BLOCKS = 400
OPENING = "You are a careful assistant that reads long texts before it answers. " * 6
LONG = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 6
LOOK = {"name": "look", "description": "Looks at the sky for a while.", "input_schema": {"type": "object", "properties": {}}}
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


class Fleet:
    def __init__(self, start, folder, *args):
        (folder / "template.jinja").write_text(TEMPLATE)
        self.worker = start(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 1000, "--max-model-len", 4096,
                            "--num-gpu-blocks-override", N_BLOCKS, "--chat-template", folder / "template.jinja", *args).ready()
        self.router = start(Router, "--worker-urls", self.worker.url).ready(1)
        self.n_filled = 0

    def fill(self, n_caches=2):
        """As much other traffic as the cache holds, n times."""
        for _ in range(n_caches * N_BLOCKS // 60 + 1):
            self.n_filled += 1
            assert self.worker.post("/v1/completions", {"prompt": [self.n_filled] + [5] * 1000, "max_tokens": 1}).code == 200


@pytest.fixture
def fleet(programs, tmp_path):
    return Fleet(programs, tmp_path)


def text(content, **mark):
    return {"type": "text", "text": content, **mark}


def message(program, **fields):
    answer = program.post("/v1/messages", {"max_tokens": 4, "temperature": 0, **fields})
    assert answer.code == 200, answer.body
    usage = answer.json["usage"]
    return usage["cache_read_input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize("where", ["worker", "router"])
def test_marked_conversation_outlives_other_traffic(fleet, where):
    at = getattr(fleet, where)
    marked = {"system": OPENING, "messages": [{"role": "user", "content": [text("Marked. " + LONG, **MARK)]}]}
    plain = {"system": "Other. " + OPENING, "messages": [{"role": "user", "content": "Not marked. " + LONG}]}
    for body in (marked, plain):
        assert message(at, **body)[0] == 0
    fleet.fill()
    assert message(at, **plain)[0] == 0
    found, whole = message(at, **marked)
    assert found == (whole - 1) // 16 * 16
    assert fleet.worker.metric("incipit_kv_retained_total", outcome="hit") == whole // 16
    assert 0 < fleet.worker.metric("incipit_kv_retained_blocks") <= fleet.worker.metric("incipit_kv_retained_blocks_limit") == N_BLOCKS // 4


@pytest.mark.parametrize("mark", ["tools", "system", "first message"])
def test_mark_keeps_the_prompt_up_to_it(fleet, mark):
    tool, system, first = LOOK, text(OPENING), text("First. " + LONG)
    if mark == "tools":
        tool = {**tool, **MARK}
    for block in (system,) if mark == "system" else (first,) if mark == "first message" else ():
        block |= MARK
    body = {"tools": [tool], "system": [system],
            "messages": [{"role": "user", "content": [first]}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": LONG}]}
    _, whole = message(fleet.worker, **body)
    fleet.fill()
    found, _ = message(fleet.worker, **body)
    beginning = {**body, "messages": [{"role": "user", "content": "?"}]} if mark != "first message" else {**body, "messages": body["messages"][:1]}
    _, n = message(fleet.worker, **beginning)
    assert n // 16 * 16 - 32 <= found <= n // 16 * 16 < whole - 100


def test_longer_time_of_the_system_beside_a_shorter_one(fleet):
    body = {"system": [text(OPENING, **HOUR)], "messages": [{"role": "user", "content": [text("A. " + LONG, **MARK)]}]}
    message(fleet.worker, **body)
    fleet.fill()
    found, whole = message(fleet.worker, **body)
    assert found == (whole - 1) // 16 * 16


def test_budget_keeps_heads_and_stops_no_request(fleet):
    for i in range(8):  # each a sixth of the cache, all marked: more than the budget
        message(fleet.worker, messages=[{"role": "user", "content": [text(f"{i} " + LONG * 4, **MARK)]}])
    assert fleet.worker.metric("incipit_kv_retained_blocks") == N_BLOCKS // 4
    assert fleet.worker.metric("incipit_kv_retained_total", outcome="displaced") > 0
    answer = fleet.worker.post("/v1/completions", {"prompt": [7] * 4000, "max_tokens": 1, "n": 1})
    assert answer.code == 200
    answers = [fleet.worker.post("/v1/completions", {"prompt": [[i] + [7] * 3900 for i in range(4)], "max_tokens": 8}) for _ in range(2)]
    assert all(a.code == 200 for a in answers)


@pytest.mark.parametrize("path, prompt", [("/v1/chat/completions", "messages"), ("/v1/responses", "input")])
@pytest.mark.parametrize("field", [{"prompt_cache_options": {"ttl": "30m"}}, {"prompt_cache_retention": "24h"}])
def test_fields_of_openai_keep_the_prompt(fleet, path, prompt, field):
    def ask(**more):
        answer = fleet.router.post(path, {prompt: [{"role": "user", "content": LONG}], **more})
        assert answer.code == 200, answer.body
        usage = answer.json["usage"]
        return (usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))["cached_tokens"]

    assert ask(max_tokens=4, max_output_tokens=4) == 0
    fleet.fill()
    assert ask(max_tokens=4, max_output_tokens=4, **field) == 0
    fleet.fill()
    assert ask(max_tokens=4, max_output_tokens=4) > 100


def test_share_of_nothing_ignores_marks(programs, tmp_path):
    fleet = Fleet(programs, tmp_path, "--retained-kv-share", 0)
    body = {"messages": [{"role": "user", "content": [text(LONG, **HOUR)]}]}
    message(fleet.worker, **body)
    fleet.fill()
    assert message(fleet.worker, **body)[0] == 0
    assert fleet.worker.metric("incipit_kv_retained_blocks_limit") == 0


def test_tenant_has_half_of_the_budget(programs, tmp_path):
    fleet = Fleet(programs, tmp_path, "--api-key", "a", "b")
    for key in ("a", "b"):
        for i in range(4):
            answer = http(fleet.worker.url + "/v1/messages", {"max_tokens": 1, "messages": [
                {"role": "user", "content": [text(f"{key}{i} " + LONG * 4, **MARK)]}]}, headers={"x-api-key": key})
            assert answer.code == 200
        assert fleet.worker.metric("incipit_kv_retained_blocks") == N_BLOCKS // 8 * (1 if key == "a" else 2)
    assert fleet.worker.metric("incipit_kv_retained_total", outcome="refused") > 0


def test_prewarmed_prompt_is_there_for_its_first_user(fleet):
    path = "/cache/prewarm"
    system = {"role": "system", "content": OPENING}
    body = {"messages": [system, {"role": "user", "content": ""}], "ttl": "30m"}
    first = fleet.worker.post(path, body)
    assert first.code == 200 and first.json["object"] == "cache.prewarm" and first.json["ttl_s"] == 1800
    n = first.json["prompt_tokens"]
    assert first.json["cached_tokens"] == 0 and n > 100
    assert fleet.worker.metric("incipit_kv_retained_blocks") == n // 16
    fleet.fill()
    assert fleet.worker.post(path, body).json["cached_tokens"] == (n - 1) // 16 * 16
    answer = fleet.router.post("/v1/chat/completions", {"messages": [system, {"role": "user", "content": LONG}], "max_tokens": 4})
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= n // 16 * 16 - 32
    ids = fleet.worker.post(path, {"prompt": [9] * 100, "max_tokens": 50, "n": 3, "stream": True, "min_tokens": 5, "logprobs": 2})
    assert ids.code == 200 and ids.json["prompt_tokens"] == 100


@pytest.mark.parametrize("body, param", [
    ({"prompt": "a", "ttl": "2h"}, "ttl"), ({"prompt": "a", "ttl": 60}, "ttl"), ({"prompt": ["a", "b"]}, "prompt"), ({}, "prompt")])
def test_wrong_prewarming_is_refused(fleet, body, param):
    answer = fleet.worker.post("/cache/prewarm", body)
    assert answer.code == 400 and answer.json["error"]["param"] == param


def test_prewarming_needs_the_key_and_no_web_page(programs, tmp_path):
    fleet = Fleet(programs, tmp_path, "--api-key", "k")
    url = fleet.worker.url + "/cache/prewarm"
    assert http(url, {"prompt": "a"}).code == 401
    key = {"authorization": "Bearer k"}
    assert http(url, {"prompt": "a"}, headers={**key, "origin": "http://elsewhere.example"}).code == 403
    assert http(url, {"prompt": "a"}, headers=key).code == 200


def cached(worker):
    """The hashes that a follower of the cache's events knows of."""
    stream, hashes = Stream(worker, "from=snapshot"), set()
    for kind, _, data in stream:
        if kind == "digest":
            stream.close()
            return hashes
        for event in data["events"] if kind == "batch" else ():
            if event["type"] == "BlockStored":
                hashes |= set(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                hashes -= set(event["block_hashes"])


def test_follower_of_the_cache_knows_what_is_kept(programs, tmp_path):
    fleet = Fleet(programs, tmp_path, "--kv-events")
    _, n = message(fleet.worker, messages=[{"role": "user", "content": [text(LONG, **MARK)]}])
    kept = cached(fleet.worker)
    fleet.fill()
    assert len(kept & cached(fleet.worker)) == n // 16


@pytest.mark.parametrize("fields, place, remedy", [
    ({"system": [text("a", cache_control={"type": "ephemeral", "ttl": "2h"})]}, 'system[0].cache_control.ttl is "2h"', '"5m" or "1h"'),
    ({"tools": [{**LOOK, "cache_control": {"type": "forever"}}]}, "tools[0].cache_control", '"ephemeral"'),
    ({"system": [text("a", **MARK)] * 5}, "cache_control is set in more than 4 places", "at most 4"),
])
def test_wrong_marks_are_refused_in_the_shape_of_messages(fleet, fields, place, remedy):
    answer = fleet.router.post("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}], **fields})
    assert answer.code == 400 and answer.json["type"] == "error" and answer.json["error"]["type"] == "invalid_request_error"
    assert place in answer.json["error"]["message"] and remedy in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("field, value, remedy", [
    ("prompt_cache_options.ttl", {"prompt_cache_options": {"ttl": "5d"}}, '"30m" or "12h"'),
    ("prompt_cache_retention", {"prompt_cache_retention": "1w"}, '"24h" or "in_memory"'),
])
def test_wrong_times_are_refused(fleet, path, field, value, remedy):
    answer = fleet.worker.post(path, {"messages": [{"role": "user", "content": "a"}], "input": "a", **value})
    error = answer.json["error"]
    assert answer.code == 400 and error["param"] == field and field in error["message"] and remedy in error["message"]
