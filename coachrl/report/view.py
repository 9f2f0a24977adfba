"""`coachrl view`: a run's report with every episode, served to this machine alone."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs

from coachrl.errors import ConfigError
from coachrl.report.agents import agent_colors
from coachrl.report.episodes import Shown, pages, read_shown
from coachrl.report.page import environment, render
from coachrl.runs.folder import Run

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_PAGE = re.compile(r"[1-9][0-9]{0,5}")


def make_server(run: Run, port: int = 0) -> ThreadingHTTPServer:
    """A server bound to loopback; port 0 takes a free one. Pages are made anew at each request, so that a run can be
    watched while it trains. Raises ConfigError where the port is taken."""

    class Handler(_Handler):
        shown_run = run

    try:
        return _Server((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error


def episodes_page(run: Run, stem: str, number: int = 1) -> str | None:
    """Part `number` of the episodes of `episodes/<stem>.jsonl`; None where the run has no such file, or no such
    part."""
    path = next((path for path in run.episode_files() if path.stem == stem), None)
    if path is None:
        return None
    problems: list[str] = []
    entries, count = _part(read_shown(path, problems), number)
    if number > max(count, 1):
        return None
    colors = agent_colors(run, (action.role for shown in entries for action in shown.episode.actions))
    context = {"stem": stem, "name": run.folder.name, "entries": entries, "colors": colors, "problems": problems}
    return environment().get_template("episodes.html.j2").render(context | {"page": number, "count": count})


def _part(entries: Iterable[Shown], number: int) -> tuple[list[Shown], int]:
    """Part `number` of the entries as `pages` divides them, and how many parts there are. Only one part is kept."""
    wanted: list[Shown] = []
    count = 0
    for count, part in enumerate(pages(entries), 1):
        if count == number:
            wanted = part
    return wanted, count


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in mid-page is no error; anything else is a line, and the server goes on."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            log.error("a page could not be served: %s: %s", type(error).__name__, error)


class _Handler(BaseHTTPRequestHandler):
    shown_run: Run

    def do_GET(self) -> None:
        # A page of another site may know this address by a name of its own (DNS rebinding): only ours is answered.
        _, port = self.connection.getsockname()
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        try:
            page = self._page()
        except ConfigError as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
            return
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = page.encode("utf-8", "replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _page(self) -> str | None:
        path, _, query = self.path.partition("?")
        match PurePosixPath(path).parts:
            case ("/",):
                return render(self.shown_run, link="/episodes/")
            case ("/", "episodes", stem):
                number = parse_qs(query).get("page", ["1"])[0]
                return episodes_page(self.shown_run, stem, int(number)) if _PAGE.fullmatch(number) else None
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""
