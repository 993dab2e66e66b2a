"""Grammars that are made to take time and memory: each is refused or answered, and the worker keeps its memory.

Times are printed, not judged: `make integration ARGS="-s -k grammar_bombs"` shows them beside the growth of the worker's memory.
"""
import json
import re
import time

import pytest

from conftest import SANITIZER, Worker

MIB = 1 << 20
WORKER = ("--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 512, "--max-model-len", 4096)


def nested(n):
    return {"type": "object", "properties": {"a": nested(n - 1)}} if n else {}


def one_of(n):
    """Two of each level, told apart by a const: 2^n alternatives if they were multiplied out."""
    if not n:
        return {"type": "string"}
    return {"oneOf": [{"type": "object", "properties": {"k": {"const": k}, "v": one_of(n - 1)}, "required": ["k"]} for k in "ab"]}


def all_of(n):
    """Each the intersection of two alternatives: 2^n pairs."""
    return {"allOf": [{"anyOf": [{"type": "object", "properties": {f"{i}{k}": {"type": "string"}}} for k in "ab"]} for i in range(n)]}


def optional(n, **more):
    return {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(n)}, **more}


LARK = {
    "left": 'start: a\na: a "x" | "x"',
    "right": 'start: a\na: "x" a | "x"',
    "mutual": 'start: a\na: b "x" | "x"\nb: a "y" | c\nc: b "z" | "z"',
    "ambiguous": 'start: a\na: a a | a a a | "x" |',
    "empty cycle": 'start: a "!"\na: b\nb: c\nc: a |',
    "no word": 'start: a\na: b "x"\nb: a "y"',
    "chain of 9,000": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1} | r{i + 1}\n' for i in range(9000)) + 'r9000: "z"',
    "nullable": 'start: (((("x"?)*)*)*)* "!"',
}
BOMBS = {
    "depth 65": ({"guided_json": nested(65)}, [400]),
    "enum of 100,000": ({"guided_json": {"enum": [f"value {i}" for i in range(100000)]}}, [400]),
    "5,000 optional": ({"guided_json": optional(5000, additionalProperties=False)}, [400]),
    "501 optional": ({"guided_json": optional(501)}, [400]),
    "500 optional": ({"guided_json": optional(500)}, [200]),
    "500 optional inside": ({"guided_json": {"type": "object", "properties": {"a": optional(500, additionalProperties=False)}, "required": ["a"]}}, [200]),
    "2,000 required": ({"guided_json": optional(2000, required=[f"property_{i}" for i in range(2000)])}, [200]),
    "repeated repeats": ({"guided_regex": "^(.{1,99}){99}$"}, [400]),
    "repeated repeats as pattern": ({"guided_json": {"type": "string", "pattern": "^(.{1,99}){99}$"}}, [400]),
    "oneOf nested 12": ({"guided_json": one_of(12)}, [200, 400]),
    "allOf of 24 anyOf": ({"guided_json": all_of(24)}, [200, 400]),
    "alternation of 1 MB": ({"guided_regex": "|".join(f"word{i:06}" for i in range(95000))}, [400, 413]),
    "a pattern and lengths": ({"guided_json": {"type": "string", "pattern": "a.{20}b", "minLength": 50, "maxLength": 500}}, [200, 400]),
    "patternProperties": ({"guided_json": {"type": "object", "additionalProperties": False, "patternProperties": {
        f"^k{i}_.*x{{1,9}}$": {"type": "string"} for i in range(200)}}}, [200, 400]),
    "references to itself": ({"guided_json": {"$ref": "#"}}, [400]),
    "doubling references": ({"guided_json": {"$defs": {f"d{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}}
                                                       for i in range(40)} | {"d40": {"type": "string"}}, "$ref": "#/$defs/d0"}}, [200, 400]),
    **{f"Lark: {name}": ({"guided_grammar": text}, [200, 400]) for name, text in LARK.items()},
}


def memory(worker, name="VmHWM"):
    with open(f"/proc/{worker.process.pid}/status", encoding="ascii") as status:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read())[1]) * 1024


def compile_s(worker):
    return worker.metric("incipit_grammar_compile_seconds_total")


def check_bomb(worker, name, path, fields, codes):
    body = json.dumps({"temperature": 1, "seed": 3, **fields}).encode()
    warm = worker.post("/v1/completions", {"prompt": "a", "max_tokens": 8, "guided_json": {"type": "object"}})
    assert warm.code == 200, warm.body
    before, compiled, start = memory(worker), compile_s(worker), time.monotonic()
    answer = worker.post(path, body)
    took, grown, compiled = time.monotonic() - start, memory(worker) - before, compile_s(worker) - compiled
    message = answer.json["error"]["message"] if answer.code != 200 else answer.body
    print(f"{name}: {answer.code} {took * 1000:.1f} ms ({compiled * 1000:.1f} compiling), {grown / MIB:.1f} MiB for {len(body) / MIB:.2f}: {message[:90]!r}")
    assert answer.code in codes, answer.body[:500]
    if not SANITIZER:
        assert grown <= 64 * MIB
    after = worker.post("/v1/completions", {"prompt": "a", "max_tokens": 8, "guided_choice": ["still here"]})
    assert after.code == 200 and "still here".startswith(after.json["choices"][0]["text"])
    assert worker.stop() == 0
    return message


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_answered_within_its_memory(programs, name):
    fields, codes = BOMBS[name]
    check_bomb(programs(Worker, *WORKER).ready(), name, "/v1/completions", {"prompt": "a", "max_tokens": 40, **fields}, codes)


@pytest.mark.parametrize("name, syntax, definition, codes", [
    *[(name, "lark", text, [200, 400]) for name, text in LARK.items()],
    ("repeated repeats", "regex", "(.{1,99}){99}", [400]),
    ("repeated repeats in Lark", "lark", "start: /(.{1,99}){99}/", [400]),
])
def test_a_bomb_in_a_custom_tool_is_refused_or_answered_within_its_memory(programs, name, syntax, definition, codes):
    worker = programs(Worker, *WORKER, "--tool-call-parser", "hermes", "--reasoning-parser", "none").ready()
    tool = {"type": "custom", "name": "edit", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    message = check_bomb(worker, name, "/v1/responses", {"input": "a", "max_output_tokens": 40, "tools": [tool], "tool_choice": "required"}, codes)
    if codes == [400]:
        assert 'the format of the tool "edit": ' in message and "correct its definition" in message


def test_grammars_that_are_all_different_keep_the_cache_bounded(programs):
    worker = programs(Worker, *WORKER).ready()
    before, peak = memory(worker), 0
    for i in range(1000):
        properties = {f"p{i}_{k}": {"type": "string", "maxLength": i + k + 1} for k in range(8)}
        answer = worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": {"type": "object", "properties": properties}})
        assert answer.code == 200, answer.body
        peak = max(peak, worker.metric("incipit_grammar_cache_bytes")) if i % 50 == 49 else peak
    kept = worker.metric("incipit_grammar_cache_grammars")
    print(f"1,000 grammars: {kept:.0f} kept, {peak / MIB:.1f} MiB, the worker grew by {(memory(worker) - before) / MIB:.1f} MiB")
    assert worker.metric("incipit_grammar_compilations_total", outcome="ok") == 1000
    assert peak <= 64 * MIB
    if not SANITIZER:
        assert memory(worker) - before <= 64 * MIB
    assert worker.stop() == 0
