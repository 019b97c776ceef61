//! The compiling process as a separate binary, for programs that embed the sandbox and cannot start themselves again.

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_wasm::compile_on_request()
}
