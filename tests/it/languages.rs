//! Stages in Python, JavaScript, Go and C with a C library: built as their authors are told, in the sandbox, with all that a stage must not do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use penstock_tests::{Call, Folder, penstock, repository, shown, target};
use serde_json::{Value, json};

/// Toolchain of a language, which `make` installs below the target folder, or in the system for C. Panics if it is missing: no test skips
/// silently.
fn toolchain(lang: &str) -> PathBuf {
    let (name, path) = match lang {
        "c" => ("wasi-libc", "/usr/lib/wasm32-wasi".into()),
        "go" => ("go", target().join("go")),
        "js" => ("componentize-qjs", target().join("componentize-qjs")),
        _ => ("componentize-py", target().join("componentize-py")),
    };
    assert!(path.is_dir(), "`{}` is missing: run `make {name}` first", path.display());
    path
}

/// Settings for snapshots, without the size of an interpreter's heap.
fn figures() -> insta::Settings {
    let mut settings = shown();
    settings.add_filter(r"requested \d+ MiB", "requested [N] MiB");
    settings
}

/// Makes a new stage in this language and builds it after `change`. Returns the module.
fn built(folder: &Folder, lang: &str, change: impl Fn(&Path)) -> PathBuf {
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}\n{said}\n{}", String::from_utf8_lossy(&output.stdout));
    };
    run(Command::new(penstock()).args(["new", "golden", "--lang", lang]).current_dir(folder.path()));
    let stage = folder.join("golden");
    change(&stage);
    let mut build = Command::new("./build.sh");
    build.args((lang == "c").then_some("-Werror"));
    run(build.current_dir(&stage).env("PENSTOCK", penstock()).env("TOOLCHAIN", toolchain(lang)));
    stage.join("golden.wasm")
}

/// Tries the module on a sample for each word. Returns each sample's outcome, with the fields or the message.
fn tried(folder: &Folder, module: &Path, words: &[&str], more: &[&str]) -> Value {
    let lines = words.iter().map(|word| format!("{}\n", json!({"key": word, "text": word})));
    let input = folder.write("words.ndjson", lines.collect::<String>());
    let call = Call::new(&["test-stage", "--json", "--deadline-ms=500"]).argument(module);
    let call = more.iter().fold(call.argument("-i").argument(&input), |call, flag| call.argument(*flag));
    serde_json::from_str(&call.finish().stdout).unwrap()
}

