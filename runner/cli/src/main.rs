//! `penstock`: runs data-loading pipelines and reports what limits them.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_cli::main(env::args_os(), None).into()
}
