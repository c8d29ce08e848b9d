#!/usr/bin/env python3
"""Shows that transformers loads what `athanor export` writes and computes the same with it.

    python check_export.py ATHANOR [FIXTURE_FOLDER]    (default: tests/data/hugging_face of this checkout)

Imports every model that make_hugging_face_fixtures.py made, exports it as it is, in several files and in every type,
loads each export with AutoModelForCausalLM and compares: the configuration, every tensor bit for bit (of the other
types after rounding by PyTorch), and the logits in fp64. Exit code 1 if anything differs.
"""

import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# What the two configurations may differ in: who wrote them, and the type of the weights.
OWN = ("_name_or_path", "transformers_version", "dtype", "architectures")


def run(*arguments):
    subprocess.run([str(argument) for argument in arguments], check=True, stdout=subprocess.DEVNULL)


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True
    )
    unexpected = {key: value for key, value in report.items() if value}
    if unexpected:
        raise SystemExit(f"{folder}: {unexpected}")
    return model


def configuration(model):
    values = {key: value for key, value in model.config.to_dict().items() if key not in OWN}
    if values.get("n_inner") == 4 * values.get("n_embd", 0):
        values["n_inner"] = None
    return values


def compare(name, original, exported, expected, dtype):
    faults = []
    if configuration(original) != configuration(exported):
        before, after = configuration(original), configuration(exported)
        faults.append({key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)})
    ours, theirs = exported.state_dict(), original.state_dict()
    if ours.keys() != theirs.keys():
        faults.append(ours.keys() ^ theirs.keys())
    for key in ours.keys() & theirs.keys():
        wanted = theirs[key].to(dtype) if dtype else theirs[key]
        if ours[key].dtype != wanted.dtype or not torch.equal(ours[key], wanted):
            faults.append(key)
    with torch.no_grad():
        logits = exported.double().eval()(expected["input_ids"]).logits
    difference = ((logits - expected["logits"]).abs().max() / expected["logits"].abs().max()).item()
    exact = dtype is None or dtype in (torch.float64, next(original.parameters()).dtype)
    bound = 0.0 if exact else 1e-6 if dtype == torch.float32 else 2e-2
    # In the fixture's process the sums may have been made in another order.
    if difference > max(bound, 1e-7):
        faults.append(f"logits differ by {difference}")
    print(f"{name}: {'FAILED ' + str(faults) if faults else 'same'}, logits within {difference:.1e}")
    return bool(faults)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    default = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "hugging_face"
    fixtures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else default
    transformers.logging.set_verbosity_error()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for fixture in sorted(path for path in fixtures.iterdir() if (path / "config.json").exists()):
            expected = safetensors.torch.load_file(fixture / "logits.safetensors")
            imported = pathlib.Path(scratch) / fixture.name
            run(program, "import", fixture, "--output", imported)
            for variant, options in [("as it is", []), ("in several files", ["--max-shard-size", "10KB"])] + [
                (dtype, ["--dtype", dtype]) for dtype in TYPES
            ]:
                output = pathlib.Path(scratch) / f"{fixture.name} {variant}"
                run(program, "export", imported, "--output", output, *options)
                failed |= compare(f"{fixture.name} {variant}", load(fixture), load(output), expected, TYPES.get(variant))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
