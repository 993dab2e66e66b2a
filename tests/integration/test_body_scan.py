"""The router's body scan against Python's json, over random documents, good and broken.

The scan reads structure alone: numbers, literals and escapes inside values are the worker's to judge.
So a document that Python refuses may pass, but only for one of those; and one that Python takes may be
refused only for a limit that body_scan.h names.
"""
import json
import random
import re
import subprocess

from conftest import BUILD

KEYS = ["model", "messages", "system", "prompt", "text", "input_ids", "tools", "cache_salt", "lora_path", "adapter", "stream",
        "max_tokens", "max_completion_tokens", "sampling_params", "prompt_cache_key", "session_id", "user", "extra_key",
        "priority"]
LIMITS = ("is not a JSON object", "nests deeper than 64", " twice, again at byte", "more than 256 top-level keys",
          "has a key of")
N_DOCUMENTS = 6000


def random_text(r):
    pieces = ["plain words ", "\"", "\\", "/", "{", "}", "[1,2]", ":", ",", "\n", "\t", "\x7f", "é", "漢字", "🙂", "\ud800", "\u0000",
              "x" * r.randrange(80), "\\\\", "\\\"", "null", " "]
    return "".join(r.choice(pieces) for _ in range(r.randrange(6)))


def random_value(r, depth):
    kind = r.randrange(8 if depth < 4 else 5)
    if kind <= 1:
        return random_text(r)
    if kind == 2:
        return r.choice([True, False, None])
    if kind == 3:
        return r.choice([0, -1, 17, 10**20, 1.5, -2.5e-9, 1e300])
    if kind == 4:
        return r.choice([[], {}, ""])
    if kind == 5:
        return [random_value(r, depth + 1) for _ in range(r.randrange(5))]
    return {r.choice([*KEYS, random_text(r)]): random_value(r, depth + 1) for _ in range(r.randrange(5))}


def with_blanks(r, text):
    """Blanks wherever they may stand; strings are kept."""
    def spread(match):
        return match[0] if match[0][0] == '"' else r.choice(["", " ", "\n", "\t\r ", ""]) + match[0] + r.choice(["", " "])
    return re.sub(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]', spread, text)


def deep(r):
    n = r.choice([3, 60, 62, 63, 64, 65, 90])
    return '{"messages":' + "[" * n + "]" * n + "}"


def random_document(r):
    if r.random() < 0.03:
        return deep(r).encode()
    top = {r.choice([*KEYS, *KEYS, random_text(r)]): random_value(r, 1) for _ in range(r.randrange(12))}
    text = json.dumps(top if r.random() < 0.97 else random_value(r, 0), ensure_ascii=r.random() < 0.5)
    body = with_blanks(r, text).encode(errors="surrogatepass")
    if r.random() < 0.05:  # a key spelt with an escape
        body = body.replace(b'"m', b'"\\u006d', 1)
    for _ in range(r.choice([0, 0, 1, 2])):
        at = r.randrange(len(body) + 1)
        change = r.randrange(4)
        if change == 0:
            body = body[:at] + body[at + 1:]
        elif change == 1:
            body = body[:at] + r.choice([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"1", b"x", b"\x01", b"\xc3", b"\xff",
                                         b"\n", b"\xed\xa0\x80", b"'"]) + body[at:]
        elif change == 2:
            body = body[:at]
        else:
            body = body[:at] + body[at:at + 8] + body[at:]
    return body


def python_reads(body):
    """The value, or None; constants that are not JSON are refused as RFC 8259 does."""
    try:
        return [json.loads(body.decode(), parse_constant=lambda name: 1 / 0)]
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def structure_alone(body):
    """The document with every string and every scalar made harmless: what the scan vouches for."""
    text = body.decode()  # bad UTF-8 is structure
    if re.search(r'"(?:[^"\\]|\\.)*[\x00-\x1f]', re.sub(r'"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*"', "0", text), re.S):
        raise ValueError("a control byte in a string")
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text, flags=re.S)
    return json.loads(re.sub(r'[0-9A-Za-z+.\-]+', "0", text))


def verdicts(documents):
    fed = b"".join(b"%d\n%s" % (len(d), d) for d in documents)
    done = subprocess.run([str(BUILD / "tests/integration/body_spans")], input=fed, stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode(errors="replace").splitlines()
    assert len(lines) == len(documents)
    return lines


def check_accepted(body, found, read):
    spans = {key: tuple(map(int, span.split(":"))) for key, span in (f.split("=") for f in found)}
    if read is None:
        structure_alone(body)  # raises when it was more than a number, a literal or an escape
        return
    (value,) = read
    assert isinstance(value, dict)
    assert set(spans) == set(value) & set(KEYS), (body, spans)
    for key, (offset, length) in spans.items():
        assert json.loads(body[offset:offset + length].decode()) == value[key], (body, key)


def test_the_scan_agrees_with_python():
    r = random.Random(20)
    documents = [random_document(r) for _ in range(N_DOCUMENTS)]
    n_accepted = n_looser = n_limited = 0
    for body, line in zip(documents, verdicts(documents)):
        verdict, *rest = line.split(" ")
        read = python_reads(body)
        if verdict == "ok":
            n_accepted += 1
            n_looser += read is None
            check_accepted(body, rest[:-1], read)
        else:
            assert rest[-1] == "-" or any(limit in line for limit in LIMITS), (body, line)  # nor does our own reader take it
            if read is not None:
                n_limited += 1
                assert any(limit in line for limit in LIMITS), (body, line)
    # The generator makes all of it: taken by both, by one alone, by none.
    assert n_accepted > N_DOCUMENTS / 3 and n_looser > 30 and n_limited > 100 and n_accepted < N_DOCUMENTS * 0.9
