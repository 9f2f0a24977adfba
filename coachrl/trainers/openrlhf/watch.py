"""Notices that the Ray cluster is gone, which no call of Ray's tells: it waits, and then ends the process unsaid."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

from coachrl.errors import ClusterLost

_EVERY_S = 2.0
# How long Ray waits for its head, which a fault-tolerant one may need to come back, before it ends the process.
_RAY_WAITS_S = ("RAY_gcs_rpc_server_reconnect_timeout_s", "60")


class ClusterWatch:
    """Raises ClusterLost in the main thread, out of whatever it waits for, where the cluster's head has not answered
    for three quarters of the time that Ray gives it.

    address: "host:port" of the head (its GCS). To be made in the main thread; elsewhere nothing is watched.
    """

    def __init__(self, address: str) -> None:
        self.lost = False
        self._address = address
        self._patience_s = 0.75 * float(os.environ.get(*_RAY_WAITS_S))
        self._stopped = threading.Event()
        self._watched = threading.current_thread() is threading.main_thread()
        if self._watched:
            self._replaced = signal.signal(signal.SIGUSR1, self._raise_if_lost)
            threading.Thread(target=self._look, name="cluster watch", daemon=True).start()

    def stop(self) -> None:
        """Raises ClusterLost where it has been."""
        self._stopped.set()
        if self._watched and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._replaced)
        self._raise_if_lost()

    def _look(self) -> None:
        answered = time.monotonic()
        while not self._stopped.wait(_EVERY_S):
            if self._answers():
                answered = time.monotonic()
            elif time.monotonic() - answered > self._patience_s:
                self.lost = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def _answers(self) -> bool:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError:
            return False
        return True

    def _raise_if_lost(self, *_: object) -> None:
        if self.lost:
            raise ClusterLost(f"the Ray cluster at {self._address} has not answered for {self._patience_s:.0f} s")
