"""Random answers under masks, validated by jsonschema: 10,000 of 10,000 must be valid.

    constrained_answers.py          ANSWERS, 10,000 of them; needs mistral-common, and bfcl-eval by pip for schemas of published tools

Each answer is drawn token by token over a vocabulary of 131,072 tokens, each allowed one with the same probability (grammar.c).
A quarter of the schemas are of this file, with the keywords that tools rarely have. Half of the schemas of tools are inside a
structural tag: calls as Hermes writes them, or parameters as Qwen does, read here as their readers do.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from common import BUILD, Report
from grammar_speed import schemas
from llguidance_masks import vocabulary, write_vocabulary

OWN = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "exclusiveMaximum": 170}, "b": {"type": "number", "minimum": 0.25,
     "maximum": 17.5}, "c": {"type": "integer", "multipleOf": 7}, "d": {"type": "number", "multipleOf": 0.01}}, "required": ["a", "d"]},
    {"type": "object", "properties": {"s": {"type": "string", "minLength": 2, "maxLength": 5}, "p": {"type": "string", "pattern": "^[a-f]{2,4}(x|yz)?$"},
     "q": {"type": "string", "pattern": "\\d-\\d", "maxLength": 12}}, "required": ["s", "p", "q"], "additionalProperties": False},
    {"type": "object", "properties": {f: {"type": "string", "format": f} for f in ("date-time", "date", "time", "duration", "email", "ipv4", "ipv6",
     "uuid", "uri", "hostname")}, "required": ["date", "ipv6"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"enum": ["a", 1, None, {"k": [1, 2.5]}]}], "items": {"type": "boolean"}, "minItems": 1,
     "maxItems": 6},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}, {"type": "object", "required": ["z"], "properties": {"a": {"const": "x"}}}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}}, "required": ["kind", "r"]},
               {"type": "object", "properties": {"kind": {"const": "box"}, "w": {"type": "integer"}}, "required": ["kind"]}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"a": {"maximum": 9}, "b": {"type": "string"}}, "additionalProperties": {"type": "null"}}]},
    {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"},
     "maxItems": 2}}, "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    {"type": "object", "patternProperties": {"^s_": {"type": "string"}, "^n_": {"type": "integer"}}, "additionalProperties": False,
     "minProperties": 1, "maxProperties": 3},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "integer"}, "minProperties": 2},
    {"type": "object"}, {"type": ["integer", "string", "null"]}, True,
]


def as_call(parameters):
    return {"type": "structural_tag", "format": {"type": "tags_with_separator", "separator": "\n", "at_least_one": True, "stop_after_first": True, "tags": [
        {"begin": '<tool_call>\n{"name": "f", "arguments": ', "content": {"type": "json_schema", "json_schema": parameters, "whitespace": "compact"},
         "end": "}\n</tool_call>"}]}}


def as_parameters(parameters):
    return {"type": "structural_tag", "format": {"type": "json_schema", "style": "qwen_xml", "json_schema": parameters}}


def read_json(text):
    """json.loads takes the last of equal names. A property of the whole that is declared may come once; others may come twice (schema.h)."""
    outermost = []

    def keep(pairs):
        outermost[:] = [k for k, _ in pairs]
        return dict(pairs)
    return json.loads(text, object_pairs_hook=keep), [k for k in outermost if outermost.count(k) > 1]


def read_call(text):
    return read_json(re.fullmatch(r'<tool_call>\n{"name": "f", "arguments": (.*)}\n</tool_call>', text, re.DOTALL)[1])


def is_string(schema):
    """Whether the schema allows a string: then a value is one, as readers take it."""
    if not isinstance(schema, dict) or not ({"type", "enum", "const", "anyOf", "oneOf"} & set(schema)):
        return True
    if "enum" in schema:
        return any(isinstance(v, str) for v in schema["enum"])
    kinds = schema.get("type", [])
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) or any(is_string(s) for s in schema.get("anyOf", []) + schema.get("oneOf", []))


def read_parameters(schema):
    """Values that may be strings are strings; where the schema has other types or values too, any reading that it accepts will do."""
    def read(text):
        out, rest = {}, text
        while rest:
            match = re.match(r"<parameter=([^>]*)>\n(.*?)\n</parameter>\n", rest, re.DOTALL)
            name, value = match[1], match[2]
            rest = rest[match.end():]
            property_schema = schema.get("properties", {}).get(name, {})
            if not is_string(property_schema):
                value = json.loads(value)
            elif value not in property_schema.get("enum", [value]) if isinstance(property_schema, dict) else False:
                value = json.loads(value)
            assert name not in out
            out[name] = value
        return out, []
    return read


def lines(n_answers):
    """(line of grammar.c, schema, reader)."""
    published = [json.loads(s) for s in schemas()]
    random.Random(2).shuffle(published)
    published = published[:900] or OWN
    each = max(n_answers // 1000, 1)
    for i, schema in enumerate(published):
        if i % 4 == 1:
            yield {"kind": "tag", "text": json.dumps(as_call(schema)), "n": each}, schema, read_call
        elif i % 4 == 3:
            yield {"kind": "tag", "text": json.dumps(as_parameters(schema)), "n": each, "end": "\n</parameter>\n"}, schema, read_parameters(schema)
        else:
            yield {"kind": "json", "text": json.dumps(schema), "n": each}, schema, read_json
    for schema in OWN:
        yield {"kind": "json", "text": json.dumps(schema), "n": -(-n_answers // (4 * len(OWN)))}, schema, read_json


def main():
    try:
        from jsonschema import Draft202012Validator, FormatChecker
    except ImportError:
        print("SKIPPED constrained_answers: jsonschema is not installed")
        return
    report = Report("constrained_answers")
    n_answers = int(os.environ.get("ANSWERS", "10000"))
    formats = FormatChecker()
    in_python = {"time": lambda s: "1970-01-01T" + s, "date-time": str, "date": lambda s: s + "T00:00:00Z"}
    for name, as_time in in_python.items():  # RFC 3339 has year 0, -00:00, and small letters; Python's dates have not
        formats.checks(name)(lambda s, as_time=as_time: not isinstance(s, str) or FormatChecker().conforms(
            re.sub("-00:00$", "Z", as_time(s).upper().replace("0000-", "2000-", 1)), "date-time"))
    n_refused = n_long = 0
    with tempfile.NamedTemporaryFile() as file:
        write_vocabulary(file, vocabulary())
        program = subprocess.Popen([str(BUILD / "tests/reference/grammar"), "draw", file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line, schema, read in lines(n_answers):
            program.stdin.write(json.dumps(line) + "\n")
            program.stdin.flush()
            answer = json.loads(program.stdout.readline())
            if "error" in answer:
                n_refused += 1
                continue
            validator = Draft202012Validator(schema, format_checker=formats)
            for text in answer["drawn"]:
                if report.passed + report.failed == n_answers:
                    break
                if text is None:
                    n_long += 1
                    continue
                try:
                    value, twice = read(text)
                    declared = schema.get("properties", {}) if isinstance(schema, dict) else {}
                    wrong = next((e.message for e in validator.iter_errors(value)), None)
                    wrong = wrong or next((f"{name} twice" for name in twice if name in declared), None)
                except Exception as e:  # noqa: BLE001
                    wrong = repr(e)
                report.check(wrong is None, f"{str(wrong)[:200]}: {text[:300]!r} of {json.dumps(schema)[:300]}")
        program.stdin.close()
    print(f"{report.passed} of {report.passed + report.failed} answers valid; {n_refused} schemas refused; {n_long} answers not ended within 4,000 tokens")
    report.end()


if __name__ == "__main__":
    sys.exit(main())
