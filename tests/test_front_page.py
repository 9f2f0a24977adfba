"""What a newcomer reads first: README, the site of docs/, the pages for coding agents, what is packed into a wheel."""

import asyncio
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import coachrl
from coachrl.config import PipelineConfig
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Task

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("skills/*.md"), *ROOT.glob("docs/*.md")]


def test_the_team_of_the_readme_plays():
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)
    scope = {"__name__": "my_team"}
    exec(compile(code, "README.md", "exec"), scope)
    policy = ScriptedPolicy(lambda call: "Paris" if "Lyon" in call.prompt else "Lyon")
    task = Task("capital", "geography", "Capital of France?", ground_truth="Paris")
    context = RolloutContext(scope["AskTwice"](PipelineConfig()), policy, sandbox=None)
    [episode] = asyncio.run(rollout([EpisodeSpec("e", task, seed=0)], context))
    assert episode.outcome.success and len(episode.actions) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def headings(page):
    """The anchors that a code host gives the headings of a page: no sign but a dash and an underscore, dashes kept."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert heading in headings(page.parent / target if target else page), f"{target}#{heading}"


def pages_of(tree):
    for entry in tree:
        [(_, what)] = entry.items()
        yield from [what] if isinstance(what, str) else pages_of(what)


def test_every_page_of_docs_is_on_the_site():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages_of(site["nav"])) == sorted(page.name for page in ROOT.glob("docs/*.md"))


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        ROOT / "mkdocs.yml",
        "-d",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["version"] == coachrl.__version__
    assert {"title", "message", "authors", "license", "type"} <= citation.keys()


def test_the_package_says_what_it_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == coachrl.__version__ and "Typing :: Typed" in project["classifiers"]
    assert "docs" in project["optional-dependencies"]


DOCKERFILES = sorted(ROOT.glob("docker/*.Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_names_what_there_is(path):
    text = path.read_text()
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith(("ARG", "FROM")) and any(line.startswith("USER ") for line in lines)
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            assert all((ROOT / source).exists() and source in sent for source in sources), line
        if line.startswith(("FROM ", "ARG CUDA_IMAGE")) and "${" not in line:
            assert ":" in line and ":latest" not in line, line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"\.\[([a-z,-]+)\]", text):
        assert set(named.split(",")) <= extras.keys()


def test_the_source_distribution_takes_its_own_files_alone():
    """A pattern without a slash at its beginning names files of every folder."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert all(pattern.startswith("/") and (ROOT / pattern[1:]).exists() for pattern in build["include"])
