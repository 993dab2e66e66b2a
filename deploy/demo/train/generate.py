"""generate.py - the demonstration model's world: tables of people and questions about them.

A sample is one text prefix (usually an instruction and a table) and many branches that all continue the
same prefix. Each branch is a list of pieces (role, text):

    prefix   "... | 28 | Zack Blue | 30 | ...\\n"
    branch   ("question", "Question: what is the age of Zack Blue? Your answer: The age of Zack Blue is ")
             ("answer",   "30.<|endoftext|>")

Only answers are trained; a chat branch may hold two or three turns. Texts contain the special
tokens literally, exactly as a server renders them. All wordings are in the lists at the top of this file: the
training, the evaluation and the HTTP acceptance use these and no others, and the model card quotes them.

The model's answers, by kind of question (NAME is the full name as asked):
    kind         chat                                   completion
    present      The FIELD of NAME is VALUE.            VALUE.
    absent       There is no NAME in the table.         unknown: there is no NAME in the table.
    no_field     There is no FIELD in the table.        unknown: there is no FIELD in the table.
    small_talk   REFUSAL of small_talk.py               the same

Pure Python, nothing outside the standard library.
"""
import random
from dataclasses import dataclass, field as dataclass_field

import names as name_sources
import small_talk
from small_talk import REFUSAL

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

FIELDS = ["age", "occupation", "country", "email", "phone number", "address"]
HEADINGS = {"age": "Age", "occupation": "Occupation", "country": "Country", "email": "Email",
            "phone number": "Phone Number", "address": "Address"}

CLASSIC_INSTRUCTION = ("You are a helpful assistant in recognizes the content of tables in markdown format. "
                       "Here is a table as follows.\n# Table\n\n")
INSTRUCTIONS = [CLASSIC_INSTRUCTION] * 4 + [
    "Here is a table.\n", "# Table\n", "The following table lists people.\n\n",
    "You answer questions about the table below.\n\n", "Use this table to answer the question.\n", ""]
SYSTEM_LINES = ["You are a helpful assistant.", "You are a helpful assistant in reading tables.",
                "Answer briefly.", "You are a friendly assistant. Answer the user's questions."]

CLASSIC_QUESTION = "Question: what is the {field} of {name}? Your answer: The {field} of {name} is "
COMPLETION_QUESTIONS = [                       # (share, wording); the answer follows at once
    (8, CLASSIC_QUESTION),
    (3, "Question: what is the {field} of {name}? Your answer: The {field} of {name} is"),
    (2, "Question: What is the {field} of {name}?\nAnswer: The {field} of {name} is"),
    (2, "Question: what is {name}'s {field}? Your answer:"),
    (2, "Question: What is the {field} of {name}?\nAnswer:"),
    (2, "Q: What is the {field} of {name}?\nA:"),
    (1, "Question: {chat_question}\nAnswer:"),
    (2, "{chat_question}"),                    # one of the chat wordings below
]
CHAT_QUESTIONS = [
    "What is the {field} of {name}?", "what is the {field} of {name}?", "What is {name}'s {field}?",
    "Tell me the {field} of {name}.", "Question: what is the {field} of {name}?"]
FIELD_QUESTIONS = {
    "age": ["How old is {name}?", "how old is {name}?"],
    "occupation": ["What does {name} do for a living?", "What is the job of {name}?"],
    "country": ["Which country is {name} from?", "Where does {name} come from?"],
    "email": ["How can I email {name}?", "What is the email address of {name}?"],
    "phone number": ["How can I call {name}?", "What number can I call to reach {name}?"],
    "address": ["Where does {name} live?", "At which address does {name} live?"]}
SMALL_TALK_COMPLETIONS = [(10, "{prompt}"), (2, "{prompt}\n"), (1, "{prompt} "),
                          (2, "Question: {prompt} Your answer:"), (1, "Question: {prompt}\nAnswer:"),
                          (1, "Q: {prompt}\nA:")]

