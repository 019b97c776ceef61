//! `penstock`: runs data-loading pipelines and tells what limits them.

use std::process::ExitCode;

fn main() -> ExitCode {
    penstock_cli::main()
}
