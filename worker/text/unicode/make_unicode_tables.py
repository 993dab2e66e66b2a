#!/usr/bin/env python3
"""Writes unicode_tables.h: character classes as a three-stage table, from Unicode's data.

Usage: pip install unicodedata2==16.0.0
       python3 worker/text/unicode/make_unicode_tables.py > worker/text/unicode/unicode_tables.h

The version is that of the regex engine in the `tokenizers` library, so that both cut alike. The first
stage maps cp >> 8 to a block of 256 letters, the second holds the distinct blocks, the third the distinct
sets of classes by letter, from '@' up without the backslash. Runs of equal values are
written by macros.
Run it again only to move to another version; it is written into the table.
"""
import itertools
import sys
import textwrap

import unicodedata2 as unicodedata

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "N", "M", "P", "S"]  # bit i of a set; "N": the other numbers
SPACE, WORD, NFC_TOUCHED, TOUCHED, INERT, ACCENT = 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}
# Alphabetic though symbols: circled and squared letters.
OTHER_ALPHABETIC = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
                    *range(0x1F170, 0x1F18A)}
SHIFT = 8

# Characters with a combining class or a decomposition that came after Unicode 9. The normalizers of the
# `tokenizers` library have the tables of that version, and models have learned from what they made: these
# characters pass as they are. Found by comparing NFC, NFD, NFKC, NFKD and the order of marks for every code
# point; tests/reference/published.py does it again.
NEWER = """
7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa 32ff a7f2-a7f4 a82c ab69 105c9 105e4 10781-10785
10787-107b0 107b2-107ba 10d24-10d27 10d69-10d6d 10eab-10eac 10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 11383 11385
1138e 11391 113c5 113c7-113c8 113ce-113d0 1145e 11839-1183a 11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42
11d44-11d45 11d97 11f41-11f42 16121-16128 1612f 16d68-16d6a 16ff0-16ff1 1ccd6-1ccf9 1e030-1e06d 1e08f 1e130-1e136 1e2ae
1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1f16c 1fbf0-1fbf9"""


# Marks that came after Unicode 9, and four that were marks then: StripAccents of that library has that version too.
OTHER_MARKS = """
7fd 897-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace 1cf2-1cf3 1cf7 1df6-1dfa a82c
a8ff 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 110c2 11145-11146 111c9
111ce-111cf 11241 1133b 113b8-113c0 113c2 113c5 113c7-113ca 113cc-113d0 113d2 113e1-113e2 1145e 1182c-1183a 11930-11935
11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 119e4 11a01-11a0a 11a33-11a39 11a3b-11a3e 11a47
11a51-11a5b 11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d8a-11d8e 11d90-11d91 11d93-11d97 11ef3-11ef6
11f00-11f01 11f03 11f34-11f3a 11f3e-11f42 11f5a 13440 13447-13455 1611e-1612f 16f4f 16f7f-16f87 16fe4 16ff0-16ff1
1cf00-1cf2d 1cf30-1cf46 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef"""


def ranges(text):
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def inert():
    """Characters that no normal form touches, whatever the tables of the library that does the rest: the
    newer ones, and those that have not been assigned yet."""
    out = {cp for cp in range(0x110000) if unicodedata.category(chr(cp)) == "Cn"}
    return out.union(ranges(NEWER))


def touched(forms):
    """Characters that one of the forms changes, alone or together with what precedes them."""
    out = set()
    for cp in range(0x110000):
        ch = chr(cp)
        if 0xD800 <= cp <= 0xDFFF:
            continue
        if unicodedata.combining(ch) or any(unicodedata.normalize(form, ch) != ch for form in forms):
            out.add(cp)
        parts = unicodedata.decomposition(ch)
        if parts and not parts.startswith("<"):
            out.update(int(p, 16) for p in parts.split()[1:])
    out.update(range(0x1161, 0x1176))  # Hangul vowels and final consonants join what precedes
    out.update(range(0x11A8, 0x11C3))
    return out


def class_of(cp):
    category = unicodedata.category(chr(cp))
    bits = 0
    for name in (category, category[0]):
        if name in CATEGORIES:
            bits = 1 << CATEGORIES.index(name)
            break
    if cp in WHITE_SPACE:
        bits |= SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or cp in OTHER_ALPHABETIC or cp in (0x200C, 0x200D):
        bits |= WORD
    return bits