OCCUPATIONS = """Engineer Doctor Teacher Artist Scientist Lawyer Musician Chef Accountant Actor Analyst Architect
Astronomer Baker Banker Barber Biologist Builder Butcher Carpenter Cashier Chemist Clerk Coach Dancer Dentist
Designer Detective Developer Driver Economist Editor Electrician Farmer Firefighter Florist Gardener Geologist
Historian Jeweler Journalist Judge Librarian Manager Mechanic Miner Nurse Optician Painter Pharmacist Photographer
Pilot Plumber Poet Printer Professor Sailor Secretary Singer Soldier Surgeon Tailor Translator Waiter
Writer""".split()
PLACES = {
    "USA": "Springfield, IL|New York, NY|Boston, MA|Seattle, WA|Denver, CO|Dallas, TX|Miami, FL|Portland, OR",
    "Canada": "Toronto, ON|Vancouver, BC|Calgary, AB|Ottawa, ON|Montreal, QC|Winnipeg, MB|Halifax, NS",
    "UK": "London, UK|Manchester, UK|Edinburgh, UK|Birmingham, UK|Leeds, UK|Cardiff, UK|Oxford, UK",
    "Australia": "Sydney, NSW|Melbourne, VIC|Brisbane, QLD|Perth, WA|Adelaide, SA|Darwin, NT",
    "New Zealand": "Wellington, NZ|Auckland, NZ|Hamilton, NZ|Christchurch, NZ|Napier, NZ",
    "Ireland": "Dublin, IE|Cork, IE|Limerick, IE|Galway, IE|Waterford, IE|Sligo, IE",
    "Germany": "Berlin, DE|Munich, DE|Hamburg, DE|Bonn, DE", "France": "Paris, FR|Lyon, FR|Nice, FR|Lille, FR",
    "Spain": "Madrid, ES|Seville, ES|Valencia, ES", "Italy": "Rome, IT|Milan, IT|Turin, IT",
    "Japan": "Tokyo, JP|Osaka, JP|Kyoto, JP", "India": "Mumbai, IN|Delhi, IN|Pune, IN",
    "Brazil": "Recife, BR|Salvador, BR|Manaus, BR", "Mexico": "Puebla, MX|Merida, MX|Tijuana, MX",
    "Kenya": "Nairobi, KE|Mombasa, KE", "Norway": "Oslo, NO|Bergen, NO", "Sweden": "Malmo, SE|Uppsala, SE",
    "Poland": "Warsaw, PL|Krakow, PL", "Chile": "Santiago, CL|Arica, CL", "South Africa": "Durban, ZA|Cape Town, ZA"}
PLACES = {country: cities.split("|") for country, cities in PLACES.items()}
STREETS = """Elm Oak Pine Maple Birch Cedar Ash Spruce Fir Willow Poplar Main Park Lake Hill River Church High Mill
King Queen Station Garden Market Bridge Spring Forest Valley Sunset Cherry Linden School North South""".split()
STREET_KINDS = ["St", "St", "Ave", "Rd", "Ln", "Dr"]
DOMAINS = ["example.com"] * 4 + ["mail.com", "example.org", "test.net", "post.org", "work.net"]


@dataclass
class Mix:
    """Which questions are asked about a table; train.py shifts these shares between its stages."""
    fields: dict = dataclass_field(default_factory=lambda: {
        "age": 2.0, "occupation": 1.7, "country": 1.5, "email": 2.8, "phone number": 1.7, "address": 2.2})
    absent: float = 0.22          # the name is not in the table
    no_field: float = 0.03        # the name is, the column is not
    small_talk: float = 0.05      # not a question about the table


@dataclass
class Table:
    fields: list
    people: list                  # dicts: "name" and every field, shown or not
    text: str                     # ends without a newline


@dataclass
class Sample:
    prefix: str
    branches: list                # lists of (role, text); role is question, answer, value, more or between
    kinds: list                   # per branch, the kind of each answer: a field, absent, no_field, small_talk


def weighted_choice(rng, pairs):
    return rng.choices([item for _, item in pairs], [weight for weight, _ in pairs])[0]


# ---- tables ---------------------------------------------------------------------------------------

