"""Generated conversations as chat, Messages and Responses: through a router to workers with real caches, they are the same
tokens and hit the same share of them; and prompts that are counted have the number of tokens that is then computed.

CONVERSATIONS and BODIES are how many of each: `CONVERSATIONS=500 BODIES=1000 make integration ARGS="-s -k same_conversations"`.
"""
import json
import os
import random

import pytest

from conftest import DEMO_MODEL, Router, Worker

CONVERSATIONS, BODIES = int(os.environ.get("CONVERSATIONS", 12)), int(os.environ.get("BODIES", 40))
OPEN = 8  # conversations that take turns, as of as many agents
TEMPLATE = (
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
SIM = (DEMO_MODEL, "--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 2048,
       "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--served-model-name", "m")
WORDS = "table street the of Smith Elm 12 a file read \u00e9t\u00e9 \u20ac9 \U0001d11e {\"k\": 1} </tool_call> line\nend what is in".split(" ")


def text(rng, n):
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, n)))


def parameters(rng):
    kinds = [{"type": "string"}, {"type": "integer", "minimum": 1}, {"enum": ["a", None, 2]}, {"type": "array", "items": {"type": "boolean"}}]
    names = rng.sample(["path", "line", "unit", "text"], rng.randrange(1, 4))
    return {"type": "object", "properties": {n: rng.choice(kinds) for n in names}, "required": names[:1]}


def tools(rng, n):
    return [(f"tool_{i}", text(rng, 30), parameters(rng)) for i in range(n)]


def conversation(number):
    """(system, tools, turns): a turn is what the client adds, and what the assistant is said to have answered to it."""
    rng = random.Random(number)
    of_agent = random.Random(number % 7)  # conversations share the system prompts and the tools of seven agents
    system, its_tools = text(of_agent, 250), tools(of_agent, of_agent.randrange(4))
    turns = []
    for i in range(rng.randrange(2, 7)):
        says = {"user": text(rng, 60)}
        if turns and turns[-1][1]["calls"]:
            says = {"results": [(c[0], text(rng, 80)) for c in turns[-1][1]["calls"]]}
        calls = [(f"call_{number}_{i}_{k}", rng.choice(its_tools)[0], {"path": text(rng, 9), "line": rng.randrange(99)})
                 for k in range(rng.randrange(3))] if its_tools else []
        reasoning = text(rng, 20) if rng.random() < .5 else ""
        turns.append((says, {"reasoning": reasoning, "text": text(rng, 30) if not calls or rng.random() < .5 else "", "calls": calls}))
    return system, its_tools, turns


# --- the same as each API has it ---------------------------------------------------------------------------------------


def as_chat(system, its_tools, turns, salt):
    messages = [{"role": "system", "content": system}]
    for says, answer in turns:
        if "user" in says:
            messages.append({"role": "user", "content": says["user"]})
        messages += [{"role": "tool", "tool_call_id": i, "content": t} for i, t in says.get("results", [])]
        if answer:
            calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in answer["calls"]]
            messages.append({"role": "assistant", "content": answer["text"] or None, **({"tool_calls": calls} if calls else {}),
                             **({"reasoning": answer["reasoning"]} if answer["reasoning"] else {})})
    functions = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in its_tools]
    return {"messages": messages, "max_tokens": 1, "cache_salt": salt, **({"tools": functions} if functions else {})}


