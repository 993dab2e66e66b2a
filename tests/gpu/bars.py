"""What the figures of a check are held against: this card's own limits, measured on the same day.

A step's floor is the time for its bytes at the measured rate of a device copy, or for its products at the measured peak
of a bf16 product, whichever is longer; attention adds its own. A bar is a percentage of that floor, so that it means the
same on every card. expected.json has what was predicted for known cards before any run.
"""
import json
import pathlib

BIG, SMALL = "llama-3.1-8b", "qwen2.5-1.5b"
SHAPES = {BIG: dict(layers=32, d=4096, q=4096, kv=1024, ff=14336, vocab=128256),
          SMALL: dict(layers=28, d=1536, q=1536, kv=256, ff=8960, vocab=151936)}
# (matrices of the layers, cache) of the phase `quantised`; the head stays bf16.
QUANTISED = (("e4m3", "bf16"), ("int4", "bf16"), ("bf16", "e4m3"))
MATRIX_BYTES = {"bf16": 2, "e4m3": 1, "int4": 0.5 + 4 / 128}  # of a number: int4 has an f32 scale for 128
CACHE_BYTES = {"bf16": 1, "e4m3": (1 + 1 / 128) / 2}  # of bf16's, at head_dim 128
EXPECTED = pathlib.Path(__file__).resolve().parent / "expected.json"


def weights(model):
    """(numbers in the layers' matrices, numbers in the head)"""
    s = SHAPES[model]
    layer = s["d"] * (s["q"] + 2 * s["kv"]) + s["q"] * s["d"] + 3 * s["d"] * s["ff"]
    return s["layers"] * layer, s["vocab"] * s["d"]


def kv_bytes(model):
    """Of one token: K and V of all layers, bf16."""
    return SHAPES[model]["layers"] * 2 * SHAPES[model]["kv"] * 2


def product_us(model, n_tokens, n_outputs, gbs, tflops, matrices="bf16"):
    layers, head = weights(model)
    return max((MATRIX_BYTES[matrices] * layers + 2 * head) / gbs / 1e3, 2 * (layers * n_tokens + head * n_outputs) / tflops / 1e6)


def decode_floor_us(model, batch, context, gbs, tflops, matrices="bf16", cache="bf16"):
    return (product_us(model, batch, batch, gbs, tflops, matrices)
            + batch * context * kv_bytes(model) * CACHE_BYTES[cache] / gbs / 1e3)


def prefill_flops(model, fresh, cached=0):
    """Of attention: 4 q_width for each pair of a token and one that it sees, in each layer."""
    s = SHAPES[model]
    pairs = fresh * cached + fresh * (fresh + 1) / 2
    return 4 * s["q"] * s["layers"] * pairs


def prefill_floor_us(model, fresh, cached, gbs, tflops):
    """One row, one output. The cached K and V are read; what is fresh is small beside the weights."""
    return (product_us(model, fresh, 1, gbs, tflops) + prefill_flops(model, fresh, cached) / tflops / 1e6
            + cached * kv_bytes(model) / gbs / 1e3)


def expectation(device, what):
    """What was predicted for this card, in the bar's unit; None for a card of no table."""
    tables = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    name = (device or {}).get("name", "")
    for card, table in tables.items():
        if card in name:
            return table.get(what)
    return None


