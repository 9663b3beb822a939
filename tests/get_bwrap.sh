# Puts bubblewrap at the path given: a link to the machine's own, or the one of Debian's package,
# fetched and unpacked without root. Where neither can be had, says so and fails nothing: the
# tests that need it are skipped and say why.
set -euo pipefail
to=$(realpath -m "$1")
if path=$(command -v bwrap); then
  ln -sf "$path" "$to"
  exit
fi
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
cd "$part"
fetch() {
  apt-get download bubblewrap && return
  mkdir -p lists/partial cache/archives/partial  # no package lists on this machine: get our own
  own=(-o "Dir::State::Lists=$part/lists" -o "Dir::Cache=$part/cache")
  apt-get "${own[@]}" update && apt-get "${own[@]}" download bubblewrap
}
if command -v apt-get >/dev/null && fetch >log 2>&1 && dpkg-deb -x bubblewrap*.deb .; then
  install -m 755 usr/bin/bwrap "$to"
else
  tail -n 3 log 2>/dev/null >&2 || true
  echo "bubblewrap is not here and could not be fetched; sandboxed environments need it:" \
    "install the package bubblewrap" >&2
fi