def as_messages(system, its_tools, turns, salt):
    """With the nonce of Claude Code before the system prompt, new in each request."""
    messages = []
    for says, answer in turns:
        if "user" in says:
            messages.append({"role": "user", "content": says["user"]})
        else:
            messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": t} for i, t in says["results"]]})
        if answer:
            blocks = [{"type": "thinking", "thinking": answer["reasoning"], "signature": ""}] if answer["reasoning"] else []
            blocks += [{"type": "text", "text": answer["text"]}] if answer["text"] else []
            blocks += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in answer["calls"]]
            messages.append({"role": "assistant", "content": blocks})
    nonce = f"x-anthropic-billing-header: cc_version=2.1; cch={len(turns) * 7919:05x};"
    return {"system": [{"type": "text", "text": nonce}, {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
            "messages": messages, "max_tokens": 1, "cache_salt": salt,
            **({"tools": [{"name": n, "description": d, "input_schema": p} for n, d, p in its_tools]} if its_tools else {})}


def as_responses(system, its_tools, turns, salt):
    items = []
    for says, answer in turns:
        if "user" in says:
            items.append({"role": "user", "content": [{"type": "input_text", "text": says["user"]}]})
        items += [{"type": "function_call_output", "call_id": i, "output": t} for i, t in says.get("results", [])]
        if answer and answer["reasoning"]:
            items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": answer["reasoning"]}]})
        if answer and answer["text"]:
            items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer["text"], "annotations": []}]})
        items += [{"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)} for i, n, a in (answer or {"calls": []})["calls"]]
    return {"instructions": system, "input": items, "store": False, "max_output_tokens": 1, "cache_salt": salt,
            **({"tools": [{"type": "function", "name": n, "description": d, "parameters": p} for n, d, p in its_tools]} if its_tools else {})}


def of_messages(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]


APIS = {
    "/v1/chat/completions": (as_chat, lambda u: (u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"])),
    "/v1/messages": (as_messages, of_messages),
    "/v1/responses": (as_responses, lambda u: (u["input_tokens"], u["input_tokens_details"]["cached_tokens"])),
}


def requests_of(n):
    """(conversation, its turns so far), those of OPEN conversations in turn; the answer to the last turn is to come."""
    for first in range(0, n, OPEN):
        some = [conversation(i) for i in range(first, min(first + OPEN, n))]
        for k in range(max(len(turns) for _, _, turns in some)):
            for system, its_tools, turns in some:
                if k < len(turns):
                    yield system, its_tools, [*turns[:k], (turns[k][0], None)]


def usages(programs, path, template):
    """(prompt tokens, cached tokens) of each request, of a fleet that knows nothing yet."""
    shape, read = APIS[path]
    workers = [programs(Worker, *SIM, "--chat-template", template).ready() for _ in range(3)]
    router = programs(Router, "--worker-urls", *(w.url for w in workers)).ready(len(workers))
    found = []
    for request in requests_of(CONVERSATIONS):
        answer = router.post(path, {"model": "m", "temperature": 0, **shape(*request, "s")})
        assert answer.code == 200, answer.body
        found.append(read(answer.json["usage"]))
    served = [w.metric("vllm:request_success_total") for w in workers]
    for program in (router, *workers):
        assert program.stop() == 0, program.log[-2000:]
    return found, served


def test_conversations_hit_as_well_in_each_api(programs, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    shares, prompts = {}, {}
    for path in APIS:
        found, served = usages(programs, path, template)
        prompts[path] = [n for n, _ in found]
        shares[path] = sum(c for _, c in found) / sum(prompts[path])
        print(f"{path}: {len(found)} requests, {sum(prompts[path])} tokens, hit share {shares[path]:.4f}, requests by worker {served}")
        assert sum(n > 0 for n in served) > 1, "one worker served all: the router had no choice to make"
    chat = shares["/v1/chat/completions"]
    assert 0.5 < chat < 1
    for path, share in shares.items():
        assert prompts[path] == prompts["/v1/chat/completions"], path
        assert share == pytest.approx(chat, abs=0.01), shares


# --- counted tokens ------------------------------------------------------------------------------------------------------


def random_body(rng):
    """Messages, with what a client may put in: system as string or blocks, parts, results of every form, thinking, documents."""
    block = lambda n: {"type": "text", "text": text(rng, n)}
    messages, calls, names = [], [], [f"tool_{i}" for i in range(rng.randrange(4))]
    for i in range(rng.randrange(1, 5)):
        parts = [{"type": "tool_result", "tool_use_id": c, **rng.choice([{}, {"content": text(rng, 30)}, {"content": [block(9), block(9)]}]),
                  **rng.choice([{}, {"is_error": True}])} for c in calls]
        parts += [block(40) for _ in range(rng.randrange(1, 3))]
        if rng.random() < .2:
            parts.append({"type": "document", "title": "d", "source": {"type": "text", "media_type": "text/plain", "data": text(rng, 20)}})
        messages.append({"role": "user", "content": parts if calls or rng.random() < .5 else text(rng, 60)})
        if rng.random() < .2:
            messages.append({"role": "system", "content": text(rng, 9)})
        calls = [f"toolu_{i}_{k}" for k in range(rng.randrange(3))] if names else []
        answer = [{"type": "thinking", "thinking": text(rng, 20), "signature": "x"}] if rng.random() < .4 else []
        answer += [{"type": "redacted_thinking", "data": "eA=="}] if rng.random() < .1 else []
        answer += [block(30)] if rng.random() < .6 or not calls else []
        answer += [{"type": "tool_use", "id": c, "name": rng.choice(names), "input": {"path": text(rng, 5)}} for c in calls]
        messages.append({"role": "assistant", "content": answer})
    if calls or rng.random() < .8:  # otherwise the answer goes on with the last message
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": c, "content": "1"} for c in calls] + [block(9)]})
    body = {"messages": messages}
    if rng.random() < .7:
        nonce = [{"type": "text", "text": f"x-anthropic-billing-header: cch={rng.randrange(99999)};"}] if rng.random() < .5 else []
        body["system"] = text(rng, 60) if rng.random() < .5 else [*nonce, block(40), {**block(40), "cache_control": {"type": "ephemeral"}}]
    if names:
        body["tools"] = [{"name": n, "description": text(rng, 20), "input_schema": parameters(rng)} for n in names]
        body["tool_choice"] = rng.choice([{"type": "auto"}, {"type": "none"}, {"type": "any"}, {"type": "tool", "name": names[0]}])
    body["thinking"] = rng.choice([{"type": "disabled"}, {"type": "adaptive"}])
    return body


@pytest.mark.parametrize("kind", ["sim", "demo"])
def test_the_count_is_the_number_of_tokens_that_are_computed(programs, kind, tmp_path):
    if kind == "demo" and not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("deploy/demo/model has no weights")
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    args = (*SIM, "--chat-template", template) if kind == "sim" else (DEMO_MODEL, "--kv-cache-memory-bytes", "64MiB", "--served-model-name", "m")
    worker = programs(Worker, *args).ready()
    for seed in range(BODIES):
        body = random_body(random.Random(seed))
        count = worker.post("/v1/messages/count_tokens", {"model": "m", **body})
        answer = worker.post("/v1/messages", {"model": "m", "max_tokens": 1, "temperature": 0, **body})
        assert count.code == answer.code == 200, (seed, count.body, answer.body)
        assert set(count.json) == {"input_tokens"}
        assert count.json["input_tokens"] == of_messages(answer.json["usage"])[0], (seed, body)
    print(f"{kind}: count_tokens is the number of the prompt's tokens in {BODIES} of {BODIES}")
