"""Compares the trainer with transformers on small models: logits, losses of fine-tuning, and exported files.

`hugging_face.py RELEASE`, with the folder of the built programs.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig
from transformers.utils import logging

RELEASE = Path(sys.argv[1])
VOCABULARY, CONTEXT, SEQUENCES, STEPS = 311, 32, 8, 20
LOGITS_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-5
WEIGHTS_TOLERANCE = 1e-4


@dataclass
class Case:
    """A model, how its files are written, and the ranks that train it."""

    name: str
    config: PretrainedConfig
    dtype: torch.dtype = torch.float32
    shard_size: str = "5GB"
    optimizer: str = "adamw"
    ranks: int = 1
    changes: list[str] = field(default_factory=list)


def llama(**changes: object) -> LlamaConfig:
    size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    common = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, initializer_range=0.1)
    return LlamaConfig(**{**size, **common, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, **changes})


LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GPT2 = GPT2Config(
    vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, n_inner=100, initializer_range=0.1,
    embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)
SHARDED = ["mesh.tensor=2", "strategy.kind=zero3", "strategy.sequence_parallel=true"]
CASES = [
    Case("llama", llama()),
    Case("llama-sgd", llama(), optimizer="sgd"),
    Case("llama-mesh", llama(), shard_size="40KB", ranks=4, changes=SHARDED),
    Case("llama-chunks", llama(), optimizer="sgd", ranks=2, changes=["mesh.sequence_data=2"]),
    Case("llama-3", llama(rope_parameters=LLAMA_3, tie_word_embeddings=True), dtype=torch.bfloat16, shard_size="60KB"),
    Case("llama-bias", llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4), optimizer="sgd"),
    Case("gpt2", GPT2),
    Case("gpt2-mesh", GPT2, optimizer="sgd", ranks=2, changes=["mesh.tensor=2", "strategy.kind=zero2"]),
]


def random_tokens(count: int) -> np.ndarray:
    """Returns tokens of which most follow from the one before."""
    random = np.random.default_rng(5)
    tokens = random.integers(VOCABULARY, size=count)
    for at in np.flatnonzero(random.random(count - 1) < 0.9):
        tokens[at + 1] = (tokens[at] + 1) % 16
    return tokens


def train(*arguments: object) -> None:
    """Runs the trainer, and shows what it printed if it fails."""
    run = subprocess.run([RELEASE / "unisono-train", *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"unisono-train {' '.join(map(str, arguments))}\n{run.stdout}{run.stderr}")


def logits_of(folder: Path, tokens: np.ndarray, scratch: Path) -> torch.Tensor:
    """Returns the trainer's logits of one sequence."""
    tokens.astype("<u2").tofile(scratch / "prompt.u16")
    command = [RELEASE / "examples/logits", folder, scratch / "prompt.u16", scratch / "logits.f32"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return torch.from_numpy(np.fromfile(scratch / "logits.f32", "<f4").reshape(len(tokens), -1))


def reference_logits(model: torch.nn.Module, tokens: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]


def fine_tune(model: torch.nn.Module, tokens: np.ndarray, optimizer: str, rate: float) -> list[float]:
    """Takes all steps with PyTorch, and returns their losses."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if optimizer == "adamw":
        step = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    else:
        step = torch.optim.SGD(groups, lr=rate, momentum=0.9)
    losses = []
    for number in range(STEPS):
        start = number * SEQUENCES * CONTEXT
        window = torch.from_numpy(tokens[start : start + SEQUENCES * CONTEXT + 1].astype(np.int64))
        inputs, targets = window[:-1].view(SEQUENCES, CONTEXT), window[1:]
        loss = F.cross_entropy(model(inputs).logits.view(-1, VOCABULARY), targets)
        step.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        losses.append(loss.item())
    return losses


def close(what: str, found: float, limit: float) -> float:
    assert found < limit, f"{what}: {found:.1e} apart, and {limit:.0e} is the limit"
    return found


def farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape, f"{one.shape} and {other.shape}"
    return (one - other).abs().max().item()


def comparable(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Leaves out the bias of keys: softmax is invariant to it, and AdamW magnifies the rounding errors of its gradient."""
    queries, _, values = weight.chunk(3) if name.endswith("c_attn.bias") else (weight, weight, weight[:0])
    return torch.cat([queries, values])


def check(case: Case, scratch: Path) -> None:
    torch.manual_seed(7)
    folder, tokens = scratch / "model", random_tokens(STEPS * SEQUENCES * CONTEXT + 1)
    AutoModelForCausalLM.from_config(case.config).to(case.dtype).save_pretrained(folder, max_shard_size=case.shard_size)
    files = len(list(folder.glob("*.safetensors")))
    assert (files > 1) == (case.shard_size != "5GB"), f"{files} files"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokens[:CONTEXT]
    apart = close("logits", farthest(logits_of(folder, prompt, scratch), reference_logits(model, prompt)), LOGITS_TOLERANCE)

    tokens.astype("<u2").tofile(scratch / "tokens.u16")
    rate = 1e-3 if case.optimizer == "adamw" else 0.05
    run = f"""model.from={folder} data.kind=tokens data.path={scratch}/tokens.u16 data.shuffle=false
        data.global_batch={SEQUENCES} data.micro_batch=2 schedule.steps={STEPS} schedule.warmup=0 schedule.shape=constant
        optimizer.kind={case.optimizer} optimizer.lr={rate} optimizer.momentum=0.9 checkpoint.every={STEPS}
        checkpoint.folder={scratch}/checkpoints log.file={scratch}/log.jsonl log.every=1000 sample.tokens=0"""
    train("train", "-n", case.ranks, *run.split(), *case.changes)
    found = [json.loads(line)["loss"] for line in (scratch / "log.jsonl").read_text().splitlines()]
    expected = fine_tune(model, tokens, case.optimizer, rate)
    assert len(found) == STEPS and expected[-1] < 0.9 * expected[0], f"{found}, {expected}"
    losses = close("losses", max(abs(one - other) for one, other in zip(found, expected)), LOSS_TOLERANCE)

    exported = scratch / "exported"
    options = ["--max-file-mb", 0.05] if files > 1 else []
    train("export", "--checkpoint", scratch / "checkpoints", "--to", exported, *options)
    assert (len(list(exported.glob("*.safetensors"))) > 1) == (files > 1)
    again, info = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    weights = dict(model.named_parameters())
    moved = max(farthest(comparable(name, weight), comparable(name, weights[name])) for name, weight in again.named_parameters())
    weights_apart = close("weights", moved, WEIGHTS_TOLERANCE)
    same = farthest(logits_of(exported, prompt, scratch), reference_logits(again, prompt))
    close("logits of the exported model", same, LOGITS_TOLERANCE)
    train("export", "--checkpoint", scratch / "checkpoints", "--to", scratch / "half", "--bf16")
    half = AutoModelForCausalLM.from_pretrained(scratch / "half", dtype=torch.float32).state_dict()
    for name, weight in again.state_dict().items():
        assert torch.equal(weight.to(torch.bfloat16).float(), half[name]), f"{name} in 16 bits"
    print(f"{case.name}: logits {apart:.1e} apart, losses {losses:.1e}, exported weights {weights_apart:.1e}")


def main() -> None:
    torch.set_num_threads(1)
    # transformers asks CUDA, of which the CPU part of torch has only names.
    torch.cuda.is_current_stream_capturing = lambda: False
    logging.disable_progress_bar()
    start = time.monotonic()
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            check(case, Path(scratch))
    print(f"{len(CASES)} passed, 0 failed in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