/// Tries the module of a new stage on a file for each text, two words of which it keeps.
fn tried_bytes(folder: &Folder, module: &Path, texts: &[&[u8]]) -> Value {
    for (index, text) in texts.iter().enumerate() {
        folder.write(&format!("texts/{index:04}"), text);
    }
    let call = Call::new(&["test-stage", "--json", r#"--params={"words": 2}"#]).argument(module);
    serde_json::from_str(&call.argument("-i").argument(folder.join("texts")).finish().stdout).unwrap()
}

fn outcomes(report: &Value) -> Vec<String> {
    let samples =
        report["calls"].as_array().unwrap().iter().flat_map(|call| call["samples"].as_array().unwrap());
    let line = |sample: &Value| {
        let outcome = format!("{}: {}", sample["key"], sample["outcome"]).replace('"', "");
        let fields = |item: &Value| {
            let fields = item["fields"].as_array().unwrap().iter();
            let shown = fields.map(|field| format!("{} {}", field["name"], field["digest"]));
            shown.collect::<Vec<_>>().join(", ")
        };
        match &sample["failure"] {
            Value::Null => {
                let made = sample["made"].as_array().unwrap().iter().map(fields).collect::<Vec<_>>();
                format!("{outcome} {}", made.join("; "))
            }
            failure => format!("{outcome} {}: {}", failure["class"], failure["message"]),
        }
    };
    samples.map(line).collect()
}

const ENDLESS: &str =
    r#"loop: failed "bug": "exceeded its deadline of 500 ms CPU time per sample (`deadline_ms`)""#;

/// Runs the pipeline of the new stage on its samples, one of which has no words.
fn runs(module: &Path) {
    let stage = module.parent().unwrap();
    let run = Call::run(&stage.join("pipeline.json")).store("samples", &stage.join("samples"));
    let total = run.module_at("golden", module).json().finish().exits(0).snapshot().ledger.total;
    assert_eq!((total.delivered, total.dropped), (2, 1));
}

const WORDS: [&str; 20] = [
    "print",
    "raise",
    "import",
    "random",
    "clock",
    "now",
    "sleep",
    "file",
    "list",
    "entropy",
    "system-random",
    "deep",
    "exit",
    "memory",
    "type",
    "big",
    "tensor",
    "drop",
    "wrong",
    "asset",
];

#[test]
fn a_python_stage_fails_with_a_reason_and_gives_equal_results() {
    let folder = Folder::new();
    let golden = repository().join("tests/it/golden/stage.py");
    let change = |stage: &Path| assert!(fs::copy(&golden, stage.join("stage.py")).is_ok());
    let module = built(&folder, "python", change);
    let report = tried(&folder, &module, &WORDS, &["--repeat=2"]);
    assert_eq!(report["differences"], json!([]), "{report:#}");
    let report = tried(&folder, &module, &WORDS, &[]);
    figures().bind(|| insta::assert_json_snapshot!((outcomes(&report), &report["logs"])));
    assert_eq!(outcomes(&tried(&folder, &module, &["loop"], &[])), [ENDLESS]);
}

#[test]
fn a_new_python_stage_is_tested_built_and_run() {
    let folder = Folder::new();
    let module = built(&folder, "python", |stage| {
        let test = Command::new("python3").arg("test_stage.py").current_dir(stage).output().unwrap();
        assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
    });
    runs(&module);
}

const JS_WORDS: [&str; 19] = [
    "print",
    "raise",
    "throw",
    "import",
    "random",
    "clock",
    "now",
    "epoch",
    "performance",
    "deep",
    "memory",
    "type",
    "big",
    "whole",
    "tensor",
    "drop",
    "split",
    "wrong",
    "asset",
];

#[test]
fn a_javascript_stage_fails_with_a_reason_and_gives_equal_results() {
    let folder = Folder::new();
    let golden = repository().join("tests/it/golden/stage.js");
    let change = |stage: &Path| assert!(fs::copy(&golden, stage.join("stage.js")).is_ok());
    let module = built(&folder, "js", change);
    let report = tried(&folder, &module, &JS_WORDS, &["--repeat=2"]);
    assert_eq!(report["differences"], json!([]), "{report:#}");
    let report = tried(&folder, &module, &JS_WORDS, &[]);
    figures().bind(|| insta::assert_json_snapshot!((outcomes(&report), &report["logs"])));
    assert_eq!(outcomes(&tried(&folder, &module, &["loop"], &[])), [ENDLESS]);
}

#[test]
fn a_new_javascript_stage_is_tested_built_and_run() {
    let folder = Folder::new();
    let module = built(&folder, "js", |stage| {
        let test = Command::new("node").arg("--test").current_dir(stage).output().unwrap();
        assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stdout));
    });
    runs(&module);
}

const C_WORDS: [&str; 17] = [
    "print",
    "sort",
    "malloc",
    "random",
    "clock",
    "sleep",
    "environment",
    "file",
    "input",
    "exit",
    "assert",
    "abort",
    "deep",
    "memory",
    "random",
    "param",
    "asset",
];

