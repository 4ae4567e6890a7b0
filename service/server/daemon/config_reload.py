# SPDX-License-Identifier: Apache-2.0
"""The configuration file of a running process: what differs from the loaded one, and its reload.

A reload applies sources, rules, costs, budgets, and defaults except lease, heartbeat and sweep_interval. All other
settings, such as addresses, intervals and Spark, need a restart; until then ``ConfigReload.problem`` names the changed
ones.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from lake.errors import LakefoldError, one_line
from lake.redaction import add_secrets_of_settings
from service.control.config.loader import SECTIONS, Config, digest_of_file, load_config
from service.control.config.table_settings import check_rules, global_settings
from service.control.wiring import store_settings

logger = logging.getLogger(__name__)

_RELOADED_SECTIONS = ("cost", "work")
_FIXED_SECTIONS = tuple(section for section in SECTIONS if section not in _RELOADED_SECTIONS)
#: settings of ``[defaults]`` that need a restart, because every lease and heartbeat of the process depends on them
_FIXED_DEFAULTS = ("lease", "heartbeat", "sweep_interval")


class ConfigReload:
    """The file of ``config``. ``apply`` puts a newly loaded configuration into force. Thread-safe."""

    def __init__(self, config: Config, apply: Callable[[Config], None]) -> None:
        self._config, self._apply = config, apply
        self._defaults = global_settings(config)
        self._lock = threading.Lock()
        #: the content that was loaded last
        self._loaded = config.file_digest
        #: the content that was refused last, with the line about it
        self._refused: tuple[str | None, str] = (None, "")
        #: settings whose values in the file need a restart
        self._awaits_restart: list[str] = []

    def problem(self) -> str | None:
        """Return how the file differs from the configuration in force; None if it does not, or without a file."""
        file = self._config.file
        if file is None:
            return None
        with self._lock:
            try:
                found = digest_of_file(file)
            except OSError as error:
                return f"{file} can't be read: {error.strerror}; the configuration loaded before stays in force"
            if found == self._loaded:
                if not self._awaits_restart:
                    return None
                verb = "waits" if len(self._awaits_restart) == 1 else "wait"
                return f"{file} was loaded, but {', '.join(self._awaits_restart)} {verb} for a restart"
            if found == self._refused[0]:
                return self._refused[1]
            return (
                f"{file} was edited {_edited_at(file)}and is not loaded; SIGHUP loads it (lakefold config check first)"
            )

    def reload(self) -> None:
        """Load the file and put it into force; a file that can't be used changes nothing. Logs the result."""
        file = self._config.file
        if file is None:
            logger.warning("there is no configuration file to reload; the environment is read at the start only")
            return
        with self._lock:
            try:
                digest = digest_of_file(file)
            except OSError as error:
                logger.error("%s can't be read: %s; the configuration before it stays in force", file, error.strerror)
                return
            try:
                loaded = load_config(file)
                check_rules(loaded)
                config = self._with_fixed_sections(loaded)
                store_settings(config)
            except (LakefoldError, ValueError) as error:
                line = f"{file} was not loaded, the configuration before it stays in force: {one_line(error)}"
                self._refused = digest, line
                logger.error("%s", line)
                return
            add_secrets_of_settings(config.all_settings())
            self._apply(config)
            self._awaits_restart = list(self._changed_fixed_settings(loaded))
            self._config, self._loaded, self._refused = config, loaded.file_digest, (None, "")
        for notice in loaded.renamed:
            logger.warning("%s", notice)
        waiting = f"; after a restart: {', '.join(self._awaits_restart)}" if self._awaits_restart else ""
        logger.info("%s is loaded%s", file, waiting)

    def _with_fixed_sections(self, loaded: Config) -> Config:
        return replace(
            loaded, spark=self._config.spark, **{name: getattr(self._config, name) for name in _FIXED_SECTIONS}
        )

    def _changed_fixed_settings(self, loaded: Config) -> Iterator[str]:
        """Yield the names of settings that differ from those in force and need a restart."""
        for section in _FIXED_SECTIONS:
            in_force = getattr(self._config, section)
            yield from (
                f"{section}.{key}" for key, value in getattr(loaded, section) if value != getattr(in_force, key)
            )
        after, before = global_settings(loaded), self._defaults
        yield from (f"defaults.{key}" for key in _FIXED_DEFAULTS if getattr(after, key) != getattr(before, key))
        spark = self._config.spark
        yield from sorted(key for key in {*spark, *loaded.spark} if spark.get(key) != loaded.spark.get(key))


def _edited_at(file: Path) -> str:
    """Return the time of the last change of ``file`` as words; '' if it is unknown."""
    try:
        changed = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except OSError:
        return ""
    return f"at {changed:%Y-%m-%d %H:%M:%S} UTC "
