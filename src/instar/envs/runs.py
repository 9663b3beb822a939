"""Runs that were begun, by name: the same command goes on with the one that was stopped.

What was played is in the store behind the gateway. A file here only says under which name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from instar.envs.client import plain_name
from instar.errors import ConfigError
from instar.ids import new_id


class Runs:
    """The files of runs in a home folder."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "rollouts"

    def begin(self, settings: Mapping[str, Any], name: str | None = None) -> tuple[str, bool]:
        """The run to play, and whether it was begun before.

        That is the one of this name; without a name the latest unfinished one with the same
        settings, or else a new one. Raises ConfigError where a name stands for other settings.
        """
        known = self._read()
        if name is not None:
            if name in known and known[name]["settings"] != dict(settings):
                raise ConfigError(
                    f"the run {name} was begun with other settings: {known[name]['settings']}; "
                    "choose another name, or the same settings to go on with it"
                )
            self._write(name, settings, finished=False)
            return name, name in known
        for found in sorted(known, reverse=True):
            if not known[found]["finished"] and known[found]["settings"] == dict(settings):
                return found, True
        fresh = new_id("r")
        self._write(fresh, settings, finished=False)
        return fresh, False

    def finish(self, name: str, settings: Mapping[str, Any]) -> None:
        """The run is over: the same command begins a new one."""
        self._write(name, settings, finished=True)

    def _read(self) -> dict[str, dict[str, Any]]:
        found = {}
        for file in self._folder.glob("*.json"):
            try:
                one = json.loads(file.read_text("utf-8"))
                found[str(one["run"])] = one
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{file} is no file of a run: {error!r}; remove it") from None
        return found

    def _write(self, name: str, settings: Mapping[str, Any], *, finished: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._folder / f"{plain_name(name).replace('/', '_')}.json"
        part = file.with_suffix(".part")
        text = {"run": name, "settings": dict(settings), "finished": finished}
        part.write_text(json.dumps(text, indent=1), "utf-8")
        part.replace(file)
