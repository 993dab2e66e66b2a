"""Our masks against llguidance's, token by token, over a published vocabulary of 131,072 tokens.

    llguidance_masks.py             SCHEMAS (20) of each source, 0: all; STEPS (40) masks of each schema

The sources: the table below, parameters of published tools (bfcl-eval, by pip), and the JSON-Schema-Test-Suite. Both sides follow
the same random answers: at each place the two sets are compared, and a token is drawn that both allow. Half of a schema's masks
are with white space of up to 32 characters between the tokens of JSON, half with one blank behind a comma or a colon; llguidance
is told the same rules, and its forced tokens are off. Differences by design are CAUSES, which llguidance_masks.md argues; any other
fails. Needs llguidance, mistral-common and numpy.
"""
import collections
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

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

SCHEMAS, STEPS = int(os.environ.get("SCHEMAS", "20")), int(os.environ.get("STEPS", "40"))
WALK_MAX = 50  # tokens of one answer
obj = lambda required=(), **properties: {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
TABLE = [
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
SPACES = {"free": {"whitespace_pattern": "[ \\t\\n\\r]{1,32}"},
          "compact": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
# Why one side alone may allow a token: (name in llguidance_masks.md, whose, what the schema mentions, what the text so far with the
# token has at the token).
CAUSES = [("one spelling", "theirs", "", rb"\\u[0-9A-Fa-f]*"),
          ("minus zero", "ours", 'imum"', rb"-0"),
          ("leap years", "theirs", '"date', rb"-02-29"),
          ("leap seconds", "theirs", 'time"', rb"[0-9]:[0-9]{2}:60?"),
          ("IPv4 in IPv6", "ours", "ipv6", rb":[0-9a-fA-F:.]*\."),
          ("long labels", "theirs", '"email"', rb"@([^@]*\.)?[A-Za-z0-9-]{62}([A-Za-z0-9-]{2}|-)"),
          ("spaces of ECMA", "ours", "\\\\s", rb"\xef(\xbb(\xbf)?)?"),
          ("spaces of ECMA", "theirs", "\\\\s", rb"\xc2\x85")]


class Source:
    eos_token_id, bos_token_id = 2, 1
    special_token_ids = list(range(1000))

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, text):
        return [1000 + b for b in (text if isinstance(text, bytes) else text.encode())]


def vocabulary():
    path = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json"
    data = json.loads(path.read_text())
    ordinary = [base64.b64decode(t["token_bytes"]) for t in data["vocab"]][:131072 - 1000]
    return [b""] * 1000 + ordinary


def write_vocabulary(file, tokens):
    """As grammar.c reads it."""
    file.write(struct.pack("<I", len(tokens)) + b"".join(struct.pack("<H", len(t)) + t for t in tokens))
    file.flush()


def cause_of(whose, schema, so_far, token):
    """The cause of one difference, or None. No token: of whether the answer may end here."""
    for name, side, mentions, pattern in CAUSES:
        if side != whose or mentions not in json.dumps(schema):
            continue
        if any(m.end() > len(so_far) - (not token) for m in re.finditer(pattern, so_far + token)):
            return name
    return None


class Ours:
    def __init__(self, vocabulary_path):
        self.program = subprocess.Popen([str(BUILD / "tests/reference/grammar"), "masks", vocabulary_path], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, **line):
        """The mask and whether the answer may end; or the error."""
        self.program.stdin.write(json.dumps(line) + "\n")
        self.program.stdin.flush()
        answer = json.loads(self.program.stdout.readline())
        if "error" in answer:
            return None, answer["error"]
        return np.frombuffer(bytes.fromhex(answer["mask"]), dtype=np.uint32), answer["ends"]


class Theirs:
    def __init__(self, tokens):
        named = [t or f"<special_{i}>".encode() for i, t in enumerate(tokens)]
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Source(named)), n_vocab=len(tokens), slices=[])
        self.words = llguidance.numpy.allocate_token_bitmask(1, len(tokens))

    def begin(self, schema, spaces):
        schema = {**(schema if isinstance(schema, dict) else {"allOf": [schema]}), "x-guidance": SPACES[spaces]}
        return llguidance.LLMatcher(self.tokenizer, '%llguidance {"no_forcing": true}\nstart: %json ' + json.dumps(schema), log_level=0)

    def mask(self, matcher):
        llguidance.numpy.fill_next_token_bitmask(matcher, self.words, 0)
        mask = self.words.view(np.uint32)[0].copy()
        mask[0] &= ~np.uint32(1 << Source.eos_token_id)
        return mask, matcher.is_accepting()


