//! Tags of runs: set at the submission, changed later, and used to find runs.

use std::sync::Arc;

use penstock_server::{Event, RunQuery, Runs, SerializedEvent, Submission};
use penstock_types::run::RunId;
use penstock_types::tags::Tags;
use serde_json::json;

use crate::support::{Kind, PATIENCE, end_of, event, open, stores, submission, submit};

fn tags(text: &str) -> Tags {
    text.parse().unwrap()
}

async fn tagged(runs: &Runs, wanted: &str) -> Vec<RunId> {
    let query = RunQuery { tags: tags(wanted), ..RunQuery::default() };
    runs.list(query).await.unwrap().items.into_iter().map(|run| run.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_of_a_run_change_while_it_lives_and_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 1_000_000 } }, "stages": [{ "sleep": { "mean_ms": 5 } }] });
    let submission = Submission { tags: tags("a,b"), ..submission(&document) };
    let one = runs.submit(submission).await.unwrap().run.summary;
    assert_eq!(one.tags, tags("a,b"));
    let other = submit(&runs, &document).await.summary.id;
    assert_eq!(&*tagged(&runs, "a").await, std::slice::from_ref(&one.id));
    assert_eq!(tagged(&runs, "").await.len(), 2);

    let mut events = runs.events(&[], None).await.unwrap();
    assert_eq!(runs.set_tags(&one.id, tags("b,c")).await.unwrap(), tags("b,c"));
    let is_told = |(_, serialized): &(u64, Arc<SerializedEvent>)| matches!(event(serialized), Event::Runs(run) if run.id == one.id && run.tags == tags("b,c"));
    let told = async { while !events.next().await.unwrap().iter().any(is_told) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("lists hear of it");
    assert_eq!(runs.detail(&one.id).await.unwrap().summary.tags, tags("b,c"));
    // The writes at the end of the run do not change the tags.
    runs.stop(&one.id).await.unwrap();
    assert_eq!(end_of(&runs, &one.id).await.summary.tags, tags("b,c"));
    runs.set_tags(&other, tags("c")).await.unwrap();
    assert_eq!(tagged(&runs, "c").await, [other.clone(), one.id.clone()]);
    assert_eq!(&*tagged(&runs, "c,b").await, std::slice::from_ref(&one.id));
    assert_eq!(tagged(&runs, "a").await, []);
    drop((runs, events));

    let runs = open(&data, stores(folder.path()));
    assert_eq!(tagged(&runs, "c").await, [other.clone(), one.id.clone()]);
    runs.set_tags(&one.id, Tags::default()).await.unwrap();
    assert_eq!(tagged(&runs, "c").await, [other]);
    assert_eq!(runs.set_tags(&"nowhere".into(), tags("a")).await.unwrap_err().kind(), "not-found");
    // A clone begins without tags.
    assert_eq!(runs.clone_run(&one.id).await.unwrap().summary.tags, Tags::default());
    runs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_a_request_with_its_tags() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({ "threads": 1, "source": { "range": { "count": 1 } } });
    let with = |wanted: &str| Submission {
        tags: tags(wanted),
        idempotency_key: Some("key".to_owned()),
        ..submission(&document)
    };
    let first = runs.submit(with("a")).await.unwrap();
    let again = runs.submit(with("a")).await.unwrap();
    assert_eq!((again.run.summary.id, again.is_new), (first.run.summary.id, false));
    assert_eq!(runs.submit(with("b")).await.unwrap_err().kind(), "key-reused");
    runs.shutdown().await;
}
