"""What the scripts of tests/reference share: where things are, and how a comparison ends."""
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("INCIPIT_BUILD", ROOT / "build/release")).absolute()
DATA = ROOT / "tests/data"


class Report:
    """Counts comparisons; prints the failures as they come, and a line at the end."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED  {what}", flush=True)
        return ok

    def end(self):
        print(f"{self.name}: {self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed else 0)


# What the parts of a content are called, and where their text is.
PART_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


def part_texts(parts):
    for part in parts:
        text = part if isinstance(part, str) else part[PART_TEXTS[part.get("type", "text")]]
        if text is not None:
            yield text


def spelled(arguments):
    """What the arguments of an earlier call spell; those that are no JSON are kept."""
    if not isinstance(arguments, str):
        return arguments if isinstance(arguments, (dict, list)) else {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except json.JSONDecodeError:
        return arguments
    return {} if value is None else value


def as_templates_see(messages, source, reads_parts=False):
    """The messages of a request as vLLM and SGLang give them to the template `source`: the rules of
    worker/text/template/chat_messages.h, written a second time."""
    seen = []
    for given in messages:
        message = {k: v for k, v in given.items() if v is not None and not (k == "tool_calls" and v == [])}
        if message["role"] == "developer" and "developer" not in source:
            message["role"] = "system"
        if message["role"] == "function":
            message["role"] = "tool"
        if "function_call" in message and "tool_calls" not in message:
            message["tool_calls"] = [{"type": "function", "function": message["function_call"]}]
        content = given.get("content") or ""
        if content == "":
            asks = re.search(r"""content(['"]\])?\s+is\s+(not\s+)?none""", source)
            content = None if asks and "tool_calls" in message else ""
        elif isinstance(content, list):
            texts = list(part_texts(content))
            content = [{"type": "text", "text": t} for t in texts] if reads_parts and message["role"] != "tool" else "\n".join(texts)
        message["content"] = content
        for one, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
            if isinstance(message.get(one), str) and other not in message:
                message[other] = message[one]
        if "tool_calls" in message:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": spelled(call["function"].get("arguments"))}}
                for call in message["tool_calls"]]
        seen.append(message)
    return seen
