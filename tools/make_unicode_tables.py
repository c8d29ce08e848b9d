#!/usr/bin/env python3
"""Writes src/athanor/tokenizer/unicode_table.cpp from the Unicode character database.

Needs Debian's package unicode-data:  tools/make_unicode_tables.py
The classes are those that the patterns of tokenizers ask for: \\p{L} (general category L*), \\p{N} (N*) and
\\s (property White_Space). Two stages: block numbers by code point / 256, then 2 bits a code point.
"""
import pathlib
import re

DATABASE = pathlib.Path("/usr/share/unicode")
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/athanor/tokenizer/unicode_table.cpp"
OTHER, LETTER, NUMBER, SPACE = range(4)
LIMIT = 0x40000  # no letter, number or white space lies above


def read_classes():
    classes = {}
    first = None
    for line in (DATABASE / "UnicodeData.txt").read_text().splitlines():
        fields = line.split(";")
        code, name, category = int(fields[0], 16), fields[1], fields[2]
        if name.endswith(", First>"):
            first = code
            continue
        begin = first if name.endswith(", Last>") else code
        first = None
        value = {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)
        if value != OTHER:
            for each in range(begin, code + 1):
                classes[each] = value
    for line in (DATABASE / "PropList.txt").read_text().splitlines():
        match = re.match(r"([0-9A-F]+)(?:\.\.([0-9A-F]+))?\s*;\s*White_Space\b", line)
        if match:
            for each in range(int(match[1], 16), int(match[2] or match[1], 16) + 1):
                assert each not in classes
                classes[each] = SPACE
    assert max(classes) < LIMIT
    return classes


def rows(values, width):
    for begin in range(0, len(values), width):
        yield "    " + ", ".join(str(value) for value in values[begin : begin + width]) + ","


def main():
    classes = read_classes()
    version = re.search(r"PropList-([\d.]+)\.txt", (DATABASE / "PropList.txt").read_text())[1]
    numbers, blocks = [], {}
    for begin in range(0, LIMIT, 256):
        block = []
        for byte in range(begin, begin + 256, 4):
            block.append(sum(classes.get(byte + i, OTHER) << (2 * i) for i in range(4)))
        numbers.append(blocks.setdefault(tuple(block), len(blocks)))
    assert len(blocks) <= 256
    flat = [value for block in blocks for value in block]
    lines = [
        f"// Character classes of Unicode {version}; written by tools/make_unicode_tables.py, do not edit.",
        '#include "athanor/tokenizer/unicode_table.h"',
        "",
        "namespace athanor::unicode_table {",
        "",
        "// clang-format off",
        f"const std::array<uint8_t, {len(numbers)}> block_of = {{",
        *rows(numbers, 24),
        "};",
        "",
        f"const uint8_t classes[{len(flat)}] = {{",
        *rows(flat, 24),
        "};",
        "// clang-format on",
        "",
        "}  // namespace athanor::unicode_table",
        "",
    ]
    OUTPUT.write_text("\n".join(lines))
    print(f"{OUTPUT}: Unicode {version}, {len(blocks)} blocks")


if __name__ == "__main__":
    main()
