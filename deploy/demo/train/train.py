"""train.py - trains the demonstration model on a CPU.

    python3 train.py --tokenizer ../model/tokenizer.json --run a --minutes 35
    python3 train.py --tokenizer ../model/tokenizer.json --run b --resume a.pt --minutes 60 --decay-minutes 12

Several single-threaded processes learn side by side, each from its own generating process, and average their
gradients once per step: on a machine shared with others this loses far less than threads do, which wait for each
other hundreds of times per step. What is learnt grows with success: CURRICULUM is a list
of levels, and the next is entered when the running share of exactly right answers passes PROMOTE_AT, or after
MOST_STEPS_PER_LEVEL anyway. Weights are kept twice: as trained, and as a running average (EMA), which is what is evaluated and shipped: it is as good as a
decayed learning rate at any moment.

Optimizer: Muon (Jordan, 2024: momentum, orthogonalised by Newton-Schulz) for the matrices of the layers, AdamW for
the embedding and the norms. Warm-up 150 steps, constant, then linear to 2 % over the last --decay-minutes.

Every --save-seconds the state goes to RUN.pt and a JSON line of accuracies to RUN.jsonl.
"""
import argparse
import json
import math
import os
import random
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
import torch.nn.functional as functional

import generate
import structured
from batch import Batch, encode, exact_answers, length_of, pack_arrays, repeat_encoded
from evaluate import evaluate, evaluation_sets
from model import D_FF, QKV_ROWS, Model, load_safetensors
from tokenizer import Tokenizer

LONGEST_SAMPLE = 3800
ADAM_RATE, MUON_RATE, MUON_MOMENTUM, WEIGHT_DECAY = 2e-3, 0.02, 0.95, 0.02
WARMUP_STEPS, FLOOR, CLIP = 150, 0.02, 1.0
EMA_DECAY = 0.99
PROMOTE_AT, STEPS_PER_LEVEL, MOST_STEPS_PER_LEVEL = 0.45, 40, 80

# ---- curriculum -----------------------------------------------------------------------------------
# (share of random repeats, share of pairs, rows from, rows to, most columns); the rest of the samples are tables
CURRICULUM = [
    (0.60, 0.40, 2, 4, 0), (0.25, 0.75, 2, 8, 0),
    (0.10, 0.40, 2, 4, 1), (0.05, 0.25, 2, 5, 2), (0.03, 0.17, 2, 6, 2), (0.03, 0.10, 3, 8, 3),
    (0.03, 0.05, 3, 8, 4), (0.03, 0.05, 3, 8, 6), (0.02, 0.03, 3, 12, 6), (0.02, 0.03, 3, 16, 6),
    (0.02, 0.02, 4, 21, 6), (0.02, 0.02, 4, 27, 6), (0.01, 0.01, 5, 32, 6)]
FIRST_WITH_EVERY_KIND = 5         # from this level on: absent names, missing columns, prompts without a table
SHARE_NO_TABLE, SHARE_TOOL, SHARE_EASIER, SHARE_CHAT, SHARE_JSON = 0.07, 0.11, 0.20, 0.70, 0.68    # JSON: of chat


