"""Our backends against transformers, model by model.

Each variant is a small random model, written by transformers itself (save_pretrained) in float32,
float16 or bfloat16, in turn, and read by worker/model. The reference is transformers in float32 on
the weights of the file, which are rounded nowhere else. Compared are the log-probabilities of all
tokens after the last positions of a prompt longer than any window, as max|delta| / max|logit|; and
64 greedy tokens: equal in f32, and in f16 and bf16, where both follow the reference's tokens,
wherever the two best are further apart than the bound.

f32, f16 and bf16 are the worker's --dtype: what weights and KV are kept in, whatever the file has.

    models.py              all of it
    models.py NAME ...     variants whose names contain one of these
    models.py --fixtures [NAME ...]
                           writes tests/data/models again, for tests/conformance/test_models.c
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from common import BUILD, DATA, Report

BOUND = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
RUNS = [  # backend, path, dtype, block size, tokens of a step
    ("ref", "-", "f32", 16, 24), ("cpu", "plain", "f32", 16, 24), ("cpu", "avx2", "f32", 8, 40),
    ("cpu", "avx512", "f32", 16, 7), ("ref", "-", "bf16", 4, 24), ("cpu", "plain", "bf16", 16, 24),
    ("cpu", "avx2", "bf16", 16, 24), ("cpu", "avx512", "bf16", 32, 40),
    ("cpu", "avx512bf16", "bf16", 16, 24), ("cpu", "avx512bf16", "f32", 16, 24),
    ("cpu", "neon", "f32", 16, 24), ("cpu", "neon", "bf16", 16, 24),
    ("ref", "-", "f16", 16, 24), ("cpu", "plain", "f16", 8, 24), ("cpu", "avx2", "f16", 16, 48),
    ("cpu", "avx512", "f16", 5, 24), ("cpu", "neon", "f16", 16, 24)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
N_PROMPT, N_SCORED, N_GREEDY = 100, 24, 64

SHAPE = dict(vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
             rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0)
ROPE = {
    "default": dict(rope_type="default", rope_theta=10000.0),
    "linear": dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
    "llama3": dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64),
    "yarn": dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                 original_max_position_embeddings=64),
}
YARN = ROPE["yarn"]


def variants():
    """name -> (architecture, settings, how it is written)."""
    v = {}
    for arch in ("Llama", "Mistral", "Qwen2", "Qwen3"):
        own = {"Qwen3": dict(head_dim=32), "Mistral": dict(sliding_window=None)}.get(arch, {})
        for rope, parameters in ROPE.items():
            v[f"{arch}-{rope}"] = (arch, dict(own, rope_parameters=dict(parameters)), {})
    v["Llama-yarn-truncate-false"] = ("Llama", dict(rope_parameters=dict(YARN, truncate=False)), {})
    v["Llama-yarn-attention-factor"] = (
        "Llama", dict(rope_parameters=dict(YARN, attention_factor=0.8)), {})
    v["Llama-yarn-mscale"] = (
        "Llama", dict(rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.5)), {})
    v["Llama-yarn-betas"] = (
        "Llama", dict(rope_parameters=dict(YARN, beta_fast=8.0, beta_slow=2.0)), {})
    v["Llama-old-spelling-llama3"] = (
        "Llama", dict(rope_parameters=dict(ROPE["llama3"])), dict(old="rope_type"))
    v["Llama-old-spelling-linear"] = (
        "Llama", dict(rope_parameters=dict(ROPE["linear"])), dict(old="type"))
    v["Qwen2-old-spelling-yarn"] = (
        "Qwen2", dict(rope_parameters=dict(YARN)), dict(old="type"))
    v["Llama-deepseek-llm"] = ("Llama", dict(num_key_value_heads=4, rms_norm_eps=1e-6), {})
    v["Llama-tinyllama"] = ("Llama", dict(num_attention_heads=4, num_key_value_heads=1), {})
    v["Llama-tied"] = (
        "Llama", dict(tie_word_embeddings=True, rope_parameters=dict(ROPE["llama3"])), {})
    v["Llama-attention-bias"] = ("Llama", dict(attention_bias=True), {})
    for n in (2, 6, 18, 48, 100, 250, 512):
        v[f"Llama-head-dim-{n}"] = ("Llama", dict(head_dim=n), dict(dtype=torch.float32))
    v["Llama-eos-list"] = ("Llama", dict(eos_token_id=[2, 5]), {})
    v["Llama-sharded"] = ("Llama", {}, dict(shard="120KB"))
    for name, dtype in zip(("f32", "f16", "bf16"), DTYPES):
        v[f"Llama-{name}"] = ("Llama", {}, dict(dtype=dtype))
        v[f"Qwen3-{name}"] = ("Qwen3", dict(head_dim=36, tie_word_embeddings=True), dict(dtype=dtype))
    v["Mistral-window"] = ("Mistral", dict(sliding_window=24), {})
    v["Mistral-window-16"] = ("Mistral", dict(sliding_window=16), {})
    v["Mistral-window-odd"] = ("Mistral", dict(sliding_window=37, num_hidden_layers=2), {})
    v["Mistral-window-sharded"] = ("Mistral", dict(sliding_window=33), dict(shard="120KB"))
    v["Mistral-head-dim"] = ("Mistral", dict(sliding_window=None, head_dim=32), {})
    v["Qwen2-r1-distill"] = ("Qwen2", dict(rms_norm_eps=1e-6), {})
    v["Qwen2-tied"] = ("Qwen2", dict(tie_word_embeddings=True), {})
    v["Qwen2-window-unused"] = ("Qwen2", dict(sliding_window=20, max_window_layers=0), {})
    v["Qwen2-window-upper-layers"] = (
        "Qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1), {})
    v["Qwen2-window-old-spelling"] = (
        "Qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1),
        dict(old="type"))
    v["Qwen2-window-all-layers"] = (
        "Qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=0), {})
    v["Qwen3-tied"] = ("Qwen3", dict(head_dim=32, tie_word_embeddings=True), {})
    v["Qwen3-attention-bias"] = ("Qwen3", dict(head_dim=16, attention_bias=True), {})
    v["Qwen3-window-types"] = (
        "Qwen3", dict(head_dim=32, use_sliding_window=True, sliding_window=24,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention"]), {})
    v["Qwen3-four-layers"] = ("Qwen3", dict(head_dim=32, num_hidden_layers=4), {})
    for i, (_, _, how) in enumerate(v.values()):
        how.setdefault("dtype", DTYPES[i % 3])
    return v


# --- writing a model ---------------------------------------------------------------------------
def randomize(model, seed):
    """Weights that a trained model could have: spread logits, no dead layer, biases that matter."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if "norm" in name:
                value = 1 + 0.1 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "embed_tokens" in name:
                value = noise
            else:
                value = 0.7 * noise / p.shape[1] ** 0.5
            p.copy_(value)


