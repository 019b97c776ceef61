//! Modules of the program: a document names them without a file or an upload.

use std::fs;

use penstock_tests::{Call, Folder, Serving, module, photos};
use penstock_types::run::RunState;
use serde_json::{Value, json};

/// A pipeline that decodes the photos by a module of the program.
fn document(module: &str) -> Value {
    json!({
        "name": "std", "threads": 2,
        "source": { "list": { "store": "photos", "suffix": ".jpg", "limit": 8 } },
        "stages": [{ "fetch": {} }, { "wasm": { "module": module } }]
    })
}

/// Digest of `std/image`.
fn digest() -> String {
    let inspected = Call::new(&["module", "inspect", "std/image"]).json().finish().exits(0);
    let report: Value = serde_json::from_str(&inspected.stdout).unwrap();
    report["digest"].as_str().unwrap().to_owned()
}

/// Output of `check` for a document that names `module`.
fn refused(named: &str) -> String {
    let folder = Folder::new();
    let path = folder.write("pipeline.json", document(named).to_string());
    let call = Call::check(&path).store("photos", photos()).module("text-filter", "text-filter");
    call.finish().exits(2).stderr
}

#[test]
fn a_document_runs_a_module_of_the_program_by_name_version_and_digest() {
    let (folder, digest) = (Folder::new(), digest());
    for written in ["std/image", "std/image@1", "std/image@latest", &digest] {
        let path = folder.write("pipeline.json", document(written).to_string());
        let run = Call::run(&path).store("photos", photos()).json().finish().exits(0).snapshot();
        assert_eq!((run.state, run.ledger.total.delivered), (RunState::Completed, 8), "{written}");
        assert_eq!(run.modules.values().collect::<Vec<_>>(), [&digest]);
        let checked = Call::check(&path).store("photos", photos()).finish().exits(0).stdout;
        assert!(checked.contains("-> [2:image") || written == digest, "{checked}");
    }
}

#[test]
fn the_longest_text_of_a_stage_grows_with_its_memory() {
    let folder = Folder::new();
    folder.tokenizer();
    let line = json!({ "text": "the quick brown fox ".repeat(30_000) });
    folder.write("long.ndjson", format!("{line}\n"));
    let run = |memory_mib: u32| {
        let stage = json!({ "module": "std/text", "memory_mib": memory_mib, "deadline_ms": 60_000,
            "assets": { "tokenizer": { "store": "texts", "key": "tokenizer.json" } } });
        let document = json!({ "name": "long", "source": { "records": { "store": "texts", "key": "long.ndjson" } },
            "max_failures": { "count": 0 }, "stages": [{ "wasm": stage }] });
        let path = folder.write("pipeline.json", document.to_string());
        Call::run(&path).store("texts", folder.path()).finish()
    };
    run(512).exits(0);
    let refused = run(256).exits(1).stdout;
    assert!(
        refused.contains(
            "has 600000 bytes, more than the limit of 500000; split it first, or raise `memory_mib`"
        ),
        "{refused}"
    );
}

#[test]
fn the_modules_of_the_program_are_listed() {
    let list = Call::new(&["module", "list"]).finish().exits(0).stdout;
    assert!(list.lines().any(|line| line.starts_with("std/image@1") && line.contains(" sample ")), "{list}");
    let listed = Call::new(&["module", "list"]).json().finish().exits(0).stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let image = listed.as_array().unwrap().iter().find(|module| module["name"] == "std/image").unwrap();
    assert_eq!(image["report"]["digest"], digest());
}

#[test]
fn the_code_of_a_module_of_the_program_is_cached() {
    let (folder, cache) = (Folder::new(), Folder::new());
    let path = folder.write("pipeline.json", document("std/image").to_string());
    let check = Call::check(&path).store("photos", photos());
    check.variable("PENSTOCK_CACHE_DIR", cache.path()).finish().exits(0);
    assert!(fs::read_dir(cache.join("compiled")).unwrap().count() > 0);
}

#[test]
fn a_name_that_no_module_of_the_program_has_gets_the_names_that_exist() {
    let near = refused("std/imgae");
    assert!(near.contains("there is no module `std/imgae`: did you mean `std/image`? known: "), "{near}");
    assert!(!near.contains("text-filter") && !near.contains("--module"), "{near}");
    let short = refused("image");
    assert!(
        short.contains("there is no module `image`: did you mean `std/image`? known: `text-filter`"),
        "{short}"
    );
    let version = refused("std/image@7");
    assert!(version.contains("the module `std/image` has no version or alias `7`"), "{version}");
    let malformed = refused("std/a/b");
    assert!(malformed.contains("expected `name`, `name@version-or-alias`, `std/name` or "), "{malformed}");
}

