#!/usr/bin/env python3
"""Times what `./run bench tokenizer` measures with the packages `tiktoken` and `tokenizers`, for docs/performance.md.

    python3 -m venv venv && venv/bin/pip install tiktoken tokenizers
    venv/bin/python tools/reference/peer_tokenizer.py [--cpu-time] [--no-train]

Run `./run bench tokenizer` before: it makes the texts in data/. GPT-2's vocabulary, one thread for encoding, two for
training; medians of three. --cpu-time counts the time of the encoding thread instead of the clock's, for machines that
are not quiet.
"""
import argparse
import json
import os
import pathlib
import statistics
import time

os.environ["RAYON_NUM_THREADS"] = "2"
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPT2 = ROOT / "tests/data/gpt2"
TEXTS = (("bible", 4096), ("dictionary", 16384))


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def make_tiktoken():
    alphabet = byte_alphabet()
    vocabulary = json.loads((GPT2 / "vocab.json").read_text())
    ranks = {bytes(alphabet[c] for c in token): i for token, i in vocabulary.items() if token != "<|endoftext|>"}
    return tiktoken.Encoding(
        "gpt2",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def make_tokenizers():
    tokenizer = tokenizers.Tokenizer(models.BPE.from_file(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def seconds(action, clock):
    times = []
    for _ in range(3):
        begin = clock()
        result = action()
        times.append(clock() - begin)
    return statistics.median(times), result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--no-train", action="store_true")
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    fast, general = make_tiktoken(), make_tokenizers()
    rows = []
    for name, vocabulary in TEXTS:
        path = ROOT / f"data/{name}.txt"
        text = path.read_bytes().decode(errors="replace")
        megabytes = path.stat().st_size / 1e6
        row = {"text": name}
        spent, ids = seconds(lambda: fast.encode_ordinary(text), clock)
        row |= {"tiktoken_mb_per_second": megabytes / spent, "tiktoken_tokens": len(ids)}
        spent, encoding = seconds(lambda: general.encode(text, add_special_tokens=False), clock)
        row |= {"tokenizers_mb_per_second": megabytes / spent, "tokenizers_tokens": len(encoding.ids)}
        del encoding
        if not arguments.no_train:
            def train():
                tokenizer = tokenizers.Tokenizer(models.BPE())
                tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
                tokenizer.train([str(path)], trainers.BpeTrainer(
                    vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False,
                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            spent, _ = seconds(train, time.perf_counter)
            row |= {"tokenizers_train_seconds": spent, "tokenizers_train_mb_per_second": megabytes / spent}
        rows.append(row)
    print(json.dumps(rows, indent=1))
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
