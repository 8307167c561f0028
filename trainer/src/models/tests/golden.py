"""Computes the figures of golden.rs: a GPT in float64 with PyTorch, with weights and tokens by the same formula."""

import torch
import torch.nn.functional as F

WIDTH, HEADS, LAYERS, SEQUENCE = 8, 2, 2, 6
INPUTS, TARGETS = [1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3], [2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3, 5]


def shapes(modern):
    norm = [("weight", [WIDTH])] + ([] if modern else [("bias", [WIDTH])])
    hidden = 24 if modern else 32
    maps = [("ln_1", None), ("attn.c_attn", [24, 8]), ("attn.c_proj", [8, 8]), ("ln_2", None)]
    maps += [("mlp.c_fc", [2 * hidden if modern else hidden, 8]), ("mlp.c_proj", [8, hidden])]
    yield "wte.weight", [7, WIDTH]
    yield "wpe.weight", [8, WIDTH]
    for layer in range(LAYERS):
        for name, shape in maps:
            parts = norm if shape is None else [("weight", shape), ("bias", shape[:1])]
            yield from ((f"h.{layer}.{name}.{part}", extents) for part, extents in parts)
    yield from ((f"ln_f.{part}", extents) for part, extents in norm)


def pattern(number, shape, seed):
    count = torch.Size(shape).numel()
    values = [((at * 37 + number * 101 + seed) % 64) / 32 - 1 for at in range(count)]
    return torch.tensor(values, dtype=torch.float64).view(shape)


def loss(w, modern):
    def norm(x, name):
        if modern:
            return F.rms_norm(x, [WIDTH], w[name + ".weight"], 1e-5)
        return F.layer_norm(x, [WIDTH], w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def activation(x):
        if modern:
            gate, up = x.chunk(2, dim=-1)
            return F.silu(gate) * up
        return F.gelu(x, approximate="tanh")

    x = w["wte.weight"][torch.tensor(INPUTS)].view(-1, SEQUENCE, WIDTH) + w["wpe.weight"][:SEQUENCE]
    for layer in range(LAYERS):
        h = f"h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(WIDTH, dim=-1)
        q, k, v = (m.view(-1, SEQUENCE, HEADS, WIDTH // HEADS).transpose(1, 2) for m in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + linear(y, h + "attn.c_proj")
        x = x + linear(activation(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T
    return F.cross_entropy(logits.view(-1, 7), torch.tensor(TARGETS))


for modern in [False, True]:
    named = list(shapes(modern))
    w = {name: pattern(n, shape, 0).requires_grad_() for n, (name, shape) in enumerate(named)}
    value = loss(w, modern)
    value.backward()
    print(f"loss {value.item():.9f}")
    for n, (name, shape) in enumerate(named):
        print(f'    ("{name}", {(w[name].grad * pattern(n, shape, 11)).sum().item():.8f}),')
