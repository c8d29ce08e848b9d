#!/usr/bin/env python3
"""Makes the small tokenizers of tests/data/tokenizers/ and the ids that Hugging Face's `tokenizers` gives with them.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python tools/reference/make_tokenizer_fixtures.py

Each NAME.json is a tokenizer.json, NAME.vectors.json a list of objects: `text`; `ids` of the text as plain text;
`special_ids` with special tokens recognised; `decoded` and `special_decoded`, the texts of both.
"""
import json
import pathlib

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/data/tokenizers"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

TRAINING = """
The furnace stood in the corner of the workshop, and it was never cold. Whoever came in the morning found it warm,
and whoever left in the evening fed it once more; it didn't need anyone through the night. They'd built it so.
It's told that the first of them burned for thirty years. We've no way to know: the books were lost, the walls were
lost, and what's left is a drawing with 12 numbers, 345 lines and the date 1618. I'll believe it when I'm shown it.
Le fourneau n'était jamais froid; où qu'on aille, ça chauffe. Der Ofen wärmt, größer als nötig. Печь стояла в углу.
The the the then there these, and and an any; he heated here, in the inner inn. Water, waters, watering, watered.
if (value != nullptr) {\n        return value->size() * 2;\n    }\n    for (int i = 0; i < count; ++i) total += i;\n
"""

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "Hello world",
    " Hello world",
    "  Hello   world  ",
    "the furnace wasn't cold",
    "The furnace, the workshop and the night.",
    "we've they'll I'M YOU'RE it'S 'tis don't'll x's's",
    "0 12 345 6789 1234567890 3.14159 -17 2nd",
    "tabs\tand\nnewlines\r\n\r\n  indented\n\n\n    more  \n",
    "a \n b\n \n  c \t d\t\t\te",
    "trailing space \n",
    "for (int i = 0; i < count; ++i) {\n\treturn value->size();\n}",
    "naïve café — “quotes” … fi",
    "combining: e\u0301 o\u0308 n\u0303\u0323",
    "où ça größer Печь стояла в углу",
    "日本語のテキスト 中文字符 한국어",
    "مرحبا بالعالم שלום",
    "١٢٣ ४५६ ½ Ⅷ ²",
    "👩\u200d👩\u200d👧 🏳️\u200d🌈 done 🙂🙂",
    "\u00a0nbsp\u2003em\u3000\u3000ideographic\u2028line\u0085next",
    "\u0000\u0001\u001f\u007f\u200b\ufeff",
    "'\u017f long s, 'K kelvin \u212a",
    "!!! ??? ... --- ### ((([[[{{{ \n!!!\n\n?",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethe" * 12,
    " zyzzyva zyzzyva (zyzzyvas zyzzyvas",
    "a<|end_of_text|>b <s>x</s> <|end_of_text|",
    "<|begin_of_text|>The night<|end_of_text|>\n\n<|end_of_text|> again",
    "x <pad>  \n y <pad>z   <wide>   <wide>w",
    "<0x41> <0x0A> <unk>",
    "@@ @@@@@ a@@b",
    "\u2581marked\u2581 \u2581",
    "𐐷𝄞\U0010ffff\U000e0001",
]


def vectors(tokenizer):
    result = []
    for text in TEXTS:
        tokenizer.encode_special_tokens = True
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        special_ids = tokenizer.encode(text, add_special_tokens=False).ids
        result.append({
            "text": text, "ids": ids, "special_ids": special_ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "special_decoded": tokenizer.decode(special_ids, skip_special_tokens=False),
        })
    return result


def save(name, file):
    text = json.dumps(file, ensure_ascii=False)
    tokenizer = Tokenizer.from_str(text)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    lines = ",\n".join(json.dumps(vector, ensure_ascii=True) for vector in vectors(tokenizer))
    (FOLDER / f"{name}.vectors.json").write_text("[\n" + lines + "\n]\n")
    for added in file["added_tokens"]:
        assert tokenizer.token_to_id(added["content"]) == added["id"], added
    print(name, tokenizer.get_vocab_size(), "tokens")


def train(tokenizer, vocabulary, **options):
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, **options)
    tokenizer.train_from_iterator(TRAINING.splitlines(), trainer)
    return json.loads(tokenizer.to_str())


def llama3():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", 502)]),
    ])
    file = train(tokenizer, 500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    model = file["model"]
    model["ignore_merges"] = True
    model["vocab"]["Ġzyzzyva"] = 500  # which no merge gives
    model["vocab"]["zyzzyvas"] = 501
    file["added_tokens"] = [
        {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, content in enumerate(["<|begin_of_text|>", "<|end_of_text|>"], 502)
    ]
    save("llama3_small", file)


def gpt2_strips():
    """Byte-level with a prefix space, tokens that take white space along, and merges in the old form."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    file = train(tokenizer, 450, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    file["added_tokens"] = [
        {"id": 450, "content": "<pad>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False,
         "special": True},
        {"id": 451, "content": "<wide>", "single_word": False, "lstrip": False, "rstrip": True, "normalized": True,
         "special": False},
        {"id": 452, "content": "@@", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True,
         "special": False},
        {"id": 453, "content": "<|end_of_text|>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": True, "special": True},
    ]
    save("gpt2_strips", file)


def characters(name, normalizer, pre_tokenizer, strip, normalized):
    """The vocabulary of a SentencePiece model: unknown, beginning, end, bytes, then merges and characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True) if normalizer is None else None
    if normalizer is not None:  # words, for training alone
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    learned = train(tokenizer, 420)["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [token for token in learned["vocab"] if token not in names]
    merges = learned["merges"]
    # Runs of spaces have tokens too.
    for length in (1, 2, 4):
        merges.append(["\u2581" * length, "\u2581" * length])
        names.append("\u2581" * 2 * length)
    file = json.loads(tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizer
    file["pre_tokenizer"] = json.loads(tokenizer.to_str())["pre_tokenizer"]
    file["model"].update({
        "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": merges,
        "vocab": {token: i for i, token in enumerate(dict.fromkeys(names))},
    })
    file["added_tokens"] = [
        {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
         "special": True}
        for i, content in enumerate(["<unk>", "<s>", "</s>"])
    ]
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if strip else []))
    file["decoder"] = json.loads(tokenizer.to_str())["decoder"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    file["post_processor"] = json.loads(tokenizer.to_str())["post_processor"]
    save(name, file)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    llama3()
    gpt2_strips()
    mark = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    characters("llama2_small", mark, None, True, False)
    characters("llama2_normalized", mark, None, True, True)
    characters("mistral_small", None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True, False)
    characters("metaspace_words", None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True), True, False)
    print("made with tokenizers", tokenizers.__version__)


if __name__ == "__main__":
    main()
