"""How long grammars take: schemas of published tools, over a published vocabulary of 131,072 tokens, on one core.

    grammar_speed.py                fetches bfcl-eval with pip, for the parameters of its tools (SCHEMAS, 600 of them)

Prints times of compiling (the first mask included), of masks of new and of known places, and of taking a token, along
random answers of 60 tokens, five of each schema. Needs mistral-common.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import zipfile

from common import BUILD
from llguidance_masks import vocabulary, write_vocabulary

TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array", "ArrayList": "array", "list": "array",
         "HashMap": "object", "String": "string"}
KNOWN = {"object", "number", "array", "string", "integer", "boolean", "null"}


def as_json_schema(node):
    """The tools write types of their languages."""
    if isinstance(node, list):
        return [as_json_schema(n) for n in node]
    if not isinstance(node, dict):
        return node
    out = {k: as_json_schema(v) for k, v in node.items() if not (k == "enum" and v == [])}
    if isinstance(out.get("type"), str):
        out["type"] = TYPES.get(out["type"], out["type"])
        if out["type"] not in KNOWN:
            del out["type"]
    return out


def schemas():
    folder = pathlib.Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "bfcl-eval==2026.3.23", "-d", folder], check=False,
                   capture_output=True)
    found = set()
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "data/BFCL_v4_" not in name or not name.endswith(".json") or any(x in name for x in ("possible", "java", "format_sens")):
                    continue
                for line in archive.read(name).decode().splitlines():
                    functions = json.loads(line).get("function", []) if line.startswith("{") else []
                    found |= {json.dumps(as_json_schema(f["parameters"])) for f in functions if isinstance(f, dict) and "parameters" in f}
    return sorted(found)


def main():
    texts = schemas()
    if not texts:
        print("SKIPPED grammar_speed: pip could not fetch bfcl-eval")
        return
    random.Random(1).shuffle(texts)
    lines = "".join(json.dumps({"kind": "json", "text": t}) + "\n" for t in texts[:int(os.environ.get("SCHEMAS", "600"))])
    with tempfile.NamedTemporaryFile() as file:
        write_vocabulary(file, vocabulary())
        subprocess.run([str(BUILD / "tests/reference/grammar"), "speed", file.name], input=lines, text=True, check=True)


if __name__ == "__main__":
    main()
