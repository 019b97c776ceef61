#!/usr/bin/env bash
# Checks on a machine with an NVIDIA GPU: the rate of copies to the device, that no batch is overwritten while it is read, the
# effect of loading on a training step, and that a slow transfer is detected. Takes about five minutes; exit code 0 if all checks
# that ran passed.
#
#   tests/gpu/check.sh           on a machine with a GPU and its driver
#   tests/gpu/check.sh --fake    anywhere, with the tests' substitute for the driver: the checks run, but their figures mean nothing
#
# PYTHON is an interpreter with the wheel of runner/python, and with PyTorch to measure steps (default: python3); PHOTOS is a
# folder written by `make photos` (default: demo/photos). Checks that lack something are reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
python=${PYTHON:-python3}
photos=${PHOTOS:-demo/photos}
fake=() megabytes=8192
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ ${1:-} == --fake ]]; then
  echo "A substitute for the driver: FIGURES MEAN NOTHING."
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
