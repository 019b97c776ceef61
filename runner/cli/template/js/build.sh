#!/usr/bin/env bash
# Builds {{name}}.wasm. Installs componentize-qjs with npm into node_modules, if it is missing.
# Environment: PENSTOCK   the command to call (default: penstock)
#              TOOLCHAIN  folder with node_modules of componentize-qjs (default: this folder)
set -euo pipefail
cd "$(dirname "$0")"
bin=${TOOLCHAIN:-.}/node_modules/.bin
[[ -x $bin/componentize-qjs ]] || npm install --no-audit --no-fund
print='import "./stage.js"; import { manifest } from "./penstock_guest.js"; console.log(JSON.stringify(manifest("{{name}}")))'
node --input-type=module --eval "$print" > manifest.json
"$bin/componentize-qjs" --wit wit --js entry.js --world stage --sync --stub-wasi --output {{name}}.wasm.new
"${PENSTOCK:-penstock}" module manifest {{name}}.wasm.new manifest.json
mv {{name}}.wasm.new {{name}}.wasm
echo "built {{name}}.wasm"
