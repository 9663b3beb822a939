#!/usr/bin/env bash
# The contract of bfcl and interpreter, on the real packages: `make test-toolcall`.
# Nothing that they need may be missing here, so a skipped test is a failed one.
#   tests/toolcall.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

export INSTAR_TEST_TOOLCALL_PYTHON=$PWD/.venv-toolcall/bin/python
tests=(tests/unit/test_toolcall.py tests/contract/test_{bfcl,interpreter,interpreter_tasks,environment}.py)
found=$(.venv/bin/pytest "${tests[@]}" -rs "$@" | tee /dev/stderr)
if grep -q "SKIPPED.*\(bfcl\|interpreter\|bubblewrap\|reasoning-gym\)" <<<"$found"; then
  echo "error: something was skipped; see the lines above" >&2
  exit 1
fi
