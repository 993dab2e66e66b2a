"""tests/bench/scenes/play.py: sends the requests of a trace to a router when they are due, and times the answers.

The trace is as tests/replay/replay writes it. A prompt's text is made from its block ids, a byte for each of its tokens,
since simulated workers read bytes: equal ids from the start are equal bytes. Time runs `speed` times as fast as in the trace;
all times returned are the trace's seconds. A request's time to first token counts from when it was due.
"""
import asyncio
import functools
import hashlib
import json
import time

BLOCK = 512      # tokens that one id names
PATIENCE_S = 900  # for one answer


@functools.lru_cache(maxsize=200_000)
def text_of_block(name):
    return hashlib.shake_128(str(name).encode()).hexdigest(BLOCK // 2)


def prompt_of(number, request):
    """What has no id is text of its own."""
    n = request["input_length"]
    named = "".join(map(text_of_block, request["hash_ids"]))[:n]
    own = f"<{number}>"
    return named + (own * ((n - len(named)) // len(own) + 1))[:n - len(named)]


class Answer:
    """Of one request, in the trace's seconds since the start; `first_s` None: no token came."""

    def __init__(self, request, due_s):
        self.request, self.due_s = request, due_s
        self.first_s = self.end_s = self.error = None
        self.cached = 0

    @property
    def ttft_s(self):
        return self.first_s - self.due_s


class Stream(asyncio.Protocol):
    """Reads one event stream. Event streams alone are asked for, so that events are all there is to know about an answer's
    framing; each costs a search of TAIL bytes, since thousands come a second."""
    TAIL = 1024

    def __init__(self, answer, now_s):
        self.answer, self.now_s, self.text, self.ended = answer, now_s, b"", asyncio.get_running_loop().create_future()

    def data_received(self, data):
        answer, text = self.answer, self.text + data
        if answer.first_s is None and b"\n" in text:
            if text[:64].split()[1:2] != [b"200"]:
                return self.end(text.split(b"\r\n")[0].decode(errors="replace"))
            if b"\ndata:" in text:
                answer.first_s = self.now_s()
        if b'data: {"error"' in text:
            return self.end(text[text.index(b'data: {"error"'):].decode(errors="replace").strip())
        if b'"cached_tokens":' in text:
            answer.cached = int(text.split(b'"cached_tokens":')[1].split(b"}")[0].split(b",")[0] or 0)
        if b"data: [DONE]" in text:
            return self.end(None)
        self.text = text if answer.first_s is None else text[-self.TAIL:]

    def connection_lost(self, error):
        self.end(repr(error) if error else "the stream ended before [DONE]")

    def end(self, error):
        if not self.ended.done():
            self.ended.set_result(error)


class Player:
    def __init__(self, url, model, requests, speed, until_s):
        self.model = model
        self.host, self.port = url.removeprefix("http://").split(":")
        self.requests, self.speed, self.until_s = requests, speed, until_s
        self.answers, self.tasks = [], set()

    def now_s(self):
        return (time.monotonic() - self.began) * self.speed

    async def run(self):
        self.began = time.monotonic()
        for number, request in enumerate(self.requests):
            if "timestamp" in request:
                self.begin(number, request["timestamp"] / 1000)
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        return self.answers

    def begin(self, number, due_s):
        if due_s > self.until_s:
            return
        answer = Answer(self.requests[number], due_s)
        self.answers.append(answer)
        task = asyncio.create_task(self.ask(number, answer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, number, answer):
        await asyncio.sleep(max(0, answer.due_s / self.speed - (time.monotonic() - self.began)))
        try:
            answer.error = await asyncio.wait_for(self.exchange(number, answer), max(PATIENCE_S / self.speed, 60))
        except (OSError, asyncio.TimeoutError) as error:
            answer.error = repr(error)
        answer.end_s = self.now_s()
        following = answer.request.get("next")
        if following is not None:
            self.begin(following, answer.end_s + answer.request["gap_ms"] / 1000)

    async def exchange(self, number, answer):
        request = answer.request
        body = json.dumps({
            "model": self.model, "prompt": prompt_of(number, request), "max_tokens": request["output_length"], "stream": True,
            "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}).encode()
        transport, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(answer, self.now_s), self.host, self.port)
        try:
            transport.write(f"POST /v1/completions HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nconnection: close\r\n"
                            f"content-type: application/json\r\nx-smg-tenant-id: tenant-{request['tenant']}\r\n"
                            f"content-length: {len(body)}\r\n\r\n".encode() + body)
            return await stream.ended
        finally:
            transport.abort()


def play(url, model, requests, speed, until_s):
    return asyncio.run(Player(url, model, requests, speed, until_s).run())
