#!/usr/bin/env python3
"""Writes tiny models of Hugging Face's transformers, and what they compute, for the tests of import and export.

    python make_hugging_face_fixtures.py [OUTPUT_FOLDER]     (default: tests/data/hugging_face of this checkout)

A folder a model, as save_pretrained leaves it (config.json, weights in safetensors files), with logits.safetensors
beside: input_ids I64 [2, 20] and the logits F64 [2, 20, V] of transformers' own code, run in fp64 with eager attention
on exactly the stored weights. transformers computes RMS norms, the softmax and rotary angles of Llama in fp32 even so: those
logits are good to about 1e-6. Every parameter is random, biases and norms too. README.md beside this script.
"""

import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers

SAMPLES, TOKENS = 2, 20
VOCABULARY = 61

GPT2 = dict(vocab_size=VOCABULARY, n_positions=32, n_embd=24, n_layer=2, n_head=4, n_inner=None, resid_pdrop=0.1,
            embd_pdrop=0.1, attn_pdrop=0.1, layer_norm_epsilon=1e-5, bos_token_id=60, eos_token_id=60)
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=58, eos_token_id=59)
# The original length is so short that the scaling changes two of the three frequencies of a head within the sequence.
SCALED = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

# name: configuration, type of the stored weights, most bytes of a file (None: one file), whether the inner model is saved
# (names without a prefix, no head).
MODELS = {
    "gpt2": (transformers.GPT2Config(**GPT2), torch.float32, None, False),
    "gpt2_inner": (transformers.GPT2Config(**{**GPT2, "n_inner": 52}), torch.float16, None, True),
    "llama": (transformers.LlamaConfig(**LLAMA, rope_parameters=SCALED, tie_word_embeddings=False),
              torch.bfloat16, "12KB", False),
    "llama_tied": (transformers.LlamaConfig(**LLAMA, head_dim=8, attention_bias=True, mlp_bias=True,
                                            tie_word_embeddings=True,
                                            rope_parameters=dict(rope_type="default", rope_theta=500.0)),
                   torch.float32, None, False),
    "mistral": (transformers.MistralConfig(**LLAMA, head_dim=6, sliding_window=5, tie_word_embeddings=False,
                                           rope_parameters=dict(rope_type="default", rope_theta=1000.0)),
                torch.float16, None, False),
}


def make(folder, name, seed):
    config, dtype, max_shard, inner = MODELS[name]
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.2
            if parameter.dim() == 1 and key.endswith("weight"):
                value += 1.0  # of a norm
            parameter.copy_(value.to(dtype))
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    saved = model.base_model if inner else model
    saved.save_pretrained(target, **({} if max_shard is None else dict(max_shard_size=max_shard)))
    input_ids = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=generator)
    with torch.no_grad():
        logits = model.double().eval()(input_ids).logits
    safetensors.torch.save_file(dict(input_ids=input_ids, logits=logits.contiguous()), target / "logits.safetensors")
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target}: {size} bytes, {sorted(path.name for path in target.iterdir())}")


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "hugging_face"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS, start=1):
        make(folder, name, seed)


if __name__ == "__main__":
    main()
