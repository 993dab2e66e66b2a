#!/usr/bin/env python3
"""deploy/kv_sizes.py N LOG... [--block-bytes 256] [--model NAME]: how much memory, disk and store would find how much of
the prompts.

LOG is what incipit-router writes with --decision-log; rotated files are given oldest first, - is standard input. N is
the KV of a token in bytes: `incipit-worker inspect MODEL` prints it, GET /server_info has it as kv_bytes_per_token.

One pass, by reuse distance (Mattson et al., 1970): a prefix block is found by a cache of least recent use that holds C
blocks when fewer than C others were used since. A request uses its blocks last to first, as the workers do, so a block is
never colder than those behind it, and what is found is a prefix. Three columns:

    memory   the cache of the worker that had the request: device and host together
    file     a folder of that worker, which keeps what was met twice
    store    one store of all workers, which keeps what was met twice; its size is that of all

LIMITS. Routing is as it was: with larger caches it would differ. Blocks are the router's, of --block-bytes bytes of the
prompt, with the log's mean of tokens. Salted prompts, which folders and stores do not keep, are counted as others. Hash
chains end after 4,096 blocks.
"""
import argparse
import json
import sys

SHARE = 0.9  # of what any size would find: what is advised


class Recency:
    """A list of blocks by their last use, and where one stands in it: a binary indexed tree over times of use."""

    def __init__(self):
        self.last = {}
        self.tree = [0] * 1025
        self.now = 0

    def _add(self, at, n):
        while at < len(self.tree):
            self.tree[at] += n
            at += at & -at

    def _upto(self, at):
        n = 0
        while at > 0:
            n += self.tree[at]
            at -= at & -at
        return n

    def _compact(self):
        order = sorted(self.last, key=self.last.get)
        self.last = {block: i + 1 for i, block in enumerate(order)}
        self.now = len(order)
        size = max(1024, 2 * len(order))
        self.tree = [0] * (size + 1)
        for at in range(1, size + 1):  # each is built from its parts, in linear time
            self.tree[at] += at <= len(order)
            up = at + (at & -at)
            if up <= size:
                self.tree[up] += self.tree[at]

    def distance(self, block):
        """Blocks of a cache that would just hold this one; None: it was never used."""
        at = self.last.get(block)
        return None if at is None else len(self.last) - self._upto(at) + 1

    def use(self, block):
        if self.now + 1 >= len(self.tree):
            self._compact()
        if block in self.last:
            self._add(self.last[block], -1)
        self.now += 1
        self.last[block] = self.now
        self._add(self.now, 1)


class Tier:
    """How many blocks each size would have found; `from_times`: what was met less often is not kept."""

    def __init__(self, from_times):
        self.from_times = from_times
        self.recency = Recency()
        self.met = {}
        self.found_at = {}  # distance: blocks

    def request(self, blocks):
        for block in blocks:
            distance = self.recency.distance(block)
            if distance is not None:
                self.found_at[distance] = self.found_at.get(distance, 0) + 1
        for block in reversed(blocks):
            self.met[block] = self.met.get(block, 0) + 1
            if self.met[block] >= self.from_times:
                self.recency.use(block)


def found(tiers, n_blocks):
    return sum(n for tier in tiers for distance, n in tier.found_at.items() if distance <= n_blocks)


def read(files, model):
    for file in files:
        for number, line in enumerate(file, 1):
            try:
                d = json.loads(line)
                d["hashes"], d["worker"], d["prompt_bytes"]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{file.name}: line {number} is not one of a decision log")
            if model is None or d["model"] == model:
                yield d


def replay(decisions):
    """Tiers by column, and the sums of what was logged."""
    memory, files, store = {}, {}, Tier(2)
    sums = dict.fromkeys(("requests", "blocks", "tokens", "bytes", "cached"), 0)
    for d in decisions:
        blocks = d["hashes"]
        for tier in (memory.setdefault(d["worker"], Tier(1)), files.setdefault(d["worker"], Tier(2)), store):
            tier.request(blocks)
        sums["requests"] += 1
        sums["blocks"] += len(blocks)
        if "prompt_tokens" in d:
            sums["tokens"] += d["prompt_tokens"]
            sums["bytes"] += d["prompt_bytes"]
            sums["cached"] += d.get("cached_tokens", 0)
    return {"memory": list(memory.values()), "file": list(files.values()), "store": [store]}, sums


def least(tiers, wanted):
    """The least size in blocks that finds so many."""
    n = 0
    together = {}
    for tier in tiers:
        for distance, blocks in tier.found_at.items():
            together[distance] = together.get(distance, 0) + blocks
    for distance in sorted(together):
        n += together[distance]
        if n >= wanted:
            return distance
    return 0


def shown(size):
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1024:.3g} KiB"


def report(columns, sums, block_kv_bytes):
    most = max((max(t.found_at, default=0) for tiers in columns.values() for t in tiers), default=0)
    print(f"{sums['requests']} requests, {sums['tokens']} prompt tokens, {sums['cached'] / max(sums['tokens'], 1):.1%} cached; "
          f"{len(columns['memory'])} workers\n")
    print(f"{'size':>10}" + "".join(f"{name:>9}" for name in columns))
    n_blocks = 1
    while block_kv_bytes * n_blocks < 2**26:
        n_blocks *= 2
    while True:
        shares = [found(tiers, n_blocks) / max(sums["blocks"], 1) for tiers in columns.values()]
        print(f"{shown(n_blocks * block_kv_bytes):>10}" + "".join(f"{share:>9.1%}" for share in shares))
        if n_blocks >= most:
            break
        n_blocks *= 2
    print()
    for name, tiers in columns.items():
        all_found = found(tiers, most)
        size = least(tiers, SHARE * all_found)
        if all_found:
            print(f"{name}: {shown(size * block_kv_bytes)} finds {SHARE:.0%} of what any size would ({all_found / sums['blocks']:.1%})")
        else:
            print(f"{name}: no size would find anything")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kv_bytes_per_token", metavar="N", type=int)
    parser.add_argument("log", metavar="LOG", nargs="+", type=argparse.FileType())
    parser.add_argument("--block-bytes", type=int, default=256, help="--prefix-block-bytes of the router")
    parser.add_argument("--model")
    o = parser.parse_args()
    columns, sums = replay(read(o.log, o.model))
    if not sums["blocks"] or not sums["tokens"]:
        sys.exit("the log has no request with prefix blocks and prompt_tokens")
    report(columns, sums, o.kv_bytes_per_token * o.block_bytes * sums["tokens"] / sums["bytes"])


if __name__ == "__main__":
    main()
