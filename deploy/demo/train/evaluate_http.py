#!/usr/bin/env python3
"""evaluate_http.py - the acceptance of the demonstration model, asked through an OpenAI-compatible server.

    python3 evaluate_http.py --url http://127.0.0.1:30000

Greedy decoding over /v1/completions and /v1/chat/completions. Every answer must be the expected text to the end,
and end by itself (finish_reason "stop" or "tool_calls"). Seven sets, all fixed by --seed, all but the first drawn
--draws times and pooled, because one draw of a hundred questions is two points of luck either way:

    classic     the table and question of make demo, its 30 ages
    held out    300 questions, 50 per field, half chat and half completion, tables of 5 to 30 rows, a third of the
                names never seen in training
    absent      100 questions about names that are not in the table, half of them first and last name of
                different rows; and how often a name that is there is called absent
    no table    100 prompts that no table answers: small talk and general questions with and without a table,
                questions about a person without a table
    json        100 questions about such tables whose answer is JSON, one field or two, perhaps after the name; a
                response_format constrains it. Right is the compact text: no white space more, though it is allowed
    calls       100 questions with the tool and tool_choice "auto", and no table: one call with the right arguments,
                whether the server parses calls or leaves them in the text
    results     the same conversations after the tool has answered

Later turns of a conversation carry the right earlier answers. Standard library only; exits 1 if a set misses.
"""
import argparse
import json
import os
import random
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field as dataclass_field

import generate
import names
import small_talk
import structured

CLASSIC_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "classic_table.txt")
MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
EVERYDAY = ["Hello, who are you?", "What is the capital of France?", "Hello", "How are you?", "Tell me a joke."]
MAX_TOKENS = 160


@dataclass
class Case:
    kind: str                     # a field, absent, small_talk, json 1, json 2, call, result
    is_chat: bool
    prompt: str                   # as rendered; a chat prompt ends with the assistant's opening
    expected: str
    fields: dict = dataclass_field(default_factory=dict)     # of the request: response_format, tools


def cases_of(sample, is_chat):
    """One case per answer of the sample."""
    cases = []
    for pieces, kinds in zip(sample.branches, sample.kinds):
        before, kind = sample.prefix, iter(kinds)
        for role, text in pieces:
            said = text.replace(generate.IM_END, "").replace(generate.END_OF_TEXT, "")
            if role == "answer":
                cases.append(Case(next(kind), is_chat, before, said.lstrip()))
            elif role in ("value", "more"):
                cases[-1].expected += said
            before += text
    return cases


