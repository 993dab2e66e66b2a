"""make_vectors.py - checks tokenizer.py against the Hugging Face "tokenizers" library and writes test vectors.

    python3 make_vectors.py ../model/tokenizer.json ../../../tests/unit/data

Every text is encoded by both; a difference is an error. demo_tokenizer_vectors.json is a list of {"text", "ids"},
demo_template_vectors.json one of {"messages", "text", perhaps "tools"}: conversations, and the prompts that the model was
trained on, which its chat template must print.
Needs: pip install tokenizers.
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer as ReferenceTokenizer

import generate
import names
import structured
from evaluate_http import json_cases, messages_of, table_cases, tool_cases
from tokenizer import Tokenizer

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "  a", "a ", "a  ", "\n", "\n\n", " \n", "\n ", "a\nb", "a \n b", "a  \n\n  b",
    "\r\n", "a\r\nb\r\n", "\t", "\ta", "a\t\tb", "Hello, who are you?", "What is the capital of France?",
    "0", "29", "1234567890", "3.14 and -7", "a1b2c3", "x=1;y = 22", "I'm we'll you've they'd he's don't they're",
    "I'M WE'LL YOU'VE THEY'D HE'S DON'T", "'s 't 'x ' '", "john.doe@example.com", "bob_b@test.net, 555-0199",
    "| 1   | John Doe      | 29  | Engineer      |\n|-----|---------------|-----|\n", "|-|--|---|----|-----|\n\n",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe \u00c5ngstr\u00f6m", "e\u0301 combining", "\u4f60\u597d\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\uff01", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627", "\u0967\u0968\u0969 \u2167 \u00bd \u00b2", "\U0001f600 \U0001f468\u200d\U0001f469",
    "no\u00a0break\u2003space\u3000wide", "...!!!???", "(a) [b] {c} <d>", "\"quoted\" 'single' `code`",
    "<|im_start|>user\nHow old is Zack Blue?<|im_end|>\n<|im_start|>assistant\n", "The age of Zack Blue is 30.<|im_end|>",
    "30.<|endoftext|>", "<|endoftext|><|pad|><|im_start|>", "<|not_special|> <|im_end", "a<|im_end|>b <|im_end|> c",
    "def f(x):\n    return x + 1\n", "tail   ", "end\n\n\n", "\x01\x7f", "A\u200bB", "\u017f's \u212a",
    "I can only answer questions about a table that you give me.", "unknown: there is no Kalmoth Tofen in the table.",
]


def write_list(path, items):
    with open(path, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(map(json.dumps, items)) + "\n]\n")


def template_vectors(rng):
    """Conversations with short tables or none, in all forms that the chat template tells apart."""
    cases = [case for kind in ("age", "absent") for case in table_cases(rng, kind, 4, names.TRAINING_NAMES)
             if case.is_chat] + json_cases(rng, 2, names.TRAINING_NAMES) + tool_cases(rng, 6, names.TRAINING_NAMES)
    return [{"messages": messages_of(case.prompt), "text": case.prompt}
            | {key: value for key, value in case.fields.items() if key == "tools"} for case in cases]


def main(tokenizer_path, out_folder):
    ours, reference = Tokenizer.load(tokenizer_path), ReferenceTokenizer.from_file(tokenizer_path)
    rng = random.Random(9)
    generated = []
    for _ in range(300):
        sample = generate.table_sample(rng, rng.randint(2, 12), generate.FIELDS, 3, rng.random() < 0.5, generate.Mix())
        generated += [sample.prefix] + ["".join(text for _, text in branch) for branch in sample.branches]
    letters = "aB1 \n\t.'|-\u00e9\u4e16\u00a0sT"
    generated += ["".join(rng.choice(letters) for _ in range(rng.randint(1, 12))) for _ in range(3000)]
    different = 0
    for text in TEXTS + generated:
        expected = reference.encode(text, add_special_tokens=False).ids
        if ours.encode(text) != expected:
            different += 1
            print("different: %r\n  ours      %s\n  reference %s" % (text, ours.encode(text), expected))
    vectors = [{"text": text, "ids": reference.encode(text, add_special_tokens=False).ids}
               for text in TEXTS + generated[:2]]
    write_list(os.path.join(out_folder, "demo_tokenizer_vectors.json"), vectors)
    write_list(os.path.join(out_folder, "demo_template_vectors.json"), template_vectors(rng))
    print("%d texts compared, %d different; %d vectors written" % (len(TEXTS) + len(generated), different, len(vectors)))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
