"""structured.py - questions whose answer is JSON, and conversations in which the model calls a tool.

JSON answers are about a table, in chat form. Their keys are KEYS of the fields, perhaps after "name"; a name that
is not in the table has null for every field. The prompt asks for JSON in one of three ways (JSON_WORDINGS), the
last of which says nothing: then a server's constraint writes braces and keys, and only values are trained.

    How old is Jane Smith? Answer as JSON: {"name": ..., "age": ...}    {"name": "Jane Smith", "age": 34}

The tool is lookup(name, field). A prompt that has the tool and no table is answered by a call, the tool's result
by a sentence; all is written in the hermes form, exactly as the chat template of ../model prints it:

    user       How old is Jane Smith?
    assistant  <tool_call>\\n{"name": "lookup", "arguments": {"name": "Jane Smith", "field": "age"}}\\n</tool_call>
    user       <tool_response>\\n34\\n</tool_response>
    assistant  The age of Jane Smith is 34.

A result that is one of NOT_FOUND is answered by "There is no Jane Smith in the table."; small talk is refused as
without a tool, and a table in the prompt is read without the tool. Clients print a tool in many spellings, so
training draws description, enum, order and decoration of the definition.

Pure Python, nothing outside the standard library.
"""
import json

import generate
import names as name_sources
import small_talk
from generate import FIELDS, IM_END, IM_START, Question, Sample

KEYS = {field: field.replace(" ", "_") for field in FIELDS}
JSON_WORDINGS = [(5, "{question} Answer as JSON: {shape}"), (2, "{question} Answer as JSON."), (3, "{question}")]
PERSON_QUESTIONS = ["Who is {name}?", "Tell me about {name}.", "Describe {name}."]
SHARE_JSON, SHARE_JSON_ABSENT, SHARE_TABLE_AND_TOOL, SHARE_TOOL_SMALL_TALK = 0.75, 0.12, 0.15, 0.15

TOOLS_HEAD = ("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
              "You are provided with function signatures within <tools></tools> XML tags:\n<tools>")
TOOLS_TAIL = ("\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
              "<tool_call></tool_call> XML tags:\n<tool_call>\n"
              "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>")
CALL = "<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>"
TOOL_NAME = "lookup"
TOOL_DESCRIPTIONS = ["Looks up a field of a person.", "Looks up one field of a person in the table.",
                     "Look up a person's data.", "Returns the value of a field for the person with this name.",
                     "Find a field of a person in the table of people", "Reads one value from the table."]
NAME_DESCRIPTIONS = ["The person's full name", "first and last name", "Name of the person, as asked"]
FIELD_DESCRIPTIONS = ["The field to read", "Which column", "name of the field"]
NOT_FOUND = ["not found", "null", "{\"error\": \"not found\"}"]


# ---- JSON answers ---------------------------------------------------------------------------------

def json_value(field, value):
    """A cell as JSON text: ages are numbers, None is null."""
    return json.dumps(int(value) if field == "age" and value is not None else value)


def json_parts(name, fields, values):
    """[(key and what a schema forces, value and what closes it)]; name may be None; together they are the answer."""
    pairs = ([("name", json.dumps(name))] if name else []) + [
        (KEYS[field], json_value(field, value)) for field, value in zip(fields, values)]
    return [("%s\"%s\":" % ("{" if i == 0 else " ", key), " " + value + ("}" if i + 1 == len(pairs) else ","))
            for i, (key, value) in enumerate(pairs)]


def value_start(value):
    """How much of a value's text comes before its own first token: the blank and the quote; nothing of null."""
    return 0 if value.startswith(" null") else 2 if value.startswith(" \"") else 1


def json_shape(parts):
    return "".join(key + " ..." + value[-1] for key, value in parts)


def draw_json(rng, table, names):
    """(question, parts) about one or two fields of a person; one field is asked for in its usual wordings."""
    person = rng.choice(table.people)
    name, present = person["name"], rng.random() >= SHARE_JSON_ABSENT
    if not present:
        name = generate.absent_name(rng, table, names)
    fields = rng.sample(table.fields, min(len(table.fields), rng.choice((1, 1, 2))))
    with_name = len(fields) > 1 and rng.random() < 0.7 or rng.random() < 0.2
    parts = json_parts(name if with_name else None, fields, [person[f] if present else None for f in fields])
    if len(fields) > 1:
        return rng.choice(PERSON_QUESTIONS).format(name=name), parts
    return generate.chat_question(rng, Question(fields[0], fields[0], name)), parts


