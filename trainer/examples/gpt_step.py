"""Measures a forward and backward pass of a GPT with PyTorch in milliseconds, as gpt_step.rs does."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, SEQUENCE, SEQUENCES, STEPS = 2048, 256, 4, 128, 8, 30


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (m.view(b, t, HEADS, d // HEADS).transpose(1, 2) for m in self.c_attn(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(WIDTH)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(SEQUENCE))
        for block in self.h:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def batch():
    tokens = torch.tensor([at * at % VOCABULARY for at in range(SEQUENCES * SEQUENCE + 1)])
    return tokens[1:].view(SEQUENCES, SEQUENCE), tokens[:-1].view(SEQUENCES, SEQUENCE)


def main():
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    model = Gpt(layers)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
    inputs, targets = batch()
    wall, processor = [], []
    for _ in range(STEPS):
        start, before = time.perf_counter(), time.thread_time()
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad.zero_()
        loss = model(inputs, targets)
        loss.backward()
        wall.append((time.perf_counter() - start) * 1e3)
        processor.append((time.thread_time() - before) * 1e3)
    busy, all_in_all = statistics.median(processor), statistics.median(wall)
    print(f"{layers} layers: {busy:.1f} ms on the processor, {all_in_all:.1f} ms in all")


if __name__ == "__main__":
    main()