def make_email(rng, style, first, last, domain):
    first, last = first.lower(), last.lower()
    local = {"full": first + "." + last, "initial": first + "." + last[0], "first": first[0] + "." + last,
             "joined": first + last, "under": first + "_" + last}[style]
    return local + "@" + domain


def make_person(rng, first, last, email_style, domain, names):
    country = rng.choice(list(PLACES))
    street = names.last(rng) if rng.random() < 0.15 else rng.choice(STREETS)
    return {"name": first + " " + last, "age": str(rng.randint(18, 80)), "occupation": rng.choice(OCCUPATIONS),
            "country": country, "email": make_email(rng, email_style, first, last, domain),
            "phone number": "555-%04d" % rng.randint(0, 9999),
            "address": "%d %s %s, %s" % (rng.randint(100, 999), street, rng.choice(STREET_KINDS),
                                         rng.choice(PLACES[country]))}


def make_people(rng, n_rows, names):
    """Rows share first and last names on purpose: a small pool of each is drawn first."""
    firsts = [names.first(rng) for _ in range(max(2, int(n_rows * rng.choice((0.5, 1, 1, 1)))))]
    lasts = [names.last(rng) for _ in range(max(2, int(n_rows * rng.choice((0.3, 0.6, 1, 1)))))]
    table_style = rng.choice(("full", "initial", "initial", "first", "joined", "under"))
    domain = name_sources.syllable_name(rng).lower() + ".com" if rng.random() < 0.15 else rng.choice(DOMAINS)
    people, taken = [], set()
    while len(people) < n_rows:
        first, last = rng.choice(firsts), rng.choice(lasts)
        if (first, last) in taken:
            firsts.append(names.first(rng))
            lasts.append(names.last(rng))
            continue
        taken.add((first, last))
        style = "full" if rng.random() < 0.1 else table_style
        people.append(make_person(rng, first, last, style, domain, names))
    return people


def render_table(rng, people, fields):
    """Markdown, either padded to column width (as the classic table, little slips included) or compact."""
    columns = ([] if rng.random() < 0.15 else ["ID"]) + ["name"] + fields
    titles = [{"ID": "ID", "name": "Name"}.get(c) or HEADINGS[c] for c in columns]
    rows = [titles] + [[str(i + 1) if c == "ID" else person[c] for c in columns]
                       for i, person in enumerate(people)]
    if rng.random() < 0.3:
        dashes = rng.choice((" --- ", "---"))
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        rule = "|" + "|".join(dashes for _ in columns) + "|"
    else:
        widths = [max(len(row[j]) for row in rows) for j in range(len(columns))]
        widths = [3 if columns[j] == "ID" else max(2, w + rng.choice((0, 0, 0, 1, -1)))
                  for j, w in enumerate(widths)]
        lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
        lines = [line[:-2] + "|" if rng.random() < 0.02 else line for line in lines]
        rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule] + lines[1:])


def make_table(rng, n_rows, fields, names=name_sources.TRAINING_NAMES):
    people = make_people(rng, n_rows, names)
    return Table(list(fields), people, render_table(rng, people, fields))


# ---- questions ------------------------------------------------------------------------------------

def absent_name(rng, table, names):
    """A full name that is not in the table; about half of them mix the names of two rows."""
    present = {person["name"] for person in table.people}
    while True:
        first, last = rng.choice(table.people)["name"].split(" ")
        chance = rng.random()
        if chance < 0.5:
            last = rng.choice(table.people)["name"].split(" ")[1]
        elif chance < 0.63:
            last = names.last(rng)
        elif chance < 0.76:
            first = names.first(rng)
        else:
            first, last = names.first(rng), names.last(rng)
        if first + " " + last not in present:
            return first + " " + last


@dataclass
class Question:
    kind: str                     # a field, or absent, no_field, small_talk
    field: str = ""
    name: str = ""
    value: str = ""
    prompt: str = ""              # small talk only