def ids(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")) if mask.any() else []


class Drawer:
    """Any allowed token; often one that closes, or of a rare first byte: most of a vocabulary goes on with a string."""
    def __init__(self, tokens):
        self.rng = random.Random(1)
        self.first = np.array([t[0] if t else 0 for t in tokens])
        self.closing = [t for t, text in enumerate(tokens) if text in (b'"', b"}", b"]", b"0", b"a", b",", b":")]

    def draw(self, mask, allowed):
        closing = [t for t in self.closing if mask[t // 32] >> np.uint32(t % 32) & np.uint32(1)] if self.rng.random() < 0.3 else []
        if closing:
            return self.rng.choice(closing)
        if self.rng.random() < 0.3:
            first = self.first[allowed]
            allowed = allowed[first == self.rng.choice(np.unique(first))]
        return int(allowed[self.rng.randrange(len(allowed))])


class Comparison:
    def __init__(self, ours, theirs, tokens):
        self.ours, self.theirs, self.tokens = ours, theirs, tokens
        self.report, self.drawer = Report("llguidance_masks"), Drawer(tokens)
        self.counts = collections.Counter()  # of masks by cause; of schemas

    def check(self, name, schema, so_far, masks, ends):
        """Compares two masks: (ours, theirs)."""
        ours, theirs = masks
        found = collections.defaultdict(list)
        for whose, mask in (("ours", ours & ~theirs), ("theirs", theirs & ~ours)):
            for t in ids(mask):
                found[cause_of(whose, schema, so_far, self.tokens[t])].append((whose, self.tokens[t]))
        if ends[0] != ends[1]:
            whose = "ours" if ends[0] else "theirs"
            found[cause_of(whose, schema, so_far, b"")].append((whose, "the end"))
        unexplained = found.pop(None, [])
        self.counts["masks"] += 1
        for cause in found:
            self.counts[cause] += 1
        self.report.check(not unexplained, f"{name} {json.dumps(schema)[:300]} behind {so_far!r}: {len(unexplained)} differences, {unexplained[:6]!r}")

    def walk(self, name, schema, matcher, answer, n_left):
        """Follows one answer for up to n_left masks; how many there were."""
        so_far = b""
        for step in range(min(WALK_MAX, n_left)):
            theirs, their_end = self.theirs.mask(matcher)
            ours, our_end = answer
            self.check(name, schema, so_far, (ours, theirs), (our_end, their_end))
            both = ids(ours & theirs)
            if len(both) == 0 or (our_end and self.drawer.rng.random() < 0.3):
                return step + 1
            token = self.drawer.draw(ours & theirs, both)
            so_far += self.tokens[token]
            assert matcher.consume_token(token), (name, so_far, matcher.get_error())
            answer = self.ours.ask(token=token)
            assert answer[0] is not None, (name, so_far, answer[1])
        return min(WALK_MAX, n_left)

    def compare(self, name, schema, spaces):
        """STEPS / 2 masks; False if one side refuses the schema."""
        matcher = self.theirs.begin(schema, spaces)
        self.theirs.mask(matcher)  # it finds some errors by its first mask alone
        answer = self.ours.ask(kind="json", text=json.dumps(schema), spaces=spaces)
        refused = matcher.get_error()
        if refused or answer[0] is None:
            by = "both" if refused and answer[0] is None else "llguidance" if refused else "us"
            self.counts[f"schemas refused by {by}"] += 1
            if os.environ.get("VERBOSE") and by != "both":
                print(f"refused by {by}: {name} {json.dumps(schema)[:200]}: {(refused or answer[1]).splitlines()[0][:200]}", flush=True)
            return False
        n_left = STEPS // 2
        while n_left > 0:
            n_left -= self.walk(name, schema, matcher, answer, n_left)
            if n_left > 0:
                matcher, answer = self.theirs.begin(schema, spaces), self.ours.ask()
        return True

    def run(self, sources):
        began, n = time.monotonic(), 0
        for source, schemas in sources:
            for number, schema in enumerate(schemas):
                if all(self.compare(f"{source} {number}", schema, spaces) for spaces in SPACES):
                    self.counts["schemas"] += 1
                n += 1
                if n % 100 == 0:
                    print(f"{n} schemas, {self.counts['masks']} masks, {time.monotonic() - began:.0f} s", flush=True)
        for what, count in sorted(self.counts.items()):
            print(f"{count:8} {what}")
        self.report.end()


def sources():
    from grammar_speed import schemas
    from json_schema_suite import groups
    drawn = random.Random(1)
    tools, suite = [json.loads(s) for s in schemas()], [group["schema"] for _, group in groups(without=())]
    for name, all_of_it in (("table", TABLE), ("bfcl", tools), ("suite", suite)):
        drawn.shuffle(all_of_it)
        yield name, all_of_it[:SCHEMAS or None]


def main():
    tokens = vocabulary()
    with tempfile.NamedTemporaryFile() as file:
        write_vocabulary(file, tokens)
        Comparison(Ours(file.name), Theirs(tokens), tokens).run(sources())


if __name__ == "__main__":
    main()
