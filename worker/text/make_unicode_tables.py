#!/usr/bin/env python3
"""Writes unicode_tables.h: character classes as a two-stage table, from Python's unicodedata.

Usage: python3 worker/text/make_unicode_tables.py > worker/text/unicode_tables.h

The first stage maps cp >> 8 to a block of 256 classes, the second holds the distinct blocks. Run it
again only to move to another Unicode version; the version is written into the table.
"""
import sys
import unicodedata

BITS = {"L": 1, "N": 2, "M": 4, "P": 8, "S": 16}
SPACE, NFC_TOUCHED = 32, 64
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
               0x202F, 0x205F, 0x3000}
SHIFT = 8


def touched_by_nfc():
    """Characters whose presence may mean that a text is not in NFC."""
    out = set()
    for cp in range(0x110000):
        ch = chr(cp)
        if 0xD800 <= cp <= 0xDFFF:
            continue
        if unicodedata.combining(ch) or not unicodedata.is_normalized("NFC", ch):
            out.add(cp)
        parts = unicodedata.decomposition(ch)
        if parts and not parts.startswith("<"):
            out.update(int(p, 16) for p in parts.split()[1:])
    out.update(range(0x1161, 0x1176))  # Hangul vowels and final consonants join what precedes
    out.update(range(0x11A8, 0x11C3))
    return out


def main():
    touched = touched_by_nfc()
    classes = bytearray(0x110000)
    for cp in range(0x110000):
        c = BITS.get(unicodedata.category(chr(cp))[0], 0)
        if cp in WHITE_SPACE:
            c |= SPACE
        if cp in touched:
            c |= NFC_TOUCHED
        classes[cp] = c
    blocks, index = [], []
    for at in range(0, len(classes), 1 << SHIFT):
        block = bytes(classes[at:at + (1 << SHIFT)])
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    w = sys.stdout.write
    w("/* worker/text/unicode_tables.h - made by make_unicode_tables.py; do not edit.\n"
      " * Character classes of Unicode %s: UC_* of unicode.h, and 64 for what NFC may touch. */\n"
      % unicodedata.unidata_version)
    w("#ifndef WORKER_TEXT_UNICODE_TABLES_H\n#define WORKER_TEXT_UNICODE_TABLES_H\n\n"
      "#include <stdint.h>\n\n")
    w('#define UNICODE_TABLES_VERSION "%s"\n' % unicodedata.unidata_version)
    w("#define UNICODE_SHIFT %d\n\n" % SHIFT)

    def table(decl, values):
        w("%s = {\n" % decl)
        for i in range(0, len(values), 24):
            w("    %s,\n" % ",".join(str(v) for v in values[i:i + 24]))
        w("};\n\n")

    assert len(blocks) < 256
    table("static const uint8_t unicode_index[%d]" % len(index), index)
    table("static const uint8_t unicode_blocks[%d]" % (len(blocks) << SHIFT), b"".join(blocks))
    w("#endif\n")


main()
