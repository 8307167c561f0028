"""Compares the trainer with transformers on small models: logits, losses of fine-tuning, texts and exported files.

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
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2Config, LlamaConfig
from transformers import MistralConfig, MixtralConfig, Phi3Config, PretrainedConfig, PreTrainedTokenizerFast, Qwen2Config
from transformers import Qwen3Config, RepetitionPenaltyLogitsProcessor
from transformers.utils import logging

RELEASE = Path(sys.argv[1])
VOCABULARY, CONTEXT, SEQUENCES, STEPS = 311, 32, 8, 20
LOGITS_TOLERANCE = 1e-4
# Of the families, relative to the largest logit.
FAMILY_TOLERANCE = 1e-5
NEW_TOKENS = 16
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


def small(**changes: object) -> dict[str, object]:
    size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    common = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, initializer_range=0.1)
    return {**size, **common, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, **changes}


def llama(**changes: object) -> LlamaConfig:
    return LlamaConfig(**small(**changes))


def family(**changes: object) -> dict[str, object]:
    """Returns arguments of a family's configuration without special tokens, so that texts have a fixed length."""
    return small(**{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **changes})


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
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 2.0,
    "beta_slow": 0.25,
}
WEIGHTED_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False}
SHARDED = ["mesh.tensor=2", "strategy.kind=zero3", "strategy.sequence_parallel=true"]
EXPERTS = ["mesh.tensor=2", "mesh.expert=2", "strategy.kind=zero3"]
STAGES = ["mesh.pipeline=2", "mesh.tensor=2"]
# The loss that balances loads is none of transformers' model.
BALANCE = "experts.balance=none"
CASES = [
    Case("llama", llama()),
    Case("llama-sgd", llama(), optimizer="sgd"),
    Case("llama-mesh", llama(), shard_size="40KB", ranks=4, changes=SHARDED),
    Case("llama-chunks", llama(), optimizer="sgd", ranks=2, changes=["mesh.sequence_data=2"]),
    Case("llama-stages", llama(), shard_size="60KB", ranks=4, changes=["mesh.pipeline=2", "mesh.tensor=2"]),
    Case("llama-3", llama(rope_parameters=LLAMA_3, tie_word_embeddings=True), dtype=torch.bfloat16, shard_size="60KB"),
    Case("llama-bias", llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4), optimizer="sgd"),
    Case("llama-linear", LlamaConfig(**family(rope_parameters=LINEAR, head_dim=24))),
    Case("llama-yarn", LlamaConfig(**family(rope_parameters=YARN))),
    Case("mistral", MistralConfig(**family(sliding_window=CONTEXT, head_dim=24))),
    Case("mistral-mesh", MistralConfig(**family(sliding_window=None, tie_word_embeddings=True)), ranks=4, changes=SHARDED),
    Case("qwen2", Qwen2Config(**family()), optimizer="sgd"),
    Case("qwen2-mesh", Qwen2Config(**family(tie_word_embeddings=True)), optimizer="sgd", ranks=4, changes=SHARDED),
    Case("qwen3", Qwen3Config(**family(head_dim=32, rope_parameters=WEIGHTED_YARN)), dtype=torch.bfloat16),
    Case("qwen3-mesh", Qwen3Config(**family(head_dim=24, tie_word_embeddings=True)), ranks=4, changes=SHARDED),
    Case("qwen3-chunks", Qwen3Config(**family(head_dim=16)), ranks=2, changes=["mesh.sequence_data=2"]),
    Case("phi3", Phi3Config(**family(num_key_value_heads=4)), shard_size="60KB"),
    Case("phi3-stages", Phi3Config(**family(tie_word_embeddings=True)), ranks=4, changes=STAGES),
    Case("mixtral", MixtralConfig(**family(num_local_experts=4)), optimizer="sgd", changes=[BALANCE]),
    Case(
        "mixtral-mesh", MixtralConfig(**family(num_local_experts=4, tie_word_embeddings=True)), optimizer="sgd", ranks=4,
        changes=[BALANCE, *EXPERTS],
    ),
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


