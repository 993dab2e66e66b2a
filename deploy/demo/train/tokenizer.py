"""tokenizer.py - the byte-level BPE of the demonstration model: training, encoding, and its tokenizer.json.

Vocabulary, 2048 ids:
    0..255       the bytes
    256..2043    merges, in rank order
    2044..2047   <|endoftext|> <|im_start|> <|im_end|> <|pad|>

Text is first cut by the Qwen2 pattern (digits alone, one leading non-letter glued to a word), then each cut is
merged by rank. The merges are learnt in two rounds, so that a word is cut the same way wherever it stands:
round one sees words without their leading space, dot or at-sign; round two only glues such a leading character
(or joins runs of spaces and punctuation). So "|  kalmoth", ".kalmoth@" and "is kalmoth" share all pieces but
perhaps the first, and copying e-mail addresses out of a table needs no respelling.

Needs only the standard library. tests/unit/data/demo_tokenizer_vectors.json holds cross-checks made with the
Hugging Face "tokenizers" library (see make_vectors.py).
"""
import json
import random
import re
import sys
import unicodedata
from collections import Counter

VOCAB_SIZE = 2048
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
FIRST_SPECIAL = VOCAB_SIZE - len(SPECIALS)
N_WORD_MERGES = 1130              # round one; the rest of the room goes to round two

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"   # Unicode White_Space


def _category_ranges(initial):
    """The code points whose general category begins with initial, as the inside of a character class."""
    ranges, start = [], None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code))[0] == initial
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            ranges.append("%s-%s" % (re.escape(chr(start)), re.escape(chr(code - 1))))
            start = None
    return "".join(ranges)


def compile_pattern():
    """QWEN2_PATTERN in the words of the standard re module, which knows neither \\p{L} nor \\p{N}."""
    letters, numbers = _category_ranges("L"), _category_ranges("N")
    source = QWEN2_PATTERN.replace(r"[^\r\n\p{L}\p{N}]", r"[^\r\n%s%s]" % (letters, numbers))
    source = source.replace(r"[^\s\p{L}\p{N}]", "[^%s%s%s]" % (WHITE_SPACE, letters, numbers))
    source = source.replace(r"\p{L}", "[%s]" % letters).replace(r"\p{N}", "[%s]" % numbers)
    source = source.replace(r"(?!\S)", "(?![^%s])" % WHITE_SPACE).replace(r"\s", "[%s]" % WHITE_SPACE)
    return re.compile(source)