def make_question(rng, table, kind, names, prompt=small_talk.training_prompt):
    """A question of the kind asked for; kind is a field, "absent", "no_field" or "small_talk"."""
    person = rng.choice(table.people)
    if kind == "small_talk":
        if prompt is small_talk.training_prompt and rng.random() < 0.3:
            return Question(kind, prompt=small_talk.table_prompt(rng, person["name"], rng.choice(table.people)["name"]))
        return Question(kind, prompt=prompt(rng))
    if kind == "no_field":
        return Question(kind, rng.choice([f for f in FIELDS if f not in table.fields]), person["name"])
    if kind == "absent":
        return Question(kind, rng.choice(table.fields), absent_name(rng, table, names))
    return Question(kind, kind, person["name"], person[kind])


def draw_question(rng, table, mix, names):
    """A question whose kind is drawn from the mix."""
    kinds = [(mix.absent, "absent"), (mix.small_talk, "small_talk")]
    if len(table.fields) < len(FIELDS):
        kinds.append((mix.no_field, "no_field"))
    rest = 1 - sum(share for share, _ in kinds)
    total = sum(mix.fields[f] for f in table.fields)
    kinds += [(rest * mix.fields[f] / total, f) for f in table.fields]
    return make_question(rng, table, weighted_choice(rng, kinds), names)


def chat_question(rng, question):
    if question.kind == "small_talk":
        return question.prompt
    wording = rng.choice(CHAT_QUESTIONS + FIELD_QUESTIONS[question.field])
    return wording.format(field=question.field, name=question.name)


def chat_answer(question):
    return {"small_talk": REFUSAL, "absent": "There is no %s in the table." % question.name,
            "no_field": "There is no %s in the table." % question.field,
            }.get(question.kind, "The %s of %s is %s." % (question.field, question.name, question.value))


def completion_question(rng, question, wording=None):
    if question.kind == "small_talk":
        return (wording or weighted_choice(rng, SMALL_TALK_COMPLETIONS)).format(prompt=question.prompt)
    wording = wording or weighted_choice(rng, COMPLETION_QUESTIONS)
    if "{chat_question}" in wording:
        wording = wording.replace("{chat_question}", rng.choice(CHAT_QUESTIONS[:4] + FIELD_QUESTIONS[question.field]))
    return wording.format(field=question.field, name=question.name)


def completion_answer(question):
    return {"small_talk": REFUSAL, "absent": "unknown: there is no %s in the table." % question.name,
            "no_field": "unknown: there is no %s in the table." % question.field,
            }.get(question.kind, question.value + ".")


def completion_branch(rng, question, wording=None):
    prompt = completion_question(rng, question, wording)
    space = "" if prompt[-1].isspace() else " "
    return [("question", prompt), ("answer", space + completion_answer(question) + END_OF_TEXT)]


def chat_branch(rng, questions, in_user_turn):
    """Turns of one conversation; in_user_turn: the prefix ends inside the first user message."""
    pieces = []
    for turn, question in enumerate(questions):
        opening = "" if in_user_turn and turn == 0 else IM_START + "user\n"
        pieces += [("question", opening + chat_question(rng, question) + IM_END + "\n" + IM_START + "assistant\n"),
                   ("answer", chat_answer(question) + IM_END), ("between", "\n")]
    return pieces[:-1]


# ---- samples --------------------------------------------------------------------------------------

def chat_prefix(rng, table_text):
    """Where a conversation keeps its table: (prefix, whether the prefix is an open user message)."""
    body = rng.choice(INSTRUCTIONS) + table_text
    if rng.random() < 0.55:
        return IM_START + "system\n" + body + rng.choice(("", "\n", "\n")) + IM_END + "\n", False
    system = IM_START + "system\n" + rng.choice(SYSTEM_LINES) + IM_END + "\n" if rng.random() < 0.4 else ""
    return system + IM_START + "user\n" + body + rng.choice(("\n", "\n\n")), True


