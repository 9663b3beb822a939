"""What connecting a client would change, before anything is changed; and doing and undoing it.

A file that existed gets a backup beside it, once, when it is first changed. Undoing gives that
back byte for byte where nobody edited the file since; where somebody did, only instar's own
lines are taken out again.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from instar.errors import ConfigError

BACKUP = ".before-instar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The gateway that a client is to talk to."""

    url: str
    """With /v1."""
    model: str
    key: str
    context: int
    """Tokens that prompt and reply may have together."""
    reply: int
    """Tokens of the longest reply."""
    sees: bool = False
    """Whether it takes images: clients send none to a model that is not said to."""

    @property
    def root(self) -> str:
        """Without /v1, as Anthropic's clients want it."""
        return self.url.removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """How instar's lines get into one file and out of it again."""

    file: Path
    put: Callable[[str], str]
    """The file's text with instar's lines; applied twice it changes nothing more."""
    take: Callable[[str], str]
    """The file's text without them."""
    code: bool = False
    """A file that people need not read before they agree: it is named, not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file as it is and as it would be; None where there is no file."""

    file: Path
    before: str | None
    after: str | None
    backup: str | None = None
    """What goes into the backup; None where it stays as it is."""
    code: bool = False

    def diff(self) -> str:
        lines = difflib.unified_diff(
            (self.before or "").splitlines(True),
            (self.after or "").splitlines(True),
            "no file" if self.before is None else str(self.file),
            "no file" if self.after is None else str(self.file),
            n=2,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that connecting one client takes."""

    edits: tuple[Edit, ...] = ()
    folders: tuple[Path, ...] = ()
    """Folders that are instar's own, the innermost first."""
    says: str = ""
    """What the person is told: lines to copy, or what to start now."""
    parting: str = ""
    """What they are told once it is undone."""


def connecting(edit: Edit) -> Change:
    """What putting instar's lines in would change."""
    before = _read(edit.file)
    # A file that has instar's lines already is not what it was before.
    fresh = before is not None and edit.take(before) == before
    return Change(
        file=edit.file,
        before=before,
        after=edit.put(before or ""),
        backup=before if fresh else None,
        code=edit.code,
    )


def removing(edit: Edit) -> Change:
    """What taking them out would change."""
    before = _read(edit.file)
    if before is None or edit.take(before) == before:
        return Change(file=edit.file, before=before, after=before)
    original = _read(_backup(edit.file))
    after: str | None = edit.take(before)
    if after == edit.take(edit.put(original or "")):
        after = original  # nobody edited anything else meanwhile
    return Change(file=edit.file, before=before, after=after, code=edit.code)


def apply(change: Change) -> None:
    """Write one file, whole or not at all, and with the rights that it had."""
    try:
        if change.backup is not None:
            _write(_backup(change.file), change.backup, like=change.file)
        if change.after is None:
            change.file.unlink(missing_ok=True)
        elif change.after != change.before:
            change.file.parent.mkdir(parents=True, exist_ok=True)
            _write(change.file, change.after, like=change.file)
    except OSError as error:
        raise ConfigError(f"{change.file} cannot be written: {error.strerror}") from None


def tidy(plan: Plan) -> None:
    """Once all is as it was, backups have done their work, and instar's folders are empty."""
    for edit in plan.edits:
        _backup(edit.file).unlink(missing_ok=True)
    for folder in plan.folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def own_file(file: Path, text: str, *, mark: str = "", code: bool = False) -> Edit:
    """A file that holds nothing but what instar writes; `mark` tells it from another's."""
    return Edit(
        file=file,
        put=lambda _: text,
        take=lambda found: "" if mark in found else found,
        code=code,
    )


def _backup(file: Path) -> Path:
    return file.with_name(file.name + BACKUP)


def _read(file: Path) -> str | None:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _write(file: Path, text: str, *, like: Path) -> None:
    file = file.resolve()  # a config may be a link into a folder of its own
    part = file.with_name(f"{file.name}.part")
    mode = like.stat().st_mode & 0o777 if like.exists() else 0o600
    part.touch(mode=0o600)  # closed while it is written: a config may hold keys
    part.write_bytes(text.encode("utf-8"))
    part.chmod(mode)
    part.replace(file)
