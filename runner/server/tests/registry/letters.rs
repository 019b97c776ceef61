//! Dead letters of runs, replayed with the same and with another module.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use crate::support::{Kind, end_of, guest, open, stores, submit, upload};

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_stored_and_replayed_with_a_better_module() {
    let folder = tempfile::tempdir().unwrap();
    let lines = ["fine", "bad", "good", "bad2"].map(|key| format!("{{\"key\": \"{key}\", \"n\": 1}}"));
    fs::write(folder.path().join("in.ndjson"), lines.join("\n")).unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    upload(&runs, &guest("guest-misbehaving")).await;
    let document = |on_error: &str| {
        json!({
            "threads": 1, "source": { "records": { "store": "in", "key": "in.ndjson" } },
            "stages": [{ "wasm": {
                "module": "misbehaving", "params": { "how": "failed-on-bad" }, "on_error": on_error
            } }]
        })
    };
    let skips = submit(&runs, &document("skip")).await.summary.id;
    let run = end_of(&runs, &skips).await;
    assert_eq!(run.summary.failed_samples, 2);
    assert!(!data.join("runs").join(&*skips).exists(), "no folder is created without dead letters");
    let errors = runs.errors(&skips, Default::default()).await.unwrap().items;
    let payload = errors[0].payload.as_ref().unwrap();
    assert_eq!((payload[0].kind.as_str(), payload[0].head.as_str(), payload[0].size_bytes), ("int", "1", 8));
    assert_eq!(runs.replay(&skips, BTreeMap::new()).await.unwrap_err().kind(), "conflict");

    let keeps = submit(&runs, &document("dead_letter")).await.summary.id;
    end_of(&runs, &keeps).await;
    let letters = runs.dead_letters(&keeps).await.unwrap();
    assert_eq!((letters.stages[0].stage.as_str(), letters.stages[0].letters), ("1:misbehaving", 2));
    let same = runs.replay(&keeps, BTreeMap::new()).await.unwrap();
    assert_eq!((same.stages[0].mended, same.stages[0].still_failing), (0, 2));
    // The replacement module has another name. It takes no params, so the fault points to the params in the document.
    upload(&runs, &guest("guest-carrying")).await;
    let by = |module: &str| BTreeMap::from([("misbehaving".to_owned(), module.to_owned())]);
    let error = runs.replay(&keeps, by("carrying@1")).await.unwrap_err();
    let penstock_server::RunsError::Invalid(faults) = error else { panic!("{error:?}") };
    assert_eq!(faults[0].to_string(), "/stages/0/wasm/params: the module `misbehaving` takes no parameters");
    assert_eq!(runs.replay(&keeps, by("carrying@7")).await.unwrap_err().kind(), "not-found");
    assert_eq!(runs.use_now().threads_used, 0, "the budget of a replay is given back");
    runs.delete(&keeps).await.unwrap();
    assert!(!data.join("runs").join(&*keeps).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_succeeds_once_missing_objects_exist() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.ndjson"), "{\"key\": \"late\"}\n{\"key\": \"in.ndjson\"}\n").unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "records": { "store": "in", "key": "in.ndjson" } },
        "stages": [{ "fetch": { "store": "in", "on_error": "dead_letter" } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    assert_eq!(end_of(&runs, &id).await.summary.failed_samples, 1);
    fs::write(folder.path().join("late"), "now").unwrap();
    let report = runs.replay(&id, BTreeMap::new()).await.unwrap();
    assert_eq!((report.stages[0].mended, report.stages[0].still_failing), (1, 0));
}
