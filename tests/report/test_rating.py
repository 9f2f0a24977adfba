"""People as raters, through the real server: forms, tokens, other sites, two at once, a folder that is closed."""

from __future__ import annotations

import http.client
import re
import threading
from dataclasses import replace
from html import unescape
from urllib.parse import urlencode

import pytest
from report_runs import synthetic_run

from coachrl.report.view import make_server
from coachrl.runs.labels import LABELS, read_labels
from coachrl.types import GIVEN_UP


@pytest.fixture
def run(tmp_path):
    return synthetic_run(tmp_path, steps=1, planned=1, tasks=2)


@pytest.fixture
def serve():
    servers = []

    def start(run, **settings):
        server = make_server(run, **settings)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return server.server_address

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*address, timeout=20)
    form = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
    connection.request(method, path, body, {**form, **headers})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def form_of(page):
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)}


def test_a_person_scores_one_action_after_the_other_and_sees_the_coachs_score_afterwards(run, serve):
    address = serve(run)
    _, front, _ = ask(address, "GET", "/rate")
    assert "Your name" in front and not form_of(front)
    status, page, headers = ask(address, "GET", "/rate?rater=Ann")
    form = form_of(page)
    assert status == 200 and form["rater"] == "Ann" and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "score 1" not in page and "coach" not in page.partition("<main>")[2] and "ended by itself" not in page
    status, _, headers = ask(address, "POST", "/rate", urlencode({**form, "score": "6.5", "remark": "fine\nso far"}))
    assert status == 303
    [label] = read_labels(run)
    assert (label.action_id, label.rater, label.score, label.remark) == (form["action_id"], "Ann", 6.5, "fine\nso far")
    assert label.time
    status, page, _ = ask(address, "GET", headers["Location"])
    assert "you gave <strong>6.5</strong>; the coach gave <strong>" in page and "it ended by itself" in page
    assert "The coach gave" not in page  # of the action that comes now
    assert form_of(page)["action_id"] != form["action_id"] and "1 action scored of 24" in page
    _, other, _ = ask(address, "GET", f"/rate?rater=Ben&last={form['action_id']}")
    assert form_of(other)["action_id"] == form["action_id"]  # everybody begins with the same
    assert "the coach gave" not in other  # and sees no score before the own one


def test_nobody_is_asked_about_a_call_that_its_app_left(run, serve):
    episodes, scores = run.read_episodes("step-000001")
    first = episodes[0]
    left = replace(first.actions[0], response_ids=(), logprobs=(), text="", result=GIVEN_UP)
    run.write_episodes("step-000001", [replace(first, actions=(left, *first.actions[1:])), *episodes[1:]], scores)
    _, page, _ = ask(serve(run), "GET", "/rate?rater=Ann")
    assert "0 actions scored of 23" in page


def test_the_coachs_score_is_shown_beforehand_only_where_that_is_asked_for(run, serve):
    _, page, _ = ask(serve(run, blind=False), "GET", "/rate?rater=Ann")
    assert "The coach gave" in page


def test_a_form_of_another_site_or_without_the_token_keeps_nothing(run, serve):
    address = serve(run)
    host = f"127.0.0.1:{address[1]}"
    form = {**form_of(ask(address, "GET", "/rate?rater=Ann")[1]), "score": "5"}
    good = urlencode(form)
    refused = [
        ask(address, "POST", "/rate", good, Origin="http://evil.example"),
        ask(address, "POST", "/rate", good, Origin="null"),
        ask(address, "POST", "/rate", good, Origin="http://127.0.0.1:1"),
        ask(address, "POST", "/rate", good, Host="evil.example"),
        ask(address, "POST", "/rate", urlencode({**form, "token": ""})),
        ask(address, "POST", "/rate", urlencode({**form, "token": "é" * 22})),
        ask(address, "POST", "/rate", urlencode({k: v for k, v in form.items() if k != "token"})),
    ]
    assert [status for status, _, _ in refused] == [403] * 7
    assert ask(address, "POST", "/elsewhere", good)[0] == 400
    assert ask(address, "POST", "/rate", good + "&remark=" + "x" * 70_000)[0] == 400
    for length in ("9" * 5000, "-1", "+1", "\u00b2", ""):
        assert ask(address, "POST", "/rate", good, **{"Content-Length": length})[0] == 400
    assert not (run.folder / LABELS).exists()
    assert ask(address, "POST", "/rate", good, Origin=f"http://{host}")[0] == 303


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"score": "11"}, "score is &#39;11&#39;, not a number from 0 to 10"),
        ({"score": "nan"}, "not a number from 0 to 10"),
        ({"score": ""}, "it has no score"),
        ({"rater": "\u202e"}, "not a name"),
        ({"action_id": "<script>"}, "the run has no action &#39;&lt;script&gt;&#39;"),
        ({"remark": "x" * 5000}, "4,000 are kept"),
        ({"action_digest": "d000"}, "the run holds another reply under &#39;step-000001."),
    ],
)
def test_a_wrong_score_is_said_on_the_page_and_not_kept(run, serve, changed, said):
    address = serve(run)
    form = {**form_of(ask(address, "GET", "/rate?rater=Ann")[1]), "score": "5", **changed}
    status, page, _ = ask(address, "POST", "/rate", urlencode(form))
    assert status == 400 and said in page and "Not kept" in page and not (run.folder / LABELS).exists()


