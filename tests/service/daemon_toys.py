# SPDX-License-Identifier: Apache-2.0
"""The real daemon on toy tables: everything but the format is the product's own.

As a program, ``python daemon_toys.py CONFIG ROLE`` is ``lakefold serve --role ROLE`` that also knows the toy format.
"""

import json
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toys.timeline import ToyFormat

import lake.formats


def install(format_: ToyFormat) -> ToyFormat:
    """Make ``load_format("toy")`` give ``format_`` in this process."""
    module = types.ModuleType("lake.formats.toy")
    module.FORMAT = format_  # type: ignore[attr-defined]
    sys.modules["lake.formats.toy"] = module
    if "toy" not in lake.formats.FORMATS:
        lake.formats.FORMATS = (*lake.formats.FORMATS, "toy")
    return format_


@contextmanager
def known(format_: ToyFormat) -> Iterator[ToyFormat]:
    """``install``, until the end of the block."""
    formats = lake.formats.FORMATS
    try:
        yield install(format_)
    finally:
        lake.formats.FORMATS = formats


DAEMON = {
    "request_interval": "100ms",
    "claim_interval": "100ms",
    "rescue_interval": "200ms",
    "clean_interval": "200ms",
    "metrics_interval": "400ms",
    "discover_interval": "1s",
    "leader_ttl": "3s",
}
POLICY = {
    "small_file_limit": "1MiB",
    "target_file_max": "4MiB",
    "max_bytes_per_group": "8MiB",
    "quiet_period": "0s",
    "scan_interval": "300ms",
    "sweep_interval": "300ms",
    "retention": "1h",
    "verification": "hash",
}


def write_config(
    home: Path,
    *,
    url: str | None = None,
    mode: str = "compact",
    concurrency: str | None = "single_writer",
    daemon: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    http: Mapping[str, Any] | None = None,
) -> Path:
    """A configuration whose sources are the toy tables under ``home/lake``; the database next to it."""
    sections: list[tuple[str, Mapping[str, Any]]] = [
        ("[database]", {"url": url or f"sqlite:///{home}/lakefold.db"}),
        ("[daemon]", {**DAEMON, **(daemon or {})}),
        ("[http]", {"port": 0, **(http or {})}),
        ("[defaults]", {**POLICY, **(policy or {})}),
        ("[[tables]]", {"match": "*", "mode": mode} | ({"concurrency": concurrency} if concurrency else {})),
    ]
    tables = sorted((home / "lake").iterdir())
    sections.extend(("[[sources]]", {"path": str(table), "format": "toy"}) for table in tables)
    lines = []
    for title, settings in sections:
        lines += [title, *(f"{key} = {json.dumps(value)}" for key, value in settings.items()), ""]
    path = home / "lakefold.toml"
    path.write_text("\n".join(lines))
    return path


@contextmanager
def running(daemon: Any) -> Iterator[Any]:
    """``daemon.run`` in a thread; drained and closed at the end. ``daemon.result`` is its exit code then."""
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(daemon.run()))
    with daemon:
        thread.start()
        try:
            yield daemon
        finally:
            daemon.drain()
            thread.join(60)
            assert not thread.is_alive(), "the daemon did not end"
            assert results, "the daemon ended in an error"
            daemon.result = results[0]


def main() -> int:
    """The program."""
    install(ToyFormat())
    from service.control.config.loader import load_config
    from service.server.daemon.process import serve

    return serve(load_config(Path(sys.argv[1])), sys.argv[2], once="--once" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
