#!/usr/bin/env python3
"""Makes tests/data/megatron/ with megatron-core's own builder, and reads a dataset of ours with its reader.

    pip install torch numpy megatron-core
    tools/reference/make_indexed_datasets.py make            # writes the fixtures
    tools/reference/make_indexed_datasets.py check PREFIX    # prints what megatron-core reads in PREFIX.bin, .idx
"""

import pathlib
import sys

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "megatron"


def make():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, dtype in (("documents_u16", numpy.uint16), ("documents_i32", numpy.int32)):
        builder = IndexedDatasetBuilder(str(FOLDER / f"{name}.bin"), dtype=dtype)
        builder.add_document(torch.tensor([1, 2, 3]), [3])
        builder.add_document(torch.tensor([4, 5, 6, 7, 8]), [2, 3])
        builder.add_document(torch.tensor([50256]), [1])
        builder.finalize(str(FOLDER / f"{name}.idx"))
    builder = IndexedDatasetBuilder(str(FOLDER / "modes.bin"), dtype=numpy.int32, multimodal=True)
    builder.add_item(torch.tensor([1, 2, 3]), mode=0)
    builder.add_item(torch.tensor([9, 9]), mode=1)
    builder.end_document()
    builder.finalize(str(FOLDER / "modes.idx"))


def check(prefix):
    dataset = IndexedDataset(prefix)
    print("sequences", len(dataset), "of", dataset.index.dtype)
    print("documents", dataset.document_indices.tolist()[:10])
    for number in range(min(3, len(dataset))):
        print("sequence", number, dataset[number][:10].tolist(), "...", dataset[number][-3:].tolist())


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make()
    elif sys.argv[1:2] == ["check"] and len(sys.argv) == 3:
        check(sys.argv[2])
    else:
        sys.exit(__doc__)
