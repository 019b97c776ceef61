//! `penstock replay`: dead letters run again, each through the stage in which it failed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use penstock_tests::{Call, Finished, Folder, shown};
use serde_json::{Value, json};

fn replay(run: &Path) -> Call {
    Call::new(&["replay"]).argument(run)
}

/// Runs a pipeline over objects `0.txt` to `9.txt`, of which every third is missing in the store `src`, with another failing
/// stage after the fetch.
fn fetching(folder: &Folder) -> PathBuf {
    folder
        .records(["0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "5.txt", "6.txt", "7.txt", "8.txt", "9.txt"]);
    for number in (0..10).filter(|number| number % 3 != 0) {
        folder.write(&format!("src/{number}.txt"), format!("object {number}"));
    }
    let document = folder.document(&json!({
        "name": "fetching", "seed": 5, "threads": 2,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [
            { "aggregate": { "size": 4 } },
            { "fetch": { "store": "src", "on_error": "dead_letter", "order": "input", "max_failures": { "count": 4 } } },
            { "disaggregate": {} },
            { "sleep": { "mean_ms": 0, "name": "unlucky", "fail_rate": 0.5, "on_error": "dead_letter" } }
        ]
    }));
    let out = folder.join("run");
    let call = Call::run(&document).store("here", folder.path()).store("src", &folder.join("src")).out(&out);
    call.argument("--quiet").finish().exits(0);
    out
}

/// Runs samples through the module `guest`, which fails for keys that contain `bad`.
fn guest_run(folder: &Folder, stages: &Value, module: &str, keys: &[&str], code: i32) -> PathBuf {
    folder.records(keys.iter().copied());
    let document = folder.document(&json!({
        "name": "guest", "seed": 5, "threads": 2,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": stages
    }));
    let out = folder.join("run");
    let call = Call::run(&document).store("here", folder.path()).module("guest", module).out(&out);
    call.argument("--quiet").finish().exits(code);
    out
}

fn report(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}

#[test]
fn dead_letters_of_a_fetch_pass_after_the_missing_objects_are_added() {
    let folder = Folder::new();
    let run = fetching(&folder);
    folder.write("src/0.txt", "object 0");
    folder.write("src/3.txt", "object 3");
    let out = folder.join("again");
    let call = replay(&run).store("src", &folder.join("src")).argument("--out").argument(&out);
    let finished = call.finish().exits(0);
    shown().bind(|| insta::assert_snapshot!(finished.stdout));

    // Samples that fail again are kept unchanged, and can be replayed again.
    let letters = |folder: &Path| fs::read_to_string(folder.join("dead_letters.ndjson")).unwrap();
    let kept: Vec<String> = letters(&out).lines().map(str::to_owned).collect();
    assert!(kept.iter().all(|letter| letters(&run).lines().any(|before| before == letter)), "{kept:?}");
    assert_eq!(
        fs::read_to_string(out.join("spec.json")).unwrap(),
        fs::read_to_string(run.join("spec.json")).unwrap()
    );
    for name in ["6.txt", "9.txt"] {
        folder.write(&format!("src/{name}"), "at last");
    }
    let finished = replay(&out).store("src", &folder.join("src")).json().finish().exits(0);
    let stages = &report(&finished)["stages"];
    assert_eq!((&stages[0]["stage"], &stages[0]["letters"]), (&json!("2:fetch"), &json!(2)));
    assert_eq!((&stages[0]["mended"], &stages[0]["still_failing"]), (&json!(2), &json!(0)));
    // Failures of a sleep depend on its seed, which is the same in a replay.
    assert_eq!((&stages[1]["stage"], &stages[1]["mended"]), (&json!("4:unlucky"), &json!(0)));
    assert_eq!(stages[1]["snapshot"]["ledger"]["balanced"], json!(true));
}

#[test]
fn a_corrected_module_accepts_samples_that_the_old_one_refused() {
    let folder = Folder::new();
    folder.write("src/a.jpg", "no picture");
    folder.write("src/b.jpg", "none either");
    let document = folder.document(&json!({
        "threads": 1,
        "source": { "list": { "store": "src" } },
        "stages": [{ "fetch": {} }, { "wasm": {
            "module": "decode", "on_error": "dead_letter", "max_failures": { "count": 2 }
        } }]
    }));
    let run = folder.join("run");
    let call = Call::run(&document).store("src", &folder.join("src")).module("decode", "image").out(&run);
    call.argument("--quiet").finish().exits(1);

    let same = replay(&run).module("decode", "image").finish().exits(0);
    let mended = replay(&run).module("decode", "guest-misbehaving").finish().exits(0);
    let first_lines = |finished: &Finished| finished.stdout.lines().take(2).collect::<Vec<_>>().join("\n");
    shown().bind(|| {
        insta::assert_snapshot!(first_lines(&same), @r"
        [2:decode] 0 of 2 dead letters now pass, 2 still fail
          replayed with [DIGEST], the module in which the samples had failed; pass another module with `--module`
        ");
        insta::assert_snapshot!(mended.stdout, @r"
        [2:decode] 2 of 2 dead letters now pass, 0 still fail
          replayed with the module [DIGEST]; the samples had failed in [DIGEST]
        ");
    });
    let without = replay(&run).finish().exits(2);
    assert!(
        without.stderr.contains("/stages/1/wasm/module: there is no module `decode`"),
        "{}",
        without.stderr
    );
}

#[test]
fn a_batch_module_gets_batches_of_the_original_size() {
    let folder = Folder::new();
    let stages = json!([
        { "aggregate": { "size": 2 } },
        { "wasm": { "module": "guest", "on_error": "dead_letter" } }
    ]);
    let run = guest_run(&folder, &stages, "guest-batch", &["a", "trap", "b", "c", "trap", "d"], 0);
    let letters = run.join("dead_letters.ndjson");
    let text = fs::read_to_string(&letters).unwrap();
    assert_eq!(text.lines().count(), 4);
    let finished = replay(&run).module("guest", "guest-batch").json().finish().exits(0);
    assert_eq!(report(&finished)["stages"][0]["still_failing"], json!(4));
    // Without the samples that trapped, the other samples of their batches succeed.
    let innocent: Vec<&str> = text.lines().filter(|line| !line.contains(r#""key":"trap""#)).collect();
    fs::write(&letters, innocent.join("\n")).unwrap();
    let finished = replay(&run).module("guest", "guest-batch").json().finish().exits(0);
    let stage = &report(&finished)["stages"][0];
    assert_eq!((&stage["mended"], &stage["still_failing"]), (&json!(2), &json!(0)));
    assert_eq!(stage["snapshot"]["stages"][1]["task"]["num_tasks"], json!(1));
}

#[test]
fn an_incomplete_batch_of_dead_letters_is_tried_even_with_drop_last() {
    let folder = Folder::new();
    let stages = json!([
        { "aggregate": { "size": 3, "drop_last": true } },
        { "wasm": { "module": "guest", "on_error": "dead_letter" } }
    ]);
    let run = guest_run(&folder, &stages, "guest-batch", &["a", "trap", "b", "c"], 1);
    let path = run.join("dead_letters.ndjson");
    let text = fs::read_to_string(&path).unwrap();
    for (key, still_failing) in [("a", 0), ("trap", 1)] {
        let only: Vec<&str> =
            text.lines().filter(|line| line.contains(&format!(r#""key":"{key}""#))).collect();
        fs::write(&path, only.join("\n")).unwrap();
        let finished = replay(&run).module("guest", "guest-batch").json().finish().exits(0);
        let stage = &report(&finished)["stages"][0];
        assert_eq!((&stage["letters"], &stage["left"]), (&json!(1), &json!(0)));
        assert_eq!(stage["still_failing"], json!(still_failing), "{key}");
        assert_eq!(stage["mended"], json!(1 - still_failing), "{key}");
        assert_eq!(stage["snapshot"]["stages"][1]["task"]["num_tasks"], json!(1));
    }
}

#[test]
fn samples_that_fail_before_the_replayed_stage_do_not_count_for_it() {
    let folder = Folder::new();
    let stages = json!([
        { "aggregate": { "size": 2 } },
        { "collate": { "on_error": "fail" } },
        { "sleep": { "mean_ms": 0, "name": "unlucky", "fail_rate": 1.0, "on_error": "dead_letter" } }
    ]);
    let run = guest_run(&folder, &stages, "guest-batch", &["a", "b", "c", "d"], 1);
    let path = run.join("dead_letters.ndjson");
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 4);
    // The collate of the replay accepts only one of two different samples.
    let mut two = text.lines().take(2);
    let (first, second) = (two.next().unwrap(), two.next().unwrap());
    let second = second.replace(r#""fields":[]"#, r#""fields":[{"name":"y","value":{"int":1}}]"#);
    fs::write(&path, [first, &second].join("\n")).unwrap();
    let finished = replay(&run).json().finish().exits(1);
    let stage = &report(&finished)["stages"][0];
    assert_eq!((&stage["letters"], &stage["still_failing"]), (&json!(2), &json!(1)));
    assert_eq!((&stage["mended"], &stage["left"]), (&json!(0), &json!(1)));
}

#[test]
fn dead_letters_of_a_collate_are_reported_and_not_replayed() {
    let folder = Folder::new();
    folder.write("records.ndjson", "{\"x\": 1}\n{\"x\": 2}\n{}\n");
    let collate = json!({ "mismatch": "skip", "on_error": "dead_letter" });
    let document = folder.document(&json!({
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "aggregate": { "size": 3 } }, { "collate": collate }]
    }));
    let run = folder.join("run");
    Call::run(&document).store("here", folder.path()).out(&run).argument("--quiet").finish().exits(0);
    let finished = replay(&run).finish().exits(1);
    shown().bind(|| {
        insta::assert_snapshot!(finished.stderr, @r"
        1 line of the dead letters cannot be replayed:
          line 1 failed in `2:collate` because it differs from the rest of its batch, and cannot be replayed without the batch; fix a stage before it and run the pipeline again
        ");
        insta::assert_snapshot!(finished.stdout, @"nothing to replay");
    });
}

#[test]
fn dead_letters_of_the_source_are_reported_and_not_replayed() {
    let folder = Folder::new();
    folder.write("records.ndjson", "{\"key\": \"a\", \"x\": 1}\nno record\n{\"key\": \"b\", \"x\": 2}\n");
    let document = folder.document(&json!({
        "source": { "records": { "store": "here", "key": "records.ndjson", "on_damage": "skip" } }
    }));
    let run = folder.join("run");
    Call::run(&document).store("here", folder.path()).out(&run).argument("--quiet").finish().exits(0);
    let finished = replay(&run).finish().exits(1);
    shown().bind(|| {
        insta::assert_snapshot!(finished.stderr, @r"
        1 line of the dead letters cannot be replayed:
          line 1 failed in the source, `0:src`, and cannot be replayed without its object; mend the data, or set `types`, and run the pipeline again
        ");
        insta::assert_snapshot!(finished.stdout, @"nothing to replay");
    });
}

#[test]
fn damaged_lines_are_reported_and_the_rest_is_replayed() {
    let folder = Folder::new();
    let stages = json!([
        { "aggregate": { "size": 2 } },
        { "disaggregate": {} },
        { "wasm": { "module": "guest", "params": { "how": "failed-on-bad" }, "on_error": "dead_letter" } }
    ]);
    let run = guest_run(&folder, &stages, "guest-misbehaving", &["a", "bad", "b", "bad2"], 0);
    let path = run.join("dead_letters.ndjson");
    let text = fs::read_to_string(&path).unwrap();
    let (first, second) = text.trim_end().split_once('\n').unwrap();
    let blob = |data: &str| {
        first.replace(r#""fields":["#, &format!(r#""fields":[{{"name":"b","value":{{"blob":"{data}"}}}},"#))
    };
    let lines = [
        first,
        &blob("AAA"),
        "",
        &first.replace("3:guest", "7:guest"),
        &first.replace("3:guest", "3:other"),
        &first.replace("3:guest", "1:aggregate"),
        &first.replace(r#""path":0"#, &format!(r#""path":{}0{}"#, "[".repeat(100_000), "]".repeat(100_000))),
        &first.replace(r#""path":0"#, r#""path":-1"#),
        "[]",
        "\u{1b}[31m",
        second,
        &first[..first.len() / 2],
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let finished = replay(&run).module("guest", "guest-misbehaving").finish().exits(1);
    let mut settings = shown();
    settings.add_filter(r"column \d{2,}", "column [N]");
    settings.bind(|| insta::assert_snapshot!(finished.stderr));
    assert!(
        finished.stdout.starts_with("[3:guest] 0 of 2 dead letters now pass, 2 still fail\n"),
        "{}",
        finished.stdout
    );
}

#[test]
fn a_line_of_a_gibibyte_is_reported_without_loading_it() {
    let folder = Folder::new();
    let run = fetching(&folder);
    let path = run.join("dead_letters.ndjson");
    let letters = fs::read_to_string(&path).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // A sparse file takes no space on disk.
    file.set_len(letters.len() as u64 + (1 << 30)).unwrap();
    file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(format!("\n{letters}").as_bytes()).unwrap();
    let finished = replay(&run).store("src", &folder.join("src")).finish().exits(1);
    let lines = letters.lines().count();
    assert_eq!(
        finished.stderr,
        format!(
            "1 line of the dead letters cannot be replayed:\n  line {} is longer than 256 MiB\n",
            lines + 1
        )
    );
    assert!(
        finished.stdout.starts_with("[2:fetch] 0 of 8 dead letters now pass, 8 still fail\n"),
        "{}",
        finished.stdout
    );
}

#[test]
fn a_folder_without_dead_letters_has_nothing_to_replay() {
    let folder = Folder::new();
    let document = folder.document(&json!({ "source": { "range": { "count": 3 } } }));
    let run = folder.join("run");
    Call::run(&document).out(&run).argument("--quiet").finish().exits(0);
    let nothing = replay(&run).finish().exits(0);
    let missing = replay(&folder.join("nowhere")).finish().exits(2);
    let failing = Folder::new();
    let taken = replay(&fetching(&failing)).argument("--out").argument(&run).finish().exits(2);
    shown().bind(|| insta::assert_snapshot!([nothing.stdout, missing.stderr, taken.stderr].join("\n")));
}
