#!/usr/bin/env bash
# Pack all that the GPU tests need for a machine that has no network: vLLM, instar's other
# dependencies and the embedded model, in pieces of 56 MiB (about 500 MB in all).
#   tests/gpu/pack.sh DIR       here:  writes DIR/p00 DIR/p01 ...
#   tests/gpu/unpack.sh DIR     there: see its head
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: pack.sh DIR}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wheels" "$out"

# pip takes --platform literally, so each glibc that a wheel may have been built for is named.
platforms=(--platform any --platform manylinux1_x86_64 --platform manylinux2010_x86_64 --platform manylinux2014_x86_64)
for minor in $(seq 5 39); do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
"$python" -m pip download --quiet --no-deps --python-version 3.12 --only-binary=:all: \
  "${platforms[@]}" --dest "$work/wheels" --requirement "$here/requirements-py312.txt"

rm -f "$out"/p[0-9][0-9]
tar --create --directory "$work" wheels | split --bytes=56M --numeric-suffixes - "$out/p"
du -ch "$out"/p* | tail -1