def json_prompt(rng, question, parts):
    """The question in one of JSON_WORDINGS; without keys it asks for the one field that the question names."""
    wording = generate.weighted_choice(rng, JSON_WORDINGS)
    if wording == JSON_WORDINGS[1][1] and (len(parts) > 1 or "\"name\"" in parts[0][0]):
        wording = JSON_WORDINGS[0][1]
    return wording.format(question=question, shape=json_shape(parts))


def json_schema(parts, nullable):
    """The schema of such an answer; nullable: every field but the name may be null."""
    keys = [key.split("\"")[1] for key, _ in parts]
    kind = lambda key: "integer" if key == "age" else "string"
    return {"type": "object", "required": keys, "additionalProperties": False, "properties": {
        key: {"type": [kind(key), "null"] if nullable and key != "name" else kind(key)} for key in keys}}


def json_turn(rng, table, names, opening):
    """(pieces, kinds) of one question and its answer."""
    question, parts = draw_json(rng, table, names)
    prompt = json_prompt(rng, question, parts)
    pieces = [("question", opening + prompt + IM_END + "\n" + IM_START + "assistant\n")]
    is_forced = prompt == question
    for i, (key, value) in enumerate(parts):
        value, start = value + (IM_END if i + 1 == len(parts) else ""), value_start(value)
        if is_forced:
            end = len(value) if i + 1 == len(parts) else -1        # whether more keys follow only the schema knows
            pieces += [("between", key), ("answer", value[:start or end])]
            pieces += [("value", value[start:end])] if start else []
            pieces += [("between", value[end:])]
        else:
            pieces += [("more" if i else "answer", key + value[:start]), ("value", value[start:])]
    return pieces, ["json_value"] * len(parts) if is_forced else ["json"]


def json_sample(rng, n_rows, fields, n_branches, mix, names=name_sources.TRAINING_NAMES):
    """One table and conversations about it in which SHARE_JSON of the answers are JSON."""
    table = generate.make_table(rng, n_rows, fields, names)
    prefix, in_user_turn = generate.chat_prefix(rng, table.text)
    branches, kinds = [], []
    for _ in range(n_branches):
        pieces, branch_kinds = [], []
        for turn in range(rng.choice((1, 1, 1, 2))):
            opening = "" if in_user_turn and turn == 0 else IM_START + "user\n"
            if rng.random() < SHARE_JSON:
                more, more_kinds = json_turn(rng, table, names, opening)
            else:
                question = generate.draw_question(rng, table, mix, names)
                more = generate.chat_branch(rng, [question], opening == "")
                more_kinds = [question.kind]
            pieces += ([("between", "\n")] if pieces else []) + more
            branch_kinds += more_kinds
        branches.append(pieces)
        kinds.append(branch_kinds)
    return Sample(prefix, branches, kinds)


# ---- tool calls -----------------------------------------------------------------------------------

def tool_definition(rng):
    """The tool as a client sends it; rng=None gives the plainest spelling."""
    chance = rng.random if rng else lambda: 0.5
    name, field = {"type": "string"}, {"type": "string"}
    if chance() < 0.6:
        field["enum"] = list(FIELDS)
    if rng and chance() < 0.4:
        name["description"], field["description"] = rng.choice(NAME_DESCRIPTIONS), rng.choice(FIELD_DESCRIPTIONS)
    if rng and chance() < 0.2:
        name["title"], field["title"] = "Name", "Field"
    parameters = {"type": "object", "properties": {"name": name, "field": field}}
    if chance() < 0.9:
        parameters["required"] = ["name", "field"]
    if rng and chance() < 0.3:
        parameters["additionalProperties"] = False
    if rng and chance() < 0.2:
        parameters = dict(reversed(parameters.items()))
    function = {"name": TOOL_NAME, "description": rng.choice(TOOL_DESCRIPTIONS) if rng else TOOL_DESCRIPTIONS[0],
                "parameters": parameters}
    if rng and chance() < 0.15:
        del function["description"]
    if rng and chance() < 0.2:
        function["strict"] = True
    return {"type": "function", "function": function}


