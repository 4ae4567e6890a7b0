# SPDX-License-Identifier: Apache-2.0
"""Processes: their names in the database, their identity, and whether they have ended.

Only the kernel that runs a process shows whether the process has ended. A host's name does not identify the kernel and
its processes: containers share names, and each counts its processes from 1. So a process is judged only from its own
host, boot and process namespace, by its id and start time. Nothing is assumed about any other process.
"""

import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The kernel's record of a process of this host. ``started_ticks`` counts from its boot."""

    ended: bool
    started_ticks: int


def read_process_status(pid: int) -> ProcessStatus | None:
    """Return the status of the process ``pid``; None if there is none. Raises OSError if access is denied."""
    try:
        # The name before the last bracket may itself hold brackets and blanks.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        raise  # the process exists: /proc is mounted with hidepid, or is not of this namespace
    # Z and X: the process has ended, and its parent has not waited for it yet.
    return ProcessStatus(ended=state in "ZX", started_ticks=int(fields[18]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, distinguished from every other process, including earlier ones with the same id.

    ``boot`` and ``namespace`` identify the run of the host's kernel and the namespace in which ``pid`` counts;
    ``started`` is in clock ticks since that boot.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the process ``pid`` of this host; None if there is none, or if the kernel does not show it."""
        found, here = read_process_status(pid), _current_namespace()
        if found is None or here is None:
            return None
        return cls(host=here[0], boot=here[1], namespace=here[2], pid=pid, started=found.started_ticks)

    @property
    def is_local(self) -> bool:
        """True if the current process can see whether the named process runs."""
        return (self.host, self.boot, self.namespace) == _current_namespace()

    @property
    def is_dead(self) -> bool:
        """True if it is certain that the process has ended."""
        return self.is_local and _has_ended(self.pid, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host}"


def _has_ended(pid: int, started: int) -> bool:
    """True if it is certain that the process of this namespace with this id and start time has ended."""
    try:
        found = read_process_status(pid)
    except OSError:
        return False
    return found is None or found.ended or found.started_ticks != started


@cache
def _current_namespace() -> tuple[str, str, str] | None:
    """Host, boot and process namespace of this process; None if the kernel does not show them (not Linux)."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # /proc is another namespace's, and so are the processes it shows
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def executor_name() -> str:
    """Return this process's name in the database; each call returns a different one.

    The form is ``host/pid/moment``. If the kernel shows them, ``/digest.started`` follows: a digest of the boot and the
    namespace in which the process id counts, and the start time of the process.
    """
    name = f"{socket.gethostname()}/{os.getpid()}/{time.time_ns() // 1_000_000:x}"
    process = Process.of(os.getpid())
    return name if process is None else f"{name}/{_namespace_digest(process.boot, process.namespace)}.{process.started}"


def _namespace_digest(boot: str, namespace: str) -> str:
    return sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def has_executor_ended(executor: str) -> bool:
    """True if the process with the name ``executor`` is known to have ended.

    False for a name without a namespace, as earlier releases used, and for processes that can't be seen from here:
    those of another host, container or boot.
    """
    here = _current_namespace()
    try:
        host, pid, _, mark = executor.split("/")
        digest, started = mark.split(".")
        known = int(pid), int(started)
    except ValueError:
        return False
    return here is not None and (host, digest) == (here[0], _namespace_digest(*here[1:])) and _has_ended(*known)