class Bars:
    def __init__(self, check):
        self.c, self.rows = check, []
        copy, product = check.find(row="ceiling", name="device copy"), check.find(row="ceiling", name="product")
        self.gbs, self.tflops = copy and copy["gbs"], product and product["tflops"]

    def add(self, what, bar, figure, unit, holds, means=""):
        self.rows.append({"what": what, "bar": bar, "figure": figure, "unit": unit, "means": means,
                          "expected": expectation(self.c.gpu, what), "holds": None if figure is None else bool(holds)})

    def at_least(self, what, least, figure, unit, means=""):
        self.add(what, f">= {least}", figure, unit, figure is not None and figure >= least, means)

    def at_most(self, what, most, figure, unit, means=""):
        self.add(what, f"<= {most}", figure, unit, figure is not None and figure <= most, means)

    def us(self, row, **want):
        found = self.c.find(row=row, **want)
        return found and found["us"]

    def floored(self, floor, *args):
        return floor(*args, self.gbs, self.tflops) if self.gbs and self.tflops else None

    def decode(self, label, model, batch, percent, context=1024):
        us = self.us("decode", model=model, batch=batch, context=context)
        floor = self.floored(decode_floor_us, model, batch, context)
        means = f"{batch * 1e6 / us:.0f} tok/s" if us else ""
        if floor:
            means += f"{'; ' if means else ''}the bar is {percent / 100 * batch * 1e6 / floor:.0f} here"
        self.at_least(f"{label} decode, batch {batch}, 1k", percent, us and floor and 100 * floor / us, "% of copy", means)

    def quantised(self, matrices, cache, batch, percent):
        us = self.us("decode", model=f"{BIG} {matrices}/{cache}", batch=batch, context=1024)
        floor = (decode_floor_us(BIG, batch, 1024, self.gbs, self.tflops, matrices, cache)
                 if self.gbs and self.tflops else None)
        means = f"{batch * 1e6 / us:.0f} tok/s" if us else ""
        if floor:
            means += f"{'; ' if means else ''}the bar is {percent / 100 * batch * 1e6 / floor:.0f} here"
        self.at_least(f"8B {matrices}/{cache} decode, batch {batch}, 1k", percent, us and floor and 100 * floor / us,
                      "% of copy", means)

    def prefill(self, label, model, fresh, percent):
        us = self.us("prefill", model=model, fresh=fresh)
        floor = self.floored(prefill_floor_us, model, fresh, 0)
        means = f"{us / 1e3:.1f} ms" if us else ""
        if floor:
            means += f"{'; ' if means else ''}the bar is {floor / percent / 10:.1f} here"
        self.at_least(f"{label} prefill {fresh // 1024}k", percent, us and floor and 100 * floor / us, "% of peak", means)

    def prefix_hit(self, times):
        us = self.us("prefix_hit", model=BIG)
        floor = self.floored(prefill_floor_us, BIG, 128, 8192)
        means = f"{us / 1e3:.2f} ms" if us else ""
        if floor:
            means += f"{'; ' if means else ''}the bar is {times * floor / 1e3:.2f} here"
        self.at_most("8B step of 128 on 8k cached", times, us and floor and us / floor, "x floor", means)

    def server(self):
        row = self.c.find(row="server")
        hit, cold = (row["hit_ms"], row["cold_ms"]) if row else (None, None)
        self.at_most("8B 128 on 8k cached, TTFT over HTTP", 9, hit, "ms")
        self.at_most("the same over a cold 8k prompt", 0.05, hit and hit / cold, "of cold")
        self.at_most("8B ready, from page cache", 15, row and row["ready_s"], "s")

    def attention(self):
        row = self.c.find(row="kernel", name="decode_attention", model=BIG, what="B=32 L=8192")
        self.at_least("8B decode attention, 32 x 8k", 85,
                      row and self.gbs and 100 * row["bytes"] / row["us"] / 1e3 / self.gbs, "% of copy")

    def swap(self):
        row = self.c.find(row="swap", model=BIG)
        for way in ("in", "out"):
            bus = self.c.find(row="ceiling", name=f"bus {way}")
            figure, limit = row and row[f"{way}_gbs"], bus and bus["gbs"]
            self.add(f"swap {way}", ">= 45, or 95 % of the bus", figure, "GB/s",
                     figure is not None and (figure >= 45 or bool(limit) and figure >= 0.95 * limit),
                     f"the bus gives {limit:.0f}" if limit else "")

    def host(self):
        row = self.c.find(row="decode", model=BIG, batch=256, context=1024)
        self.at_most("host per step, batch 256", 50, row and row["host_us"], "us")

    def peer(self, batch):
        times = [r["us"] for r in self.c.rows
                 if r.get("name") == "llama step" and r["model"] == BIG and r["batch"] == batch]
        ours = self.us("decode", model=BIG, batch=batch, context=1024)
        self.at_least(f"compiled PyTorch step / ours, batch {batch}", 1.3, ours and times and min(times) / ours or None, "x")


def bars(check):
    """[{what, bar, figure or None, unit, means, expected, holds}]"""
    b = Bars(check)
    b.decode("8B", BIG, 1, 87)
    b.decode("8B", BIG, 32, 85)
    b.decode("8B", BIG, 256, 82)
    b.prefill("8B", BIG, 1024, 65)
    b.prefill("8B", BIG, 8192, 65)
    b.prefix_hit(1.35)
    b.server()
    b.attention()
    b.swap()
    b.host()
    b.peer(1)
    b.peer(32)
    b.decode("1.5B", SMALL, 1, 60)
    b.decode("1.5B", SMALL, 256, 65)
    b.quantised("e4m3", "bf16", 1, 75)
    b.quantised("int4", "bf16", 1, 55)
    b.quantised("bf16", "e4m3", 256, 75)
    return b.rows


# --- the table -------------------------------------------------------------------------------------------------------

def format_kernels(check, gbs, tflops):
    rows = [r for r in check.rows if r.get("row") == "kernel" and "us" in r]
    if not rows or not gbs or not tflops:
        return []
    lines = [f"{'kernel':18} {'model':14} {'shape':22} {'us':>9} {'GB/s':>7} {'% copy':>7} {'TFLOP/s':>8} {'% peak':>7}"]
    for r in rows:
        rate, speed = r["bytes"] / r["us"] / 1e3, r["flops"] / r["us"] / 1e6
        lines.append(f"{r['name']:18} {r['model']:14} {r['what']:22} {r['us']:9.2f} {rate:7.0f} {100 * rate / gbs:7.1f} "
                     f"{speed:8.1f} {100 * speed / tflops:7.1f}")
    return lines + [""]


def format_table(check, rows):
    b = Bars(check)
    lines = format_kernels(check, b.gbs, b.tflops)
    if check.gpu:
        lines.append(f"{check.gpu['name']}: device copy {b.gbs or 0:.0f} GB/s, bf16 product {b.tflops or 0:.0f} TFLOP/s, "
                     f"{check.gpu.get('smi', '')}; products: {check.gpu.get('products', 'unknown')}")
    lines.append(f"{'':38} {'bar':24} {'figure':>8} {'expected':>8} {'':10} {'holds':8} means")
    for r in rows:
        figure = "-" if r["figure"] is None else f"{r['figure']:.4g}"
        expected = "-" if r["expected"] is None else f"{r['expected']:.4g}"
        holds = {True: "yes", False: "NO", None: "no figure"}[r["holds"]]
        lines.append(f"{r['what']:38} {r['bar']:24} {figure:>8} {expected:>8} {r['unit']:10} {holds:9} {r['means']}".rstrip())
    lines.append("")
    lines += [f"{p['status']:8} {name:12} {p['seconds']:6.1f} s  {p['why']}" for name, p in check.phases.items()]
    return "\n".join(lines) + "\n"
