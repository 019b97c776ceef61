#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show: how fast batches get there, that no batch is overwritten while it is read, what
# loading costs a training step, and that a slow transfer is seen. About five minutes; exit code 0 when all that was tried holds.
#
#   tests/gpu/check.sh           on a machine with a GPU and its driver
#   tests/gpu/check.sh --fake    anywhere, over the tests' stand-in for the driver: the checks run, and their figures mean nothing
#
# PYTHON names an interpreter with the wheel of runner/python, and with PyTorch if steps are to be measured (default: python3);
# PHOTOS a folder as `make photos` makes (default: demo/photos). Checks without what they need say that they were skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
python=${PYTHON:-python3}
photos=${PHOTOS:-demo/photos}
fake=() megabytes=8192
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ ${1:-} == --fake ]]; then
  echo "A stand-in for the driver: FIGURES MEAN NOTHING HERE."
  cc -O2 -shared -fPIC -pthread runner/device/tests/fake/libcuda.c -o "$work/libcuda.so.1"
  fake=(--fake --step-ms 250) megabytes=512
  export LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

echo "== copies"
cargo build --locked --release -p penstock-device --example copy_rates
"$target/release/examples/copy_rates" "$megabytes" > "$work/rates.json"

failed=0
check() { "$python" tests/gpu/check.py "$@" "${fake[@]}" || failed=1; }
check rates "$work/rates.json"
for what in integrity recycle step readiness; do
  echo "== $what"
  check "$what" --photos "$photos" --modules "$target/wasm32-unknown-unknown/guest"
done
exit "$failed"