def spell_as_of_old(folder, kind):
    """config.json as files of earlier years have it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope[kind] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope[kind] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))


def write_model(folder, arch, settings, how, shape=SHAPE, seed=1):
    settings = dict(shape, **settings)
    settings.setdefault("rope_parameters", dict(ROPE["default"]))
    config = getattr(transformers, arch + "Config")(**settings)
    model = getattr(transformers, arch + "ForCausalLM")(config)
    randomize(model, seed)
    model.to(how["dtype"]).save_pretrained(folder, max_shard_size=how.get("shard", "5GB"))
    if how.get("old"):
        spell_as_of_old(folder, how["old"])
    (folder / "tokenizer.json").write_text("{}\n")


# --- the two sides -----------------------------------------------------------------------------
class Reference:
    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()

    def logits(self, tokens):
        with torch.no_grad():
            return self.model(torch.tensor([tokens])).logits[0].numpy()

    def greedy(self, prompt, n):
        """n tokens, and how far the best is ahead of the second at each."""
        tokens, gaps = list(prompt), []
        for _ in range(n):
            last = self.logits(tokens)[-1]
            second, best = np.sort(last)[-2:]
            gaps.append(float(best - second))
            tokens.append(int(last.argmax()))
        return tokens[len(prompt):], gaps


def ours(folder, run, prompt, forced, n_free):
    """log-probabilities (N_SCORED, vocab), tokens beside `forced`, tokens of its own; None: no such
    path on this machine."""
    backend, path, dtype, block_size, step = run
    job = f"{len(prompt)} {N_SCORED} {len(forced)} {n_free} " + " ".join(map(str, prompt + forced))
    done = subprocess.run(
        [BUILD / "tests/reference/forward", folder, backend, path, dtype, str(block_size), str(step)],
        input=job.encode(), capture_output=True, timeout=300)
    if done.returncode == 77:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip() or f"exit {done.returncode}")
    n = len(done.stdout) // 4 - len(forced) - n_free
    scores = np.frombuffer(done.stdout[:n * 4], "<f4").reshape(N_SCORED, -1)
    tokens = np.frombuffer(done.stdout[n * 4:], "<u4").tolist()
    return scores, tokens[:len(forced)], tokens[len(forced):]


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def compare(report, name, folder, worst):
    rng = np.random.default_rng(len(name))
    reference = Reference(folder)
    prompt = rng.integers(3, 512, N_PROMPT).tolist()
    logits = reference.logits(prompt)[-N_SCORED:]
    tokens, gaps = reference.greedy(prompt, N_GREEDY)
    want, scale = log_softmax(logits), float(np.abs(logits).max())
    for run in RUNS:
        kind = run[2]
        what = f"{name}: {run[0]} {run[1]} --dtype {kind}"
        try:
            got = ours(folder, run, prompt, tokens, N_GREEDY if kind == "f32" else 0)
        except RuntimeError as e:
            report.check(False, f"{what}: {e}")
            continue
        if got is None:
            continue
        scores, beside, free = got
        delta = float(np.abs(scores - want).max()) / scale
        worst[kind] = max(worst[kind], delta)
        report.check(delta <= BOUND[kind], f"{what}: max|delta|/max|logit| {delta:.2e}")
        wrong = [i for i in range(N_GREEDY)
                 if beside[i] != tokens[i] and (kind == "f32" or gaps[i] > BOUND[kind] * scale)]
        report.check(not wrong, f"{what}: greedy tokens differ at {wrong[:8]}")
        if kind == "f32":
            report.check(free == tokens, f"{what}: 64 greedy tokens of its own differ")
    return min(gaps) / scale


def run_all(names):
    report = Report("models")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; largest "
          f"max|delta|/max|logit| of all backends and paths")
    print(f"{'model':<32} {'file':>9} {'f32':>9} {'f16':>9} {'bf16':>9}")
    for name, (arch, settings, how) in variants().items():
        if names and not any(n in name for n in names):
            continue
        worst = {"f32": 0.0, "f16": 0.0, "bf16": 0.0}
        with tempfile.TemporaryDirectory(prefix="incipit-reference-") as folder:
            write_model(Path(folder), arch, settings, how)
            compare(report, name, Path(folder), worst)
        print(f"{name:<32} {str(how['dtype'])[6:]:>9} "
              + " ".join(f"{worst[k]:9.1e}" for k in worst), flush=True)
    report.end()


# --- golden fixtures -----------------------------------------------------------------------------
SMALL = dict(SHAPE, vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128)
FIXTURES = {  # folder: variant, what differs in the small shape
    "llama": ("Llama-default", {}, {}),
    "llama3": ("Llama-llama3", dict(tie_word_embeddings=True), {}),
    "llama-linear": ("Llama-old-spelling-linear", {}, {}),
    "llama-yarn": ("Llama-yarn-truncate-false", dict(attention_bias=True), {}),
    "mistral-window": ("Mistral-window-16", {}, dict(shard="24KB")),
    "qwen2-window": ("Qwen2-window-upper-layers", dict(tie_word_embeddings=True), {}),
    "qwen2-yarn": ("Qwen2-old-spelling-yarn", dict(tie_word_embeddings=True), {}),
    "qwen3": ("Qwen3-default", dict(head_dim=32, tie_word_embeddings=True), {}),
    "llama-f32": ("Llama-f32", dict(head_dim=18), dict(dtype=torch.float32)),
    "qwen3-f16": ("Qwen3-f16", dict(head_dim=10), dict(dtype=torch.float16)),
}
N_FIXTURE_PROMPT, N_FIXTURE_SCORED, N_FIXTURE_GREEDY = 48, 4, 16


def write_fixtures(names):
    out = DATA / "models"
    for seed, (name, (variant, differs, how)) in enumerate(FIXTURES.items()):
        if names and name not in names:
            continue
        shutil.rmtree(out / name, ignore_errors=True)
        arch, settings, how_variant = variants()[variant]
        settings = dict(settings, **differs)
        folder = out / name
        how = dict(how_variant, **{"dtype": torch.bfloat16, **how})
        write_model(folder, arch, settings, how, SMALL, seed)
        reference = Reference(folder)
        prompt = np.random.default_rng(seed).integers(3, 256, N_FIXTURE_PROMPT).tolist()
        logits = reference.logits(prompt)[-N_FIXTURE_SCORED:]
        tokens, gaps = reference.greedy(prompt, N_FIXTURE_GREEDY)
        save_file({"prompt": np.array(prompt, np.int32), "greedy": np.array(tokens, np.int32),
                   "gap": np.array(gaps, np.float32),
                   "logprobs": log_softmax(logits).astype(np.float32),
                   "max_logit": np.array([np.abs(logits).max()], np.float32)},
                  out / f"{name}.expected.safetensors")
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"{len(FIXTURES)} models in {out}: {size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1:2] == ["--fixtures"]:
        write_fixtures(sys.argv[2:])
    else:
        run_all(sys.argv[1:])
