"""`coachrl view`: a run's report with every episode, served to this machine alone, to those who may read the run."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlencode

from coachrl.errors import ConfigError
from coachrl.report.agents import agent_colors
from coachrl.report.episodes import Shown, pages, read_shown
from coachrl.report.page import environment, render
from coachrl.report.rating import Rating
from coachrl.report.readers import may_read, user_of
from coachrl.runs.folder import Run
from coachrl.text import one_line

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_LONGEST_FORM = 65_536  # bytes
_NO_FILES_S = 0.1
_PAGE = re.compile(r"[1-9][0-9]{0,5}")
_OWN_NAME = re.compile(rf"({re.escape(HOST)}|localhost)(:[0-9]{{1,5}})?", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,5}")


def make_server(run: Run, port: int = 0, blind: bool = True) -> ThreadingHTTPServer:
    """A server bound to loopback; port 0 takes a free one. Pages are made anew at each request, so that a run can be
    watched while it trains. blind: people score actions before they see the coach's score. Raises ConfigError where the
    port is taken."""
    form_token = secrets.token_urlsafe(16)

    class Handler(_Handler):
        shown_run = run
        rating = Rating(run, form_token, blind)
        token = form_token

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
    request_queue_size = 128  # tabs that a browser opens at once: those beyond wait for seconds, or for good

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no file is left to open, and who waits would be asked for again without a pause
            time.sleep(_NO_FILES_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in mid-page is no error; anything else is a line, and the server goes on."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            log.error("a page could not be served: %s: %s", type(error).__name__, error)


class _Handler(BaseHTTPRequestHandler):
    shown_run: Run
    rating: Rating
    token: str
    timeout = 60  # seconds that a browser may be silent in the middle of a request

    def do_GET(self) -> None:
        if not self._is_asked_by_a_reader():
            return
        try:
            page = self._page()
        except (ConfigError, OSError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            return
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._send(HTTPStatus.OK, page)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """A person's score. Only the form of this server may send it: it holds the token."""
        if not self._is_asked_by_a_reader():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/rate" or not _LENGTH.fullmatch(length) or int(length) > _LONGEST_FORM:
            self.close_connection = True
            self._refuse(HTTPStatus.BAD_REQUEST, f"a form of at most {_LONGEST_FORM:,} bytes goes to /rate")
            return
        fields = dict(parse_qsl(self.rfile.read(int(length)).decode("utf-8", "replace"), keep_blank_values=True))
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers['Host']}":
            self._refuse(HTTPStatus.FORBIDDEN, "the form was sent by a page of another site")
        elif not secrets.compare_digest(fields.get("token", "").encode(), self.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the form is of another server, or of one that has ended: load it again")
        else:
            self._keep(fields)

    def _keep(self, fields: dict[str, str]) -> None:
        try:
            label = self.rating.give(fields)
        except ValueError as error:
            self._send(HTTPStatus.BAD_REQUEST, self.rating.page(fields.get("rater", ""), problem=str(error)))
            return
        except ConfigError as error:  # a folder that may not be written
            self._send(HTTPStatus.CONFLICT, self.rating.page(fields.get("rater", ""), problem=str(error)))
            return
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/rate?{urlencode({'rater': label.rater, 'last': label.action_id})}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _is_asked_by_a_reader(self) -> bool:
        # A page of another site may know this address by a name of its own (DNS rebinding): only ours is answered, at
        # whatever port, since a tunnel (ssh -L) has one of its own.
        if not _OWN_NAME.fullmatch(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, f"this server is asked as localhost or {HOST}")
            return False
        user = user_of(self.client_address, self.connection.getsockname())
        if user is not None and not may_read(user, self.shown_run.folder):
            self._refuse(HTTPStatus.FORBIDDEN, f"user {user} may not read the run's folder, and so not see it here")
            return False
        return True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.send_error(status, explain=one_line(why))

    def _send(self, status: HTTPStatus, page: str) -> None:
        body = page.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Referrer-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self) -> str | None:
        path, _, query = self.path.partition("?")
        asked = dict(parse_qsl(query))
        match PurePosixPath(path).parts:
            case ("/",):
                return render(self.shown_run, link="/episodes/")
            case ("/", "rate"):
                return self.rating.page(" ".join(asked.get("rater", "").split()), asked.get("last", ""))
            case ("/", "episodes", stem):
                number = asked.get("page", "1")
                return episodes_page(self.shown_run, stem, int(number)) if _PAGE.fullmatch(number) else None
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""
