//! Samples that were kept aside, tried again by another module.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use crate::support::{end_of, guest, open, stores, submit, upload};

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_kept_and_mended_by_a_better_module() {
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
    assert!(!data.join("runs").join(&skips).exists(), "nothing is made that is not needed");
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
    // A module of another name takes its place; this one has nothing against such keys.
    upload(&runs, &guest("guest-carrying")).await;
    let name = runs.modules(Default::default()).await.unwrap().items[0].name.clone();
    let by = BTreeMap::from([("misbehaving".to_owned(), format!("{name}@1"))]);
    let other = runs.replay(&keeps, by).await;
    // Its params are not those of the other one, which is told where the document has them.
    match other {
        Ok(report) => assert_ne!(report.stages[0].ran_in, Some(letters.stages[0].module.clone().unwrap())),
        Err(error) => assert_eq!(error.kind(), "invalid-pipeline", "{error}"),
    }
    assert_eq!(runs.use_now().threads_used, 0, "what a replay used is given back");
    runs.delete(&keeps).await.unwrap();
    assert!(!data.join("runs").join(&keeps).exists());
}