#[test]
fn a_c_stage_with_a_c_library_has_no_system_and_gives_equal_results() {
    let folder = Folder::new();
    let golden = repository().join("tests/it/golden");
    let module = built(&folder, "c", |stage| {
        assert!(fs::copy(golden.join("stage.c"), stage.join("stage.c")).is_ok());
        assert!(fs::copy(golden.join("stage-c.json"), stage.join("manifest.json")).is_ok());
    });
    let params = r#"--params={"a\"b": {"a": 1}, "list": ["},", {"a": []}, "\\"], "lasting": 3, "last": 2.5}"#;
    let report = tried(&folder, &module, &C_WORDS, &[params, "--repeat=2"]);
    assert_eq!(report["differences"], json!([]), "{report:#}");
    let report = tried(&folder, &module, &C_WORDS, &[params]);
    let mut shown = figures();
    // The functions depend on the version of the C library.
    shown.add_filter(r#"; in `[^"\\]*`"#, "; in [functions]");
    shown.bind(|| insta::assert_json_snapshot!((outcomes(&report), &report["logs"])));
    assert_eq!(outcomes(&tried(&folder, &module, &["loop"], &[])), [ENDLESS]);
}

#[test]
fn a_new_c_stage_is_built_and_run() {
    let folder = Folder::new();
    let module = built(&folder, "c", |_| {});
    runs(&module);
    let report = tried_bytes(&folder, &module, &[b" one\ttwo \n three", b"one  two", b" "]);
    shown().bind(|| insta::assert_json_snapshot!((outcomes(&report), &report["counters"])));

    let stage = module.parent().unwrap();
    let mut build = Command::new("./build.sh");
    let output = build.current_dir(stage).env("CLANG", "missing-clang").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("(Debian: apt-get install clang lld wasi-libc libclang-rt-dev-wasm32)"), "{said}");
}

#[test]
fn a_c_stage_takes_for_utf8_what_rust_does() {
    let folder = Folder::new();
    let module = built(&folder, "c", |_| {});
    let firsts = b"\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xf8\xff";
    let seconds = b"\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0";
    let ends: [&[u8]; 4] = [b"", b"\x80", b"\xbf\x80", b"\x80\xbf\xbf"];
    let files: Vec<Vec<u8>> = firsts
        .iter()
        .flat_map(|first| {
            seconds.iter().flat_map(move |second| ends.map(|end| [&[*first, *second], end].concat()))
        })
        .collect();
    let report = tried_bytes(&folder, &module, &files.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let outcomes = outcomes(&report);
    assert_eq!(outcomes.len(), files.len());
    for (file, outcome) in files.iter().zip(outcomes) {
        assert_eq!(outcome.contains("kept"), std::str::from_utf8(file).is_ok(), "{file:x?}: {outcome}");
    }
}

const GO_WORDS: [&str; 21] = [
    "print",
    "error",
    "panic",
    "nil",
    "random",
    "clock",
    "sleep",
    "file",
    "environment",
    "routine",
    "deadlock",
    "map",
    "type",
    "tensor",
    "wrong",
    "deep",
    "memory",
    "exit",
    "asset",
    "global",
    "split",
];

#[test]
fn a_go_stage_fails_with_a_reason_and_gives_equal_results() {
    let folder = Folder::new();
    let golden = repository().join("tests/it/golden");
    let change = |stage: &Path| {
        assert!(fs::copy(golden.join("stage.go"), stage.join("stage.go")).is_ok());
        assert!(fs::copy(golden.join("stage-go.json"), stage.join("manifest.json")).is_ok());
    };
    let module = built(&folder, "go", change);
    let report = tried(&folder, &module, &GO_WORDS, &["--repeat=2"]);
    assert_eq!(report["differences"], json!([]), "{report:#}");
    let report = tried(&folder, &module, &GO_WORDS, &[]);
    let printed = tried(&folder, &module, &["print"], &[]);
    let mut shown = figures();
    // The functions depend on the version of Go.
    shown.add_filter(r#"; in `[^"\\]*`"#, "; in [functions]");
    shown.bind(|| insta::assert_json_snapshot!((outcomes(&report), &printed["logs"])));
    assert_eq!(outcomes(&tried(&folder, &module, &["loop"], &[])), [ENDLESS]);
}

#[test]
fn a_new_go_stage_is_built_and_run() {
    let folder = Folder::new();
    runs(&built(&folder, "go", |_| {}));
}
