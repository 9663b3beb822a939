#!/usr/bin/env bash
# Every GPU figure of docs/benchmarks.md in one go, what needs the machine for itself first.
#   tests/gpu/all.sh OUT        from the repository's root, after unpack.sh; about 11 minutes
# Each part has a limit of its own and writes into OUT as it goes, so that a lease which ends early
# leaves what was measured so far.
set -uo pipefail
out=${1:?usage: all.sh OUT}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH=$PWD/src:$HOME/site PATH=$HOME/site/bin:$PATH PYTHONUNBUFFERED=1

part() { # NAME LIMIT COMMAND...
  local name=$1 limit=$2
  shift 2
  SECONDS=0
  timeout "$limit" "$@" >"$out/$name.out" 2>"$out/$name.err"
  echo "$name: exit $? after $SECONDS s"
}

part gateway 150 "$python" benchmarks/gateway_gpu.py --rounds 2 --only gateway
part offline 120 "$python" benchmarks/gateway_gpu.py --rounds 2 --only offline
part train 200 "$python" benchmarks/train.py --device cuda --shape qwen3-4b --plain --trl --json "$out/train.json"
part contract 330 "$python" tests/gpu/vllm_h200.py --parts contract --dtypes bfloat16 --out "$out/contract.json" -- -k "vllm and not url"
part torch_local 60 "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_torch_local.py tests/gpu/test_train.py