def train(*arguments: object) -> str:
    """Runs the trainer, and shows what it printed if it fails. Returns its notes."""
    run = subprocess.run([RELEASE / "unisono-train", *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"unisono-train {' '.join(map(str, arguments))}\n{run.stdout}{run.stderr}")
    return run.stderr


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


def words() -> Tokenizer:
    """Returns a tokenizer whose words are the numbers of the tokens."""
    tokenizer = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def check_text(checkpoints: Path, model: torch.nn.Module, prompt: np.ndarray, penalty: float) -> None:
    """Compares the most probable tokens after a prompt, one after the other, with a repetition penalty."""
    tokens, penalize = prompt.tolist(), RepetitionPenaltyLogitsProcessor(penalty)
    for _ in range(NEW_TOKENS):
        logits = reference_logits(model, np.array(tokens))[-1:]
        tokens.append(penalize(torch.tensor([tokens]), logits).argmax().item())
    flags = ["--tokens", NEW_TOKENS, "--temperature", 0, "--repetition-penalty", penalty]
    flags += ["--prompt", " ".join(map(str, prompt))]
    command = [RELEASE / "unisono-train", "generate", "--checkpoint", checkpoints, *flags]
    shown = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    assert list(map(int, shown.split())) == tokens, f"{shown}, and not {tokens}"


def check_keys(source: Path, exported: Path) -> None:
    """Checks that an exported config.json has every key of the source, with its value."""
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, exported))
    changed = {key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value}
    assert not changed.keys() - {"dtype"}, f"{changed}"
    before, after = (AutoConfig.from_pretrained(folder).to_dict() for folder in (source, exported))
    changed = {key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value}
    assert not changed.keys() - {"dtype", "_name_or_path"}, f"{changed}"


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


def compare_logits(case: Case, folder: Path, model: torch.nn.Module, prompt: np.ndarray, scratch: Path) -> float:
    expected = reference_logits(model, prompt)
    largest = max(1.0, expected.abs().max().item())
    limit = LOGITS_TOLERANCE if case.config.eos_token_id is not None else FAMILY_TOLERANCE * largest
    return close("logits", farthest(logits_of(folder, prompt, scratch), expected), limit)


def check(case: Case, scratch: Path) -> None:
    torch.manual_seed(7)
    folder, tokens = scratch / "model", random_tokens(STEPS * SEQUENCES * CONTEXT + 1)
    AutoModelForCausalLM.from_config(case.config).to(case.dtype).save_pretrained(folder, max_shard_size=case.shard_size)
    words().save(str(folder / "tokenizer.json"))
    files = len(list(folder.glob("*.safetensors")))
    assert (files > 1) == (case.shard_size != "5GB"), f"{files} files"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokens[:CONTEXT]
    apart = compare_logits(case, folder, model, prompt, scratch)

    tokens.astype("<u2").tofile(scratch / "tokens.u16")
    rate = 1e-3 if case.optimizer == "adamw" else 0.05
    run = f"""model.from={folder} data.kind=tokens data.path={scratch}/tokens.u16 data.shuffle=false
        data.global_batch={SEQUENCES} data.micro_batch=2 schedule.steps={STEPS} schedule.warmup=0 schedule.shape=constant
        optimizer.kind={case.optimizer} optimizer.lr={rate} optimizer.momentum=0.9 checkpoint.every={STEPS}
        checkpoint.folder={scratch}/checkpoints log.file={scratch}/log.jsonl log.every=1000 sample.tokens=0"""
    notes = train("train", "-n", case.ranks, *run.split(), *case.changes)
    assert "config.json" not in notes, f"keys of transformers that have no effect: {notes}"
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
    compare_logits(case, exported, again, prompt, scratch)
    check_keys(folder, exported)
    if case.config.eos_token_id is None:
        for penalty in (1.0, 1.3):
            check_text(scratch / "checkpoints", again, prompt[: CONTEXT - NEW_TOKENS], penalty)
    train("export", "--checkpoint", scratch / "checkpoints", "--to", scratch / "half", "--bf16")
    half = AutoModelForCausalLM.from_pretrained(scratch / "half", dtype=torch.float32).state_dict()
    for name, weight in again.state_dict().items():
        assert torch.equal(weight.to(torch.bfloat16).float(), half[name]), f"{name} in 16 bits"
    print(f"{case.name}: logits {apart:.1e} apart, losses {losses:.1e}, exported weights {weights_apart:.1e}")


# Letters with and without combining marks, right to left, ideographs, emoji of several code points, and white space.
UNICODE = """The first line.\tÄpfel, e\u0301te\u0301, naïve — “quotes” and 12345 numbers; it's 3.14!
\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 שלום עולם مرحبا Привет 你好，世界 こんにちは 한국어 🇩🇪 👩\u200d👩\u200d👧 😀\n\n\n   indented\r\n\u00a0\ufeffend"""
LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizers() -> dict[str, Tokenizer]:
    """Trains a tokenizer of each family on the documents: GPT-2, Llama 3, and SentencePiece."""
    corpus = [path.read_text() for path in sorted(Path("docs").glob("*.md"))] + [UNICODE]
    made = {}
    for name in ("gpt2", "llama-3", "sentencepiece"):
        is_bytes = name != "sentencepiece"
        tokenizer = Tokenizer(models.BPE(byte_fallback=not is_bytes, unk_token=None if is_bytes else "<unk>"))
        if name == "gpt2":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        elif name == "llama-3":
            split = pre_tokenizers.Split(Regex(LLAMA_3_PATTERN), behavior="isolated")
            plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
        else:
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        replace = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.ByteLevel() if is_bytes else decoders.Sequence(replace)
        bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
        special = ["<|endoftext|>"] if is_bytes else ["<unk>", "</s>", *bytes_of]
        alphabet = pre_tokenizers.ByteLevel.alphabet() if is_bytes else []
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False, limit_alphabet=256
        )
        tokenizer.train_from_iterator(corpus, trainer)
        made[name] = tokenizer
    return made


