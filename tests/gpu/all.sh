#!/usr/bin/env bash
# Every GPU figure of docs/benchmarks.md, what needs the machine for itself first.
#   tests/gpu/all.sh OUT [PART...]        from the repository's root, after unpack.sh
# PART is gateway, replicas (the gateway over two servers), offline, where (what lies between gateway and
# offline), train, contract, kernels or demo; without any, all of them (about 30 minutes).
# Each has a limit of its own and writes into OUT as it goes, so that a lease which ends early
# leaves what was measured so far. vLLM's first start takes two and a half minutes by itself.
set -uo pipefail
out=${1:?usage: all.sh OUT [PART...]}
shift
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

for name in "${@:-gateway replicas offline where train contract kernels demo}"; do
  for one in $name; do
    case $one in
      gateway | offline) part "$one" 280 "$python" benchmarks/gateway_gpu.py --rounds 6 --only "$one" ;;
      replicas) part replicas 400 "$python" benchmarks/gateway_gpu.py --rounds 6 --only gateway --replicas 2 ;;
      where) part where 400 "$python" benchmarks/gateway_gpu.py --rounds 6 --only engine,adapters ;;
      train) part train 280 "$python" benchmarks/train.py --device cuda --shape qwen3-4b --plain --trl --json "$out/train.json" ;;
      contract) part contract 560 "$python" tests/gpu/vllm_h200.py --parts contract --dtypes bfloat16 --out "$out/contract.json" -- -k "vllm and not url" ;;
      kernels) part kernels 90 "$python" -m pytest -q -s -p no:cacheprovider tests/gpu/test_torch_local.py tests/gpu/test_train.py ;;
      demo) part demo 280 "$python" -m instar demo --plot "$out/demo.svg" --json ;;
      *) echo "no part $one; known: gateway replicas offline where train contract kernels demo" >&2; exit 2 ;;
    esac
  done
done
