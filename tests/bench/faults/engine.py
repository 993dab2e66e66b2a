#!/usr/bin/env python3
"""A foreign engine that takes 100 ms for each whole answer, and goes bad on SIGUSR1:

    engine.py PORT [errors|empty|mute]

`errors` answers 500 at once from then on, `empty` 200 without a body, `mute` nothing; SIGUSR2 mends it.
"""
import asyncio
import json
import signal
import sys

SERVICE_S = 0.1
BAD = {"errors": b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 31\r\n\r\n"
                 b'{"error":{"message":"is sick"}}',
       "empty": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
       "mute": None}


def reply(code, body, kind="application/json"):
    return f"HTTP/1.1 {code} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


MODELS = reply(200, json.dumps({"object": "list", "data": [{"id": "synthetic", "max_model_len": 65536}]}))
GOOD = reply(200, json.dumps({"id": "x", "object": "chat.completion", "model": "synthetic", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}))
is_bad = False


async def serve(reader, writer, kind):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.split(b":")[1]))
            if head.startswith(b"GET"):
                path = head.split(b" ")[1]
                writer.write(MODELS if path == b"/v1/models" else reply(200, "") if path == b"/health" else reply(404, ""))
            elif not is_bad:
                await asyncio.sleep(SERVICE_S)
                writer.write(GOOD)
            elif BAD[kind]:
                writer.write(BAD[kind])
            else:
                await reader.read(1)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def turn(to_bad):
    global is_bad
    is_bad = to_bad


async def main(port, kind="errors"):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, turn, True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, turn, False)
    server = await asyncio.start_server(lambda r, w: serve(r, w, kind), "127.0.0.1", int(port), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
