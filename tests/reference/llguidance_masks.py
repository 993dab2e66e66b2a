"""Our masks against llguidance's, token by token, over a published vocabulary of 131,072 tokens.

    llguidance_masks.py             SCHEMAS of the table below, WALKS answers each

Both follow one random answer: at each place a token is drawn from what both allow, and the two sets are compared. Where
the two differ by design it is written here: llguidance allows any white space (we: 32 characters between two tokens of
JSON), and its forced tokens are switched off. Needs llguidance, mistral-common and numpy.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import llguidance
    import llguidance.numpy
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED llguidance_masks: {missing}")
    sys.exit(0)
import base64
import pathlib

import mistral_common

from common import BUILD, Report

WALKS, STEPS = int(os.environ.get("WALKS", "6")), 40
obj = lambda required=(), **properties: {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
SCHEMAS = [
    obj(["a"], a={"type": "integer"}, b={"type": "string"}),
    {"type": "object", "properties": {"a": {"type": "string"}, "ab": {"type": "boolean"}}, "required": ["a"]},
    {"type": "object"},
    obj(name={"type": "string", "minLength": 2, "maxLength": 20}, when={"type": "string", "format": "date"}),
    obj(["k"], k={"enum": ["alpha", "alphabet", "beta", 1, 12, None, True]}),
    obj(["x"], x={"type": "number", "minimum": 5, "maximum": 17.5}, y={"type": "integer", "exclusiveMinimum": 0}),
    {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+@[a-z]{2,4}$"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"anyOf": [obj(["a"], a={"type": "null"}), obj(["b"], b={"type": "boolean"})]},
    {"allOf": [obj(["a"], a={"type": "integer"}, b={}), {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]},
    {"type": "object", "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}}, "required": ["v"]},
    {"type": "string", "pattern": "b"}, {"type": "string"}, {"type": "number"}, {"type": "integer", "multipleOf": 3},
    {"type": "string", "format": "uuid"}, {"type": "string", "format": "ipv4"}, {"const": {"a": [1, "x"]}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    obj(["city", "unit"], city={"type": "string", "description": "a city"}, unit={"enum": ["celsius", "fahrenheit"]},
        days={"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 6}}, note={"type": ["string", "null"]}),
]
# Two rules of ours: JSON's white space ends after 32 characters, and DEL is written \\u007f.
BLANKS = set(b" \t\n\r")


class Source:
    def __init__(self, tokens):
        self.tokens = tokens
        self.eos_token_id, self.bos_token_id = 2, 1
        self.special_token_ids = list(range(1000))

    def __call__(self, text):
        return [1000 + b for b in (text if isinstance(text, bytes) else text.encode())]


def vocabulary():
    path = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json"
    data = json.loads(path.read_text())
    ordinary = [base64.b64decode(t["token_bytes"]) for t in data["vocab"]][:131072 - 1000]
    return [b""] * 1000 + ordinary


def ours(program, schema, tokens):
    program.stdin.write(json.dumps({"kind": "json", "text": json.dumps(schema), "tokens": tokens}) + "\n")
    program.stdin.flush()
    answer = json.loads(program.stdout.readline())
    assert "error" not in answer, (schema, answer)
    return [np.frombuffer(bytes.fromhex(m), dtype=np.uint32) for m in answer["masks"]], answer["ends"]


def write_vocabulary(file, tokens):
    """As grammar.c reads it."""
    file.write(struct.pack("<I", len(tokens)) + b"".join(struct.pack("<H", len(t)) + t for t in tokens))
    file.flush()


def main():
    tokens = vocabulary()
    with tempfile.NamedTemporaryFile() as file:
        write_vocabulary(file, tokens)
        program = subprocess.Popen([str(BUILD / "tests/reference/grammar"), "masks", file.name], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        compare(program, tokens)


def explained(token):
    """Differences by design."""
    return b"\x7f" in token or len(token) - len(token.strip(b" \t\n\r")) > 8 or set(token) <= BLANKS


def compare(program, tokens):
    report, rng = Report("llguidance_masks"), random.Random(1)
    named = [t or f"<special_{i}>".encode() for i, t in enumerate(tokens)]
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Source(named)), n_vocab=len(tokens), slices=[])
    words = llguidance.numpy.allocate_token_bitmask(1, len(tokens))

    for number, schema in enumerate(SCHEMAS):
        lark = '%llguidance {"no_forcing": true}\nstart: %json ' + json.dumps(schema)
        for _ in range(WALKS):
            matcher, path, theirs = llguidance.LLMatcher(tokenizer, lark), [], []
            assert not matcher.get_error(), (schema, matcher.get_error())
            for _ in range(STEPS):
                llguidance.numpy.fill_next_token_bitmask(matcher, words, 0)
                mask = words.view(np.uint32)[0].copy()
                ends = matcher.is_accepting()
                mask[0] &= ~np.uint32(1 << 2)
                theirs.append((mask, ends))
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                allowed = [t for t in allowed if not explained(tokens[t])]
                if not allowed:
                    break
                path.append(int(rng.choice(allowed)))
                if not matcher.consume_token(path[-1]):
                    break
            masks, ends = ours(program, schema, path[:len(theirs) - 1])
            for step, ((mask, their_end), our_mask, our_end) in enumerate(zip(theirs, masks, ends)):
                differing = np.flatnonzero(np.unpackbits((mask ^ our_mask).view(np.uint8), bitorder="little"))
                so_far = b"".join(tokens[t] for t in path[:step])
                # Undeclared names: llguidance allows every \\uXXXX there, we those of control characters, as in values.
                unexplained = [tokens[t] for t in differing if not explained(tokens[t])
                               and not (so_far.endswith(b"\\") and tokens[t].startswith(b"u"))]
                if not report.check(not unexplained and their_end == our_end,
                                    f"schema {number} behind {so_far!r}: {unexplained[:6]!r}, ends {their_end} {our_end}"):
                    break
            else:
                report.check(len(masks) == len(theirs), f"schema {number}: our walk ended early behind {path}")
    report.end()


if __name__ == "__main__":
    main()
