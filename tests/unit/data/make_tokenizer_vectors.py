#!/usr/bin/env python3
"""Makes small tokenizers and what the Hugging Face `tokenizers` library encodes with them.

Usage: pip install tokenizers; python3 tests/unit/data/make_tokenizer_vectors.py
Writes tokenizer_{gpt2,qwen2,llama3}.json and tokenizer_vectors.json beside itself. Not needed to run
the tests: its outputs are committed.
"""
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, \
    processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

CORPUS = """The quick brown fox jumps over the lazy dog. It's what we've said: they'll come, I'm sure, he'd go.
In 2024 there were 1,234,567 people and 3.14159 reasons; e-mail us at someone@example.org.
Füße, naïve café, Ελληνικά και русский язык, 日本語のテキスト、中文文本。 हिन्दी पाठ, العربية.
def main(argc, argv):\n    return {"key": [1, 2, 3], "other": None}\n\n\tif x == y:\n\t\tprint('yes')
<html><body class="page">text</body></html> // comment --- ### !!! ??? ... 😀😃😄 👍🏽
"""
TEXTS = [
    "", " ", "  ", "\n", " \n", "\n ", "\t\n \r\n  x", "a", "Hello, world!", "hello  world   !",
    "It's, IT'S, we've WE'VE they'll I'm he'd don't 'x 'S'T're", "x'ſ ' s",
    "1 12 123 1234 12345 1234567 ١٢٣٤ ⅷ ½²", "a1b22c333d4444", "  leading and trailing  ",
    "line one\nline two\r\nline three\n\n\nend", "tabs\t\tand   spaces \t mixed\n\n   x", "...\n\n...x",
    "!?!\r\n\r\n  y", "café café Å Å ﬁ 각 각 क़", "日本語のテキストと中文文本。Ελληνικά",
    "हिन्दी पाठ नमस्ते", "العربية ١", "😀😃 👍🏽 👩‍👩‍👧‍👦🇫🇷", "a\u00a0b\u2003c\u3000d\u0085e\u2028f",
    "zero\u200bwidth\u00adsoft", "\u0001\u007f", "_under_score_ __init__ snake_case CamelCase",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|<|im_end|>x<|im_end|>", "<|endoftext|><|endoftext|>",
    "foo food foo. _foo foo_ éfoo fooé afoo foo", "a  <mask>  b<mask>c\n<mask>\n", "Käse Käse x",
    "ab abc abcd abcde bcd", "<|eot|><|eot_id|><|eot_id", "{\"a\": [1, 2.5e-3, null]}\n",
    "    return x  # comment\n\n\n        y = 'don''t'", "x" * 100, "ab" * 60, " " * 70 + "a", "\n" * 60,
    "1" * 100, "!" * 100, "é" * 80, "日" * 50, "the the the the theme other", "tHE QUICK",
    "Aa\u0301\u0323b q\u0307\u0323 \u1e0b\u0323", "Ω Ω K Å \u2126\u212a\u212b",
]


def random_texts(n, seed=7):
    rng = random.Random(seed)
    alphabet = list("aAbeh st'SlLrvmd019.,!-_\n\r\t  ") + [
        "é", "e\u0301", "ß", "日", "ह", "न्", "😀", "\u00a0", "\u3000", "'s", "'LL", "<|im_end|>", "<mask>",
        "foo", "the", "ab", "²", "١", "\u0301", "가", "\u1100\u1161", "ſ"]
    for _ in range(n):
        yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 40)))


def make(style):
    tok = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    if style == "gpt2":
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        regex = QWEN2 if style == "qwen2" else LLAMA3
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if style == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, min_frequency=1, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([CORPUS], trainer)
    if style == "llama3":  # a token no merge makes: ignore_merges finds it all the same
        data = json.loads(tok.to_str())
        data["model"]["vocab"]["\u0120theme"] = len(data["model"]["vocab"])
        tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|eot_id|>"])
    tok.add_tokens([AddedToken("foo", single_word=True, normalized=True),
                    AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
                    AddedToken("K\u00e4se", normalized=True), AddedToken("abc", normalized=False),
                    AddedToken("abcde", normalized=False)])
    if style == "llama3":
        bos = tok.token_to_id("<|endoftext|>")
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A <|eot|>",
                                          special_tokens=[("<|endoftext|>", bos),
                                                          ("<|eot|>", tok.token_to_id("<|eot|>"))])])
    return tok


def main():
    vectors = []
    for style in ("gpt2", "qwen2", "llama3"):
        tok = make(style)
        name = "tokenizer_%s.json" % style
        with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
            json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        cases = [*TEXTS, *random_texts(150)]
        vectors.append({"tokenizer": name, "cases": [
            {"text": t, "ids": tok.encode(t, add_special_tokens=False).ids,
             "special": tok.encode(t, add_special_tokens=True).ids} for t in cases]})
    with open(os.path.join(HERE, "tokenizer_vectors.json"), "w", encoding="utf-8") as f:
        json.dump(vectors, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


main()
