//! Paths of the programs and modules under test.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::files::{Folder, kept};

/// The programs, built once per test process and placed in one folder.
struct Programs {
    folder: PathBuf,
}

/// Path of the binary that users run.
pub fn penstock() -> PathBuf {
    Programs::built().path("penstock")
}

/// Path of the generator of photos and texts.
pub fn make_data() -> PathBuf {
    Programs::built().path("make-data")
}

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the repository").to_owned()
}

/// Target folder of cargo, derived from the path of the running test, e.g. `TARGET/PROFILE/deps/it-0123`.
pub fn target() -> PathBuf {
    own_profile().parent().expect("a profile's folder lies in the target folder").to_owned()
}

/// Path of a module that `make guests` built, by the name of its crate. Panics if it is missing: no test skips silently.
pub fn module(name: &str) -> PathBuf {
    let file = format!("{}.wasm", name.replace('-', "_"));
    let path = target().join("wasm32-unknown-unknown/guest").join(file);
    assert!(path.is_file(), "`{}` is missing: run `make guests` first", path.display());
    path
}

/// Path of a library that injects system failures into a program when preloaded; see `tests/troubles/trouble.c`.
pub fn trouble() -> PathBuf {
    static TROUBLE: OnceLock<PathBuf> = OnceLock::new();
    let made = TROUBLE.get_or_init(|| {
        let source = repository().join("tests/troubles/trouble.c");
        // The file is replaced atomically: another test process may have loaded it.
        let (made, draft) = (kept("troubles").join("trouble.so"), Folder::new());
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(draft.join("trouble.so"))
            .arg(source)
            .status();
        assert!(compiled.expect("there is a C compiler").success());
        let beside = made.with_extension(format!("{}.so", std::process::id()));
        fs::copy(draft.join("trouble.so"), &beside).expect("the target folder can be written to");
        fs::rename(&beside, &made).expect("the target folder can be written to");
        made
    });
    made.clone()
}

/// Output of `cargo metadata` for the packages of this workspace.
pub fn workspace_metadata() -> Value {
    let output = cargo_output(&["metadata", "--format-version=1", "--no-deps"]);
    serde_json::from_slice(&output).expect("cargo writes JSON")
}

/// Packages that cargo builds for a `selection`, one line each with version and features.
pub fn dependency_features(selection: &[&str]) -> BTreeSet<String> {
    let output = cargo_output(&[&["tree", "--prefix=none", "--format={p} {f}"], selection].concat());
    let lines = String::from_utf8(output).expect("cargo writes UTF-8");
    lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// Standard output of a cargo command that builds nothing.
fn cargo_output(args: &[&str]) -> Vec<u8> {
    let output = cargo().args(args).args(["--locked", "--offline"]).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

impl Programs {
    /// Cargo passes the path of a binary (`CARGO_BIN_EXE_`) only to tests of the same package, and builds it for no others. So
    /// this calls cargo with the profile and target folder of this test: an up-to-date build is quick, and a test never runs an
    /// outdated binary.
    fn built() -> &'static Self {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(|| {
            let folder = own_profile();
            // Builds the same targets as `make test` and `make bench`: for fewer targets, cargo would rebuild dependencies with
            // other features.
            let (profile, targets) = match folder.file_name().and_then(|name| name.to_str()) {
                Some("debug") | None => ("dev", "--tests"),
                Some(other) => (other, "--benches"),
            };
            let built = cargo()
                .args([
                    "build",
                    "--quiet",
                    "--locked",
                    "--workspace",
                    "--exclude=guest-*",
                    "--exclude=text",
                    "--bins",
                    targets,
                ])
                .args(["--profile", profile])
                .env("CARGO_TARGET_DIR", target())
                .output()
                .expect("cargo runs");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Self { folder }
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension(env::consts::EXE_EXTENSION)
    }
}

fn own_profile() -> PathBuf {
    let test = env::current_exe().expect("a process knows its program");
    test.ancestors().nth(2).expect("a test lies in TARGET/PROFILE/deps").to_owned()
}

fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repository());
    // Removes the variables that cargo sets for the tests of a package: if they change, cargo rebuilds some dependencies, and
    // half of the workspace with them, now and at its next call.
    for (name, _) in env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") || told == "OUT_DIR" {
            cargo.env_remove(&name);
        }
    }
    cargo
}
