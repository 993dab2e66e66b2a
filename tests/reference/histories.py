"""Conversations as clients send them, and the prompts that templates make of them.

The bodies have the shapes that libraries and agents put on the wire in the middle of a conversation: nulls
for what a library knows and the message lacks, parts, calls and their results, roles of several
generations, names, empty strings. Each is rendered by Jinja2, set up as the transformers library sets it up,
with ChatML's template and the forms of Llama 3's, Qwen 2.5's, Qwen 3's and DeepSeek-R1's.

    histories.py             renders again and compares with tests/data/histories.json
    histories.py --fixtures  writes tests/data/histories.json again, for tests/unit/worker/text and
                             tests/integration/test_histories.py
"""
import json
import sys

import templates
from common import DATA, Report, as_templates_see

# A call is in the template where the content is none, an answer where it is not.
DEEPSEEK = """{{ bos_token }}{%- for message in messages %}{%- if message['role'] == 'system' %}{{ message['content'] }}{%- endif %}{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- for call in message['tool_calls'] %}{{ '<｜Assistant｜><｜tool▁call▁begin｜>' + call['function']['name'] + '\\n' }}{{ call['function']['arguments'] | tojson }}{{ '<｜tool▁call▁end｜><｜end▁of▁sentence｜>' }}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{{ '<｜Assistant｜>' + message['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- if message['role'] == 'tool' %}{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{%- endif %}"""

TEMPLATES = {"chatml": templates.T["chatml"], "llama-3": templates.T["headers-tools"], "qwen-2.5": templates.T["tools-xml"],
             "qwen-3": templates.T["thinking"], "deepseek-r1": DEEPSEEK}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": ["string", "null"]}},
                   "required": ["city"], "additionalProperties": False}, "strict": True}}
