#!/usr/bin/env bash
# Builds {{name}}.wasm from all C files of this folder, with clang and wasi-libc. Arguments go to clang, e.g. -DNDEBUG.
# Environment: PENSTOCK  the command to call (default: penstock)
#              CLANG     the compiler to call (default: clang)
set -euo pipefail
cd "$(dirname "$0")"
# With the stack first, recursion that is too deep ends the instance instead of overwriting data.
flags=(--target=wasm32-wasi -mexec-model=reactor -O2 -msimd128 -Wall -Wextra -Wl,--stack-first -Wl,--strip-debug)
build() { "${CLANG:-clang}" "${flags[@]}" "$@" -o {{name}}.wasm.new; }
said=$(build -x c /dev/null 2>&1) || {
  echo "clang with a C library for WebAssembly is needed (Debian: apt-get install clang lld wasi-libc libclang-rt-dev-wasm32): $said" >&2
  exit 1
}
build "$@" *.c
"${PENSTOCK:-penstock}" module manifest {{name}}.wasm.new manifest.json
mv {{name}}.wasm.new {{name}}.wasm
echo "built {{name}}.wasm"
