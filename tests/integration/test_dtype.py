"""--dtype: what weights and KV are kept in, how it is reported, and that `inspect` agrees with what is loaded. The
models are small and random, written here."""
import json
import random
import re
import shutil
import struct
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Worker

WORKER, OBJECT = BUILD / "incipit-worker", BUILD / "fake_gpus.so"
SMALL = ["--num-gpu-blocks-override", 16, "--max-model-len", 64]
CPU = ["--device", "cpu", *SMALL]
D, FF, VOCAB = 16, 32, 2048


def pack(values, dtype):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'e'}", *values)


def write_model(folder, dtype="F32", head_dim=18, claimed="bfloat16", scale=0.3):
    """A Llama of one layer with two heads; config.json claims a type, the file has its own."""
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": D,
              "intermediate_size": FF, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": head_dim,
              "vocab_size": VOCAB, "max_position_embeddings": 128, "torch_dtype": claimed, "eos_token_id": 2044,
              "tie_word_embeddings": True}
    shapes = {"model.embed_tokens.weight": [VOCAB, D], "model.norm.weight": [D]}
    for name, shape in {"input_layernorm": [D], "post_attention_layernorm": [D], "self_attn.q_proj": [2 * head_dim, D],
                        "self_attn.k_proj": [head_dim, D], "self_attn.v_proj": [head_dim, D],
                        "self_attn.o_proj": [D, 2 * head_dim], "mlp.gate_proj": [FF, D], "mlp.up_proj": [FF, D],
                        "mlp.down_proj": [D, FF]}.items():
        shapes[f"model.layers.0.{name}.weight"] = shape
    rng, header, data = random.Random(1), {}, b""
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        part = pack([scale * rng.uniform(-1, 1) if len(shape) > 1 else 1.0 for _ in range(n)], dtype)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    return folder


def run(*args):
    return subprocess.run([str(WORKER), *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("file, claimed, args, kept, is_rounded", [
    ("F32", "bfloat16", [], "float32", False),  # what config.json claims rounds nothing
    ("F16", "float32", [], "float16", False),
    ("BF16", "float32", [], "bfloat16", False),
    ("F32", "float32", ["--dtype", "half"], "float16", True),
    ("F32", "float32", ["--dtype", "bfloat16"], "bfloat16", True),
    ("F16", "float16", ["--dtype", "float"], "float32", False),
    ("BF16", "bfloat16", ["--dtype", "float32"], "float32", False),
])
def test_weights_are_kept_in_the_type_asked_for(programs, tmp_path, file, claimed, args, kept, is_rounded):
    worker = programs(Worker, write_model(tmp_path / "m", file, claimed=claimed), *CPU, *args).ready()
    info = worker.get("/server_info").json
    assert (info["dtype"], info["kv_cache_dtype"]) == (kept, kept)
    assert worker.field("weights_loaded", "dtype") == worker.field("weights_loaded", "kv_cache") == kept
    assert worker.field("weights_loaded", "checkpoint") == {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[file]
    n, rounded = (int(worker.field("weights_loaded", name)) for name in ("weights", "rounded"))
    assert n == VOCAB * D + 6 * 18 * D + 3 * D * FF
    assert (rounded > n * 0.9) if is_rounded else rounded == 0
    assert kept == "bfloat16" or "avx512bf16" not in info["path"]
    fastest = re.search(r"device +cpu: .*, (\w+); memory", run("inspect", DEMO_MODEL, *CPU).stdout)[1]
    assert (info["path"] != fastest) == (f" path_replaced fastest={fastest} used={info['path']} dtype={kept} " in worker.log)
    answer = worker.post("/v1/completions", {"prompt": "a b c", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    assert answer.code == 200 and answer.json["usage"]["completion_tokens"] == 4


def logprobs(worker):
    body = {"prompt": "one two three four", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    choice = worker.post("/v1/completions", body).json["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_float32_answers_are_those_of_the_reference_backend(programs, tmp_path):
    model = write_model(tmp_path / "m")
    text, wanted = logprobs(programs(Worker, model, *SMALL, "--backend", "ref").ready())
    for path in ("avx512bf16", "avx512", "avx2", "neon", "plain"):
        if "no such instruction set" in run("inspect", model, *CPU, "--path", path).stderr:
            continue
        worker = programs(Worker, model, *CPU, "--path", path).ready()
        assert worker.get("/server_info").json["dtype"] == "float32"
        ours, got = logprobs(worker)
        assert ours == text and max(abs(a - b) for a, b in zip(got, wanted)) < 1e-5, path


def test_a_weight_too_large_for_the_type_ends_the_start(tmp_path):
    result = run(write_model(tmp_path / "m", scale=1e6), "--port", 0, *CPU, "--dtype", "float16")
    assert result.returncode == 2
    assert re.search(r"weights of \S+ exceed the range of float16: use --dtype float32 or bfloat16", result.stderr)


def test_a_gpu_has_bfloat16_only(programs, tmp_path):
    model, gpu = write_model(tmp_path / "m"), ["--backend-library", OBJECT, "--device", "cuda"]
    result = run(model, "--port", 0, *gpu, "--dtype", "float32")
    assert result.returncode == 2
    assert "--dtype float32: the cuda backend computes in bfloat16; use --dtype auto or bfloat16, or --backend cpu" in result.stderr
    worker = programs(Worker, model, *gpu).ready()
    assert worker.get("/server_info").json["dtype"] == "bfloat16"
    assert int(worker.field("weights_loaded", "rounded")) > 0 and re.search(r" warn\w* weights_loaded ", worker.log)


@pytest.mark.parametrize("head_dim, fits", [(2, True), (18, True), (512, True), (514, False), (1024, False)])
def test_inspect_agrees_with_loading(programs, tmp_path, head_dim, fits):
    model = write_model(tmp_path / "m", head_dim=head_dim)
    done = run("inspect", model, *CPU)
    assert done.returncode == 0, done.stderr
    if fits:
        assert re.search(r"fits +yes", done.stdout) and re.search(r"weights .* in float32", done.stdout)
        programs(Worker, model, *CPU).ready()
        return
    why = re.search(r"fits +no: (.*)", done.stdout)[1]
    assert why.startswith(f"unsupported head_dim {head_dim}: RoPE turns the two halves of a head, so it must be even, from 2 to 512")
    result = run(model, "--port", 0, *CPU)
    assert result.returncode == 2 and why in result.stderr


def test_an_odd_head_is_refused_by_inspect_and_worker(tmp_path):
    model = write_model(tmp_path / "m", head_dim=7)
    for args in (["inspect", model], [model, "--port", 0]):
        result = run(*args, *CPU)
        assert result.returncode == 2 and "unsupported head_dim 7: supported are even numbers" in result.stderr