LIST_FILES = {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object", "properties": {}}}}


def call(arguments, name="get_weather", id="call_9pV3ZyO0kGxWm2nQ", **more):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(**fields):
    return {"role": "assistant", **fields}


def tool(content, id="call_9pV3ZyO0kGxWm2nQ", **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def text(t, **more):
    return {"type": "text", "text": t, **more}


ROME = '{"city":"Rome","unit":null}'
CACHE = {"cache_control": {"type": "ephemeral"}}

HISTORIES = {
    "openai-python: a message of an answer is sent back as model_dump() writes it": {
        "messages": [{"role": "system", "content": "You are terse."}, user("Weather in Rome?"),
                     assistant(content=None, refusal=None, annotations=[], audio=None, function_call=None,
                               tool_calls=[call(ROME)]),
                     tool("sunny, 21 °C"), assistant(content="Sunny.", refusal=None, annotations=[], audio=None,
                                                     function_call=None, tool_calls=None),
                     user("And tomorrow?")],
        "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": True, "temperature": None, "top_p": None, "stop": None,
        "seed": None, "user": "u-17", "response_format": {"type": "text"}, "store": False, "metadata": {"run": "7"}},
    "openai-python: the same with exclude_none, so that content is absent": {
        "messages": [user("Weather in Rome?"), assistant(tool_calls=[call(ROME)]), tool("sunny")],
        "tools": [WEATHER]},
    "openai-node: developer, names, a refusal of before": {
        "messages": [{"role": "developer", "content": "Answer in French."}, user("Bonjour", name="Ada"),
                     assistant(content=[{"type": "refusal", "refusal": "Non."}]), user("Why?", name="Ada")],
        "max_completion_tokens": 64, "reasoning_effort": "low", "n": 1, "logprobs": False, "top_logprobs": None},
    "openai: nulls wherever there may be some": {
        "messages": [{"role": "system", "content": "S", "name": None}, user("U", name=None),
                     assistant(content="A", name=None, tool_calls=None, function_call=None, refusal=None, audio=None,
                               reasoning_content=None, reasoning=None), user("V")],
        "tools": None, "tool_choice": None, "functions": None, "function_call": None, "response_format": None, "logit_bias": None,
        "logprobs": None, "max_tokens": None, "n": None, "stream": None, "stream_options": None, "presence_penalty": None,
        "frequency_penalty": None, "modalities": None, "prediction": None, "service_tier": None, "user": None},
    "openai, before tools: function_call and its result": {
        "messages": [user("Weather in Rome?"), assistant(content=None, function_call={"name": "get_weather", "arguments": ROME}),
                     {"role": "function", "name": "get_weather", "content": "sunny"}]},
    "langchain-openai: an agent's second step": {
        "messages": [{"content": "You are a helpful assistant", "role": "system"}, {"content": "Weather in Rome?", "role": "user"},
                     {"content": None, "role": "assistant", "tool_calls": [
                         {"type": "function", "id": "call_1", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}]},
                     {"content": "sunny", "role": "tool", "tool_call_id": "call_1"}],
        "stream": False, "tools": [WEATHER], "n": 1, "temperature": 0.0},
    "langgraph: the result of a tool in parts, an answer in parts": {
        "messages": [user([text("Weather in Rome?")]), assistant(content=[text("I look it up.")], tool_calls=[call(ROME)]),
                     tool([text("sunny"), text("21 °C")]), assistant(content=[text("Sunny, "), text("21 °C.")]), user("Thanks")],
        "tools": [WEATHER]},
    "litellm: an answer of another provider, with its own fields": {
        "messages": [{"role": "system", "content": [text("You are terse.", **CACHE)]}, user([text("Weather in Rome?", **CACHE)]),
                     assistant(content=None, tool_calls=[call("{\"city\": \"Rome\"}", index=0)], function_call=None,
                               provider_specific_fields=None, thinking_blocks=None, reasoning_content=None),
                     tool("sunny", name="get_weather")],
        "tools": [WEATHER], "drop_params": True},
    "claude code through an OpenAI-compatible proxy: thinking, results in parts": {
        "messages": [{"role": "system", "content": [text("You are a coding agent."), text("Be brief.", **CACHE)]},
                     user([text("<system-reminder>none</system-reminder>"), text("List the files.")]),
                     assistant(content=[{"type": "thinking", "thinking": "A tool does that.", "signature": "c2ln"}, text("I look.")],
                               tool_calls=[call("{}", "list_files", "toolu_01A")]),
                     tool([text("a.c\nb.c")], "toolu_01A")],
        "tools": [LIST_FILES], "max_tokens": 32000, "temperature": 1, "stream": True, "stream_options": {"include_usage": True}},
    "llamaindex: an empty text beside the call, a name beside the result": {
        "messages": [{"role": "system", "content": "Use tools."}, user("Weather in Rome?"),
                     assistant(content="", tool_calls=[call('{"city": "Rome"}', "get_weather", "call_li")]),
                     {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "call_li"}],
        "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": False, "stream": False, "temperature": 0.1, "max_tokens": None},
    "vercel ai sdk: parts from the user, JSON as the result": {
        "messages": [{"role": "system", "content": "You are a helpful assistant."}, user([text("Weather in Rome?")]),
                     assistant(content="", tool_calls=[call(ROME)]), tool("{\"temperature\":21,\"condition\":\"sunny\"}"),
                     assistant(content=""), user([text("And in "), text("Oslo?")])],
        "max_tokens": 256, "temperature": 0, "tools": [WEATHER], "tool_choice": "auto", "stream": True,
        "stream_options": {"include_usage": True}},
    "cline: no tools, everything in parts of text": {
        "messages": [{"role": "system", "content": "You are Cline.\n\n====\n\nTOOL USE\n"},
                     user([text("<task>\nfix it\n</task>"), text("<environment_details>\n# Visible Files\na.c\n</environment_details>")]),
                     assistant(content="<read_file>\n<path>a.c</path>\n</read_file>"),
                     user([text("[read_file for 'a.c'] Result:"), text("int main(void) {}\n"), text("")])],
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    "continue: a blank as content beside the call": {
        "messages": [{"role": "system", "content": "<important_rules>\n</important_rules>"}, user([text("List the files.")]),
                     assistant(content=" ", tool_calls=[call("{}", "list_files", "call_c")]), tool("a.c", "call_c")],
        "tools": [LIST_FILES], "max_tokens": 4096, "stream": True, "parallel_tool_calls": False},
    "pydantic-ai, openai-agents: empty lists of calls, an answer that is null": {
        "messages": [user("a"), assistant(content=None, tool_calls=[]), user("b"), assistant(content="c", tool_calls=[]), user("d")],
        "tools": [], "tool_choice": "none"},
    "autogen, crewai: every message has a name": {
        "messages": [{"role": "system", "content": "S", "name": "boss"}, user("U", name="human"), assistant(content="A", name="coder"),
                     user("V", name="critic")]},
    "no arguments, in the ways in which models and clients write none": {
        "messages": [user("List the files."), assistant(content=None, tool_calls=[call("", "list_files", "call_a")]), tool("a.c", "call_a"),
                     user("Again."), assistant(content="", tool_calls=[call("{}", "list_files", "call_b")]), tool("a.c", "call_b"),
                     user("Again."), assistant(content="", tool_calls=[call(None, "list_files", "call_c")]), tool("a.c", "call_c"),
                     user("Again."), assistant(content="", tool_calls=[call(" \n", "list_files", "call_d")]), tool("a.c", "call_d"),
                     user("Again."), assistant(content="", tool_calls=[call("null", "list_files", "call_e")]), tool("a.c", "call_e"),
                     user("Again."), assistant(content="", tool_calls=[{"id": "call_f", "type": "function",
                                                                         "function": {"name": "list_files"}}]), tool("a.c", "call_f")],
        "tools": [LIST_FILES]},
    "arguments as an object, as some gateways send them": {
        "messages": [user("Weather in Rome?"), assistant(content=None, tool_calls=[call({"city": "Rome", "unit": None, "days": [1, {"x": None}]})]),
                     tool("sunny")], "tools": [WEATHER]},
    "a call that was cut off by max_tokens": {
        "messages": [user("Write a.c."), assistant(content=None, tool_calls=[call('{"path": "a.c", "text": "int ma', "write")]),
                     tool("Error: the arguments are no JSON"), user("Go on.")]},
    "several calls at once, their results in order": {
        "messages": [user("Weather in Rome and Oslo?"),
                     assistant(content=None, tool_calls=[call('{"city":"Rome"}', id="call_1", index=0), call('{"city":"Oslo"}', id="call_2", index=1)]),
                     tool("sunny", "call_1"), tool("snow", "call_2")], "tools": [WEATHER]},
    "empty texts": {
        "messages": [{"role": "system", "content": ""}, user(""), assistant(content=""), user([]), assistant(content=[]),
                     user([text("")]), assistant(content="x"), user(" ")]},
    "a result that is empty or null": {
        "messages": [user("Do it."), assistant(content=None, tool_calls=[call("{}", "do", "call_1")]), tool("", "call_1"),
                     user("Again."), assistant(content=None, tool_calls=[call("{}", "do", "call_2")]), tool(None, "call_2"), user("So?")]},
    "reasoning of before, by the name that DeepSeek gave it": {
        "messages": [user("2 + 2?"), assistant(content=None, reasoning_content="A tool adds.", tool_calls=[call('{"a": 2, "b": 2}', "add")]),
                     tool("4"), assistant(content="4", reasoning_content="The tool says 4.\n")]},
    "reasoning of before, by the name that vLLM and OpenRouter give it": {
        "messages": [user("2 + 2?"), assistant(content=None, reasoning="A tool adds.", refusal=None, reasoning_details=[
            {"type": "reasoning.text", "text": "A tool adds.", "format": "unknown", "index": 0}], tool_calls=[call('{"a": 2, "b": 2}', "add")]),
                     tool("4"), assistant(content="4", reasoning="The tool says 4.\n")]},
    "responses turned into a chat: input_text and output_text": {
        "messages": [user([{"type": "input_text", "text": "Hello"}]), assistant(content=[{"type": "output_text", "text": "Hi", "annotations": []}]),
                     user([{"type": "input_text", "text": "Bye"}, "bare", {"text": "no type"}, {"type": "text", "text": None}])]},
    "names with dots, arguments of every type, text beyond ASCII": {
        "messages": [user("日本の天気は？ 😀"), assistant(content=None, tool_calls=[call(
            '{"b": true, "n": -1.5, "s": "Größe \\"x\\" \\u65e5", "l": [], "o": {}, "z": null}', "geo.weather-v2")]),
                     tool("晴れ \u2028 \\ \" <b>")]},
}


def prompt(name, body):
    variables = {"messages": as_templates_see(body["messages"], TEMPLATES[name]), "tools": body.get("tools"), "documents": None,
                 "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    try:
        return {"text": templates.environment().from_string(TEMPLATES[name]).render(**variables)}
    except templates.Raised as e:
        return {"raised": str(e)}


def made():
    return {"templates": TEMPLATES, "histories": [
        {"client": client, "body": {"model": "synthetic", **body}, "prompts": {name: prompt(name, body) for name in TEMPLATES}}
        for client, body in HISTORIES.items()]}


def main():
    path = DATA / "histories.json"
    if sys.argv[1:] == ["--fixtures"]:
        path.write_text(json.dumps(made(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return
    report = Report("histories")
    report.check(json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(made())), f"{path} is not what Jinja2 renders now")
    report.end()


main()
