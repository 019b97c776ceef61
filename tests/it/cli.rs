//! Output and exit codes of the command line.

use penstock_tests::{Call, Finished, Folder, repository, shown};
use serde_json::{Value, json};

macro_rules! assert_shown {
    ($text:expr) => {
        shown().bind(|| insta::assert_snapshot!($text))
    };
}

fn help(arguments: &[&str]) -> String {
    let mut command = Call::new(arguments).argument("--help").command();
    // Unset, since the help prints the values of environment variables.
    let output = command.env_remove("PENSTOCK_CACHE_DIR").output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_of_the_command() {
    assert_shown!(help(&[]));
}

#[test]
fn help_of_run_has_an_example_and_the_exit_codes() {
    assert_shown!(help(&["run"]));
}

#[test]
fn help_of_check_has_an_example() {
    assert_shown!(help(&["check"]));
}

#[test]
fn help_of_schema_has_an_example() {
    assert_shown!(help(&["schema"]));
}

#[test]
fn help_of_module_inspect_has_an_example() {
    assert_shown!(help(&["module", "inspect"]));
}

#[test]
fn help_of_bench_storage_has_examples_and_the_exit_codes() {
    assert_shown!(help(&["bench", "storage"]));
}

#[test]
fn help_of_pull_has_examples_and_the_exit_codes() {
    assert_shown!(help(&["pull"]));
}

/// Output of `check` for an invalid document: on standard error, with exit code 2.
fn refused(document: &str) -> String {
    let folder = Folder::new();
    let path = folder.write("pipeline.json", document);
    let call = Call::check(&path).store("here", folder.path());
    said(call.finish())
}

/// Output of a call with bad input.
fn said(finished: Finished) -> String {
    let finished = finished.exits(2);
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);
    finished.stderr
}

#[test]
fn all_faults_of_malformed_documents_are_reported_with_pointers() {
    let documents = [
        "",
        "[]",
        r#"{ "source": { "range": { "count": 1 } }, }"#,
        r#"{ "seed": 1, "seed": 2, "source": { "range": { "count": 1 } } }"#,
        r#"{ "sorce": { "range": { "count": 1 } }, "threads": 0 }"#,
        r#"{ "source": { "list": { "store": "there", "epochs": 0 } }, "interval_s": "1s" }"#,
        r#"{ "source": { "range": { "count": -1 } }, "stages": [{ "fetchh": {} }, { "sleep": {} }] }"#,
        r#"{ "source": { "list": { "store": "there" } }, "stages": [{ "fetch": { "store": "nowhere" } }] }"#,
        r#"{ "source": { "range": { "count": 1 } }, "stages": [{ "fetch": {} }, { "collate": {} }, { "disaggregate": {} }] }"#,
        r#"{ "source": { "range": { "count": 1 } }, "stages": [{ "wasm": { "module": "std/imag" } }, { "wasm": {} }] }"#,
        r#"{ "source": { "list": { "store": "here" } }, "stages": [{ "fetch": {} },
            { "wasm": { "module": "std/image", "params": { "ops": [{ "Resize": { "size": 0 } }], "mood": "good" } } }] }"#,
        r#"{ "source": { "range": { "count": 1 } }, "max_failures": { "rate": 2 }, "consumer": { "simulate": {} } }"#,
        r#"{ "source": { "range": { "count": 1 } }, "sink": { "queue": 0 }, "stages": [{ "transfer": { "device": "gpu" } }] }"#,
    ];
    let told: Vec<String> =
        documents.iter().map(|document| format!("{document}\n{}", refused(document))).collect();
    assert_shown!(told.join("\n"));
}

#[test]
fn a_valid_document_is_printed_as_a_chain() {
    let folder = Folder::new();
    let document = repository().join("examples/pipelines/photos.json");
    let call = Call::check(&document).store("photos", folder.path());
    assert_shown!(call.finish().exits(0).stdout);
}

