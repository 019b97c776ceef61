#!/usr/bin/env bash
# Builds {{name}}.wasm, after installing the WebAssembly target if it is missing.
# Arguments go to cargo, e.g. --offline.
set -euo pipefail
cd "$(dirname "$0")"
cargo=$(penstock-guest/setup-target.sh)
$cargo build --release --target wasm32-unknown-unknown "$@"
cp "${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/release/{{library}}.wasm" {{name}}.wasm
echo "built {{name}}.wasm"
