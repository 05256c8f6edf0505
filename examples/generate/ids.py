#!/usr/bin/env python3
"""Converts text to ids of tokens and back, with the tokenizer.json of a folder of the hub.

    ids.py FOLDER prompt TEXT       prints the ids of a text, separated by commas: for generate --prompt-ids
    ids.py FOLDER encode <TEXT      prints the ids of a text, separated by spaces: for generate --train
    ids.py FOLDER decode <IDS       prints the text of ids as they arrive: generate … | ids.py FOLDER decode

Needs the package tokenizers (pip install tokenizers).
"""
import pathlib
import sys

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


def arriving(stream):
    """Yields the whole numbers of a stream, each as soon as the separator after it has arrived."""
    digits = ""
    while c := stream.read(1):
        if c.isspace() and digits:
            yield int(digits)
            digits = ""
        elif not c.isspace():
            digits += c
    if digits:
        yield int(digits)


def main():
    if len(sys.argv) not in (3, 4) or (sys.argv[2] == "prompt") != (len(sys.argv) == 4):
        sys.exit(__doc__)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(sys.argv[1]) / "tokenizer.json"))
    if sys.argv[2] == "prompt":
        print(*tokenizer.encode(sys.argv[3]).ids, sep=",")
    elif sys.argv[2] == "encode":
        print(*tokenizer.encode(sys.stdin.read()).ids)
    elif sys.argv[2] == "decode":
        text = DecodeStream(skip_special_tokens=True)
        for token in arriving(sys.stdin):
            print(text.step(tokenizer, token) or "", end="", flush=True)  # None: the character is not complete
        print()
    else:
        sys.exit(__doc__)


main()