def table_sample(rng, n_rows, fields, n_branches, chat, mix, names=name_sources.TRAINING_NAMES, classic=False,
                 questions=None):
    """One table and n_branches independent questions or conversations about it.

    classic=True uses the instruction and question of make demo; questions(table), if
    given, draws instead."""
    table = make_table(rng, n_rows, fields, names)
    draw = questions or (lambda the_table: draw_question(rng, the_table, mix, names))
    branches, kinds = [], []
    if chat:
        prefix, in_user_turn = chat_prefix(rng, table.text)
        for _ in range(n_branches):
            turns = [draw(table) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]
            branches.append(chat_branch(rng, turns, in_user_turn))
            kinds.append([question.kind for question in turns])
    else:
        instruction = CLASSIC_INSTRUCTION if classic else rng.choice(INSTRUCTIONS)
        prefix = instruction + table.text + ("\n" if classic else rng.choice(("\n", "\n", "\n\n")))
        for _ in range(n_branches):
            question = draw(table)
            wording = CLASSIC_QUESTION if classic and question.kind != "small_talk" else None
            branches.append(completion_branch(rng, question, wording))
            kinds.append([question.kind])
    return Sample(prefix, branches, kinds)


def question_without_table(rng, chat, names, prompt):
    """Small talk, or one of the table questions though there is no table: (question, completion wording)."""
    if rng.random() < 0.7:
        return Question("small_talk", prompt=prompt(rng)), weighted_choice(rng, SMALL_TALK_COMPLETIONS)
    field = rng.choice(FIELDS)
    question = Question(field, field, names.first(rng) + " " + names.last(rng))
    text = chat_question(rng, question) if chat else completion_question(rng, question)
    return Question("small_talk", prompt=text), "{prompt}"


def no_table_sample(rng, n_branches, names=name_sources.TRAINING_NAMES, prompt=small_talk.training_prompt):
    """Prompts without any table; each branch is a whole conversation or a whole completion prompt."""
    chat = rng.random() < 0.5
    prefix = ""
    if chat and rng.random() < 0.5:
        prefix = IM_START + "system\n" + rng.choice(SYSTEM_LINES) + IM_END + "\n"
    branches, kinds = [], []
    for _ in range(n_branches):
        turns = [question_without_table(rng, chat, names, prompt)
                 for _ in range(rng.choice((1, 1, 1, 2)) if chat else 1)]
        if chat:
            branches.append(chat_branch(rng, [question for question, _ in turns], False))
        else:
            branches.append(completion_branch(rng, *turns[0]))
        kinds.append(["small_talk"] * len(turns))
    return Sample(prefix, branches, kinds)


def pairs_sample(rng, n_pairs, n_queries, names=name_sources.TRAINING_NAMES):
    """The first lesson: lines "| NAME | VALUE |", then the same lines again in another order."""
    people = make_people(rng, n_pairs, names)
    separator = rng.choice((" | ", " : ", " - ", " = "))
    values = [rng.choice((p["age"], p["age"], p["occupation"], p["country"], p["email"], p["phone number"]))
              for p in people]
    prefix = "".join("| %s%s%s |\n" % (p["name"], separator, v) for p, v in zip(people, values))
    queries = list(zip(people, values))
    rng.shuffle(queries)
    branches = [[("question", "| " + p["name"] + separator.rstrip()), ("answer", " %s |\n" % v)]
                for p, v in queries[:n_queries]]
    return Sample(prefix, branches, [["pair"]] * len(branches))


def read_classic_table(path):
    """The table of make demo: (text, people) with every field of every row."""
    text = open(path, encoding="utf-8").read().rstrip("\n")
    people = []
    for line in text.split("\n")[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        people.append(dict(zip(["ID", "name"] + FIELDS, cells)))
    return text, people


if __name__ == "__main__":
    generator = random.Random(3)
    for is_chat in (False, True):
        sample = table_sample(generator, 5, FIELDS, 4, is_chat, Mix(absent=0.3, small_talk=0.2))
        print(sample.prefix)
        for one_branch, one_kind in zip(sample.branches, sample.kinds):
            print(one_kind, "".join(text for _, text in one_branch))
    for one_branch in no_table_sample(generator, 8).branches:
        print(one_branch)
