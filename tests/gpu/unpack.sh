#!/usr/bin/env bash
# Install what pack.sh made, without a network, beside what the machine's Python has already.
#   tests/gpu/unpack.sh DIR [SITE]      DIR/p* -> SITE (default $HOME/site)
# Then, from the repository's root:
#   export PYTHONPATH=$PWD/src:$HOME/site PATH=$HOME/site/bin:$PATH
set -euo pipefail
from=${1:?usage: unpack.sh DIR [SITE]}
site=${2:-$HOME/site}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$from"/p[0-9][0-9] | tar --extract --directory "$work"
"$python" -m pip install --quiet --no-deps --no-index --no-warn-script-location --target "$site" "$work"/wheels/*.whl
PYTHONPATH=$site "$python" -c 'import importlib.metadata as m; print("vLLM", m.version("vllm"), "unpacked")'