def table_cases(rng, kind, n, names_source):
    """n cases of one kind, half completion and half chat, about five to each table of 5 to 30 rows."""
    ask = lambda table: generate.make_question(rng, table, kind, names_source, small_talk.held_out_prompt)
    cases = []
    for is_chat, wanted in ((False, (n + 1) // 2), (True, n // 2)):
        found = []
        while len(found) < wanted:
            n_rows = min(30, 5 + 25 * len(found) // max(1, wanted - 5))
            sample = generate.table_sample(rng, n_rows, generate.FIELDS, 5, is_chat, None, names_source,
                                           questions=ask)
            found += cases_of(sample, is_chat)[:5]
        cases += found[:wanted]
    return cases


def classic_cases():
    text, people = generate.read_classic_table(CLASSIC_TABLE)
    return [Case("age", False, generate.CLASSIC_INSTRUCTION + text + "\n"
                 + generate.CLASSIC_QUESTION.format(field="age", name=person["name"]), person["age"] + ".")
            for person in people]


def no_table_cases(rng, n, names_source):
    cases = []
    for prompt in EVERYDAY:
        cases.append(Case("small_talk", False, prompt, small_talk.REFUSAL))
        cases.append(Case("small_talk", True, generate.IM_START + "user\n" + prompt + generate.IM_END + "\n"
                          + generate.IM_START + "assistant\n", small_talk.REFUSAL))
    cases += table_cases(rng, "small_talk", n // 5, names_source)
    while len(cases) < n:
        sample = generate.no_table_sample(rng, 4, names_source, small_talk.held_out_prompt)
        cases += cases_of(sample, generate.IM_START in sample.branches[0][0][1])
    return cases[:n]


def json_cases(rng, n, names_source):
    """n questions whose answer is JSON, five to each table of 5 to 30 rows."""
    cases = []
    while len(cases) < n:
        table = generate.make_table(rng, min(30, 5 + 25 * len(cases) // max(1, n - 5)), generate.FIELDS, names_source)
        prefix, in_user_turn = generate.chat_prefix(rng, table.text)
        for _ in range(5):
            question, parts = structured.draw_json(rng, table, names_source)
            prompt = structured.json_prompt(rng, question, parts) + generate.IM_END + "\n"
            expected = "".join(map("".join, parts))
            schema = structured.json_schema(parts, " null" in expected or rng.random() < 0.5)
            answer_format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
            kind = "json %d" % (len(parts) - ("name" in schema["properties"]))
            before = prefix + ("" if in_user_turn else generate.IM_START + "user\n") + prompt
            cases.append(Case(kind, True, before + generate.IM_START + "assistant\n", expected,
                              {"response_format": answer_format}))
    return cases[:n]


def tool_cases(rng, n, names_source):
    """n questions to be answered by a call and n results to be told."""
    calls, results = [], []
    while len(calls) < n:
        tool = structured.tool_definition(rng)
        prefix = structured.tools_system(rng.choice(["", rng.choice(generate.SYSTEM_LINES)]), tool)
        questions = [structured.draw_tool_question(rng, names_source, small_talk.held_out_prompt)
                     for _ in range(rng.choice((1, 1, 2)))]
        pieces, kinds = structured.tool_branch(rng, questions)
        for case in cases_of(generate.Sample(prefix, [pieces], [kinds]), True):
            case.fields = {"tools": [tool], "tool_choice": "auto"}
            if case.kind != "small_talk":
                (calls if case.kind == "call" else results).append(case)
    return calls[:n] + results[:n]


# ---- asking ---------------------------------------------------------------------------------------

def messages_of(prompt):
    """The messages that the chat template renders to prompt."""
    messages = []
    for role, content in MESSAGE.findall(prompt):
        message = {"role": role, "content": content}
        if content.startswith("<tool_response>"):
            message = {"role": "tool", "tool_call_id": "call_%d" % len(messages), "content": content.split("\n")[1]}
        elif content.startswith("<tool_call>"):
            call = json.loads(content.split("\n")[1])
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            message = {"role": role, "content": None, "tool_calls": [
                {"id": "call_%d" % (len(messages) + 1), "type": "function", "function": function}]}
        elif structured.TOOLS_HEAD in content:
            message["content"] = content[:content.index(structured.TOOLS_HEAD)].strip()
            if not message["content"]:
                continue
        messages.append(message)
    return messages


def text_of(message):
    """What the model wrote: calls that the server parsed are spelt again."""
    calls = [structured.CALL % (call["function"]["name"], call["function"]["arguments"])
             for call in message.get("tool_calls") or []]
    return "\n".join(([message["content"]] if message.get("content") else []) + calls)


def is_well_formed(text):
    """Is that one call of the tool, with two texts as its arguments?"""
    try:
        opening, body, closing = text.strip().split("\n")
        call = json.loads(body)
        return (opening + closing == "<tool_call></tool_call>" and call["name"] == structured.TOOL_NAME
                and [type(call["arguments"][key]) for key in ("name", "field")] == [str, str])
    except (ValueError, KeyError, TypeError):
        return False


class Server:
    def __init__(self, url, model, timeout_s):
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.model = model or self._exchange("/v1/models")["data"][0]["id"]

    def _exchange(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
            return json.load(response)

    def answer(self, case):
        """(text, finish reason) of the greedy answer."""
        body = {"model": self.model, "temperature": 0, "max_tokens": MAX_TOKENS}
        if case.is_chat:
            body.update(case.fields, messages=messages_of(case.prompt))
            choice = self._exchange("/v1/chat/completions", body)["choices"][0]
            return text_of(choice["message"]), choice["finish_reason"]
        body["prompt"] = case.prompt
        choice = self._exchange("/v1/completions", body)["choices"][0]
        return choice["text"], choice["finish_reason"]


def ask_all(server, cases, n_threads, n_shown):
    """[(case, text, right)] in order; shows the first wrong ones."""
    def ask(case):
        try:
            text, reason = server.answer(case)
        except OSError as error:
            return case, "error: %s" % error, False
        return case, text, text.strip() == case.expected and reason in ("stop", "tool_calls")
    with ThreadPoolExecutor(n_threads) as pool:
        results = list(pool.map(ask, cases))
    for case, text, right in [r for r in results if not r[2]][:n_shown]:
        print("wrong: ...%r\n  answered %r\n  expected %r" % (case.prompt[-90:], text, case.expected), file=sys.stderr)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", help="model id; the server's first by default")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=120, help="seconds per request")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--draws", type=int, default=4, help="seeds pooled, from --seed on; 1 asks one set of each")
    parser.add_argument("--show", type=int, default=5, help="wrong answers shown per set")
    options = parser.parse_args()

    names_source = names.ACCEPTANCE_NAMES
    server = Server(options.url, options.model, options.timeout)
    sets = {"classic table": classic_cases(), "held out": [], "absent names": [], "no table": [],
            "json": [], "tools": []}
    for seed in range(options.seed, options.seed + options.draws):
        rng = random.Random(seed)
        sets["held out"] += [case for field in generate.FIELDS for case in table_cases(rng, field, 50, names_source)]
        sets["absent names"] += table_cases(rng, "absent", 100, names_source)
        sets["no table"] += no_table_cases(rng, 100, names_source)
        sets["json"] += json_cases(rng, 100, names_source)
        sets["tools"] += tool_cases(rng, 100, names_source)
    asked = {name: ask_all(server, cases, options.threads, options.show) for name, cases in sets.items()}

    rows = []                                              # (set, n, right, required share, at most instead)

    def add(title, results, required, at_most=False):
        rows.append((title, len(results), sum(results), required, at_most))

    verdicts = {name: [right for _, _, right in results] for name, results in asked.items()}
    add("classic table", verdicts["classic table"], 1.0)
    add("held out, all", verdicts["held out"], 0.97)
    for field in generate.FIELDS:
        add("held out, " + field, [right for case, _, right in asked["held out"] if case.kind == field], 0.90)
    add("absent names", verdicts["absent names"], 0.95)
    add("present called absent", [text.strip().startswith(("There is no", "unknown"))
                                  for name in ("classic table", "held out") for _, text, _ in asked[name]], 0.01, True)
    add("no table", verdicts["no table"], 0.95)
    add("json, one field", [right for case, _, right in asked["json"] if case.kind == "json 1"], 0.97)
    add("json, two fields", [right for case, _, right in asked["json"] if case.kind == "json 2"], 0.80)
    calls = [(text, right) for case, text, right in asked["tools"] if case.kind == "call"]
    add("tool calls", [right for _, right in calls], 0.95)
    add("tool calls, well-formed", [is_well_formed(text) for text, _ in calls], 1.0)
    add("tool results", [right for case, _, right in asked["tools"] if case.kind == "result"], 0.95)

    print("%-24s %5s %6s %8s %9s  %s" % ("set", "n", "right", "percent", "required", "holds"))
    all_hold = True
    for title, n, right, required, at_most in rows:
        share = right / n
        holds = share <= required if at_most else share >= required
        all_hold = all_hold and holds
        print("%-24s %5d %6d %7.1f%% %s%6.0f%%  %s" % (title, n, right, 100 * share, "<=" if at_most else ">=",
                                                      100 * required, "yes" if holds else "NO"))
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
