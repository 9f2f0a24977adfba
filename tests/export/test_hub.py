"""Models for the hub: what a folder holds, and a push to a hub on loopback that keeps what it gets."""

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from command_line import coachrl

from coachrl.config import RunConfig
from coachrl.errors import ConfigError, PackageMissing
from coachrl.export.hub import check_push, export_hub
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.runs.model_card import model_card, write_cards
from coachrl.types import Role

ROLES = (Role("solver", "solver", description="Solves."), Role("checker", "checker"))
METRICS = [{"step": 0, "eval/success": 0.25, "eval/episodes": 8}, {"step": 2, "eval/success": 0.5, "eval/episodes": 8}]


@pytest.fixture
def run(tmp_path):
    run = Run.create(RunConfig(name="trained", out=tmp_path / "runs", model="someone/small"))
    with run.checkpoint(2, keep=1) as folder:
        for role in ROLES:
            (folder / role.policy).mkdir()
            for name in ("config.json", "model.safetensors", "tokenizer.json", "optimizer.pt", "state.json"):
                (folder / role.policy / name).write_text(json.dumps(f"{name} of {role.policy}"))
        write_cards(folder, 2, run.config(), "coach `rules`", ROLES, METRICS)
        checkpoints.seal(folder, 2, {})
    return run


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as an upload of small files takes."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kept = self.server.kept
        kept["tokens"].add(self.headers.get("Authorization"))
        if self.server.status != 200:
            self._answer({"error": "no"}, self.server.status)
        elif self.path == "/api/repos/create" and len(kept["names"]) == self.server.takes:
            self._answer({"error": "no more"}, 400)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            kept["names"].append(asked["name"])
            kept["visibility"].add(asked["visibility"])
            self._answer({"url": f"https://huggingface.co/{asked.get('organization')}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            self._answer({"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [{"path": path, **how} for path in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    place = f"{self.path.split('/commit/')[0].removeprefix('/api/models/')}/{line['value']['path']}"
                    kept["files"][place] = base64.b64decode(line["value"]["content"])
            self._answer(
                {"success": True, "commitOid": "0" * 40, "commitUrl": "https://huggingface.co/me/team/commit/0"}
            )
        else:
            self._answer({}, 404)

    def do_GET(self):
        self._answer({"sha": "0" * 40, "siblings": [], "id": "x", "private": True, "tags": []})

    def _answer(self, record, status=200):
        body = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    pytest.importorskip("huggingface_hub", reason="needs the torch extra")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.kept, server.status = {"files": {}, "tokens": set(), "visibility": set(), "names": []}, 200
    server.takes = None  # so many repositories are made; None: any number
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def export(run, *arguments, **environment):
    clean = {"HF_TOKEN": "", "HF_HUB_DISABLE_XET": "1", **environment}
    return coachrl("export", run.folder, "--format", "hub", "--out", "team", *arguments, cwd=run.folder.parent, **clean)


def test_a_folder_holds_models_and_cards_and_nothing_for_resuming(run):
    done = export(run)
    assert done.returncode == 0, done.stderr
    folder = run.folder.parent / "team"
    assert done.stdout.split() == ["team/checker", "team/solver"]
    names = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name for path in (folder / "solver").iterdir()} == names
    _, header, text = (folder / "solver" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["base_model"] == "someone/small"
    assert "**solver**: Solves." in text and "| 0 | 0.250 | 8 |" in text and "| 2 | 0.500 | 8 |" in text
    assert "coach `rules`" in text and "reinforce_pp" in text and "checker" not in text
    assert "too high" not in text


def test_the_card_of_a_run_that_keeps_its_best_says_what_its_figure_is_worth(run):
    config = run.config(["train.keep_best=true", "eval.every=1"])
    card = model_card("solver", 2, config, "coach `rules`", ROLES, METRICS)
    assert card.endswith(
        "| 2 | 0.500 | 8 |\n\nWhere this checkpoint was chosen as the best of several evaluations, its "
        "figure tends to be too high: tasks that the run has not seen measure it fairly.\n"
    )


def test_a_push_puts_each_model_into_a_private_repository(run, hub):
    done = export(run, "--push", "me/team", HF_TOKEN="hf_secret", HF_ENDPOINT=hub.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[2:] == [f"{hub.address}/me/team-checker", f"{hub.address}/me/team-solver"]
    kept = hub.kept["files"]
    assert len(kept) == 8 and kept["me/team-solver/model.safetensors"] == b'"model.safetensors of solver"'
    assert hub.kept["tokens"] == {"Bearer hf_secret"} and hub.kept["visibility"] == {"private"}


@pytest.mark.parametrize("status", [401, 403])
def test_a_hub_that_refuses_is_one_line_without_the_token(run, hub, status):
    hub.status = status
    done = export(run, "--push", "me/team", HF_TOKEN="hf_secret", HF_ENDPOINT=hub.address)
    assert done.returncode == 1 and "the hub did not take it" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "hf_secret" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--push", "me/team"], "set HF_TOKEN"),
        (["--push", "team"], "write NAME/REPOSITORY"),
        (["--push", "me/a b"], "--push me/a b"),
        (["--min-score", "3"], "takes whole models"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_is_written(run, arguments, words):
    if "--push" in arguments:
        pytest.importorskip("huggingface_hub", reason="needs the torch extra")
    done = export(run, *arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (run.folder.parent / "team").exists()


def test_a_checkpoint_that_is_cut_short_is_not_exported(run):
    (run.last_checkpoint() / "solver" / "model.safetensors").write_text("")
    done = export(run)
    assert done.returncode == 2 and "is cut short" in done.stderr
    assert not [path for path in run.folder.parent.iterdir() if "team" in path.name]


def test_what_went_up_before_the_hub_refused_is_named(run, hub):
    hub.takes = 1
    done = export(run, "--push", "me/team", HF_TOKEN="hf_secret", HF_ENDPOINT=hub.address)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "--push me/team-solver: the hub did not take it: " in done.stderr
    assert done.stderr.rstrip().endswith(f"; done before it: {hub.address}/me/team-checker")
    assert {name.split("/")[1] for name in hub.kept["files"]} == {"team-checker"}


def test_nothing_is_said_to_be_done_where_the_first_is_refused(run, hub):
    hub.takes = 0
    done = export(run, "--push", "me/team", HF_TOKEN="hf_secret", HF_ENDPOINT=hub.address)
    assert done.returncode == 1 and "--push me/team-checker: " in done.stderr and "done before" not in done.stderr


def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(monkeypatch, run, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", None)
    with pytest.raises(ConfigError, match=r"--push needs huggingface_hub.*: pip install 'coachrl\[torch\]'"):
        check_push("me/team")
    with run.checkpoint(3, keep=1) as folder:
        (folder / "solver").mkdir()
        (folder / "solver" / "adapter_config.json").write_text("{}")
        checkpoints.seal(folder, 3, {})
    monkeypatch.setitem(sys.modules, "coachrl.trainers.backends.torch.policy", None)
    with pytest.raises(PackageMissing, match=r"merging adapters needs .*: pip install 'coachrl\[torch\]'"):
        export_hub(run, tmp_path / "team")
    assert not (tmp_path / "team").exists()
