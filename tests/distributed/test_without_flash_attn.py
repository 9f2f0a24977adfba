"""The distributed backend where flash-attn is not installed."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from flat_config import with_settings
from openrlhf_cpu import ENVIRONMENT

from coachrl.commands.build import unchecked_backend
from coachrl.config import PolicyConfig, RunConfig
from coachrl.doctor.hand_over import measure
from coachrl.errors import PackageMissing
from coachrl.trainers.backends.openrlhf.backend import OpenRLHFBackend

pytestmark = pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed here")


@pytest.mark.thorough
def test_driver_and_workers_import_openrlhf_and_keep_no_stand_in():
    script = Path(__file__).with_name("plain_workers.py")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == ["driver", "policy", "reference", "engine"]
    assert all((one["imported"], one["found"]) == ([], False) for one in found.values()), found
    assert [one["openrlhf"] for one in found.values()] == [True, True, True, False], "an engine needs nothing of it"


def test_its_own_attention_is_refused_before_anything_starts(model):
    config = with_settings(RunConfig(backend="openrlhf", model=str(model)), attention="flash_attention_2")
    with pytest.raises(PackageMissing, match=r"install flash-attn.*openrlhf\.attention=sdpa") as refused:
        OpenRLHFBackend({"solver": model}, config)
    policies = {"solver": PolicyConfig()}
    assert unchecked_backend(config, policies) == str(refused.value)
    assert unchecked_backend(with_settings(config, attention="sdpa"), policies) == ""


def test_sdpa_keeps_samples_apart_and_hands_over_what_it_trains(start):
    """Samples lie one behind another in a micro-batch."""
    assert measure(start("solver", gpus=1, attention="sdpa"), "solver").agrees
