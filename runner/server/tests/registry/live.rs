//! Live events of runs.

use std::collections::BTreeSet;
use std::fs;

use penstock_server::{Event, LogQuery, RunQuery, SerializedEvent, SeriesQuery, parse_event_id};
use penstock_types::run::RunState;
use serde_json::json;

use crate::support::{Kind, PATIENCE, end_of, event, guest, open, stores, submit, until, upload};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_from_its_start_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> =
        (0..60).map(|number| format!("{{\"key\": \"k{number}\", \"text\": \"t\"}}")).collect();
    fs::write(folder.path().join("in.ndjson"), lines.join("\n")).unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    upload(&runs, &guest("guest-misbehaving")).await;
    let document = json!({
        "name": "live", "threads": 1, "source": { "records": { "store": "in", "key": "in.ndjson" } },
        "stages": [
            { "sleep": { "mean_ms": 20 } },
            { "wasm": { "module": "misbehaving@1", "params": { "how": "log" } } }
        ]
    });
    let mut lists = runs.events(&[], None).await.unwrap();
    let run = submit(&runs, &document).await;
    let id = run.summary.id.clone();
    assert_eq!(run.summary.modules, ["misbehaving@1"]);
    let mut events = runs.events(std::slice::from_ref(&id), Some(0)).await.unwrap();
    let mut samples = Vec::new();
    let mut logs = Vec::new();
    let follow = async {
        loop {
            for (_, serialized) in events.next().await.unwrap() {
                match event(&serialized) {
                    Event::Sample(sample) => samples.push(sample),
                    Event::Log(log) => logs.push(log.entry),
                    Event::End(summary) => return summary,
                    Event::Gap(_) => panic!("no event may be lost"),
                    Event::State(_) | Event::Runs(_) => {}
                }
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, follow).await.unwrap();
    assert_eq!((end.state, end.samples), (RunState::Completed, Some(60)));
    // The end is sent after the run has been stored.
    assert_eq!(runs.detail(&id).await.unwrap().summary, end);
    assert!(samples.len() >= 4, "{} samples in {:?} s", samples.len(), end.elapsed_s);
    assert!(samples.is_sorted_by(|one, next| one.t1_s <= next.t0_s));
    assert_eq!(samples.last().unwrap().samples, 60);
    assert!(samples.iter().all(|sample| sample.values.len() == 2 + 4 && sample.occupancy.len() == 4));
    assert!(logs.len() >= 50, "lines logged before the first read are in the history");
    let kept = runs.logs(&id, LogQuery { limit: Some(200), ..LogQuery::default() }).await.unwrap().items;
    assert_eq!(kept.len(), 60);
    assert!(
        kept.iter()
            .all(|line| line.message == "two\\nlines and \\u{1b}[31mred" && line.stage == "2:misbehaving")
    );
    assert!(kept.iter().all(|line| line.at_s > 0.0 && line.at_s <= end.elapsed_s.unwrap()));
    assert!(kept.ends_with(&logs));

    // Readers of lists get every state of the run, although they do not watch it.
    let mut states = Vec::new();
    while states.last() != Some(&RunState::Completed) {
        for (_, serialized) in tokio::time::timeout(PATIENCE, lists.next()).await.unwrap().unwrap() {
            match event(&serialized) {
                Event::Runs(summary) => states.push(summary.state),
                other => panic!("{other:?}"),
            }
        }
    }
    states.dedup();
    assert!(states.contains(&RunState::Running) && states.is_sorted(), "{states:?}");

    // A reader that resumes after an event gets the later events again; if the run has ended, the reader gets its end.
    let series = runs.series(&id, SeriesQuery::default()).await.unwrap();
    let (epoch, last) = parse_event_id(&series.last).unwrap();
    assert_eq!(epoch, runs.epoch());
    let mut late = runs.events(std::slice::from_ref(&id), Some(last)).await.unwrap();
    let first = tokio::time::timeout(PATIENCE, late.next()).await.unwrap().unwrap();
    assert_eq!(*first[0].1, SerializedEvent::from(&Event::End(end)));
    let mut again = runs.events(std::slice::from_ref(&id), Some(0)).await.unwrap();
    let mut seen = 0;
    while seen < samples.len() {
        let events = tokio::time::timeout(PATIENCE, again.next()).await.unwrap().unwrap();
        seen += events.iter().filter(|(_, event)| event.name == "sample").count();
    }
    assert_eq!(runs.events(&["nothing".into()], None).await.unwrap_err().kind(), "not-found");
    runs.shutdown().await;
    while let Some(events) = again.next().await {
        assert!(!events.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn series_of_a_live_run_are_as_new_as_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "range": { "count": 1_000_000 } }, "stages": [{ "sleep": { "mean_ms": 5 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    let mut events = runs.events(std::slice::from_ref(&id), None).await.unwrap();
    let mut seen = 0.0;
    while seen < 1.5 {
        for (_, serialized) in tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap() {
            if let Event::Sample(sample) = event(&serialized) {
                seen = sample.t1_s;
            }
        }
    }
    let series = runs.series(&id, SeriesQuery::default()).await.unwrap();
    // The series covers the last sample, although readings are taken slightly late.
    assert!(series.to_s >= 1.5 && series.t_s.len() >= 6, "{} s, {} buckets", series.to_s, series.t_s.len());
    let tasks = series.columns.iter().find(|column| column.id == "1:sleep").unwrap();
    assert!(tasks.mean.iter().all(Option::is_some), "{:?}", tasks.mean);
    runs.stop(&id).await.unwrap();
    end_of(&runs, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_make_the_figures_of_a_live_run_once_for_each_pulse() {
    const LISTS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let document = json!({
        "threads": 1, "source": { "range": { "count": 10_000_000 } }, "stages": [{ "sleep": { "mean_ms": 1 } }]
    });
    let id = submit(&runs, &document).await.summary.id;
    until(&runs, &id, |run| run.summary.elapsed_s.is_some()).await;
    let listed =
        async || runs.list(RunQuery::default()).await.unwrap().items.remove(0).elapsed_s.unwrap().to_bits();
    let mut made = BTreeSet::new();
    for _ in 0..LISTS {
        made.insert(listed().await);
    }
    assert!(made.len() <= LISTS / 2, "{} of {LISTS} lists had figures of their own", made.len());
    let next = async { while made.contains(&listed().await) {} };
    tokio::time::timeout(PATIENCE, next).await.expect("a pulse brings new figures");
}
