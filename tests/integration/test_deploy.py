"""What can be checked of deploy/ with the programs alone; the rest is `make deploy-check` and `make images-check`."""
import os
import re
import shutil
import stat
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests/deploy"))
import images  # noqa: E402

IMAGES = ["router", "worker-cpu", "worker-cuda"]
OPTION_FILES = sorted((ROOT / "deploy/kustomize").rglob("router-options.yaml"))


@pytest.fixture(params=IMAGES)
def dockerfile(request):
    return request.param, *images.stages_of(ROOT / f"deploy/docker/Dockerfile.{request.param}",
                                            {"VERSION": "0.0.7", "CUDA_ARCHS": "90"})


def dump(program, *args, **environment):
    return subprocess.run([BUILD / program, *args, "--dump-config"], capture_output=True, text=True, env=environment)


def test_images_are_a_program_and_a_user_and_nothing_else(dockerfile):
    image, builder, final = dockerfile
    settings = final.settings
    program = "incipit-router" if image == "router" else "incipit-worker"
    assert final.base == "scratch" and settings["USER"] == "65532:65532" and settings["STOPSIGNAL"] == "SIGTERM"
    assert settings["ENTRYPOINT"] == [f"/usr/bin/{program}"]
    assert settings["HEALTHCHECK"] == [f"/usr/bin/{program}", "healthcheck"]
    assert settings["LABEL"]["org.opencontainers.image.version"] == "0.0.7"
    assert settings["LABEL"]["org.opencontainers.image.title"] == f"incipit-{image}"
    assert f"deploy/docker/build /image {image}" in [text for name, text, _ in builder.steps if name == "RUN"]


def test_every_copied_file_exists_and_is_in_the_build_context(dockerfile):
    files = images.context()
    for name, text, _ in dockerfile[1].steps:
        if name == "COPY":
            source = text.split()[0]
            assert source == "." or source in files
    assert {"Makefile", "VERSION", "LICENSE", "deploy/deps", "deploy/docker/build"} <= set(files)
    assert "deploy/demo/model/model.safetensors" in files or not (ROOT / "deploy/demo/model/model.safetensors").exists()
    assert not [f for f in files if f.startswith((".git/", "build/", "tests/", "deploy/helm/", "deploy/kustomize/"))]


def test_the_makefile_needs_nothing_that_an_image_is_not_built_from(tmp_path):
    for name in images.context():
        if name.startswith(("common/", "router/", "worker/", "kernels/")) or "/" not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    planned = subprocess.run(["make", "-n", "build/release/incipit-router", "build/release/incipit-worker"], cwd=tmp_path,
                             capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert planned.returncode == 0, planned.stderr


def test_the_environment_of_an_image_is_options_of_its_program(dockerfile):
    image, _, final = dockerfile
    program = "incipit-router" if image == "router" else "incipit-worker"
    ours = {k: v for k, v in final.settings["ENV"].items() if k.startswith("INCIPIT_")}
    done = dump(program, **ours)
    assert done.returncode == 0, done.stderr
    for name, value in ours.items():
        assert re.search(f"^{name[8:].lower().replace('_', '-')}: \"?{re.escape(value)}\"?  # environment$", done.stdout, re.M)
    ports = re.findall(r"^(?:admin-)?port: (\d+)", done.stdout, re.M)
    assert sorted(map(int, ports)) == sorted(final.settings["EXPOSE"])


@pytest.mark.parametrize("path", OPTION_FILES, ids=lambda p: p.parent.name)
def test_option_files_are_taken_by_the_router(path):
    done = dump("incipit-router", f"--config={path}", INCIPIT_ADMIN_API_KEY="k")
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_secrets_are_made_once_for_their_owner_alone(tmp_path):
    (tmp_path / "base").mkdir()
    script = shutil.copy(ROOT / "deploy/kustomize/make-secrets", tmp_path)
    file = tmp_path / "base/secrets.env"
    subprocess.run([script], check=True, capture_output=True, umask=0)
    first = file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    keys = dict(line.split("=") for line in first.splitlines())
    assert set(keys) == {"INCIPIT_PREFIX_HASH_SEED", "INCIPIT_ADMIN_API_KEY"}
    assert all(re.fullmatch("[0-9a-f]{64}", v) for v in keys.values()) and len(set(keys.values())) == 2
    subprocess.run([script], check=True, capture_output=True)
    assert file.read_text() == first


def test_the_chart_has_the_version_of_the_programs():
    version = (ROOT / "VERSION").read_text().strip()
    chart = (ROOT / "deploy/helm/incipit/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (\S+)", chart, re.M) == [version, version]


@pytest.mark.parametrize("path,rules,out", [
    ("common/a.c", ["*", "!common"], False), ("build/x", ["*", "!common"], True), ("deploy/helm/a", ["*", "!deploy", "deploy/helm"], True),
    ("deploy/deps", ["*", "!deploy", "deploy/helm"], False), ("a/b/README.md", ["*", "!a", "**/*.md"], True), ("a.md", ["**/*.md"], True),
])
def test_the_check_reads_dockerignore(path, rules, out):
    assert images.ignored(path, rules) is out


def site_of_the_page():
    """The kustomization that deploy/README.md has its reader write."""
    page = (ROOT / "deploy/README.md").read_text()
    [text] = re.findall(r"(?s)cat > site/kustomization.yaml <<'END'\n(.*?)\nEND\n", page)
    assert "kubectl apply -k site\n" in page and "kubectl apply -k deploy" not in page, "its images have no registry"
    return text


def test_the_page_names_the_source_of_every_image():
    text = site_of_the_page()
    [overlay] = re.findall(r"\.\./(deploy/kustomize/overlays/\w+)", text)
    assert (ROOT / overlay / "kustomization.yaml").exists()
    named = dict(re.findall(r"- name: (\S+)\n    newName: (\S+)\n    newTag: " + re.escape((ROOT / "VERSION").read_text().strip()), text))
    ours = {m for path in (ROOT / "deploy/kustomize").rglob("*.yaml") for m in re.findall(r"(?m)^ +image: (incipit-\S+)$", path.read_text())}
    assert ours == set(named) == {f"incipit-{name}" for name in IMAGES}
    assert all(new == f"registry.example.com/{name}" for name, new in named.items())
    pushed = re.search(r"for image in (.*); do", (ROOT / "deploy/README.md").read_text())[1]
    assert set(pushed.split()) == ours


@pytest.mark.skipif(not shutil.which("kubectl"), reason="SKIPPED: kubectl is not installed")
@pytest.mark.parametrize("overlay", sorted(p.name for p in (ROOT / "deploy/kustomize/overlays").iterdir()))
def test_manifests_of_the_page_name_a_registry_in_every_image(overlay, tmp_path):
    shutil.copytree(ROOT / "deploy/kustomize", tmp_path / "deploy/kustomize", ignore=shutil.ignore_patterns("secrets.env"))
    subprocess.run([tmp_path / "deploy/kustomize/make-secrets"], check=True, capture_output=True)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/kustomization.yaml").write_text(site_of_the_page().replace("overlays/cpu", "overlays/" + overlay))
    done = subprocess.run(["kubectl", "kustomize", tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    images_used = re.findall(r"(?m)^ +(?:- )?image: (\S+)$", done.stdout)
    ours = [image for image in images_used if "incipit" in image]
    assert ours and all(image.startswith("registry.example.com/incipit-") and image.endswith(":" + (ROOT / "VERSION").read_text().strip())
                        for image in ours), images_used