#[test]
fn a_module_of_the_user_cannot_have_a_name_of_the_program() {
    let folder = Folder::new();
    let path = folder.write("pipeline.json", document("std/image").to_string());
    let call = Call::check(&path).store("photos", photos()).module("std/image", "text-filter");
    let refused = call.finish().exits(2).stderr;
    assert!(
        refused.contains("names that start with `std/` belong to the modules of the program"),
        "{refused}"
    );
}

#[test]
fn a_module_of_the_program_is_tried_without_a_file() {
    let call =
        |named: &str| Call::new(&["test-stage", named, "-i"]).argument(photos().join("000/000000.jpg"));
    let report: Value = serde_json::from_str(&call("std/image@1").json().finish().exits(0).stdout).unwrap();
    assert_eq!(report["digest"], digest());
    let refused = call("std/sound").finish().exits(2).stderr;
    assert!(
        refused.contains("the program has no module `std/sound`; its modules: `std/audio`, `std/image`"),
        "{refused}"
    );
}

#[test]
fn a_server_lists_tries_and_runs_modules_of_the_program_and_keeps_them_unchanged() {
    let served = Serving::default().store("photos", photos()).start();
    let listed = served.get("/modules").is(200).json();
    let names: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"std/image") && names.iter().all(|name| name.starts_with("std/")), "{names:?}");
    assert_eq!(served.get("/modules?q=NOTHING").is(200).json()["items"], json!([]));
    let path = "/modules/std%2Fimage/versions/1";
    let version = served.get(path).is(200).json();
    assert_eq!((&version["report"]["digest"], &version["uploaded_at"]), (&json!(digest()), &Value::Null));
    assert!(version["report"]["manifest"]["params"].is_object());

    let run = served.over(&served.submit(&document("std/image")));
    assert_eq!((&run["state"], &run["samples"]), (&json!("completed"), &json!(8)), "{run}");
    assert_eq!(run["modules"], json!(["std/image@1"]));
    assert_eq!(run["snapshot"]["modules"], json!({ "2:image": digest() }));
    assert_eq!(served.get(path).is(200).json()["runs"], 1);
    let tried = json!({ "from": { "store": "photos", "keys": ["000/000000.jpg"] } });
    let tried = served.post(&format!("{path}/try"), &tried).is(200).json();
    assert_eq!(tried["calls"][0]["samples"][0]["outcome"], "kept");

    // The bytes can be downloaded, and uploaded under the name in their manifest.
    let bytes = served.get(&format!("{path}/content")).is(200).bytes;
    assert_eq!(served.upload(&bytes).is(201).json()["report"]["digest"], digest());
    let mut named = fs::read(module("text-filter")).unwrap();
    let places: Vec<usize> = named
        .windows(13)
        .enumerate()
        .filter(|(_, text)| text == b"\"text-filter\"")
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| named[at + 1..at + 12].copy_from_slice(b"std/filters"));
    let refused = served.upload(&named).is(422).json();
    let detail = "the module's manifest has `std/filters` under `name`";
    assert!(refused["detail"].as_str().unwrap().starts_with(detail), "{refused}");
    let deleted = served.ask("DELETE", &format!("/api/v1{path}"), None, &[]).is(409).json();
    assert_eq!(deleted["detail"], "`std/image` is part of the program and cannot be changed");
    let alias = Some(("application/json", &br#"{"version": 1}"#[..]));
    served.ask("PUT", "/api/v1/modules/std%2Fimage/aliases/mine", alias, &[]).is(409);
    let unknown = served.post("/runs", &document("std/imgae")).is(422).json();
    assert!(unknown.to_string().contains("did you mean `std/image`?"), "{unknown}");
}

#[test]
fn pages_of_the_list_of_modules_contain_those_of_the_program_once_and_in_order() {
    let served = Serving::default().start();
    for name in ["text-filter", "mixup", "image"] {
        served.upload(&fs::read(module(name)).unwrap()).is(201);
    }
    let whole = served.get("/modules").is(200).json();
    let whole: Vec<Value> =
        whole["items"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect();
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = served.get(&format!("/modules?limit=1{cursor}")).is(200).json();
        paged.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].clone()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
        assert!(paged.len() <= whole.len());
    }
    assert_eq!(paged, whole);
    assert!(whole.contains(&json!("std/image")) && whole.is_sorted_by_key(|name| name.as_str()));
}
