"""The files of versions: `<root>/<owner>/<name>/` in PEFT's form, with a manifest.

A version is written to a folder whose name begins with a dot, synced, and renamed: it is
there whole or not at all. Reading one checks every file against its SHA-256, so what was
damaged later is refused by name. Whether a version serves is no matter of files: the store
says that, and a version that the store does not know does not exist.

Example:
    files = VersionFiles.of_home(home)
    manifest = files.write(Version(...), lambda folder: model.save_pretrained(folder))
    files.read("anna", "v1")
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from instar.errors import ModelError
from instar.types import BASE_VERSION, Version

ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What lies beside the weights: where they come from, and how to tell that they are whole."""

    version: Version
    """Its state is the one it was written with; the store has today's."""
    files: dict[str, str]
    """SHA-256 of each file."""


def engine_name(owner: str, name: str) -> str:
    """A version's name within the engine, which serves all owners: `anna/v3`."""
    return BASE_VERSION if name == BASE_VERSION else f"{safe(owner)}/{name}"


def safe(owner: str) -> str:
    """An owner as one folder name: letters and digits stay, `a/b` becomes `a%2Fb`."""
    text = quote(owner, safe="", errors="surrogatepass").replace(".", "%2E")
    if not text:
        raise ModelError("Found an empty owner, expected a name: versions belong to someone.")
    return text


class VersionFiles:
    """Reads and writes the folders of versions. Everything here waits for the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of_home(cls, home: Path) -> VersionFiles:
        """Those in the folder that holds everything."""
        return cls(home.expanduser().resolve() / "versions")

    def folder(self, owner: str, name: str) -> Path:
        if name in (BASE_VERSION, "", ".", "..") or "/" in name or name.startswith("."):
            raise ModelError(f"Found the version name {name!r}, expected one such as v3.")
        return self.root / safe(owner) / name

    def write(self, version: Version, fill: Callable[[Path], object]) -> Manifest:
        """Make a version's folder. `fill` writes the adapter into the folder it is given.

        Returns once everything is on disk under its final name. A folder of that name which is
        there already is replaced: its writer died before the store knew of it.
        """
        target = self.folder(version.owner, version.name)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = target.parent / f".{version.name}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(mode=0o700)
            fill(part)
            manifest = self._seal(version, part)
            self._discard(target)
            part.rename(target)
        except OSError as error:
            raise ModelError(
                f"Version {version.name} of {version.owner} cannot be written to {target}: {error}."
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
        _sync(target.parent)
        return manifest

    def read(self, owner: str, name: str) -> Manifest:
        """A version's manifest, after checking every file; a damaged version is a ModelError."""
        folder, manifest = self.folder(owner, name), self.manifest(owner, name)
        for file, expected in manifest.files.items():
            try:
                found = _digest(folder / file)
            except OSError as error:
                raise _damaged(owner, name, f"{file} cannot be read: {error}") from error
            if found != expected:
                raise _damaged(owner, name, f"{file} is not the file that was written")
        return manifest

    def manifest(self, owner: str, name: str) -> Manifest:
        """A version's manifest, without looking at its other files."""
        folder = self.folder(owner, name)
        try:
            text = (folder / MANIFEST).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(owner, name, f"{MANIFEST} cannot be read: {error}") from error
        try:
            found = _from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(owner, name, f"{MANIFEST} is no manifest: {error!r}") from error
        if (found.version.owner, found.version.name) != (owner, name):
            said = f"{found.version.name} of {found.version.owner}"
            raise _damaged(owner, name, f"{MANIFEST} is that of {said}")
        if missing := set(ADAPTER) - found.files.keys():
            raise _damaged(owner, name, f"{MANIFEST} names no {' and no '.join(sorted(missing))}")
        return found

    def annotate(self, version: Version) -> None:
        """Write the state and the gate's report into the manifest of a version, atomically."""
        held = self.manifest(version.owner, version.name)
        folder = self.folder(version.owner, version.name)
        changed = dataclasses.replace(held.version, state=version.state, gate=version.gate)
        part = folder / f".{MANIFEST}.{os.getpid()}"
        _write(part, _to_json(dataclasses.replace(held, version=changed)))
        part.rename(folder / MANIFEST)
        _sync(folder)

    def remove(self, owner: str, name: str) -> None:
        """Delete a version's files; whoever looks meanwhile finds it whole or not at all."""
        self._discard(self.folder(owner, name))

    def sweep(self, known: Collection[tuple[str, str]]) -> list[str]:
        """Remove what died half-way: unfinished folders, and versions the store does not know.

        `known` are the (owner, name) pairs to keep. Only for the one process that writes
        versions, before it starts to.
        """
        kept = {self.folder(owner, name) for owner, name in known}
        removed = []
        for folder in sorted(self.root.glob("*/*")) if self.root.is_dir() else ():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(str(folder.relative_to(self.root)))
        for part in self.root.glob(f"*/*/.{MANIFEST}.*"):
            part.unlink()
        return removed

    def _seal(self, version: Version, part: Path) -> Manifest:
        """Check what was written, add the manifest and sync all of it."""
        files = sorted(str(f.relative_to(part)) for f in part.rglob("*") if f.is_file())
        if missing := set(ADAPTER) - set(files):
            raise ModelError(
                f"Version {version.name} was written without {' and '.join(sorted(missing))}; "
                "expected an adapter in PEFT's form."
            )
        for file in files:
            _sync(part / file)
        manifest = Manifest(version=version, files={f: _digest(part / f) for f in files})
        _write(part / MANIFEST, _to_json(manifest))
        for folder in {(part / file).parent for file in files} | {part}:
            _sync(folder)
        return manifest

    def _discard(self, folder: Path) -> None:
        doomed = folder.parent / f".{folder.name}.gone.{os.getpid()}"
        shutil.rmtree(doomed, ignore_errors=True)
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed)


def _to_json(manifest: Manifest) -> str:
    fields = dataclasses.asdict(manifest.version)
    for passing in ("tainted", "kept", "pruned"):
        del fields[passing]
    return json.dumps(
        {"format": _FORMAT, **fields, "files": manifest.files}, indent=1, ensure_ascii=False
    )


def _from_json(found: dict[str, Any]) -> Manifest:
    if found.pop("format") != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}")
    files = {str(name): str(digest) for name, digest in found.pop("files").items()}
    turns = tuple(found.pop("turns"))
    for one in ("metrics", "config"):
        if not isinstance(found.get(one, {}), dict):
            raise TypeError(f"expected an object for {one}")
    return Manifest(version=Version(turns=turns, **found), files=files)


def _write(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8", errors="surrogatepass") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _damaged(owner: str, name: str, what: str) -> ModelError:
    return ModelError(
        f"Version {name} of {owner} is damaged: {what}. It is not served; restore its folder, "
        f"or go back with `instar versions rollback`."
    )
