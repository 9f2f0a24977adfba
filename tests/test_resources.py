"""What is on this machine: who runs, where things are kept, and what one seed becomes."""

import os
import threading
from pathlib import Path

import pytest

from coachrl.resources import (
    ENGINE_THREAD,
    ask_this_machine_directly,
    cache_folder,
    engine_hangs,
    past_proxies,
    process_runs,
    resource,
)


@pytest.mark.parametrize(
    ("answer", "runs"), [(None, True), (ProcessLookupError, False), (PermissionError, True), (OverflowError, True)]
)
def test_a_process_runs_unless_there_is_none_of_its_number(monkeypatch, answer, runs):
    asked = []

    def kill(*given):
        asked.append(given)
        if answer is not None:
            raise answer

    monkeypatch.setattr(os, "kill", kill)
    assert process_runs(7) is runs and asked == [(7, 0)]  # a signal that ends nothing


def test_what_is_kept_lies_where_the_environment_says_or_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COACHRL_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("COACHRL_CACHE", "~nobody-of-this-name/mine")
    assert cache_folder() == Path("~nobody-of-this-name/mine")
    for unsaid in ("", None):
        monkeypatch.delenv("COACHRL_CACHE") if unsaid is None else monkeypatch.setenv("COACHRL_CACHE", unsaid)
        assert cache_folder() == tmp_path / ".cache" / "coachrl"


def test_what_is_shipped_is_found_and_what_is_not_has_a_place():
    assert resource("configs", "quickstart.yaml").is_file() and resource("prompts", "agents").is_dir()
    absent = resource("configs", "no-such.yaml")
    assert absent.parent == resource("configs") and not absent.exists()


def test_an_engine_hangs_while_a_thread_of_its_name_lives():
    end = threading.Event()
    engine = threading.Thread(target=end.wait, name=ENGINE_THREAD)
    assert not engine_hangs()
    engine.start()
    assert engine_hangs()
    end.set()
    engine.join()
    assert not engine_hangs()


@pytest.mark.parametrize(
    ("known", "hosts", "told"),
    [
        ({}, ("127.0.0.1", ""), "127.0.0.1"),
        ({"no_proxy": "a.host, 127.0.0.1,"}, ("127.0.0.1", "::1"), "a.host,127.0.0.1,::1"),
        ({"NO_PROXY": "a.host", "no_proxy": "b.host,a.host"}, ("::1",), "a.host,b.host,::1"),
        ({"NO_PROXY": "*"}, ("127.0.0.1",), "*"),  # beside another name it would be none
    ],
)
def test_hosts_are_added_to_those_that_no_proxy_is_asked_for(known, hosts, told):
    assert past_proxies(known, *hosts) == {"NO_PROXY": told, "no_proxy": told}


def test_where_there_is_no_proxy_the_environment_stays_as_it_is(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    ask_this_machine_directly("10.0.0.7")
    assert dict(os.environ) == before