def draw_sample(rng, level, mix):
    """One sample of the level, as text; None stands for random repeats."""
    repeats, pairs, low, high, columns = CURRICULUM[level]
    chance = rng.random()
    if chance < repeats:
        return None
    if chance < repeats + pairs or columns == 0:
        return generate.pairs_sample(rng, rng.randint(2, max(4, min(high, 8))), 16)
    every_kind = level >= FIRST_WITH_EVERY_KIND
    if every_kind and rng.random() < SHARE_NO_TABLE:
        return generate.no_table_sample(rng, 16)
    if every_kind and rng.random() < SHARE_TOOL:
        return structured.tool_sample(rng, 12, mix)
    if rng.random() < SHARE_EASIER:
        _, _, low, high, columns = CURRICULUM[rng.randint(2, level)]
    n_columns = columns if columns == 6 and rng.random() < 0.65 else rng.randint(1, columns)
    fields = sorted(rng.sample(generate.FIELDS, n_columns), key=generate.FIELDS.index)
    n_rows = rng.randint(low, high)
    if not every_kind:
        mix = generate.Mix(mix.fields, 0.0, 0.0, 0.0)
    chat = level >= 3 and rng.random() < SHARE_CHAT
    n_branches = min(2 * n_rows * n_columns, 16 + n_rows // 2)
    if every_kind and chat and rng.random() < SHARE_JSON:
        n_rows = rng.randint(2, 8) if rng.random() < 0.35 else n_rows
        return structured.json_sample(rng, n_rows, fields, n_branches, mix)
    classic = not chat and n_columns == 6 and rng.random() < 0.3
    return generate.table_sample(rng, n_rows, fields, n_branches, chat, mix, classic=classic)


def generate_batches(queue, level, mix, tokenizer_path, seed, tokens_per_step):
    """The generating process: packed arrays into the queue, for ever."""
    rng, tokenizer = random.Random(seed), Tokenizer.load(tokenizer_path)
    while True:
        samples, total = [], 0
        while total < tokens_per_step:
            sample = draw_sample(rng, level.value, mix)
            encoded = encode(sample, tokenizer) if sample else repeat_encoded(rng, 60)
            if length_of(encoded) < LONGEST_SAMPLE:
                samples.append(encoded)
                total += length_of(encoded)
        queue.put(pack_arrays(samples, rng))


# ---- optimizer ------------------------------------------------------------------------------------

def orthogonalised(matrix):
    """The nearest orthonormal matrix, roughly: five Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.t() if tall else matrix).contiguous()
    x = (x / (x.norm() + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.t()
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.float().t() if tall else x.float()


class Muon:
    """q, k, v and gate, up lie stacked in one matrix each and are orthogonalised apart."""

    def __init__(self, matrices):
        self.matrices = matrices                              # [(parameter, row counts of its parts)]
        self.momentum = [torch.zeros_like(p) for p, _ in self.matrices]

    @torch.no_grad()
    def step(self, rate):
        for (p, row_splits), momentum in zip(self.matrices, self.momentum):
            momentum.mul_(MUON_MOMENTUM).add_(p.grad)
            wanted = p.grad + MUON_MOMENTUM * momentum
            p.mul_(1 - rate * WEIGHT_DECAY)
            for part, direction in zip(p.split(row_splits), wanted.split(row_splits)):
                scale = math.sqrt(max(1.0, part.shape[0] / part.shape[1]))
                part.add_(orthogonalised(direction), alpha=-rate * scale)


class Trainer:
    """Model, its average, both optimizers, the level: everything a checkpoint holds."""

    def __init__(self, seed):
        self.model, self.average = Model(seed), Model(seed)
        self.step_count, self.level, self.n_tokens, self.seconds = 0, 0, 0, 0.0
        matrices = [(p, QKV_ROWS) for p in self.model.qkv] + [(p, p.shape[0]) for p in self.model.out]
        matrices += [(p, [D_FF, D_FF]) for p in self.model.gate_up] + [(p, p.shape[0]) for p in self.model.down]
        held = {id(p) for p, _ in matrices}
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW([p for p in self.model.parameters() if id(p) not in held], lr=ADAM_RATE,
                                      betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)

    def start_from(self, path):
        """Takes over shipped weights; the optimizers begin anew, at the last level."""
        for model in (self.model, self.average):
            load_safetensors(model, path)
        self.level = len(CURRICULUM) - 1

    def gradients(self, batch):
        """Fills the gradients from this process's batch. Returns (loss, exact answers)."""
        logits = self.model(batch)
        losses = functional.cross_entropy(logits, batch.target, reduction="none")
        loss = (losses * batch.weight).sum() / batch.weight.sum()
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        self.n_tokens += len(batch.tokens) * distributed.get_world_size()
        return loss.item(), exact_answers(logits.detach(), batch)

    @torch.no_grad()
    def share(self, figures):
        """Averages the gradients over all processes and sums figures (a list of numbers), in one exchange."""
        parameters = list(self.model.parameters())
        flat = torch.cat([p.grad.flatten() for p in parameters] + [torch.tensor(figures)])
        distributed.all_reduce(flat)
        at = 0
        for p in parameters:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p)).div_(distributed.get_world_size())
            at += p.numel()
        return flat[at:].tolist()

    def step(self, rate):
        """One step of both optimizers at rate (a factor on both learning rates), and of the average."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        rate *= min(1.0, (self.step_count + 1) / WARMUP_STEPS)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_RATE * rate
        self.adam.step()
        self.muon.step(MUON_RATE * rate)
        self.step_count += 1
        keep = min(EMA_DECAY, (self.step_count + 1) / (self.step_count + 10))
        with torch.no_grad():
            for mean, p in zip(self.average.parameters(), self.model.parameters()):
                mean.lerp_(p, 1 - keep)

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "average": self.average.state_dict(),
                    "adam": self.adam.state_dict(), "momentum": self.muon.momentum, "step_count": self.step_count,
                    "level": self.level, "n_tokens": self.n_tokens, "seconds": self.seconds}, path + ".new")
        os.replace(path + ".new", path)

    def load(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.adam.load_state_dict(state["adam"])
        self.muon.momentum = state["momentum"]
        for name in ("step_count", "level", "n_tokens", "seconds"):
            setattr(self, name, state[name])


# ---- the run --------------------------------------------------------------------------------------

def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--run", required=True, help="path of the run without ending: RUN.pt, RUN.jsonl")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    parser.add_argument("--weights", help="a model.safetensors to go on from, with fresh optimizers")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on both learning rates")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--decay-minutes", type=float, default=0.0, help="the last ones, with a falling rate")
    parser.add_argument("--processes", type=int, default=2, help="each with one thread and its share of a step")
    parser.add_argument("--tokens-per-step", type=int, default=5120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mix", default="{}", help='JSON over generate.Mix, as {"absent": 0.2}')
    parser.add_argument("--save-seconds", type=float, default=75)
    return parser.parse_args()


def report(trainer, sets, run, loss, seconds):
    """Every process evaluates its share of the sets; the first one writes the line."""
    rank, n = distributed.get_rank(), distributed.get_world_size()
    figures, _ = evaluate(trainer.average, {name: sets[name] for name in sorted(sets)[rank::n]})
    parts = [None] * n
    distributed.all_gather_object(parts, figures)
    if rank:
        return
    line = {"step": trainer.step_count, "seconds": round(trainer.seconds + seconds),
            "tokens_m": round(trainer.n_tokens / 1e6, 2), "level": trainer.level, "loss": round(loss, 4)}
    for part in parts:
        line.update({key: round(share, 3) for key, (share, _) in sorted(part.items())})
    with open(run + ".jsonl", "a") as log:
        log.write(json.dumps(line) + "\n")
    print("EVAL " + json.dumps(line), flush=True)


def run(rank, options):
    """The life of one process. All take the same decisions: what they decide by is exchanged every step."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    distributed.init_process_group("gloo", init_method="file://" + os.path.abspath(options.run) + ".meet", rank=rank,
                                   world_size=options.processes)
    trainer = Trainer(options.seed)
    if options.resume:
        trainer.load(options.resume)
    if options.weights:
        trainer.start_from(options.weights)
    sets = evaluation_sets(Tokenizer.load(options.tokenizer), 6, 2)
    level, queue = multiprocessing.Value("i", trainer.level), multiprocessing.Queue(4)
    seed = 1000003 * options.seed + 1009 * trainer.step_count + rank
    generator = multiprocessing.Process(
        target=generate_batches, daemon=True,
        args=(queue, level, generate.Mix(**json.loads(options.mix)), options.tokenizer, seed,
              options.tokens_per_step // options.processes))
    generator.start()

    started = time.time()
    exact, steps_here, saved_at, seconds = 0.0, 0, 0.0, 0.0
    while seconds < 60 * options.minutes:
        batch = Batch(*queue.get())
        loss, right = trainer.gradients(batch)
        counted = [bool(r) for kind, r in zip(batch.kinds, right) if kind != "small_talk"]
        clock = time.time() - started if rank == 0 else 0.0
        loss, n_right, n_asked, seconds = trainer.share([loss, sum(counted), len(counted), clock])
        left = max(0.0, options.minutes - seconds / 60)
        decay = max(FLOOR, left / options.decay_minutes) if left < options.decay_minutes else 1.0
        trainer.step(options.rate * decay)
        steps_here += 1
        exact = 0.95 * exact + 0.05 * n_right / max(1, n_asked)
        ready = exact > PROMOTE_AT and steps_here >= STEPS_PER_LEVEL or steps_here >= MOST_STEPS_PER_LEVEL
        if ready and trainer.level + 1 < len(CURRICULUM):
            trainer.level += 1
            level.value, steps_here, exact = trainer.level, 0, min(exact, PROMOTE_AT - 0.02)
        if rank == 0 and trainer.step_count % 25 == 0:
            print("step %d %.0f s level %d loss %.3f exact %.3f %.2f M tokens" % (
                trainer.step_count, seconds, trainer.level, loss / options.processes, exact,
                trainer.n_tokens / 1e6), flush=True)
        if seconds - saved_at > options.save_seconds:
            save_and_report(trainer, sets, options, loss / options.processes, seconds)
            saved_at = seconds
    generator.terminate()
    save_and_report(trainer, sets, options, loss / options.processes, seconds)


def save_and_report(trainer, sets, options, loss, seconds):
    if distributed.get_rank() == 0:
        before = trainer.seconds
        trainer.seconds += seconds
        trainer.save(options.run + ".pt")
        trainer.seconds = before
    report(trainer, sets, options.run, loss, seconds)


def main():
    options = parse_arguments()
    if os.path.exists(options.run + ".meet"):
        os.remove(options.run + ".meet")
    multiprocessing.spawn(run, args=(options,), nprocs=options.processes)


if __name__ == "__main__":
    main()