def test_a_run_that_cannot_be_written_says_so_and_goes_on_showing(run, serve):
    (run.folder / LABELS).mkdir()
    address = serve(run)
    form = {**form_of(ask(address, "GET", "/rate?rater=Ann")[1]), "score": "5"}
    status, page, _ = ask(address, "POST", "/rate", urlencode(form))
    assert status == 409 and "labels.jsonl cannot be written: Is a directory" in page
    assert ask(address, "GET", "/")[0] == 200


def test_a_file_of_episodes_that_cannot_be_read_is_named_and_the_others_are_asked_about(run, serve):
    (run.folder / "episodes" / "step-000002.jsonl").symlink_to("step-000002.jsonl")
    status, page, _ = ask(serve(run), "GET", "/rate?rater=Ann")
    assert status == 200 and "step-000002.jsonl cannot be read: Too many levels of symbolic links" in page
    assert form_of(page)["action_id"].startswith("step-000001.")


def test_lines_that_are_left_out_are_said_beside_the_action(run, serve):
    path = run.folder / "episodes" / "step-000001.jsonl"
    lines = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write("no JSON\n")
    address = serve(run)
    for _ in range(2):  # also where the files are not read again
        assert f"step-000001.jsonl: line {lines + 1} is left out: not JSON" in ask(address, "GET", "/rate?rater=Ann")[1]


def test_what_a_resumed_run_has_in_place_of_a_scored_reply_is_asked_about_anew(run, serve):
    address = serve(run)
    form = form_of(ask(address, "GET", "/rate?rater=Ann")[1])
    assert ask(address, "POST", "/rate", urlencode({**form, "score": "4"}))[0] == 303
    asked = form_of(ask(address, "GET", "/rate?rater=Ann")[1])
    assert asked["action_id"] != form["action_id"]
    episodes, scores = run.read_episodes("step-000001")
    played = [replace(e, actions=tuple(replace(a, text=f"{a.text} Or so.") for a in e.actions)) for e in episodes]
    run.write_episodes("step-000001", played, scores)
    assert form_of(ask(address, "GET", "/rate?rater=Ann")[1])["action_id"] == form["action_id"]
    assert ask(address, "POST", "/rate", urlencode({**asked, "score": "4"}))[0] == 400  # of a page from before that


def test_two_people_and_two_tabs_at_once_lose_nothing(run, serve):
    address = serve(run)
    token = form_of(ask(address, "GET", "/rate?rater=Ann")[1])["token"]
    ids = [action.id for episode in run.read_episodes("step-000001")[0] for action in episode.actions]
    answers = []

    def score_all(rater, score):
        for action_id in ids:
            fields = {"token": token, "rater": rater, "action_id": action_id, "score": score}
            answers.append(ask(address, "POST", "/rate", urlencode(fields))[0])

    people = [threading.Thread(target=score_all, args=one) for one in (("Ann", 4), ("Ann", 4), ("Ben", 6))]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert answers == [303] * 72 and len((run.folder / LABELS).read_text().splitlines()) == 72
    assert {(label.rater, label.score) for label in read_labels(run)} == {("Ann", 4.0), ("Ben", 6.0)}
    assert len(read_labels(run)) == 48
    assert "has scored every action" in ask(address, "GET", "/rate?rater=Ann")[1]