def check_tokenizer(name: str, tokenizer: Tokenizer, scratch: Path) -> None:
    """Compares the ids that `prepare` writes, and a text that the trainer generates with them."""
    text = scratch / "text"
    text.mkdir()
    documents = {"a.md": UNICODE, "b.md": Path("README.md").read_text(), "c.md": UNICODE[::-1]}
    for file, document in documents.items():
        (text / file).write_bytes(document.encode())
    file, out = scratch / "tokenizer.json", scratch / "tokens.u32"
    tokenizer.save(str(file))
    end = tokenizer.token_to_id("<|endoftext|>" if name != "sentencepiece" else "</s>")
    train("prepare", "--tokenizer", file, "--text", text, "--out", out, "--validation", 0.25)
    parts: tuple[list[int], list[int]] = ([], [])
    for document in documents.values():
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        first = len(ids) - int(len(ids) * 0.25)
        parts[0].extend([*ids[:first], end])
        parts[1].extend([*ids[first:], end])
    for expected, found in zip(parts, (out, scratch / "tokens-validation.u32")):
        assert np.fromfile(found, "<u4").tolist() == expected, f"{name}: other ids in {found.name}"

    vocabulary = tokenizer.get_vocab_size()
    run = f"""data.kind=tokens data.path={out} data.vocabulary={vocabulary} data.tokenizer={file} model.shape=llama
        model.width=32 model.context=32 model.layers=1 data.global_batch=4 schedule.steps=2 schedule.warmup=0 checkpoint.every=2
        checkpoint.folder={scratch}/checkpoints sample.tokens=0"""
    train("train", "-n", 1, *run.split())
    generate = ["generate", "--checkpoint", scratch / "checkpoints", "--tokens", 40, "--top-k", 50, "--top-p", 0.99]
    prompt = "naïve 你好"
    command = [RELEASE / "unisono-train", *generate, "--seed", 3, "--temperature", 2, "--prompt", prompt]
    shown = subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout.decode()
    # How long the text is depends on the tokens drawn: one stands for a word or for a part of a character.
    assert shown.startswith(prompt) and len(shown.strip()) > len(prompt), shown
    train("export", "--checkpoint", scratch / "checkpoints", "--to", scratch / "exported")
    again = Tokenizer.from_file(str(scratch / "exported/tokenizer.json"))
    assert again.to_str() == tokenizer.to_str()
    print(f"{name}: {len(parts[0]) + len(parts[1])} equal ids")


def save_folder(tokenizer: Tokenizer, folder: Path) -> PreTrainedTokenizerFast:
    """Saves a Llama with all files of its folder. Its tokenizer truncates and pads, as after a call of transformers.

    `tokenizer_config.json` treats a token in another way than `tokenizer.json` does.
    """
    tokenizer.add_special_tokens(["<s>", "<pad>", "<|turn|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|endoftext|>", pad_token="<pad>", add_bos_token=True
    )
    default = "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
    fast.chat_template = {"default": default, "rag": "{% for message in messages %}[{{ message.content }}]{% endfor %}"}
    fast.save_pretrained(folder)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    flags = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    turn = fast.convert_tokens_to_ids("<|turn|>")
    described["added_tokens_decoder"] = {str(turn): {"content": "<|turn|>", **flags}}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved.enable_truncation(16)
    saved.enable_padding(length=64, pad_token="<pad>", pad_id=fast.pad_token_id)
    saved.save(str(folder / "tokenizer.json"))
    ids = dict(bos_token_id=fast.bos_token_id, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id)
    model = AutoModelForCausalLM.from_config(llama(vocab_size=len(fast), max_position_embeddings=64, **ids))
    settings = dict(do_sample=False, repetition_penalty=1.2, max_new_tokens=8, min_length=1)
    for name, value in {**settings, "eos_token_id": [fast.eos_token_id, turn]}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def check_generation(checkpoints: Path, exported: Path) -> None:
    """Compares the text after a prompt, with the settings of `generation_config.json`."""
    fast = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    prompt = "naïve 你好"
    ids = torch.tensor([fast(prompt, truncation=False, padding=False).input_ids])
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1] :].tolist()
    command = [RELEASE / "unisono-train", "generate", "--checkpoint", checkpoints, "--prompt", prompt]
    run = subprocess.run(list(map(str, command)), check=True, capture_output=True)
    shown = run.stdout.decode().removeprefix(prompt).removesuffix("\n")
    # Bytes at the end that are no whole character are not shown.
    decode = Tokenizer.from_file(str(exported / "tokenizer.json")).decode
    texts = [decode(tokens[:count]) for count in range(len(tokens) + 1)]
    expected = [text for text in texts if not text.endswith("\ufffd")][-1]
    assert 0 < len(tokens) <= 8 and shown == expected, f"{shown!r}, and not {expected!r}"
    assert "not applied" in run.stderr.decode() and "min_length = 1" in run.stderr.decode(), run.stderr.decode()


