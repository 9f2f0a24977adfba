"""Notices that the Ray cluster is gone. Ray's own calls do not tell: they wait, and then end the process."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time

from coachrl.errors import ClusterLost

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_PROBE_S = 3.0
_AGAIN_S, _TIMES = 5.0, 3
# How long Ray waits for the head, which a fault-tolerant one may need to come back, before it ends the process.
_RAY_WAITS_S = ("RAY_gcs_rpc_server_reconnect_timeout_s", "60")


class ClusterWatch:
    """Says so, and interrupts the main thread as Ctrl-C does, where the cluster's head has not answered for two thirds
    of the time that Ray gives it. A process that ignores Ctrl-C, as the background jobs of a script do, is left to Ray.

    address: "host:port" of the head (its GCS).
    """

    def __init__(self, address: str) -> None:
        self.lost = False
        self._address, self._patience_s = address, 2 / 3 * float(os.environ.get(*_RAY_WAITS_S))
        self._stopped, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._look, name="cluster watch", daemon=True).start()

    def wait(self) -> None:
        """Return once the head answers: while it does not, Ray's calls that end actors hear of no interrupt. Raises
        ClusterLost where it is gone."""
        began = time.monotonic()
        while not self.lost and not self._answers() and time.monotonic() - began < self._patience_s:
            time.sleep(_AGAIN_S / 10)
        if self.lost:
            raise ClusterLost(f"the Ray cluster at {self._address} is gone")

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()

    def _look(self) -> None:
        answered = time.monotonic()
        while not self._stopped.wait(_EVERY_S):
            if self._answers():
                answered = time.monotonic()
            elif time.monotonic() - answered > self._patience_s:
                log.error(
                    "the Ray cluster at %s has not answered for %.0f s; a run goes on from its last checkpoint with "
                    "`coachrl train --resume RUN`, in another cluster with openrlhf.ray_address=HOST:PORT",
                    self._address,
                    self._patience_s,
                )
                self._interrupt()
                return

    def _interrupt(self) -> None:
        """Again, until it is heard: asyncio takes the first for a wish, of which a call that blocks the event loop does
        not hear, and a starved process takes two for one."""
        for _ in range(_TIMES):
            with self._lock:
                if self._stopped.is_set():
                    return
                self.lost = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if self._stopped.wait(_AGAIN_S):
                return

    def _answers(self) -> bool:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE)  # a shortage here says nothing about the head
        return True