def tools_system(system_text, tool):
    """The system message of a prompt with one tool, as the chat template prints it."""
    return (IM_START + "system\n" + (system_text + "\n\n" if system_text else "") + TOOLS_HEAD + "\n"
            + json.dumps(tool, ensure_ascii=False) + TOOLS_TAIL + IM_END + "\n")


def call_text(name, field):
    return CALL % (TOOL_NAME, json.dumps({"name": name, "field": field}))


def response_text(content):
    return IM_START + "user\n<tool_response>\n" + content + "\n</tool_response>" + IM_END + "\n"


def draw_result(rng, question):
    """What the tool returns: the bare value, or it in an object; or one of NOT_FOUND."""
    if question.kind == "absent":
        return rng.choice(NOT_FOUND)
    value = int(question.value) if question.field == "age" and rng.random() < 0.5 else question.value
    return rng.choice([question.value] * 2 + [json.dumps({KEYS[question.field]: value}), json.dumps({"value": value})])


def draw_tool_question(rng, names, prompt):
    if rng.random() < SHARE_TOOL_SMALL_TALK:
        return Question("small_talk", prompt=prompt(rng))
    field = rng.choice(FIELDS)
    person = generate.make_people(rng, 1, names)[0]
    return Question("absent" if rng.random() < 0.15 else field, field, person["name"], person[field])


def split_values(text, *values):
    """The answer in pieces, so that the first token of each value is a piece's first one; values in order."""
    pieces, role = [], "answer"
    for value in values:
        before, found, after = text.rpartition(value) if value.strip() else (text, "", "")
        if found:
            pieces.append((role, before))
            text, role = found + after, "value"
    return pieces + [(role, text)]


def tool_branch(rng, questions):
    """(pieces, kinds) of a conversation: each question a call, its result and the sentence."""
    pieces, kinds = [], []
    turn_end = IM_END + "\n" + IM_START + "assistant\n"
    for question in questions:
        pieces += [("between", "\n")] if pieces else []
        pieces.append(("question", IM_START + "user\n" + generate.chat_question(rng, question) + turn_end))
        if question.kind != "small_talk":
            pieces += split_values(call_text(question.name, question.field) + IM_END, question.name, question.field)
            pieces += [("between", "\n" + response_text(draw_result(rng, question)) + IM_START + "assistant\n")]
            kinds.append("call")
        pieces += split_values(generate.chat_answer(question) + IM_END, " " + question.name,
                               question.value if question.value[:1].isdigit() else " " + question.value)
        kinds.append("small_talk" if question.kind == "small_talk" else "result")
    return pieces, kinds


def tool_sample(rng, n_branches, mix, names=name_sources.TRAINING_NAMES, prompt=small_talk.training_prompt,
                table_share=SHARE_TABLE_AND_TOOL):
    """A prompt with the tool and conversations that call it; with table_share, a table that makes it needless."""
    system = rng.choice(generate.SYSTEM_LINES) if rng.random() < 0.5 else ""
    prefix, branches, kinds = tools_system(system, tool_definition(rng)), [], []
    if rng.random() < table_share:
        table = generate.make_table(rng, rng.randint(2, 16), FIELDS, names)
        prefix += IM_START + "user\n" + rng.choice(generate.INSTRUCTIONS) + table.text + rng.choice(("\n", "\n\n"))
        for _ in range(n_branches):
            question = generate.draw_question(rng, table, mix, names)
            branches.append(generate.chat_branch(rng, [question], True))
            kinds.append([question.kind])
        return Sample(prefix, branches, kinds)
    for _ in range(n_branches):
        questions = [draw_tool_question(rng, names, prompt) for _ in range(rng.choice((1, 1, 1, 2)))]
        pieces, branch_kinds = tool_branch(rng, questions)
        branches.append(pieces)
        kinds.append(branch_kinds)
    return Sample(prefix, branches, kinds)