def check_folder(tokenizer: Tokenizer, scratch: Path) -> None:
    """Trains the model of a folder that transformers saved, and compares what the exported folder says."""
    source, exported, out = scratch / "source", scratch / "exported", scratch / "tokens.u32"
    fast = save_folder(tokenizer, source)
    text = f"{UNICODE}  <|turn|> after it"
    (scratch / "text.md").write_bytes(text.encode())
    arguments = ["--tokenizer", source / "tokenizer.json", "--text", scratch / "text.md", "--out", out]
    train("prepare", *arguments, "--validation", 0)
    expected = [*fast(text, truncation=False, padding=False).input_ids, fast.eos_token_id]
    assert expected[0] == fast.bos_token_id and len(expected) > 100
    assert fast.convert_tokens_to_ids("<|turn|>") in expected
    assert np.fromfile(out, "<u4").tolist() == expected, "other ids than those of transformers"

    run = f"""model.from={source} model.context=32 data.kind=tokens data.path={out} data.global_batch=2 schedule.steps=2
        schedule.warmup=0 checkpoint.every=2 checkpoint.folder={scratch}/checkpoints sample.tokens=0"""
    train("train", "-n", 1, *run.split())
    train("export", "--checkpoint", scratch / "checkpoints", "--to", exported)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/rag.jinja"):
        assert (exported / file).read_bytes() == (source / file).read_bytes(), file
    before, after = (AutoConfig.from_pretrained(folder).to_dict() | {"_name_or_path": ""} for folder in (source, exported))
    assert before == after, {key: (before.get(key), after.get(key)) for key in before if before.get(key) != after.get(key)}
    before, after = (GenerationConfig.from_pretrained(folder).to_dict() for folder in (source, exported))
    assert before == after and len(after["eos_token_id"]) == 2, f"{before}, {after}"
    messages = [{"role": "user", "content": "naïve 你好"}]
    before, after = (AutoTokenizer.from_pretrained(folder).apply_chat_template for folder in (source, exported))
    content = messages[0]["content"]
    for name, wanted in ((None, f"<s>{content}<|endoftext|>"), ("rag", f"[{content}]")):
        texts = [apply(messages, chat_template=name, tokenize=False) for apply in (before, after)]
        assert texts == [wanted, wanted], f"{texts}"
    check_generation(scratch / "checkpoints", exported)
    check_refusals(source, scratch)
    print("folder: the exported one says what the source says")


def check_refusals(source: Path, scratch: Path) -> None:
    """Checks that folders whose weights are not those of the model are refused by name."""
    config = json.loads((source / "config.json").read_text())
    quantized = {**config, "quantization_config": {"bits": 4, "quant_method": "gptq"}}
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(source)}
    cases = [("config.json", quantized, "quantization_config with quant_method gptq"), ("adapter_config.json", adapter, "PEFT")]
    for file, contents, words in cases:
        folder = scratch / f"refused-{file}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / file).write_text(json.dumps(contents))
        command = [RELEASE / "unisono-train", "train", "-n", 1, f"model.from={folder}"]
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert run.returncode == 1 and words in run.stderr, run.stderr


def main() -> None:
    torch.set_num_threads(1)
    # transformers asks CUDA, of which the CPU part of torch has only names.
    torch.cuda.is_current_stream_capturing = lambda: False
    logging.disable_progress_bar()
    start = time.monotonic()
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            check(case, Path(scratch))
    made = make_tokenizers()
    for name, tokenizer in made.items():
        with tempfile.TemporaryDirectory() as scratch:
            check_tokenizer(name, tokenizer, Path(scratch))
    with tempfile.TemporaryDirectory() as scratch:
        check_folder(made["llama-3"], Path(scratch))
    print(f"{len(CASES) + len(made) + 1} passed, 0 failed in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
