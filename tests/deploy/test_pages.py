"""What deploy's pages name exists: files, make targets, overlays, objects, values."""
import json
import re

import pytest

from rendered import CHART, KUSTOMIZE, ROOT, all_renders, named, of_kind

PAGES = [ROOT / "deploy/README.md", CHART / "README.md"]
README = PAGES[0].read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def makefiles():
    return "".join(f.read_text() for f in (ROOT / "Makefile", *ROOT.glob("kernels/*/*.mk"), *ROOT.glob("tests/*/*.mk")))


def commands():
    """The lines of the shell blocks, joined where they go on, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.parent.name))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_commands_name_existing_files():
    makefile = makefiles()
    seen = commands()
    assert len(seen) > 6
    for command in seen:
        for path in re.findall(r"(?<![\w/])deploy/[\w./-]+", command):
            assert (ROOT / path).exists(), path
        for target in re.findall(r"^make ([a-z-]+)", command):
            assert re.search(f"^{target}:", makefile, re.M), target
        for name in re.findall(r"--set ([\w.]+)=", command):
            assert in_schema(name), name
        for kind, name in re.findall(r"(deployment|service)/([\w-]+)", command):
            for objects in all_renders().values():
                if of_kind(objects, "Namespace"):
                    assert named(objects, kind.capitalize(), name)


def in_schema(path):
    at = SCHEMA
    for key in path.split("."):
        at = at.get("properties", {}).get(key)
        if at is None:
            return False
    return True


def test_overlays_and_components_of_the_page_are_those_there_are():
    def there(folder):
        return {p.name for p in (KUSTOMIZE / folder).iterdir() if (p / "kustomization.yaml").exists()}

    [table] = re.findall(r"\| overlay \|.*?\n\n", README, re.S)
    assert there("overlays") == set(re.findall(r"^\| `([a-z]+)` \|", table, re.M))
    [line] = re.findall(r"^`components/`.*$", README, re.M)
    assert there("components") == set(re.findall(r"`([a-z]+)`", line)) - there("overlays")


def test_make_targets_in_the_text_exist():
    makefile = makefiles()
    for target in re.findall(r"`make ([a-z-]+)`", README):
        assert re.search(f"^{target}:|^deps-%:" if target.startswith("deps") else f"^{target}:", makefile, re.M), target


def test_our_side_of_the_tables_of_other_charts_are_values():
    """Each backquoted word of the second column, below the prefixes that a row may leave out."""
    text = (CHART / "README.md").read_text().split("## Coming")[1]
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        words = re.findall(r"`([A-Za-z][\w.]*)", cells[0 if cells[1].startswith("the same") else 1])
        for word in [w.rstrip(".") for w in words if w not in ("engine", "null")]:
            prefixes = ["", "router.", "workerDefaults.", "router.serviceDiscovery.", "workerDefaults.storage."]
            assert word in ("workers", "name", "router.options.max") or any(in_schema(p + word) for p in prefixes), word
