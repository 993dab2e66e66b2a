#!/usr/bin/env python3
"""Makes incipit-workers answer as stock vLLM or SGLang do: a thin proxy in front of each.

    foreign_engine.py KIND UPSTREAM_PORT...      KIND: vllm, vllm-details, sglang, mute

What such engines do not report is left out: no x-incipit-* headers, no usage in streams, no cached_tokens
in that of whole answers, no /server_info; the head of a stream goes out at once, before its first token. What they do report is there:
a /metrics page with their names, the start of their process, SGLang's /get_server_info and its
`meta_info`. `vllm-details` is vLLM with --enable-prompt-tokens-details: whole answers have cached_tokens. `mute` has
none of that either. Ports are chosen by the system and printed, one a line.
"""
import asyncio
import json
import re
import sys
import time

STARTED = time.time()
USAGE = re.compile(rb'"choices":\[\],"usage":')  # an event of its own, and one chunk


async def read_message(reader):
    """First line, headers and body of a request with a length; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return first, headers, body


async def chunks(reader, headers):
    """The body of an answer as it comes."""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        yield await reader.readexactly(int(headers.get("content-length", 0)))


async def call(port, method, path, body=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
                 f"content-length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return int(head[0].split()[1]), headers, reader, writer


async def whole(port, method, path, body=b""):
    code, headers, reader, writer = await call(port, method, path, body)
    data = b"".join([piece async for piece in chunks(reader, headers)])
    writer.close()
    return code, headers, data


def value(page, name):
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})? (\S+)$", page, re.M))


def vllm_page(page):
    ours = "\n".join(line for line in page.splitlines() if re.match(r"(# (HELP|TYPE) )?vllm:", line))
    return f"process_start_time_seconds {STARTED:.2f}\n{ours}\n"


def sglang_page(page):
    names = {"prompt_tokens_total": "vllm:prompt_tokens_total", "num_running_reqs": "vllm:num_requests_running",
             "num_queue_reqs": "vllm:num_requests_waiting", "token_usage": "vllm:kv_cache_usage_perc",
             "time_to_first_token_seconds_count": "vllm:time_to_first_token_seconds_count"}
    lines = [f'sglang:{name}{{model_name="m",tp_rank="0"}} {value(page, ours)}' for name, ours in names.items()]
    hits = value(page, "vllm:prefix_cache_hits_total")
    return "\n".join([*lines, f'sglang:cached_tokens_total{{model_name="m",cache_source="device"}} {hits}', ""])


def strip_usage(body):
    answer = json.loads(body)
    if isinstance(answer, dict) and isinstance(answer.get("usage"), dict):
        answer["usage"]["prompt_tokens_details"] = None
    return json.dumps(answer).encode()


class Engine:
    def __init__(self, kind, upstream):
        self.kind, self.upstream = kind, upstream

    async def about(self, path):
        """Code and body of what is not passed on."""
        if path == "/metrics" and self.kind != "mute":
            page = (await whole(self.upstream, "GET", "/metrics"))[2].decode()
            return 200, (sglang_page if self.kind == "sglang" else vllm_page)(page).encode()
        if path == "/get_server_info" and self.kind == "sglang":
            info = json.loads((await whole(self.upstream, "GET", "/server_info"))[2])
            return 200, json.dumps({"model_path": info["model"], "page_size": info["block_size"],
                                    "max_total_num_tokens": info["block_size"] * info["n_blocks"]}).encode()
        return 404, b"{}"

    async def serve(self, reader, writer):
        try:
            while message := await read_message(reader):
                await self.answer(writer, *message)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, first, headers, body):
        method, path, _ = first.split(" ", 2)
        if path in ("/metrics", "/server_info", "/get_server_info"):
            code, data = await self.about(path)
        elif method == "POST" and json.loads(body).get("stream"):
            await self.stream(writer, path, body)
            return
        else:
            code, _, data = await whole(self.upstream, method, path, body)
            if path.startswith("/v1/") and method == "POST" and self.kind != "vllm-details":
                data = strip_usage(data)
            if path == "/v1/models" and self.kind != "mute":
                data = data.replace(b'"owned_by":"incipit"', b'"owned_by":"%s"' % self.kind.split("-")[0].encode())
        self.reply(writer, code, data)
        await writer.drain()

    @staticmethod
    def reply(writer, code, data):
        writer.write(b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (code, len(data)) + data)

    async def stream(self, writer, path, body):
        upstream_call = asyncio.ensure_future(call(self.upstream, "POST", path, body))
        await asyncio.wait({upstream_call}, timeout=0.02)  # what is refused is refused at once
        if upstream_call.done() and upstream_call.result()[0] != 200:
            code, headers, reader, upstream = upstream_call.result()
            self.reply(writer, code, b"".join([piece async for piece in chunks(reader, headers)]))
            upstream.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        _, headers, reader, upstream = await upstream_call
        try:
            async for piece in chunks(reader, headers):
                if path.startswith("/v1/"):
                    piece = b"".join(e for e in re.split(rb"(?<=\n\n)", piece) if not USAGE.search(e))
                if not piece:
                    continue
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            upstream.close()


async def main(kind, ports):
    servers = [await asyncio.start_server(Engine(kind, port).serve, "127.0.0.1", 0, limit=1 << 22) for port in ports]
    for server in servers:
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
    except KeyboardInterrupt:
        pass