#[test]
fn a_document_may_come_from_standard_input() {
    let folder = Folder::new();
    let path = folder.document(&json!({ "source": { "range": { "count": 3 } } }));
    let mut command = Call::new(&["run", "-", "--json"]).command();
    let output = command.stdin(std::fs::File::open(path).unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let snapshot: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(snapshot["ledger"]["total"]["delivered"], 3);
}

#[test]
fn errors_of_the_command_line_are_bad_input() {
    let folder = Folder::new();
    let toy = repository().join("examples/pipelines/toy-baseline.json");
    let missing = folder.join("missing");
    let calls = [
        Call::run(&missing),
        Call::run(&toy).argument("--store=photos"),
        Call::run(&toy).store("photos", &missing),
        Call::run(&toy).module_at("mine", &missing),
        Call::run(&toy).set("seed=3").set("/stages/4/queue=1").set("/soorce/range/count=1"),
        Call::run(&toy).set("/source/range/count=many"),
        Call::run(&toy).threads(0),
        Call::new(&["module", "inspect"]).argument(&toy),
    ];
    let told: Vec<String> = calls.into_iter().map(|call| said(call.finish())).collect();
    assert_shown!(told.join("\n"));
}

#[test]
fn an_unknown_flag_is_bad_input() {
    let told = said(Call::new(&["run", "--thread=3", "x.json"]).finish());
    assert_shown!(told);
}

#[test]
fn dead_letters_need_a_folder() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "range": { "count": 1 } },
        "stages": [{ "sleep": { "mean_ms": 0, "on_error": "dead_letter" } }]
    }));
    assert_shown!(said(Call::run(&document).finish()));
}

#[test]
fn the_schema_is_json_and_lists_all_kinds() {
    let finished = Call::new(&["schema"]).finish().exits(0);
    let schema: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(schema["type"], "object");
    for kind in ["aggregate", "fetch", "disaggregate", "wasm", "collate", "transfer", "sleep", "records"] {
        assert!(finished.stdout.contains(&format!("\"{kind}\"")), "the schema does not know `{kind}`");
    }
}

#[test]
fn a_module_is_described_in_words_and_in_json() {
    let path = penstock_tests::module("text-filter");
    let words = Call::new(&["module", "inspect"]).argument(&path).finish().exits(0).stdout;
    let json = Call::new(&["module", "inspect", "--json"]).argument(&path).finish().exits(0).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["manifest"]["name"], "text-filter");
    let mut settings = shown();
    settings.add_filter(r"\d+ bytes, \d+ functions", "[N] bytes, [N] functions");
    settings.bind(|| insta::assert_snapshot!(words));
}

#[test]
fn a_quiet_run_prints_nothing() {
    let toy = repository().join("examples/pipelines/toy-baseline.json");
    let finished = Call::run(&toy).argument("--quiet").finish().exits(0);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("", ""));
}

#[test]
fn a_quiet_run_states_its_failures_on_standard_error() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "range": { "count": 40 } },
        "stages": [{ "sleep": { "mean_ms": 0, "fail_rate": 0.5, "order": "input" } }],
    }));
    let finished = Call::run(&document).argument("--quiet").finish().exits(1);
    assert_eq!(finished.stdout, "");
    assert_shown!(finished.stderr);
    let finished = Call::run(&document).argument("--quiet").set("/max_failures=null").finish().exits(0);
    assert_eq!(finished.stdout, "");
    assert_shown!(finished.stderr);
}

#[test]
fn a_check_starts_modules_on_request() {
    let folder = Folder::new();
    let ops = json!([{ "Normalize": { "mean": [0.5], "std": [0.5] } }, { "ToDtype": { "dtype": "float32", "scale": true } }]);
    let document = folder.document(&json!({
        "source": { "list": { "store": "here" } },
        "stages": [{ "fetch": {} }, { "wasm": { "module": "std/image", "params": { "ops": ops } } }],
    }));
    let call = || Call::check(&document).store("here", folder.path());
    call().finish().exits(0);
    let told = call().argument("--init").finish().exits(2).stderr;
    let fault = told.lines().last().unwrap();
    assert!(
        fault.starts_with("  /stages/1/wasm/params: the module `std/image` cannot start: `init` refused: "),
        "{told}"
    );
    assert!(fault.contains("`ops[0]`: `Normalize`"), "{told}");
    let set = "/stages/1/wasm/params/ops=[]";
    call().set(set).argument("--init").argument("--stores").finish().exits(0);
}

