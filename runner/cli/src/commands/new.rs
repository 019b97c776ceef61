//! `penstock new`: creates a crate with a stage that builds and passes its tests, in any folder.

mod files;
mod name;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Result;

use crate::args::{NewArgs, NewLanguage, NewMode};
use crate::input::bad;
use crate::text::say;

pub(crate) fn new(args: &NewArgs) -> Result<()> {
    let name = args.name.as_str();
    name::check(name)?;
    if args.lang != NewLanguage::Rust && args.mode != NewMode::Sample {
        return Err(bad(
            "`--mode` is for Rust; in other languages the mode is an option of `stage` in the stage's file, or is in its `manifest.json`",
        ));
    }
    let folder = Path::new(name);
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            bad(format!("`{name}` already exists; choose another name or remove it"))
        }
        _ => bad(format!("cannot create the folder `{name}`: {error}")),
    })?;
    if let Err(error) =
        files::of(args).into_iter().try_for_each(|(file, text)| write(&folder.join(file), &text))
    {
        // Safe to remove: this process has created the folder and is the only one that wrote to it.
        fs::remove_dir_all(folder).unwrap_or_default();
        return Err(bad(format!("cannot write the files of `{name}`: {error}")));
    }
    Ok(say(&next_steps(args))?)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let is_program = path.extension().is_some_and(|extension| extension == "sh");
    let mode = if is_program { 0o777 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}

fn next_steps(args: &NewArgs) -> String {
    let name = &args.name;
    let (mode, ..) = files::about(args.mode);
    let test = match args.lang {
        NewLanguage::Rust => "cargo test",
        NewLanguage::Python => "python3 test_stage.py",
        NewLanguage::Js => "node --test",
        NewLanguage::Go => "go vet",
        NewLanguage::C => "", // the build reports the compiler's warnings
    };
    let steps = [
        &format!("cd {name}"),
        test,
        "./build.sh",
        &format!("penstock test-stage {name}.wasm -i samples"),
        &format!("penstock run pipeline.json --store samples=samples --module {name}={name}.wasm"),
    ];
    let steps: Vec<_> = steps.into_iter().filter(|step| !step.is_empty()).collect();
    format!("created `{name}`, a stage of mode {mode}; next steps:\n  {}", steps.join("\n  "))
}
