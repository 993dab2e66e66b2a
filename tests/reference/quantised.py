"""Quantised checkpoints on our backends against transformers on the weights they stand for.

Each kind of checkpoint is written by this script from a random model, and from deploy/demo/model, as
its packages write it. The reference is transformers in float32 whose linear layers hold (code - zero)
* scale, computed here in float64 from the numbers before packing. So unpacking, groups, order and
scales are all in the comparison, and nothing here unpacks. The bound is max|delta| / max|logit| <=
1e-2, and 2e-5 with --dtype float32, 1e-3 where cpu rounds inputs to 16 bits. Inputs in int8 are
rounded in the reference by the worker's rule; between two codes its own float32 and float64 round
differently, and the bound is at least four times what that changes.

    quantised.py              all kinds
    quantised.py NAME ...     kinds whose names contain one of these
    quantised.py --fixtures   writes the quantised models of tests/data/models again
    quantised.py --packages DIR
                              compares the packers here, bit by bit, with those of compressed-tensors,
                              AutoAWQ and GPTQModel, whose unpacked sources DIR holds
"""
import ast
import importlib.util
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import models
from common import DATA, ROOT, Report
from models import Reference, log_softmax, ours

RUNS = [("ref", "-", "f32", 16, 24), ("ref", "-", "bf16", 16, 24), ("cpu", "plain", "bf16", 16, 24),
        ("cpu", "avx2", "bf16", 16, 24), ("cpu", "avx512", "bf16", 32, 40), ("cpu", "avx512bf16", "bf16", 16, 7),
        ("cpu", "plain", "f32", 16, 24), ("cpu", "avx2", "f32", 8, 40), ("cpu", "avx512", "f32", 16, 24),
        ("cpu", "neon", "bf16", 16, 24)]
BOUND, BOUND_F32, BOUND_I16 = 1e-2, 2e-5, 1e-3
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
DEMO = ROOT / "deploy/demo/model"
F8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