def runs(values):
    """(value, how often it comes) for each run of equal values."""
    return [(value, len(list(same))) for value, same in itertools.groupby(values)]


def repeated(macro, value, n, least):
    """n times value as pieces of the table: macros of 64 and 8 once there are `least`."""
    if n < least:
        return [value] * n
    return (["%s64(%s)" % (macro, value)] * (n // 64) + ["%s8(%s)" % (macro, value)] * (n % 64 // 8) +
            [value] * (n % 8))


def lines_of(letters):
    """The string in lines of 96 columns; long runs of a letter as macros."""
    out, line, plain = [], "   ", ""
    for letter, n in runs(letters):
        pieces = [letter] * n if n < 24 else repeated("S", '"%s"' % letter, n, 8)
        for piece in pieces:
            if len(line) + len(plain) + len(piece) + 4 > 99:
                out.append(line + (' "%s"' % plain if plain else ""))
                line, plain = "   ", ""
            if len(piece) == 1 or len(piece) == 3:
                plain += piece.strip('"')
                continue
            line, plain = line + (' "%s"' % plain if plain else "") + " " + piece, ""
    return out + [line + (' "%s"' % plain if plain else "")]


def main():
    fixed, other_marks, sets = inert(), set(ranges(OTHER_MARKS)), {NFC_TOUCHED: touched(["NFC"]), TOUCHED: touched(["NFC", "NFD", "NFKC", "NFKD"])}
    classes = []
    for cp in range(0x110000):
        bits = INERT if cp in fixed else sum(bit for bit, chars in sets.items() if cp in chars)
        is_mark = unicodedata.category(chr(cp))[0] == "M"
        classes.append(class_of(cp) | bits | (ACCENT if is_mark != (cp in other_marks) else 0))
    kinds = sorted(set(classes))
    kinds.insert(ord("\\") - ord("@"), 0)  # never referred to: no letter needs an escape
    blocks, index = [], []
    for at in range(0, len(classes), 1 << SHIFT):
        block = "".join(chr(ord("@") + kinds.index(c)) for c in classes[at:at + (1 << SHIFT)])
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    assert len(blocks) < 256 and ord("@") + len(kinds) < 127
    w = sys.stdout.write
    w("/* worker/text/unicode/unicode_tables.h - made by make_unicode_tables.py; do not edit.\n"
      " * Character classes of Unicode %s, each a set of UC_* (unicode.h) and of these flags: %d\n"
      " * NFC may change the character; %d some normal form may; %d no normal form changes it,\n"
      " * whatever the version of the library that normalizes; %d StripAccents removes it. */\n"
      % (unicodedata.unidata_version, NFC_TOUCHED, TOUCHED, INERT, ACCENT))
    w("#ifndef WORKER_TEXT_UNICODE_UNICODE_TABLES_H\n#define WORKER_TEXT_UNICODE_UNICODE_TABLES_H\n\n"
      "#include <stdint.h>\n\n")
    w('#define UNICODE_TABLES_VERSION "%s"\n' % unicodedata.unidata_version)
    w("#define UNICODE_SHIFT %d\n\n" % SHIFT)

    def table(decl, values):
        w("%s = {\n" % decl)
        w(textwrap.fill(", ".join(values), 99, initial_indent="    ", subsequent_indent="    "))
        w(",\n};\n\n")

    w("/* 8 and 64 times x: what an element of an array or of a string is repeated by. */\n"
      "#define N8(x)  x, x, x, x, x, x, x, x\n"
      "#define N64(x) N8(x), N8(x), N8(x), N8(x), N8(x), N8(x), N8(x), N8(x)\n"
      "#define S8(x)  x x x x x x x x\n"
      "#define S64(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x)\n\n")
    table("static const uint16_t unicode_kinds[%d]" % len(kinds), [str(k) for k in kinds])
    table("static const uint8_t unicode_index[%d]" % len(index),
          [piece for value, n in runs(index) for piece in repeated("N", str(value), n, 8)])
    w("static const char unicode_blocks[%d] =\n%s;\n\n#endif\n" %
      ((len(blocks) << SHIFT) + 1, "\n".join(lines_of("".join(blocks)))))


main()
