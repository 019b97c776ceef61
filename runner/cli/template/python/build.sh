#!/usr/bin/env bash
# Builds {{name}}.wasm. Installs componentize-py with pip into .venv, if it is missing.
# Environment: PENSTOCK   the command to call (default: penstock)
#              TOOLCHAIN  virtual environment with componentize-py (default: .venv)
set -euo pipefail
cd "$(dirname "$0")"
version=0.25.1
venv=${TOOLCHAIN:-.venv}
if [[ ! -x $venv/bin/componentize-py ]]; then
  python3 -m venv "$venv" || { echo "python3 with venv is needed (Debian: apt-get install python3-venv)" >&2; exit 1; }
  "$venv/bin/pip" install --quiet --disable-pip-version-check "componentize-py==$version"
fi
"$venv/bin/python" penstock_guest.py {{name}} > manifest.json
"$venv/bin/componentize-py" --quiet -d wit -w stage componentize --stub-wasi penstock_guest -o {{name}}.wasm.new
"${PENSTOCK:-penstock}" module manifest {{name}}.wasm.new manifest.json
mv {{name}}.wasm.new {{name}}.wasm
echo "built {{name}}.wasm"
