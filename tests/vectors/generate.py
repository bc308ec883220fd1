#!/usr/bin/env python3
"""Writes the vectors, or says which of them are not what it would write: `generate.py [--check]`.

Everything here is written from docs/spec; nothing comes from the `protocol` crate but the
numbers, which a test of that crate holds against the page.
"""

import sys
from pathlib import Path

from generator import (
    admission,
    audiences,
    combiners,
    ends,
    example,
    fingerprint,
    floats,
    frames,
    hello,
    ipv6,
    jobs,
    keys,
    mismatch,
    packed,
    packet,
    partials,
    roce,
    rounds,
    sums,
    zeros,
)

FOLDER = Path(__file__).parent
PURPOSES = [
    sums,
    packed,
    floats,
    example,
    rounds,
    zeros,
    audiences,
    partials,
    combiners,
    mismatch,
    admission,
    hello,
    jobs,
    frames,
    ends,
    ipv6,
    keys,
    roce,
]


def main():
    packet.check_example()
    fingerprint.check_example()
    example.check_example()
    texts = {}
    for purpose in PURPOSES:
        for vector in purpose.vectors():
            assert vector.name not in texts, f"two vectors are called {vector.name}"
            texts[f"{vector.name}.vector"] = vector.text()
    there = {path.name: path for path in FOLDER.glob("*.vector")}
    if sys.argv[1:] == ["--check"]:
        stale = [
            name
            for name in sorted(texts | there)
            if name not in texts or text_of(there.get(name)) != texts[name]
        ]
        if stale:
            sys.exit(
                f"not what generate.py writes: {', '.join(stale)}; run tests/vectors/generate.py"
            )
    elif not sys.argv[1:]:
        for name in there.keys() - texts.keys():
            there[name].unlink()
        for name, text in texts.items():
            (FOLDER / name).write_text(text)
    else:
        sys.exit(f"unknown arguments {sys.argv[1:]}: there is --check, or nothing")


def text_of(path):
    return path.read_text() if path else None


if __name__ == "__main__":
    main()
