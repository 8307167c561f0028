"""Computes the reference files of parity.rs: small models trained with PyTorch.

Argument: a folder. Each model has three files. NAME-initial.safetensors has the weights in Hugging Face's format.
NAME-data.safetensors has tokens, and the logits of the first of them. NAME-OPTIMIZER.safetensors has losses, norms,
the gradient of the first step, and the final weights. With NAME-OPTIMIZER-groups, parameters have settings of their own.
"""

import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 97, 16, 32, 4, 2
SEQUENCES, STEPS, NORM_MAX = 8, 20, 1.0
HIDDEN = math.ceil(8 * WIDTH / 24) * 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (m.view(b, t, HEADS, d // HEADS).transpose(1, 2) for m in self.c_attn(x).split(d, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(d // HEADS)
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, -math.inf).softmax(3) @ v
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    def __init__(self, is_modern):
        super().__init__()
        self.is_modern = is_modern
        self.c_fc = nn.Linear(WIDTH, 2 * HIDDEN if is_modern else 4 * WIDTH)
        self.c_proj = nn.Linear(HIDDEN if is_modern else 4 * WIDTH, WIDTH)

    def forward(self, x):
        if self.is_modern:
            gate, up = self.c_fc(x).chunk(2, dim=-1)
            return self.c_proj(F.silu(gate) * up)
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


def norm(is_modern):
    return nn.RMSNorm(WIDTH, eps=1e-5) if is_modern else nn.LayerNorm(WIDTH, eps=1e-5)


class Block(nn.Module):
    def __init__(self, is_modern):
        super().__init__()
        self.ln_1, self.attn = norm(is_modern), Attention()
        self.ln_2, self.mlp = norm(is_modern), FeedForward(is_modern)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2, or a variant with RMSNorm and SwiGLU. The head is tied to the embedding, or not."""

    def __init__(self, is_modern, is_tied):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block(is_modern) for _ in range(LAYERS))
        self.ln_f = norm(is_modern)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False) if not is_tied else None

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ (self.lm_head or self.wte).weight.T


def initialize(model):
    """Avoids zeros and ones, which could hide errors."""
    for name, weight in model.named_parameters():
        is_gain = ".ln" in f".{name}" and name.endswith("weight")
        nn.init.normal_(weight, 1.0 if is_gain else 0.0, 0.1)


def write(path, tensors):
    """Writes the safetensors format."""
    kinds, header, at, data = {torch.float32: "F32", torch.int32: "I32", torch.uint8: "U8"}, {}, 0, []
    for name, tensor in tensors.items():
        data.append(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
        shape, ends = list(tensor.shape), [at, at + len(data[-1])]
        header[name], at = {"dtype": kinds[tensor.dtype], "shape": shape, "data_offsets": ends}, ends[1]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def hugging_face(model):
    """Transposes linear weights of blocks to inputs × outputs, and adds masks."""
    tensors = {}
    for name, weight in model.named_parameters():
        is_map = ".c_" in name and name.endswith("weight")
        prefix = "" if name.startswith("lm_head") else "transformer."
        tensors[prefix + name] = weight.T if is_map else weight
    for layer in range(LAYERS):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.uint8).tril()
    return tensors


def settings(name, weight, rate, is_grouped):
    """Returns learning rate and weight decay. Without a group, matrices have weight decay, and not biases and gains."""
    usual = 0.1 if weight.dim() > 1 else 0.0
    if is_grouped and (name.endswith(".bias") or name.startswith("wte.")):
        return {"lr": 0.1 * rate, "weight_decay": 0.05}
    if is_grouped and name.startswith("h.1."):
        return {"lr": 2 * rate, "weight_decay": usual}
    return {"lr": rate, "weight_decay": usual}


def optimizer(kind, model, is_grouped):
    rate = 1e-3 if kind == "adamw" else 0.05
    groups = [{"params": [weight]} | settings(name, weight, rate, is_grouped) for name, weight in model.named_parameters()]
    if kind == "adamw":
        return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    return torch.optim.SGD(groups, momentum=0.9)


def train(steps, model, tokens):
    losses, norms, results = [], [], {}
    for batch in tokens.long():
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        if not losses:
            results = {f"gradient.{name}": weight.grad.clone() for name, weight in model.named_parameters()}
        losses.append(loss.item())
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), NORM_MAX).item())
        steps.step()
    results |= {f"weight.{name}": weight for name, weight in model.named_parameters()}
    return results | {"losses": torch.tensor(losses), "norms": torch.tensor(norms)}


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    models = [("gpt2", False, True), ("modern", True, False), ("gpt2-untied", False, False), ("modern-tied", True, True)]
    for name, is_modern, is_tied in models:
        torch.manual_seed(7)
        tokens = torch.randint(VOCABULARY, (STEPS, SEQUENCES, CONTEXT + 1), dtype=torch.int32)
        model = Gpt(is_modern, is_tied)
        initialize(model)
        initial = {key: value.clone() for key, value in model.state_dict().items()}
        write(folder / f"{name}-initial.safetensors", hugging_face(model))
        logits = model(tokens[0, :, :-1].long()).flatten(0, 1)
        write(folder / f"{name}-data.safetensors", {"tokens": tokens, "logits": logits})
        for kind, suffix in [("adamw", ""), ("sgd", ""), ("adamw", "-groups"), ("sgd", "-groups")]:
            model.load_state_dict(initial)
            steps = optimizer(kind, model, suffix != "")
            write(folder / f"{name}-{kind}{suffix}.safetensors", train(steps, model, tokens))


main()
