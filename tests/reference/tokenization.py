"""Our tokenizers against the tokenizers library, style by style.

Each style is a small tokenizer in the form of a published family, trained here on text made here. Thousands
of texts (real words of many languages, random characters, code, tokens spelled in text, long runs) must give
the same ids, without and with what the post-processor adds; ids, also random ones, must give the same text,
with and without special tokens. That streamed text is the same as text at once is checked by the program
that answers (text.c), token by token.

    tokenization.py              all styles, TEXTS texts each
    tokenization.py NAME ...     styles whose names contain one of these
    tokenization.py --fixtures   writes tests/data/tokenizers again, for tests/unit/worker/text
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from common import BUILD, DATA, Report

TEXTS = int(os.environ.get("TEXTS", "10000"))
BLANK = "\u2581"

# The published expressions.
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
          r"|\s*[\r\n]|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
               r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_LLM = ["[\r\n]", "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u0373\u0376\u0377"
                "\u0388-\u03ff\u0400-\u0481\u048a-\u052f\u1e00-\u1fff]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
                "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]

WORDS = """the quick brown fox jumps over a lazy dog it's what we've said they'll come I'm sure he'd go
don't isn't theme other and so on und die Füße über naïve café façade Ελληνικά και русский язык это 日本語 の
テキスト 中文 文本 हिन्दी पाठ العربية لغة 한국어 문장 ไทย def return class import None True self x == y != z ==> <= >=
{"key": [1, 2.5e-3, null]} 2024 1,234,567 3.14159 e-mail someone@example.org https://example.org/a?b=c&d
<html> <body class="page"> // comment --- ### !!! ??? ... 😀 👍🏽 👩‍👩‍👧‍👦 🇫🇷 snake_case CamelCase HTTPServer iPhone
__init__ ½ ² ⅷ ١٢٣ Å ﬁ ǅ ﬀ""".split()
GAPS = [" "] * 30 + ["  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "", "\u00a0", "\u3000", "\u2003"]
PARTS = list("aAbeh st'SlLrvmdk019.,!-_\n\r\t  ▁<>&") + [
    "é", "e\u0301", "ß", "İ", "日", "ह", "न्", "😀", "\u00a0", "\u3000", "\u2028", "\u0085", "'s", "'LL", "'ſ",
    "<|im_end|>", "<|im_start|>", "<mask>", "foo", "the", "ab", "abcde", "²", "١", "\u0301", "가", "\u1100\u1161",
    "ſ", "K", "<s>", "</s>", "<unk>", "<0x41>", "▁▁", "▁the", "\u200d", "Ⓐ", "ⅷ", "…", "¿", "€", "\x01", "\x7f",
    "\ufeff", "\ufffd", "𝔘", "𠀀", "\U0001f1eb\U0001f1f7", "Käse", "\u0323\u0307"]


def sentence(rng, n):
    return "".join(rng.choice(WORDS) + rng.choice(GAPS) for _ in range(n))


def corpus():
    rng = random.Random(5)
    return [sentence(rng, 30) for _ in range(400)]


def texts(n, seed):
    """Words of many languages, random characters, and what is made to cost."""
    rng = random.Random(seed)
    yield from ["", " ", "  ", "\n", " \n", "a", " a", "a ", "▁", "▁a", "\u0301", "<s>", "<s> a", "a<s>", "foo", "foofoo",
                " foo foo. xfoo foox", "a  <mask>  b<mask>c", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|<|im_end|>"]
    for unit in ("a", " ", "\n", "ab", "日", "😀", "é", "1", "!", "'", "▁", "\u0301" if n < 0 else "x", "the ", "<", "A"):
        for length in (3, 17, 64, 200, 1000):
            yield unit * length
            yield " " + unit * length + " end"
    for i in range(n):
        kind = i % 4
        if kind == 0:
            yield sentence(rng, rng.randrange(1, 25))
        elif kind == 1:
            yield "".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 40)))
        elif kind == 2:
            yield "".join(chr(rng.choice((rng.randrange(0x20, 0x7f), rng.randrange(0x80, 0x800),
                                          rng.randrange(0x900, 0xd7a0), rng.randrange(0x10000, 0x10400),
                                          rng.randrange(0x1f300, 0x1f650)))) for _ in range(rng.randrange(1, 30)))
        else:
            yield "".join(rng.choice(PARTS) * rng.choice((1, 1, 1, 2, 5, 40)) + rng.choice(WORDS)
                          for _ in range(rng.randrange(1, 12)))


SIZE = 1200 if sys.argv[1:] != ["--fixtures"] else 460  # of a vocabulary: small where it is committed


def train(pre_tokenizer, normalizer=None, size=SIZE, alphabet=(), specials=()):
    tok = Tokenizer(models.BPE())
    tok.normalizer, tok.pre_tokenizer = normalizer, pre_tokenizer
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, show_progress=False, initial_alphabet=list(alphabet),
        special_tokens=list(specials)))
    return tok


ADDED = [AddedToken("foo", single_word=True, normalized=True), AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
         AddedToken("abc", normalized=False), AddedToken("abcde", normalized=False), AddedToken("Cafe x", normalized=True)]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|eot_id|>"]


def byte_level(splits=(), normalizer=None, ignore_merges=False, prefix=False, use_regex=False, digits=None, frame=False):
    steps = [pre_tokenizers.Split(Regex(s), "isolated") for s in splits]
    if digits is not None:
        steps.append(pre_tokenizers.Digits(individual_digits=digits))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex))
    pre = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tok = train(pre, normalizer, alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.decoder = decoders.ByteLevel()
    if ignore_merges:  # tokens that no merge makes: they are found all the same
        data = json.loads(tok.to_str())
        data["model"]["ignore_merges"] = True
        for word in ("\u0120themes", "\u0120jumpsuit", "foxes"):
            data["model"]["vocab"][word] = len(data["model"]["vocab"])
        tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens(SPECIALS)
    tok.add_tokens(ADDED)
    if frame:
        ids = [(t, tok.token_to_id(t)) for t in ("<|endoftext|>", "<|eot|>")]
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A <|eot|>", special_tokens=ids)])
    return tok


def characters(normalizer, pre_tokenizer, decoder, trained_with, byte_fallback=True, fuse_unk=True, unk="<unk>", size=SIZE,
               trained_normalizer=None):
    """A vocabulary of characters in Llama-2's form: unk, bos, eos, the bytes, then pieces."""
    trained = json.loads(train(trained_with, trained_normalizer, size).to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % b for b in range(256)] if byte_fallback else [])
    # Rare characters are left out, so that something is unknown.
    rare = {c for c in trained["vocab"] if len(c) == 1 and ord(c) > 0x2fff and ord(c) % 3 == 0}
    merges = [m for m in trained["merges"] if not rare & set("".join(m))]
    kept = [t for t in sorted(trained["vocab"], key=trained["vocab"].get) if not rare & set(t)]
    names += [t for t in dict.fromkeys(kept + [BLANK]) if t not in names]
    model = {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": fuse_unk, "byte_fallback": byte_fallback, "ignore_merges": False,
             "vocab": {t: i for i, t in enumerate(names)}, "merges": merges}
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, t in enumerate(names[:3])]
    tok = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
                                         "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                                         "decoder": None, "model": model}))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizer, pre_tokenizer, decoder
    tok.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tok.add_tokens(ADDED)
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def styles():
    n, p, d = normalizers, pre_tokenizers, decoders
    spaced = n.Sequence([n.Prepend(BLANK), n.Replace(" ", BLANK)])
    bytes_then_strip = d.Sequence([d.Replace(BLANK, " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    no_strip = d.Sequence([d.Replace(BLANK, " "), d.ByteFallback(), d.Fuse()])
    words = p.Metaspace(prepend_scheme="always", split=True)
    return {
        "gpt2": lambda: byte_level(use_regex=True),
        "roberta-prefix": lambda: byte_level(use_regex=True, prefix=True, frame=True),
        "qwen2": lambda: byte_level([QWEN2], n.NFC()),
        "qwen3.5": lambda: byte_level([QWEN35], n.NFC()),
        "llama3": lambda: byte_level([LLAMA3], ignore_merges=True, frame=True),
        "cl100k": lambda: byte_level([CL100K]),
        "o200k": lambda: byte_level([O200K]),
        "deepseek-v3": lambda: byte_level(DEEPSEEK_V3),
        "deepseek-llm": lambda: byte_level(DEEPSEEK_LLM, digits=True),
        "digits-then-gpt2": lambda: byte_level(digits=False, use_regex=True),
        "library-regex": lambda: byte_level([r"(?<=[a-z])[A-Z]+|(?<!\d)\d{2}(?!\d)|(?:ab)+"], use_regex=True),
        "llama2-legacy": lambda: characters(spaced, None, bytes_then_strip, words),
        "llama2-metaspace": lambda: characters(None, p.Metaspace(prepend_scheme="first", split=False), bytes_then_strip, words),
        "mistral-always": lambda: characters(None, p.Metaspace(prepend_scheme="always", split=False), bytes_then_strip, words),
        "metaspace-split": lambda: characters(None, words, d.Metaspace(), words),
        "metaspace-never": lambda: characters(None, p.Metaspace(prepend_scheme="never", split=True),
                                              d.Metaspace(prepend_scheme="never"), words),
        "gemma": lambda: characters(n.Replace(" ", BLANK), p.Split(" ", "merged_with_previous"), no_strip, words),
        "merges-across-blanks": lambda: characters(spaced, None, bytes_then_strip, p.Split("\n", "isolated"),
                                                   trained_normalizer=n.Replace(" ", BLANK)),
        "unk-fused": lambda: characters(spaced, None, bytes_then_strip, words, byte_fallback=False),
        "unk-each": lambda: characters(spaced, None, bytes_then_strip, words, byte_fallback=False, fuse_unk=False),
        "dropped": lambda: characters(spaced, None, bytes_then_strip, words, byte_fallback=False, unk=None),
        "folded": lambda: characters(
            n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase(), n.Strip(), n.Replace(Regex(r"\s{2,}"), " "), n.NFC()]),
            p.Sequence([p.Whitespace(), p.Punctuation("contiguous"), p.Digits(individual_digits=False)]), no_strip,
            p.Whitespace()),
        "behaviors": lambda: characters(
            n.NFKC(), p.Sequence([p.WhitespaceSplit(), p.Split("e", "merged_with_next"), p.Punctuation("merged_with_previous"),
                                  p.CharDelimiterSplit("_"), p.Split(Regex("[0-9]+"), "removed", invert=False)]), no_strip,
            p.Whitespace()),
    }


# Normal forms follow the Unicode version of each library; texts for these keep to old characters.
def is_fair(name, text):
    if name in ("qwen2", "qwen3.5", "folded", "behaviors"):
        return all(ord(c) < 0x10000 or 0x1f300 <= ord(c) < 0x1f600 for c in text) and "\u0323\u0307" not in text
    return True


class Ours:
    def __init__(self, folder):
        self.p = subprocess.Popen([BUILD / "tests/reference/text", "tokenize", folder], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, question):
        self.p.stdin.write(json.dumps(question, ensure_ascii=False) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"the program died ({self.p.wait()}) over {question!r}")
        return json.loads(line)

    def end(self):
        self.p.stdin.close()
        return self.p.wait()


def expected(tok, text):
    ids = tok.encode(text, add_special_tokens=False).ids
    framed = tok.encode(text, add_special_tokens=True).ids
    return {"ids": ids, "framed": framed, "decoded": tok.decode(framed, skip_special_tokens=False),
            "plain": tok.decode(framed, skip_special_tokens=True)}


def compare(report, name, tok, n):
    rng = random.Random(11)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(tok.to_str(), encoding="utf-8")
        ours = Ours(folder)
        n_texts = n_failed = 0
        for text in texts(n, 3):
            if not is_fair(name, text):
                continue
            n_texts += 1
            want, got = expected(tok, text), ours.ask({"text": text})
            if not report.check(got == want, f"{name}: {text[:80]!r}\n  want {str(want)[:700]}\n  got  {str(got)[:700]}"):
                n_failed += 1
                if n_failed > 5:
                    break
        vocab = tok.get_vocab_size()
        byte_ids = [tok.token_to_id("<0x%02X>" % b) for b in range(256)]
        for _ in range(n // 5):
            ids = [rng.choice((rng.randrange(vocab), rng.choice(byte_ids) or 0)) for _ in range(rng.randrange(1, 30))]
            want = {"decoded": tok.decode(ids, skip_special_tokens=False), "plain": tok.decode(ids, skip_special_tokens=True)}
            got = ours.ask({"ids": ids})
            if not report.check(got == want, f"{name}: ids {ids}\n  want {want}\n  got  {got}"):
                n_failed += 1
                if n_failed > 5:
                    break
        report.check(ours.end() == 0, f"{name}: the program's exit status")
        print(f"{name}: {n_texts} texts, {n // 5} lists of ids", flush=True)


def fixtures():
    folder = DATA / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in styles().items():
        tok = make()
        cases = [t for t in texts(24, 17) if is_fair(name, t) and (len(t) < 20 or len(set(t)) > 9 and len(t) < 90)]
        data = {"tokenizer": json.loads(tok.to_str()), "cases": [{"text": t, **expected(tok, t)} for t in cases]}
        (folder / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n",
                                             encoding="utf-8")


CORPUS = corpus()


def main():
    if sys.argv[1:] == ["--fixtures"]:
        fixtures()
        return
    report = Report("tokenization")
    for name, make in styles().items():
        if not sys.argv[1:] or any(part in name for part in sys.argv[1:]):
            compare(report, name, make(), TEXTS)
    report.end()


if __name__ == "__main__":
    main()
