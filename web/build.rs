//! Makes sure that there is something to embed, and that it is embedded again when it changes.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;
use std::{fs, io};

/// Shown where the pages should be. `make` builds them before the binary; a plain `cargo build` need not have npm.
const STUB: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Penstock</title>\
    <p>The pages of this server were not built: run <code>make ui</code> and build again. The API is at <a href=\"/api/openapi.json\">/api</a>.\n";

fn main() -> io::Result<()> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/dist");
    fs::create_dir_all(&pages)?;
    let index = pages.join("index.html");
    if !index.exists() {
        fs::write(&index, STUB)?;
        // Older than this build, or the next one would take the stub for a change and compile the crate again.
        for path in [&index, &pages] {
            File::open(path)?.set_modified(SystemTime::UNIX_EPOCH)?;
        }
    }
    println!("cargo::rerun-if-changed={}", pages.display());
    Ok(())
}