def byte_characters():
    """GPT-2's printable character for every byte, as tokenizer.json spells tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, shifted = {}, 0
    for byte in range(256):
        if byte in plain:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + shifted)
            shifted += 1
    return table


class Tokenizer:
    """Encodes text to ids; special tokens are recognised where they stand literally in the text."""

    def __init__(self, merges):
        self.merges = merges                                    # [(left bytes, right bytes)] in rank order
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.ids = {bytes([byte]): byte for byte in range(256)}
        for left, right in merges:
            self.ids.setdefault(left + right, len(self.ids))
        assert len(self.ids) <= FIRST_SPECIAL
        self.special_ids = {text: FIRST_SPECIAL + i for i, text in enumerate(SPECIALS)}
        self.bytes_of = {number: piece for piece, number in self.ids.items()}
        self.bytes_of.update({number: text.encode() for text, number in self.special_ids.items()})
        self.pattern = compile_pattern()
        self.special_pattern = re.compile("(" + "|".join(re.escape(s) for s in SPECIALS) + ")")
        self.cache = {}

    @classmethod
    def load(cls, path):
        """Reads the merges of a tokenizer.json written by save()."""
        byte_of = {character: byte for byte, character in byte_characters().items()}
        decode = lambda text: bytes(byte_of[character] for character in text)
        merges = json.load(open(path, encoding="utf-8"))["model"]["merges"]
        return cls([tuple(decode(part) for part in merge.split(" ")) for merge in merges])

    def _encode_word(self, word):
        known = self.cache.get(word)
        if known is not None:
            return known
        pieces = [bytes([byte]) for byte in word.encode("utf-8")]
        while len(pieces) > 1:
            rank, at = min((self.ranks.get((pieces[i], pieces[i + 1]), 1 << 30), i) for i in range(len(pieces) - 1))
            if rank == 1 << 30:
                break
            pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]
        ids = [self.ids[piece] for piece in pieces]
        if len(self.cache) > 200000:
            self.cache.clear()
        self.cache[word] = ids
        return ids

    def encode(self, text):
        ids = []
        for part in self.special_pattern.split(text) if "<|" in text else (text,):
            if part in self.special_ids:
                ids.append(self.special_ids[part])
            else:
                for match in self.pattern.finditer(part):
                    ids += self._encode_word(match.group())
        return ids

    def decode(self, ids):
        return b"".join(self.bytes_of[i] for i in ids).decode("utf-8", "replace")

    def save(self, path):
        """Writes a standard Hugging Face tokenizer.json."""
        spell = byte_characters()
        word = lambda piece: "".join(spell[byte] for byte in piece)
        vocab = {word(piece): number for piece, number in sorted(self.ids.items(), key=lambda item: item[1])}
        document = {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for text, number in self.special_ids.items()],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": vocab, "merges": [word(a) + " " + word(b) for a, b in self.merges]}}
        with open(path, "w", encoding="utf-8") as out:
            json.dump(document, out, ensure_ascii=False, indent=0)
            out.write("\n")


# ---- training -------------------------------------------------------------------------------------

def learn_merges(words, n_merges, allowed=lambda left, right: True):
    """The n_merges most frequent pairs, one after the other. words: {bytes: count} or [(pieces, count)].

    Returns (merges, [(pieces, count)]). Pair counts are kept up to date word by word."""
    entries = [[list(pieces), count] for pieces, count in words]
    pair_counts, where = Counter(), {}
    for index, (pieces, count) in enumerate(entries):
        for pair in zip(pieces, pieces[1:]):
            pair_counts[pair] += count
            where.setdefault(pair, set()).add(index)
    merges = []
    while len(merges) < n_merges:
        candidates = ((count, pair) for pair, count in pair_counts.items() if count > 0 and allowed(*pair))
        best = max(candidates, default=None)
        if best is None:
            break
        left, right = best[1]
        merges.append((left, right))
        for index in where.pop((left, right)):
            pieces, count = entries[index]
            for pair in zip(pieces, pieces[1:]):
                pair_counts[pair] -= count
            i = 0
            while i < len(pieces) - 1:
                if pieces[i] == left and pieces[i + 1] == right:
                    pieces[i:i + 2] = [left + right]
                i += 1
            for pair in zip(pieces, pieces[1:]):
                pair_counts[pair] += count
                where.setdefault(pair, set()).add(index)
        pair_counts.pop((left, right), None)
    return merges, entries


def train(texts):
    """The two rounds described at the top of this file."""
    pattern = compile_pattern()
    special = re.compile("|".join(re.escape(s) for s in SPECIALS))
    cuts = Counter()
    for text in texts:
        for part in special.split(text):
            cuts.update(match.group() for match in pattern.finditer(part))
    split = lambda raw: [bytes([byte]) for byte in raw.encode("utf-8")]
    bare_words = Counter()
    for cut, count in cuts.items():
        bare = cut if cut[0].isalpha() else cut[1:]
        if bare.isalpha():
            bare_words[bare] += count
    word_merges, _ = learn_merges([(split(w), c) for w, c in bare_words.items()], N_WORD_MERGES)
    first_round = Tokenizer(word_merges)
    pieces = [([first_round.bytes_of[i] for i in first_round._encode_word(cut)], count)
              for cut, count in cuts.items()]
    letter = re.compile(rb"[A-Za-z]")
    glues = lambda left, right: not letter.search(left) and (len(left) == 1 or not letter.search(right))
    glue_merges, _ = learn_merges(pieces, FIRST_SPECIAL - 256 - len(word_merges), glues)
    return Tokenizer(word_merges + glue_merges)


def training_texts(n_tables=1200, seed=1):
    """Text of the kind the model will read: tables with questions, and prompts without tables."""
    import generate
    rng = random.Random(seed)
    texts = []
    for _ in range(n_tables):
        fields = generate.FIELDS if rng.random() < 0.6 else rng.sample(generate.FIELDS, rng.randint(1, 6))
        sample = generate.table_sample(rng, rng.randint(3, 14), fields, 6, rng.random() < 0.5, generate.Mix())
        texts.append(sample.prefix)
        texts += ["".join(text for _, text in branch) for branch in sample.branches]
        sample = generate.no_table_sample(rng, 4)
        texts += ["".join(text for _, text in branch) for branch in sample.branches]
    return texts


if __name__ == "__main__":
    out_path = sys.argv[1]
    corpus = training_texts()
    tokenizer = train(corpus)
    tokenizer.save(out_path)
    n_tokens = sum(len(tokenizer.encode(text)) for text in corpus)
    print("%d tokens in the vocabulary, %.2f characters per token" % (
        len(tokenizer.ids) + len(SPECIALS), sum(map(len, corpus)) / n_tokens))
