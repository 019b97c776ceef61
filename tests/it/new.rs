//! `penstock new`: the new crate builds, passes its tests and runs outside this repository, with the commands of its README.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use penstock_tests::{Call, Finished, Folder, penstock, shown, target};
use serde_json::Value;

/// Calls `penstock new` with these arguments in `folder`.
fn new(folder: &Path, arguments: &[&str]) -> Finished {
    let call = Call::new(&["new"]);
    let call = arguments.iter().fold(call, |call, argument| call.argument(*argument));
    let mut command = call.command();
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    call.finished(command.spawn().unwrap())
}

/// Sets a command's environment to that of a stage's author: cached dependencies, and no build settings of this test.
pub(crate) fn as_author(command: &mut Command) {
    command.env("CARGO_TARGET_DIR", target().join("tmp/penstock-tests/new"));
    for variable in
        ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN"]
    {
        command.env_remove(variable);
    }
}

/// Runs a program in a stage's folder as its author would, without the network.
fn in_stage(folder: &Path, program: &Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    as_author(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program:?} {arguments:?}\n{said}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn a_new_stage_of_every_mode_is_built_tested_and_run() {
    let folder = Folder::new();
    for mode in ["sample", "batch", "stateful"] {
        let name = format!("new-{mode}");
        new(folder.path(), &[&name, "--mode", mode]).exits(0);
        let stage = folder.join(&name);
        in_stage(&stage, Path::new("cargo"), &["fmt", "--check"]);
        in_stage(&stage, Path::new("cargo"), &["test", "--offline"]);
        in_stage(&stage, &stage.join("build.sh"), &["--offline"]);

        let module = stage.join(format!("{name}.wasm"));
        let tried = Call::new(&["test-stage", "--repeat=2", "--json"]).argument(&module);
        let tried = tried.argument("-i").argument(stage.join("samples")).finish();
        let report: Value = serde_json::from_str(&tried.exits(0).stdout).unwrap();
        assert_eq!((&report["module"], &report["mode"]), (&name.clone().into(), &mode.into()));
        assert_eq!(report["differences"], Value::Array(Vec::new()), "{report:#}");
        assert_eq!(report["missing_fields"], Value::Array(Vec::new()));

        let run = Call::run(&stage.join("pipeline.json")).store("samples", &stage.join("samples"));
        let snapshot = run.module_at(&name, &module).json().finish().exits(0).snapshot();
        assert!(snapshot.ledger.total.delivered > 0, "{:?}", snapshot.ledger.total);
    }
}

#[test]
fn the_next_steps_are_printed() {
    let folder = Folder::new();
    let told = new(folder.path(), &["first-words"]).exits(0).stdout;
    shown().bind(|| insta::assert_snapshot!(told));
    let readme = fs::read_to_string(folder.join("first-words/README.md")).unwrap();
    for step in told.lines().skip(2) {
        assert!(readme.contains(step.trim()), "the README does not name `{step}`:\n{readme}");
    }
}

#[test]
fn existing_files_are_not_overwritten() {
    let folder = Folder::new();
    folder.write("mine/src/lib.rs", "mine");
    folder.write("file", "mine");
    let told: Vec<String> =
        ["mine", "file"].iter().map(|name| new(folder.path(), &[name]).exits(2).stderr).collect();
    assert_eq!(fs::read_to_string(folder.join("mine/src/lib.rs")).unwrap(), "mine");
    assert_eq!(fs::read_dir(folder.join("mine")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "mine");
    shown().bind(|| insta::assert_snapshot!(told.join("")));
}

#[test]
fn invalid_names_are_refused_with_a_reason() {
    let folder = Folder::new();
    let names = [
        "",
        "a/b",
        "../up",
        "/tmp/abs",
        ".",
        "Resize Images",
        "2fast",
        "größe",
        "日本",
        "crate",
        "test",
        "penstock-guest",
        "penstock_guest",
        "a\x1b[31mb",
    ];
    let long = "a".repeat(65);
    let told: Vec<String> = names
        .into_iter()
        .chain([long.as_str()])
        .map(|name| new(folder.path(), &[name]).exits(2).stderr)
        .collect();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no folder was created");
    shown().bind(|| insta::assert_snapshot!(told.join("")));
}

#[test]
fn an_unwritable_folder_is_reported() {
    let folder = Folder::new();
    // A folder that was removed while it is the working directory accepts no entries, even from root.
    let script = r#"mkdir gone && cd gone && rmdir "$PWD" && exec "$0" new first-words"#;
    let output =
        Command::new("sh").args(["-c", script]).arg(penstock()).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    shown().bind(|| insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap()));
}
