#!/usr/bin/env python3
"""Writes the numeric fixtures of the test suite with PyTorch, in fp64.

    python make_fixtures.py [OUTPUT_FOLDER]        (default: tests/data/fixtures of this checkout)

One safetensors file per tiny model: configuration, initial weights, ten batches, the gradients of the
first step, and losses, gradient norms and final weights of ten AdamW and ten LAMB steps. One more file
holds values of single operators. README.md beside this script says what is in them and which
definitions they follow. The output is the same bytes on every run with the same PyTorch.
"""

import json
import math
import pathlib
import struct
import sys

import numpy
import torch

STEPS = 10
BATCH = 2
SEQUENCE = 12
IGNORED = -100

GPT2 = dict(
    family="gpt2",
    vocabulary=33,
    width=18,
    layers=2,
    heads=3,
    key_value_heads=3,
    head_width=6,
    mlp_width=27,
    norm="layer_norm",
    norm_epsilon=1e-5,
    positions="learned",
    max_positions=16,
    rotary_theta=None,
    rotary_scaling=None,
    activation="gelu_tanh",
    biases=True,
    tied_head=True,
    query_key_norm=False,
    parallel_block=False,
    windows=[0, 0],
    label_smoothing=0.0,
    z_loss=0.0,
    logit_soft_cap=0.0,
)

LLAMA = dict(
    GPT2,
    family="llama",
    width=16,
    heads=4,
    key_value_heads=2,
    head_width=4,
    mlp_width=24,
    norm="rms_norm",
    positions="rotary",
    max_positions=None,
    rotary_theta=10000.0,
    activation="swiglu",
    biases=False,
    tied_head=False,
)

MODELS = {
    "gpt2": dict(GPT2),
    "llama": dict(LLAMA),
    "gpt2_parallel_window": dict(
        GPT2,
        parallel_block=True,
        windows=[5, 0],
        label_smoothing=0.1,
        z_loss=1e-3,
        logit_soft_cap=5.0,
    ),
    # Head width, base and original length are such that the four frequencies of a head meet all three
    # branches of the scaling: two are divided by the factor, one is blended and one is left alone.
    "llama_documents": dict(
        LLAMA,
        head_width=8,
        rotary_theta=100.0,
        rotary_scaling=dict(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=32),
        tied_head=True,
        query_key_norm=True,
    ),
}

OPTIMIZERS = {
    "gradient_clip": 1.0,  # factor = min(1, clip / norm), nothing added to the norm
    "adamw": dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1),
    "lamb": dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1),
}


# ---- the model, written for clarity ------------------------------------------------------------------


def parameter_shapes(c):
    """Logical names and shapes, in the order of the forward pass. Matrices are [out, in]."""
    d, e, f = c["width"], c["head_width"], c["mlp_width"]
    queries, keys = c["heads"] * e, c["key_value_heads"] * e
    shapes = {"embedding.token.weight": [c["vocabulary"], d]}
    if c["positions"] == "learned":
        shapes["embedding.position.weight"] = [c["max_positions"], d]

    def linear(name, rows, columns):
        shapes[name + ".weight"] = [rows, columns]
        if c["biases"]:
            shapes[name + ".bias"] = [rows]

    def norm(name):
        shapes[name + ".weight"] = [d]
        if c["norm"] == "layer_norm":
            shapes[name + ".bias"] = [d]

    for layer in range(c["layers"]):
        block = f"block.{layer}."
        norm(block + "attention_norm")
        linear(block + "attention.query", queries, d)
        linear(block + "attention.key", keys, d)
        linear(block + "attention.value", keys, d)
        if c["query_key_norm"]:
            shapes[block + "attention.query_norm.weight"] = [e]
            shapes[block + "attention.key_norm.weight"] = [e]
        linear(block + "attention.output", d, queries)
        if not c["parallel_block"]:
            norm(block + "mlp_norm")
        if c["activation"] == "swiglu":
            linear(block + "mlp.gate", f, d)
        linear(block + "mlp.up", f, d)
        linear(block + "mlp.down", d, f)
    norm("final_norm")
    if not c["tied_head"]:
        shapes["head.weight"] = [c["vocabulary"], d]
    return shapes


