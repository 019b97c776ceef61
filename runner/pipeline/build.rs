//! Embeds the modules in the folder `std`, where `make` puts the guests that belong to the program. A plain `cargo build` need not
//! have them.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;
use std::{env, io};

fn main() -> io::Result<()> {
    let of = |variable| env::var_os(variable).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let folder = of("CARGO_MANIFEST_DIR")?.join("std");
    if !folder.exists() {
        fs::create_dir(&folder)?;
        // Older than this build, or the next one would take the folder for a change and compile the crate again.
        File::open(&folder)?.set_modified(SystemTime::UNIX_EPOCH)?;
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "wasm"));
    files.sort();
    let mut list = format!("static MODULES: [StdModule; {}] = [\n", files.len());
    for file in &files {
        let name = file.file_stem().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
        writeln!(list, "    StdModule::new(\"std/{name}\", include_bytes!({file:?})),")
            .map_err(io::Error::other)?;
    }
    list.push_str("];\n");
    fs::write(of("OUT_DIR")?.join("std_modules.rs"), list)
}