#[test]
fn a_check_shows_the_fields_of_the_samples_and_what_is_left_out() {
    let folder = Folder::new();
    folder.write("a/1.ndjson", "{\"key\": \"a\", \"x\": 1, \"t\": \"one\"}\n{\"key\": \"b\", \"x\": 2.5}\n");
    folder.write("a/read.me", "");
    folder.write("b/1.ndjson", "{\"x\": 7, \"n\": 1}\n");
    let records = |prefix: &str| json!({ "records": { "store": "here", "prefix": prefix, "suffix": ".ndjson", "shuffle": true } });
    let parts = json!({ "a": records("a/"), "b": records("b/") });
    let part = |name: &str| json!({ "source": parts[name] });
    let document = |source: Value| folder.document(&json!({ "source": source }));
    let check = |source: Value| Call::check(&document(source)).store("here", folder.path());
    let one = check(records("a/")).finish().exits(0);
    assert_eq!(one.stderr, "");
    let mix = check(json!({ "mix": { "sources": { "a": part("a"), "b": part("b") } } })).finish().exits(0);
    let none = check(records("c/")).finish().exits(0);
    let lines = |finished: &Finished| {
        finished.stdout.lines().skip(1).map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!([lines(&one), lines(&mix), lines(&none)].join("\n\n"), @r"
    [0:src] fields: x float64, t text (optional)
    [0:src] left out 1 key with another ending (`.me` 1)

    [0:src] fields: x float64, t text (optional), n int64 (optional)
    [a] left out 1 key with another ending (`.me` 1)

    [0:src] fields: not known: store `here` holds no object whose key starts with `c/`
    ");
    check(records("c/")).argument("--stores").finish().exits(2);
    // A run that shuffles reads all records before the first sample, and a check only as many as types are learnt from.
    folder.write("d/1.ndjson", "{\"x\": 1}\n".repeat(10_000) + "{\"x\": 0.5}\n");
    let (first, all) = (check(records("d/")).finish(), check(records("d/")).argument("--stores").finish());
    insta::assert_snapshot!([lines(&first), lines(&all)].join("\n"), @r"
    [0:src] fields: x int64, learnt from the first 10,000 samples (a run that shuffles may learn from all, as `--stores` does)
    [0:src] fields: x float64
    ");
    let told: Value = serde_json::from_str(&check(records("a/")).json().finish().exits(0).stdout).unwrap();
    assert_eq!(
        told["fields"]["fields"][0],
        json!({ "name": "x", "type": "float64", "dimensions": 0, "optional": false })
    );
    assert_eq!((&told["left_out"]["0:src"][0]["count"], &told["not_opened"]), (&json!(1), &Value::Null));
}

#[test]
fn boxes_beside_a_picture_that_is_flipped_are_warned_of() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "parquet": { "store": "here", "prefix": "", "fields": { "bytes": "image" }, "columns": ["label", "boxes"] } },
        "stages": [{ "wasm": { "module": "std/image", "params": { "ops": [{ "RandomHorizontalFlip": {} }, { "Resize": { "size": 64 } }] } } }],
    }));
    let finished = Call::check(&document).store("here", folder.path()).finish().exits(0);
    assert_shown!(finished.stderr);
    let unmoved = Call::check(&document).set("/stages/0/wasm/params/ops=[]").store("here", folder.path());
    assert_eq!(unmoved.finish().exits(0).stderr, "");
}

#[test]
fn a_closed_standard_output_ends_the_process_silently() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Call::new(&["schema"]).command();
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_missing_field_is_reported_before_the_run() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "list": { "store": "here" } }, "stages": [{ "wasm": { "module": "std/image" } }]
    }));
    let call = Call::check(&document).store("here", folder.path());
    let told = call.finish().exits(2).stderr;
    let wanted = "  /stages/0/wasm: module `std/image` needs the field `bytes`, but samples have no fields here: put a `fetch` before it";
    assert_eq!(told.lines().last(), Some(wanted), "{told}");
}
