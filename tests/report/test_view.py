"""Browsing episodes: which stand on the page, the pages of `coachrl view`, and all of it in a real browser."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import CODE, synthetic_run
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.report import write_report
from coachrl.report.episodes import artifacts, choose, read_shown
from coachrl.report.view import make_server
from coachrl.runs.folder import Run
from coachrl.testing.actions import make_action
from coachrl.types import Action, Episode, Outcome

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return synthetic_run(tmp_path_factory.mktemp("runs"), steps=6, planned=6, tasks=8)


@pytest.fixture
def address(run):
    server = make_server(run)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    server.server_close()


def get(address, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_who_asks_for_the_head_of_a_page_gets_what_stands_above_it(address):
    said = []
    for method, path, host in (("GET", "/", None), ("HEAD", "/", None), ("HEAD", "/no", None), ("HEAD", "/", "evil")):
        connection = http.client.HTTPConnection(*address, timeout=20)
        connection.request(method, path, headers={"Host": host} if host else {})
        with connection.sock.makefile("rb") as sent:  # http.client would not look for what a head has none of
            head, _, body = sent.read().partition(b"\r\n\r\n")
        lines = head.decode().splitlines()
        lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("Content-Length:")]
        said.append((int(lines[0].split()[1]), *lengths, len(body)))
    (status, length, size), head, gone, refused = said
    assert status == 200 and size == length and head == (200, length, 0)
    assert (gone[0], gone[-1], refused[0], refused[-1]) == (404, 0, 403, 0)


def test_a_page_takes_its_share_of_every_file_lowest_and_highest_scores_first(run):
    everything, total = choose(run, [])
    assert len(everything) == total == 6 * 8 + 3 * 8
    few, total = choose(run, [], budget=60_000)
    assert 0 < len(few) < total
    assert {shown.source for shown in few} == {shown.source for shown in everything}
    for path in run.episode_files():
        all_of_file = [shown.mean_score for shown in read_shown(path, [])]
        if None in all_of_file:
            continue
        taken = [shown.mean_score for shown in few if shown.source.endswith(path.name)]
        assert min(taken) == min(all_of_file)
        assert len(taken) == 1 or max(taken) == max(all_of_file)


def test_a_long_run_stays_under_five_megabytes(tmp_path):
    run = synthetic_run(tmp_path, steps=25, planned=25, tasks=4)
    long = "x = 1\n" * 2000
    for path in run.episode_files():
        shown = list(read_shown(path, []))
        episodes = [
            replace(s.episode, actions=tuple(replace(a, text=long, prompt_text=long) for a in s.episode.actions))
            for s in shown
        ]
        scores = {key: score for s in shown for key, score in s.scores.items()}
        run.write_episodes(path.stem, episodes, scores)
    page = write_report(run)
    assert page.stat().st_size < 5_000_000
    assert f"coachrl view {run.folder.parent.name}/synthetic shows every one" in page.read_text()


def test_artifacts_name_their_users():
    def action(index: int, role: str, before: tuple[str, ...], after: tuple[str, ...], code: str) -> Action:
        return make_action(role, code, index=index, code=code, files_before=before, files_after=after)

    first = action(0, "engineer", ("train.csv",), ("X.pkl", "notes.txt", "train.csv"), 'save("X.pkl")')
    second = action(1, "modeler", first.files_after, ("X.pkl", "model.pkl", "notes.txt", "train.csv"), 'load("X.pkl")')
    episode = Episode("e", "t", "regression", "dsbench", (first, second), Outcome(False))
    assert [(a.name, list(a.users)) for a in artifacts(episode, first)] == [
        ("X.pkl", ["modeler turn 1"]),
        ("notes.txt", []),
    ]
    assert [a.name for a in artifacts(episode, second)] == ["model.pkl"]


def test_an_action_without_new_files_is_not_held_against_all_others():
    class Unread(tuple):  # a page shows hundreds of actions of episodes that may have thousands
        def __iter__(self):
            raise AssertionError

    action = make_action("engineer", "", files_before=("train.csv",), files_after=("train.csv",))
    assert artifacts(Episode("e", "t", "regression", "dsbench", Unread((action,)), Outcome(False)), action) == []


def test_the_server_shows_every_episode_of_a_file_to_loopback_alone(run, address):
    host, port = address
    assert host == "127.0.0.1"
    status, page = get(address, "/")
    assert status == 200 and 'href="/episodes/step-000006"' in page
    status, page = get(address, "/episodes/step-000006")
    assert status == 200 and page.count('<details class="row"') == 8
    for path in ("/episodes/step-000099", "/episodes/../config.yaml", "/etc/passwd", "/episodes/"):
        assert get(address, path)[0] == 404
    for name in ("evil.example", f"evil.example:{port}", f"localhost:{port}@evil.example", "localhost.evil.example"):
        assert get(address, "/", host=name)[0] == 403
    for name in (f"localhost:{port}", "localhost:9000"):  # the port of a tunnel
        assert get(address, "/", host=name)[0] == 200


def test_a_browser_that_goes_away_leaves_no_traceback(run, capfd):
    server = make_server(run)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for _ in range(3):
        browser = socket.create_connection(server.server_address)
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        browser.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_address[1]}\r\n\r\n".encode())
        browser.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until the three requests are over
        if not [other for other in threading.enumerate() if "process_request" in other.name]:
            break
        time.sleep(0.05)
    status, _ = get(server.server_address, "/")
    server.shutdown()
    thread.join()
    server.server_close()
    assert status == 200
    assert capfd.readouterr().err == ""


def test_a_taken_port_is_one_line(run, address):
    done = CliRunner().invoke(app, ["view", str(run.folder), "--port", str(address[1])])
    assert done.exit_code != 0 and "choose another with --port" in str(done.exception)


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_the_page_in_a_browser(run, browser):
    """It loads from disk, filters and expands, without an error on its console and without a request."""
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(write_report(run).as_uri())
    rows = page.locator("details.row")
    assert rows.count() == 72 and page.locator("#matching").text_content() == "72 episodes"

    page.select_option("[name=category]", "training")
    assert page.locator("#matching").text_content() == "48 of 72 episodes"
    page.select_option("[name=role]", "verifier")
    page.fill("[name=low]", "10")
    visible = page.locator("details.row:visible")
    shown = visible.count()
    assert 0 < shown < 48
    assert all('["verifier", 10.0]' in visible.nth(i).get_attribute("data-scores") for i in range(shown))

    first = visible.first
    first.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert first.evaluate("row => row.open") and first.locator("pre", has_text=CODE.splitlines()[0]).count() >= 1
    page.click("button[type=reset]")
    expect(page.locator("#matching")).to_have_text("72 episodes")  # the page filters after the form is reset
    assert page.evaluate("[...document.querySelectorAll('svg text')].every(text => text.getBBox().x >= 0)")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "the page scrolls sideways on a phone"
    assert page.evaluate(BROKEN_WORDS) == []
    assert complaints == [] and [url for url in requests if not url.startswith(("file:", "data:"))] == []


BROKEN_WORDS = """() => [...document.querySelectorAll("th:not(:first-child), td")].flatMap((cell) => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange(), broken = [];
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    for (const word of text.data.matchAll(/[^\\s-]+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
    }
  }
  return broken;
})"""


def test_a_link_opens_its_episode_and_the_list_is_searched_and_sorted(run, browser):
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    path = write_report(run)
    wanted = next(shown for shown in choose(run, [])[0] if shown.step == 4)
    page.goto(f"{path.as_uri()}#{wanted.anchor}")
    opened = page.locator("details.row[open]")
    assert opened.count() == 1 and wanted.episode.id in opened.text_content()
    assert opened.locator("summary").first.evaluate("row => row.getBoundingClientRect().top") >= 0
    page.fill("[name=words]", "BOXED{12} t3.0")  # every word, in any case, anywhere in the episode
    hits = page.locator("details.row:visible")
    assert 0 < hits.count() < 72 and all("t3.0" in hits.nth(i).text_content() for i in range(hits.count()))
    page.evaluate(f"location.hash = '{wanted.anchor}'")  # a link to what the filter hides shows it
    page.click("button[type=reset]")
    page.select_option("[name=sort]", "lowest")
    lowest = page.evaluate(
        "[...document.querySelectorAll('details.row')].map(row => "
        "Math.min(...JSON.parse(row.dataset.scores).map(([, score]) => score ?? Infinity)))"
    )
    assert len(lowest) == 72 and lowest == sorted(lowest) and lowest[0] < lowest[-1]
    page.goto(f"{path.as_uri()}#%zz")  # no address of anything
    assert complaints == []


def test_the_pages_can_be_read_without_scripts_and_their_colors_told_from_the_ground(run, browser):
    plain = browser.new_page(java_script_enabled=False)
    address, wanted = write_report(run).as_uri(), choose(run, [])[0][5]
    plain.goto(f"{address}#{wanted.anchor}")
    assert plain.locator("#filters").is_hidden() and plain.locator("details.row").count() == 72
    assert plain.locator(f"[id='{wanted.anchor}'] pre").first.is_visible()  # the browser opens what a link names
    page, found = browser.new_page(), []
    page.goto(address)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found.append(page.evaluate(CONTRASTS))
        assert len(found[-1]) == 5 and min(found[-1].values()) >= 4.5, found
    assert found[0] != found[1]


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d");
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  };
  const style = getComputedStyle(document.documentElement);
  const grounds = ["--ground", "--panel"].map((name) => light(style.getPropertyValue(name)));
  return Object.fromEntries(["--ink", "--quiet", "--good", "--bad", "--link"].map((name) => {
    const ink = light(style.getPropertyValue(name));
    return [name, Math.min(...grounds.map((g) => (Math.max(ink, g) + 0.05) / (Math.min(ink, g) + 0.05)))];
  }));
}"""


def test_a_hundred_pages_that_are_asked_for_at_once_wait_for_their_turn(run):
    server = make_server(run)
    with contextlib.closing(server.socket), contextlib.ExitStack() as connections:
        for _ in range(100):  # while the server is busy elsewhere
            connections.enter_context(socket.create_connection(server.server_address, timeout=5))


def test_out_of_files_the_server_waits_and_does_not_spin(run):
    """It stands in a process of its own, which may open few files."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from coachrl.report.view import make_server; from coachrl.runs.folder import Run\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        f"server = make_server(Run.open(Path({str(run.folder)!r})))\n"
        "print(server.server_address[1], flush=True); server.serve_forever()\n"
    )
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        address = ("127.0.0.1", int(process.stdout.readline()))
        with contextlib.ExitStack() as connections:
            for _ in range(30):  # most are taken, the others wait
                one = connections.enter_context(socket.create_connection(address, timeout=20))
                one.sendall(b"GET / HTTP/1.1\r\n")
            time.sleep(1)
            before = _cpu_s(process.pid)
            time.sleep(2)
            assert _cpu_s(process.pid) - before < 1
        assert get(address, "/")[0] == 200


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
