#!/usr/bin/env python3
"""Writes unicode_tables.h: character classes as a three-stage table, from Unicode's data.

Usage: pip install unicodedata2==16.0.0
       python3 worker/text/make_unicode_tables.py > worker/text/unicode_tables.h

The version is that of the regex engine in the `tokenizers` library, so that both cut alike. The first
stage maps cp >> 8 to a block of 256 bytes, the second holds the distinct blocks, the third the distinct
sets of classes. Run it again only to move to another version; it is written into the table.
"""
import sys

import unicodedata2 as unicodedata

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "N", "M", "P", "S"]  # bit i of a set; "N": the other numbers
SPACE, WORD, NFC_TOUCHED = 1 << 10, 1 << 11, 1 << 12
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}
# Alphabetic though symbols: circled and squared letters.
OTHER_ALPHABETIC = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
                    *range(0x1F170, 0x1F18A)}
SHIFT = 8


def touched_by_nfc():
    """Characters whose presence may mean that a text is not in NFC."""
    out = set()
    for cp in range(0x110000):
        ch = chr(cp)
        if 0xD800 <= cp <= 0xDFFF:
            continue
        if unicodedata.combining(ch) or unicodedata.normalize("NFC", ch) != ch:
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


def main():
    touched = touched_by_nfc()
    classes = [class_of(cp) | (NFC_TOUCHED if cp in touched else 0) for cp in range(0x110000)]
    kinds = sorted(set(classes))
    blocks, index = [], []
    for at in range(0, len(classes), 1 << SHIFT):
        block = bytes(kinds.index(c) for c in classes[at:at + (1 << SHIFT)])
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    assert len(blocks) < 256 and len(kinds) < 256
    w = sys.stdout.write
    w("/* worker/text/unicode_tables.h - made by make_unicode_tables.py; do not edit.\n"
      " * Character classes of Unicode %s: UC_* of unicode.h, and %d for what NFC may touch. */\n"
      % (unicodedata.unidata_version, NFC_TOUCHED))
    w("#ifndef WORKER_TEXT_UNICODE_TABLES_H\n#define WORKER_TEXT_UNICODE_TABLES_H\n\n"
      "#include <stdint.h>\n\n")
    w('#define UNICODE_TABLES_VERSION "%s"\n' % unicodedata.unidata_version)
    w("#define UNICODE_SHIFT %d\n\n" % SHIFT)

    def table(decl, values):
        w("%s = {\n" % decl)
        for i in range(0, len(values), 24):
            w("    %s,\n" % ",".join(str(v) for v in values[i:i + 24]))
        w("};\n\n")

    table("static const uint16_t unicode_kinds[%d]" % len(kinds), kinds)
    table("static const uint8_t unicode_index[%d]" % len(index), index)
    table("static const uint8_t unicode_blocks[%d]" % (len(blocks) << SHIFT), b"".join(blocks))
    w("#endif\n")


main()