def is_norm(name):
    return "norm" in name


def decays(name):
    return not is_norm(name) and not name.endswith(".bias")


def initial_weights(c, generator):
    """Normal with a standard deviation of 0.2 (norm weights around 1), each value an fp32 number."""
    weights = {}
    for name, shape in parameter_shapes(c).items():
        value = 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        if is_norm(name) and name.endswith(".weight"):
            value = value + 1.0
        weights[name] = value.to(torch.float32).to(torch.float64)
    return weights


def inverse_frequencies(head_width, theta, scaling):
    """theta^(-2i/E), and Llama 3.1's scaling of the long wavelengths."""
    index = torch.arange(0, head_width, 2, dtype=torch.float64)
    frequencies = theta ** (-index / head_width)
    if scaling is None:
        return frequencies
    factor, low, high = scaling["factor"], scaling["low_frequency_factor"], scaling["high_frequency_factor"]
    turns = scaling["original_positions"] * frequencies / (2 * math.pi)  # full turns over the original length
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies


def rotate(x, positions, frequencies):
    """Rotary embedding of x [batch, sequence, heads, E]: pairs (i, i + E/2)."""
    angles = positions.to(torch.float64)[..., None, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def rms_norm(x, weight, epsilon):
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * weight


def gelu_tanh(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def attention_mask(positions, documents, window):
    """[batch, query, key]: the same document, not in the future, and inside the window (0: no limit)."""
    distance = positions[:, :, None] - positions[:, None, :]
    visible = (documents[:, :, None] == documents[:, None, :]) & (distance >= 0)
    return visible & (distance < window) if window else visible


def logits_of(c, w, batch):
    tokens, positions, documents = batch["tokens"], batch["positions"], batch["documents"]
    epsilon = c["norm_epsilon"]

    def linear(x, name):
        return torch.nn.functional.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    def norm(x, name):
        if c["norm"] == "layer_norm":
            return torch.nn.functional.layer_norm(x, [c["width"]], w[name + ".weight"], w[name + ".bias"], epsilon)
        return rms_norm(x, w[name + ".weight"], epsilon)

    def heads(x, count):
        return x.unflatten(-1, (count, c["head_width"]))

    def attention(x, layer):
        name = f"block.{layer}.attention."
        query = heads(linear(x, name + "query"), c["heads"])
        key = heads(linear(x, name + "key"), c["key_value_heads"])
        value = heads(linear(x, name + "value"), c["key_value_heads"])
        if c["query_key_norm"]:
            query = rms_norm(query, w[name + "query_norm.weight"], epsilon)
            key = rms_norm(key, w[name + "key_norm.weight"], epsilon)
        if c["positions"] == "rotary":
            frequencies = inverse_frequencies(c["head_width"], c["rotary_theta"], c["rotary_scaling"])
            query, key = rotate(query, positions, frequencies), rotate(key, positions, frequencies)
        group = c["heads"] // c["key_value_heads"]  # query head h reads key/value head h / group
        key, value = key.repeat_interleave(group, dim=2), value.repeat_interleave(group, dim=2)
        scores = torch.einsum("bihe,bjhe->bhij", query, key) / math.sqrt(c["head_width"])
        visible = attention_mask(positions, documents, c["windows"][layer])
        scores = scores.masked_fill(~visible[:, None], -math.inf)
        mixed = torch.einsum("bhij,bjhe->bihe", scores.softmax(dim=-1), value)
        return linear(mixed.flatten(2), name + "output")

    def mlp(x, layer):
        name = f"block.{layer}.mlp."
        if c["activation"] == "swiglu":
            return linear(torch.nn.functional.silu(linear(x, name + "gate")) * linear(x, name + "up"), name + "down")
        return linear(gelu_tanh(linear(x, name + "up")), name + "down")

    x = w["embedding.token.weight"][tokens]
    if c["positions"] == "learned":
        x = x + w["embedding.position.weight"][positions]
    for layer in range(c["layers"]):
        normed = norm(x, f"block.{layer}.attention_norm")
        if c["parallel_block"]:
            x = x + attention(normed, layer) + mlp(normed, layer)
        else:
            x = x + attention(normed, layer)
            x = x + mlp(norm(x, f"block.{layer}.mlp_norm"), layer)
    head = w["embedding.token.weight" if c["tied_head"] else "head.weight"]
    return torch.nn.functional.linear(norm(x, "final_norm"), head)


def token_losses(c, logits, labels):
    """Loss of each token, 0 where the label is ignored."""
    if c["logit_soft_cap"]:
        logits = c["logit_soft_cap"] * torch.tanh(logits / c["logit_soft_cap"])
    log_sum = torch.logsumexp(logits, dim=-1)
    target = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    smoothing = c["label_smoothing"]
    loss = (1 - smoothing) * (log_sum - target) + smoothing * (log_sum - logits.mean(dim=-1))
    loss = loss + c["z_loss"] * log_sum.square()
    return torch.where(labels == IGNORED, torch.zeros_like(loss), loss)


def loss_of(c, w, batch):
    """Summed over the valid tokens of the whole batch and divided once by their number."""
    losses = token_losses(c, logits_of(c, w, batch), batch["labels"])
    return losses.sum() / (batch["labels"] != IGNORED).sum()


# ---- data --------------------------------------------------------------------------------------------


def make_batches(c, with_documents, generator):
    """Arrays of [steps, batch, sequence]. With documents, the first sequence of each batch holds two,
    with a boundary that moves from step to step and positions that restart; the second sequence ends in
    ignored labels whose number varies. The label across a boundary is ignored."""
    shape = (STEPS, BATCH, SEQUENCE)
    text = torch.randint(c["vocabulary"], (STEPS, BATCH, SEQUENCE + 1), generator=generator)
    tokens, labels = text[..., :-1].clone(), text[..., 1:].clone()
    positions = torch.arange(SEQUENCE).expand(shape).clone()
    documents = torch.zeros(shape, dtype=torch.int64)
    if with_documents:
        for step in range(STEPS):
            boundary = 3 + step % 7
            positions[step, 0, boundary:] -= boundary
            documents[step, 0, boundary:] = 1
            labels[step, 0, boundary - 1] = IGNORED
            ignored = (5 * step) % 9
            labels[step, 1, SEQUENCE - ignored :] = IGNORED
    return dict(tokens=tokens, labels=labels, positions=positions, documents=documents)


def batch_of(batches, step):
    return {name: value[step] for name, value in batches.items()}


# ---- optimizers --------------------------------------------------------------------------------------


class Lamb:
    """LAMB (You et al. 2020) with bias correction: u = m' / (sqrt(v') + eps) + decay * w, and a step of
    rate * |w| / |u| per logical parameter. The ratio is 1 where a norm is 0 and for parameters without
    weight decay, and it is never clipped."""

    def __init__(self, weights, options):
        self.o, self.weights, self.step_number = options, weights, 0
        self.m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}

    @torch.no_grad()
    def step(self):
        self.step_number += 1
        beta1, beta2 = self.o["beta1"], self.o["beta2"]
        for name, w in self.weights.items():
            m, v = self.m[name], self.v[name]
            m.mul_(beta1).add_(w.grad, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
            m_hat, v_hat = m / (1 - beta1**self.step_number), v / (1 - beta2**self.step_number)
            update, ratio = m_hat / (v_hat.sqrt() + self.o["epsilon"]), 1.0
            if decays(name):
                update = update + self.o["weight_decay"] * w
                weight_norm, update_norm = w.norm().item(), update.norm().item()
                if weight_norm > 0 and update_norm > 0:
                    ratio = weight_norm / update_norm
            w.sub_(self.o["learning_rate"] * ratio * update)


def make_optimizer(kind, weights):
    options = OPTIMIZERS[kind]
    if kind == "lamb":
        return Lamb(weights, options)
    groups = [
        dict(params=[w for name, w in weights.items() if decays(name)], weight_decay=options["weight_decay"]),
        dict(params=[w for name, w in weights.items() if not decays(name)], weight_decay=0.0),
    ]
    betas = (options["beta1"], options["beta2"])
    return torch.optim.AdamW(groups, lr=options["learning_rate"], betas=betas, eps=options["epsilon"], foreach=False)


def train(c, initial, batches, kind):
    """Ten steps; losses are those before each update, norms those before clipping."""
    weights = {name: w.clone().requires_grad_() for name, w in initial.items()}
    optimizer = make_optimizer(kind, weights)
    losses, norms, first_gradients = [], [], None
    for step in range(STEPS):
        loss = loss_of(c, weights, batch_of(batches, step))
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
        factor = min(1.0, OPTIMIZERS["gradient_clip"] / norm)
        for w, g in zip(weights.values(), gradients):
            w.grad = g * factor
        if first_gradients is None:
            first_gradients = dict(zip(weights, gradients))
        losses.append(loss.item())
        norms.append(norm)
        optimizer.step()
    return losses, norms, first_gradients, {name: w.detach() for name, w in weights.items()}


# ---- files -------------------------------------------------------------------------------------------

DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32"}


def write_safetensors(path, tensors, metadata):
    """Ordered by falling element size, then name, as the stock writer does; header padded to 8 bytes."""
    arrays = {name: numpy.ascontiguousarray(value) for name, value in tensors.items()}
    header, offset = {"__metadata__": metadata}, 0
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in order:
        a = arrays[name]
        if not numpy.isfinite(a).all():
            raise SystemExit(f"{path}: {name} is not finite")
        header[name] = dict(dtype=DTYPES[a.dtype.name], shape=list(a.shape), data_offsets=[offset, offset + a.nbytes])
        offset += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(arrays[name].astype(arrays[name].dtype.newbyteorder("<")).tobytes())
    print(f"{path}: {8 + len(text) + offset} bytes")


def model_fixture(path, seed, name):
    c = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    initial = initial_weights(c, generator)
    batches = make_batches(c, name == "llama_documents", generator)
    tensors = {key: value.numpy().astype("int32") for key, value in batches.items()}
    tensors["valid_tokens"] = (batches["labels"] != IGNORED).sum(dim=(1, 2)).numpy()
    for key, value in initial.items():
        tensors["initial." + key] = value.numpy().astype("float32")
    for kind in ("adamw", "lamb"):
        losses, norms, gradients, final = train(c, initial, batches, kind)
        if not any(norm > OPTIMIZERS["gradient_clip"] for norm in norms):
            raise SystemExit(f"{name}: no gradient of {kind} is clipped: {norms}")
        tensors[kind + ".losses"], tensors[kind + ".gradient_norms"] = numpy.array(losses), numpy.array(norms)
        for key, value in final.items():
            tensors[f"{kind}.{key}"] = value.numpy()
        print(f"{name} {kind}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norms {min(norms):.2f} to {max(norms):.2f}")
    for key, value in gradients.items():
        tensors["gradient." + key] = value.numpy()
    # The logits of the first batch, before the soft cap: where a wrong loss comes from.
    with torch.no_grad():
        tensors["logits"] = logits_of(c, initial, batch_of(batches, 0)).numpy()
    write_safetensors(path, tensors, dict(config=json.dumps(c), optimizers=json.dumps(OPTIMIZERS)))


def operator_fixture(path):
    """Values and gradients of single operators. Names: OPERATOR.input, .output, .gradient (of the sum
    of output * .weighting, where one is given, else of the sum of output)."""
    tensors, generator = {}, torch.Generator().manual_seed(7)

    def elementwise(name, function, x):
        x = x.clone().requires_grad_()
        y = function(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        for key, value in dict(input=x, output=y, gradient=gradient).items():
            tensors[f"{name}.{key}"] = value.detach().numpy()

    x = torch.cat([torch.linspace(-6, 6, 97, dtype=torch.float64), torch.tensor([-40.0, -12.5, 1e-9, 12.5, 40.0]).double()])
    elementwise("gelu_tanh", gelu_tanh, x)
    elementwise("silu", torch.nn.functional.silu, x)
    elementwise("soft_cap_5", lambda value: 5.0 * torch.tanh(value / 5.0), x)

    for name, head_width, theta, scaling in [
        ("plain", 16, 10000.0, None),
        # Llama 3.1: 8B and larger.
        ("llama3", 128, 500000.0, dict(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=8192)),
        # Llama 3.2: 1B and 3B.
        ("llama3_32", 64, 500000.0, dict(factor=32.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=8192)),
    ]:
        frequencies = inverse_frequencies(head_width, theta, scaling)
        positions = torch.tensor([0, 1, 2, 5, 100, 8191, 131071])
        x = torch.randn(1, len(positions), 1, head_width, generator=generator, dtype=torch.float64)
        y = rotate(x, positions[None], frequencies)
        tensors[f"rotary_{name}.inverse_frequencies"] = frequencies.numpy()
        tensors[f"rotary_{name}.positions"] = positions.numpy().astype("int32")
        tensors[f"rotary_{name}.input"] = x[0, :, 0].numpy()
        tensors[f"rotary_{name}.output"] = y[0, :, 0].numpy()

    rows, width = 5, 24
    for name in ("layer_norm", "rms_norm"):
        x, weighting = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(2))
        x[1] *= 1e-3  # where epsilon matters
        x[2] += 10.0
        weight, bias = (torch.randn(width, generator=generator, dtype=torch.float64) for _ in range(2))
        values = [value.requires_grad_() for value in ([x, weight, bias] if name == "layer_norm" else [x, weight])]
        y = torch.nn.functional.layer_norm(x, [width], weight, bias, 1e-5) if name == "layer_norm" else rms_norm(x, weight, 1e-5)
        gradients = torch.autograd.grad((y * weighting).sum(), values)
        tensors[name + ".weighting"], tensors[name + ".output"] = weighting.numpy(), y.detach().numpy()
        for key, value, gradient in zip(["input", "weight", "bias"], values, gradients):
            tensors[f"{name}.{key}"], tensors[f"{name}.{key}.gradient"] = value.detach().numpy(), gradient.numpy()

    for name, smoothing, z_loss, cap in [("plain", 0.0, 0.0, 0.0), ("all", 0.1, 1e-3, 5.0)]:
        c = dict(label_smoothing=smoothing, z_loss=z_loss, logit_soft_cap=cap)
        logits = 4 * torch.randn(6, 11, generator=generator, dtype=torch.float64)
        logits[3] += 500.0  # overflows without subtracting the maximum (and fills the cap)
        labels = torch.tensor([0, 10, IGNORED, 4, 4, 7])
        logits.requires_grad_()
        losses = token_losses(c, logits, labels)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        values = dict(logits=logits, labels=labels.to(torch.int32), losses=losses, gradient=gradient)
        for key, value in values.items():
            tensors[f"cross_entropy_{name}.{key}"] = value.detach().numpy()
    write_safetensors(path, tensors, dict(kind="operators"))


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "fixtures"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, name in enumerate(MODELS, start=1):
        model_fixture(folder / f"{name}.safetensors", seed, name)
    operator_fixture(folder / "operators.safetensors")


if __name__ == "__main__":
    main()