# --- packing: the documented layouts -------------------------------------------------------------
def pack_words(codes, bits):
    """(rows, n) unsigned codes -> (rows, ceil(n * bits / 32)) words, element i at bit i * bits."""
    per = 32 // bits
    pad = -codes.shape[1] % per
    c = np.pad(codes.astype(np.uint64), ((0, 0), (0, pad))).reshape(codes.shape[0], -1, per)
    words = (c << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(2)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def pack_awq(codes):
    """(rows, n) -> (rows, n / 8), nibble i holds column AWQ_ORDER[i] of its eight."""
    c = codes.reshape(codes.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(codes.shape)
    return pack_words(c, 4)


# --- quantising ----------------------------------------------------------------------------------
def integers(w, bits, group, symmetric, dtype, rng):
    """Unsigned codes (N, K), scales and unsigned zeros (N, groups), in the type of the file."""
    n, k = w.shape
    g = w.reshape(n, k // group, group).astype(np.float64)
    top = 2 ** bits - 1
    if symmetric:
        scale = np.abs(g).max(2) / (top / 2)
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(g.min(2), 0), np.maximum(g.max(2), 0)
        scale = (high - low) / top
    scale = torch.from_numpy(np.maximum(scale, 1e-6)).to(dtype)
    s = scale.double().numpy()
    if not symmetric:
        zero = np.clip(np.rint(-low / s), 0, top)
    codes = np.clip(np.rint(g / s[:, :, None]) + zero[:, :, None], 0, top)
    real = (codes - zero[:, :, None]) * s[:, :, None]
    return codes.reshape(n, k).astype(np.int64), scale, zero.astype(np.int64), real.reshape(n, k)


def to_f8(x):
    return torch.from_numpy(np.clip(x, -448, 448)).float().to(F8)


class Kind:
    """How linear layers become tensors. `quantise` returns tensors by suffix, and the real weights."""

    def __init__(self, config, quantise, int8_inputs=False, hf=None, head=False):
        self.config, self.quantise, self.int8_inputs, self.hf, self.head = config, quantise, int8_inputs, hf, head


def compressed(form, weights, inputs=None):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


def fp8_rows(w, rng, dtype=torch.bfloat16):
    scale = torch.from_numpy(np.abs(w).max(1, keepdims=True) / 448).to(dtype)
    codes = to_f8(w / scale.double().numpy())
    return {"weight": codes, "weight_scale": scale}, codes.double().numpy() * scale.double().numpy()


def fp8_tensor(w, rng):
    scale = torch.tensor(np.abs(w).max() / 448, dtype=torch.float32)
    codes = to_f8(w / scale.item())
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.02)}, codes.double().numpy() * scale.item()


def fp8_blocks(name, dtype):
    def quantise(w, rng):
        n, k = w.shape
        blocks = (-(-n // 128), -(-k // 128))
        scale = np.zeros(blocks)
        for i in range(blocks[0]):
            for j in range(blocks[1]):
                scale[i, j] = np.abs(w[i * 128:i * 128 + 128, j * 128:j * 128 + 128]).max() / 448
        if dtype == E8M0:
            scale = 2.0 ** np.ceil(np.log2(scale))
        kept = torch.from_numpy(scale).float().to(dtype)
        full = np.repeat(np.repeat(kept.double().numpy(), 128, 0), 128, 1)[:n, :k]
        codes = to_f8(w / full)
        return {"weight": codes, name: kept}, codes.double().numpy() * full
    return quantise


def int8_rows(w, rng):
    scale = torch.from_numpy(np.abs(w).max(1, keepdims=True) / 127).to(torch.bfloat16)
    s = scale.double().numpy()
    codes = np.clip(np.rint(w / s), -128, 127)
    return {"weight": torch.from_numpy(codes.astype(np.int8)), "weight_scale": scale}, codes * s


def packed(bits, group, symmetric, dtype=torch.bfloat16, shuffled=False):
    def quantise(w, rng):
        size = group or w.shape[1]
        order = np.argsort(rng.permutation(w.shape[1]) // size, kind="stable") if shuffled else np.arange(w.shape[1])
        codes, scale, zero, real = integers(w[:, order], bits, size, symmetric, dtype, rng)
        back = np.argsort(order)
        out = {"weight_packed": pack_words(codes[:, back], bits), "weight_scale": scale,
               "weight_shape": torch.tensor(w.shape, dtype=torch.int64)}
        if not symmetric:
            out["weight_zero_point"] = pack_words(zero.T, bits).T.contiguous()
        if shuffled:
            out["weight_g_idx"] = torch.from_numpy((back // size).astype(np.int32))
        return out, real[:, back]
    return quantise


def awq(group):
    def quantise(w, rng):
        codes, scale, zero, real = integers(w, 4, group, False, torch.float16, rng)
        return {"qweight": pack_awq(codes.T), "qzeros": pack_awq(zero.T), "scales": scale.T.contiguous()}, real
    return quantise


def gptq(bits, group, symmetric, v1, shuffled):
    def quantise(w, rng):
        order = np.argsort(rng.permutation(w.shape[1]) // group, kind="stable") if shuffled else np.arange(w.shape[1])
        codes, scale, zero, real = integers(w[:, order], bits, group, symmetric, torch.float16, rng)
        back = np.argsort(order)
        if v1:
            zero = np.maximum(zero, 1)
            groups = np.repeat(zero, group, 1)
            real = (codes - groups) * np.repeat(scale.double().numpy(), group, 1)
        return {"qweight": pack_words(codes[:, back], bits).T.contiguous(),
                "qzeros": pack_words(zero.T - (1 if v1 else 0), bits), "scales": scale.T.contiguous(),
                "g_idx": torch.from_numpy((back // group).astype(np.int32))}, real[:, back]
    return quantise


INT8_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
F8_TOKEN = dict(INT8_TOKEN, type="float")


def weights(bits, kind, strategy, **more):
    return dict({"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": False}, **more)


KINDS = {
    "fp8-tensor-static": Kind({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "fp8-block": Kind({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
                      fp8_blocks("weight_scale_inv", torch.float32)),
    "fp8-block-ue8m0": Kind({"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
                             "modules_to_not_convert": ["lm_head"]}, fp8_blocks("weight_scale_inv", E8M0)),
    "ct-fp8-dynamic": Kind(compressed("float-quantized", weights(8, "float", "channel"), F8_TOKEN), fp8_rows),
    "ct-fp8-block": Kind(compressed("float-quantized", weights(8, "float", "block", block_structure=[128, 128])),
                         fp8_blocks("weight_scale", torch.bfloat16)),
    "ct-w8a8": Kind(compressed("int-quantized", weights(8, "int", "channel"), INT8_TOKEN), int8_rows, int8_inputs=True),
    "ct-w8a16": Kind(compressed("int-quantized", weights(8, "int", "channel")), int8_rows),
    "ct-int4": Kind(compressed("pack-quantized", weights(4, "int", "group", group_size=32)), packed(4, 32, True)),
    "ct-int4-channel": Kind(compressed("pack-quantized", weights(4, "int", "channel")), packed(4, 0, True)),
    "ct-int4-asym": Kind(compressed("pack-quantized", weights(4, "int", "group", group_size=16, symmetric=False)),
                         packed(4, 16, False)),
    "ct-int4-order": Kind(compressed("pack-quantized", weights(4, "int", "group", group_size=32, actorder="group")),
                          packed(4, 32, True, shuffled=True)),
    "ct-int8": Kind(compressed("pack-quantized", weights(8, "int", "group", group_size=32)), packed(8, 32, True)),
    "ct-int8-asym": Kind(compressed("pack-quantized", weights(8, "int", "group", group_size=32, symmetric=False)),
                         packed(8, 32, False, torch.float16)),
    "awq": Kind({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq(32)),
    "gptq": Kind({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
                 gptq(4, 32, True, True, False)),
    "gptq-desc-act": Kind({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True},
                          gptq(4, 32, False, True, True)),
    "gptq-v2-head": Kind({"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": True,
                          "checkpoint_format": "gptq_v2", "lm_head": True}, gptq(4, 16, False, False, True), head=True),
    "gptq-int8": Kind({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "desc_act": False},
                      gptq(8, 32, False, True, False)),
    "modelopt-fp8": Kind(None, fp8_tensor, hf={"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}),
}


# --- a checkpoint ----------------------------------------------------------------------------------
def is_linear(name, kind):
    return name.endswith("_proj.weight") or (kind.head and name == "lm_head.weight")


def write_quantised(base, folder, kind, shards=1):
    """Turns the model in `base` into one of this kind; returns its real weights."""
    rng = np.random.default_rng(7)
    plain, out, real = {}, {}, {}
    for file in sorted(base.glob("*.safetensors")):
        plain.update(load_file(file))
    for name, w in plain.items():
        if not is_linear(name, kind):
            out[name], real[name] = w, w.double().numpy()
            continue
        tensors, real[name] = kind.quantise(w.double().numpy(), rng)
        for suffix, t in tensors.items():
            out[name.removesuffix("weight") + suffix] = t.contiguous()
        for part in "kv":  # of a cache: read past
            if kind.hf and f"{part}_proj" in name:
                out[name.removesuffix("weight") + part + "_scale"] = torch.tensor(1.0)
    config = json.loads((base / "config.json").read_text())
    if kind.config:
        config["quantization_config"] = kind.config
    if kind.hf:
        (folder / "hf_quant_config.json").write_text(json.dumps(kind.hf))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}\n")
    if shards == 1:
        save_file(out, folder / "model.safetensors")
    else:  # the tensors of a module in different files
        names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        where = {k: names[i % shards] for i, k in enumerate(sorted(out))}
        for n in names:
            save_file({k: out[k] for k in out if where[k] == n}, folder / n)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return real


def round_inputs(module, inputs):
    x = inputs[0]
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (torch.clamp(torch.round(x / scale), -127, 127) * scale,)


def reference_of(base, kind, real):
    reference = Reference(base)
    state = {k: torch.from_numpy(v).float() for k, v in real.items()}
    missing, unexpected = reference.model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    for name, module in reference.model.named_modules():
        if kind.int8_inputs and name.endswith("_proj"):
            module.register_forward_pre_hook(round_inputs)
    return reference


def rounding_floor(reference, prompt, logits):
    """How far float32 and float64 of the reference itself are apart: inputs that are rounded to int8 are rounded
    differently where they lie between two codes."""
    reference.model.double()
    apart = np.abs(log_softmax(reference.logits(prompt)[-models.N_SCORED:]) - log_softmax(logits)).max()
    reference.model.float()
    return float(apart / np.abs(logits).max())


def compare(report, what, base, kind, shards, prompt, runs):
    worst = {}
    with tempfile.TemporaryDirectory(prefix="incipit-quantised-") as folder:
        real = write_quantised(base, Path(folder), kind, shards)
        reference = reference_of(base, kind, real)
        logits = reference.logits(prompt)[-models.N_SCORED:]
        want, scale = log_softmax(logits), float(np.abs(logits).max())
        bound = max(BOUND, 4 * rounding_floor(reference, prompt, logits)) if kind.int8_inputs else BOUND
        for run in runs:
            name = f"{what}: {run[0]} {run[1]} --dtype {run[2]}"
            try:
                got = ours(folder, run, prompt, [], 0)
            except RuntimeError as e:
                if "has no product for them" in str(e):
                    worst[run[0] + " " + run[2]] = math.nan
                else:
                    report.check(False, f"{name}: {e}")
                continue
            if got is None:
                continue
            delta = float(np.abs(got[0] - want).max()) / scale
            key = run[0] + " " + run[2]
            worst[key] = max(worst.get(key, 0), delta)
            exact = run[2] == "f32" and not kind.int8_inputs
            exact_bound = BOUND_F32 if run[0] == "ref" or "fp8" in what else BOUND_I16
            report.check(delta <= (exact_bound if exact else bound), f"{name}: max|delta|/max|logit| {delta:.2e}")
    columns = [worst.get(k) for k in ("ref f32", "ref bf16", "cpu f32", "cpu bf16")]
    note = f"  bound {bound:.1e}" if bound > BOUND else ""
    print(f"{what:<32}" + "".join("         -" if d is None else "   refused" if math.isnan(d) else f" {d:9.1e}" for d in columns) + note, flush=True)


def run_all(names):
    report = Report("quantised")
    rng = np.random.default_rng(3)
    text = rng.integers(3, 2000, 4).tolist()
    text += Reference(DEMO).greedy(text, 60)[0]  # what the model itself would write
    print(f"{'checkpoint':<32} {'ref f32':>9} {'ref bf16':>9} {'cpu f32':>9} {'cpu bf16':>9}")
    for i, (name, kind) in enumerate(KINDS.items()):
        if names and not any(n in name for n in names):
            continue
        arch, settings = [("Llama", {}), ("Qwen2", {}), ("Qwen3", dict(head_dim=32))][i % 3]
        with tempfile.TemporaryDirectory(prefix="incipit-quantised-") as base:
            models.write_model(Path(base), arch, settings, dict(dtype=torch.float16 if i % 2 else torch.bfloat16))
            compare(report, f"{name} ({arch})", Path(base), kind, 1 + i % 3, rng.integers(3, 512, 100).tolist(), RUNS)
        if not kind.head:
            compare(report, f"{name} (demo)", DEMO, kind, 1, text, [r for r in RUNS if r[2] == "f32"])  # and its cache
    report.end()


# --- fixtures of tests/conformance -------------------------------------------------------------------
SMALL = dict(models.SMALL, vocab_size=64, tie_word_embeddings=True)
FIXTURES = {"quant-fp8-block": "fp8-block", "quant-w8a8": "ct-w8a8", "quant-gptq": "gptq-desc-act"}


def write_fixtures():
    for seed, (name, kind) in enumerate(FIXTURES.items()):
        kind, folder = KINDS[kind], DATA / "models" / name
        if "group_size" in kind.config:
            kind = Kind(dict(kind.config, group_size=16), gptq(4, 16, False, True, True))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with tempfile.TemporaryDirectory(prefix="incipit-quantised-") as base:
            models.write_model(Path(base), "Llama", {}, dict(dtype=torch.bfloat16), SMALL, seed)
            reference = reference_of(Path(base), kind, write_quantised(Path(base), folder, kind, 1))
        prompt = np.random.default_rng(seed).integers(3, 64, models.N_FIXTURE_PROMPT).tolist()
        logits = reference.logits(prompt)[-models.N_FIXTURE_SCORED:]
        tokens, gaps = reference.greedy(prompt, models.N_FIXTURE_GREEDY)
        models.save_file({"prompt": np.array(prompt, np.int32), "greedy": np.array(tokens, np.int32),
                          "gap": np.array(gaps, np.float32), "logprobs": log_softmax(logits).astype(np.float32),
                          "max_logit": np.array([np.abs(logits).max()], np.float32)},
                         DATA / "models" / f"{name}.expected.safetensors")
    size = sum(f.stat().st_size for f in (DATA / "models").rglob("quant-*/*")) + sum(
        f.stat().st_size for f in (DATA / "models").glob("quant-*.safetensors"))
    print(f"{len(FIXTURES)} quantised models: {size} bytes")


# --- the packages' own packers -----------------------------------------------------------------------
def load_source(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_function(path, cls, name, names):
    """One method of a class whose module cannot be imported here."""
    tree = ast.parse(path.read_text())
    for c in [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls]:
        for f in [n for n in c.body if isinstance(n, ast.FunctionDef) and n.name == name]:
            f.decorator_list = []
            exec(compile(ast.Module([f], []), str(path), "exec"), names)
            return names[name]
    raise RuntimeError(f"{path} has no {cls}.{name}")


def check_compressed(report, folder, rng):
    helpers = load_source(next(folder.rglob("compressed_tensors/compressors/pack_quantized/helpers.py")))
    for bits in (4, 8):
        for n, k in ((4096, 1024), (12, 100), (3, 7)):
            codes = rng.integers(0, 2 ** bits, (n, k))
            signed = torch.from_numpy((codes - 2 ** (bits - 1)).astype(np.int8))
            report.check(torch.equal(helpers.pack_to_int32(signed, bits), pack_words(codes, bits)), f"ct pack {bits} {n} x {k}")
            report.check(torch.equal(helpers.pack_to_int32(signed, bits, packed_dim=0), pack_words(codes.T, bits).T),
                         f"ct zero points {bits} {n} x {k}")


def check_awq(report, folder, rng):
    utils = load_source(next(folder.rglob("awq/utils/packing_utils.py")))
    k, n, group = 1024, 512, 128
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, k // group))
    q, z = utils.unpack_awq(pack_awq(codes.T), pack_awq(zeros.T), 4)
    q, z = utils.reverse_awq_order(q, z, 4)
    report.check(np.array_equal((q & 15).numpy().T, codes), "awq codes")
    report.check(np.array_equal((z & 15).numpy().T, zeros), "awq zeros")


def check_gptq(report, folder, rng):
    class Nothing:
        def __enter__(self):
            return self

        def __exit__(self, *a):
            return False

        def threadpool_limits(self, n):
            return self

    class Layer(torch.nn.Module):
        pass

    path = next(p for p in folder.rglob("nn_modules/qlinear/__init__.py"))
    names = {"t": torch, "np": np, "math": math, "nn": torch.nn, "transformers": transformers, "THREADPOOLCTL": Nothing(),
             "_ConvNd": torch.nn.modules.conv._ConvNd}
    cls = next(c.name for c in ast.walk(ast.parse(path.read_text())) if isinstance(c, ast.ClassDef)
               and any(isinstance(f, ast.FunctionDef) and f.name == "pack_original" for f in c.body))
    pack = take_function(path, cls, "pack_original", names)
    for bits in (4, 8):
        n, k, group = 96, 256, 32
        codes, zeros = rng.integers(0, 2 ** bits, (n, k)), rng.integers(0, 2 ** bits, (n, k // group))
        g_idx = rng.permutation(k) // group
        layer, linear = Layer(), torch.nn.Linear(k, n, bias=False)
        layer.bits, layer.maxq, layer.planar = bits, 2 ** bits - 1, False
        layer.pack_factor, layer.pack_dtype_bits, layer.pack_dtype = 32 // bits, 32, torch.int32
        layer.pack_np_math_dtype, layer.pack_np_dtype = np.uint32, np.int32
        linear.weight.data = torch.from_numpy((codes - zeros[:, g_idx]).astype(np.float32))  # scale 1
        pack(layer, linear, torch.ones(n, k // group), torch.from_numpy(zeros.astype(np.float32)), torch.from_numpy(g_idx))
        report.check(torch.equal(layer.qweight, pack_words(codes, bits).T), f"gptq {bits} codes")
        report.check(torch.equal(layer.qzeros, pack_words(zeros.T, bits)), f"gptq {bits} zeros")


def check_packages(folder):
    report, rng = Report("packers"), np.random.default_rng(5)
    for check in (check_compressed, check_awq, check_gptq):
        try:
            check(report, folder, rng)
        except StopIteration:
            print(f"SKIPPED {check.__name__}: its sources are not under {folder}")
    report.end()


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1:2] == ["--fixtures"]:
        write_fixtures()
    elif sys.argv[1:2] == ["--packages"]:
        check_packages(Path(sys.argv[2]))
    else:
        run_all(sys.argv[1:])
