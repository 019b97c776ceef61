//! A steady load on one server, and its effect on resource usage.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::clients::Client;
use crate::documents::Document;
use crate::machine::{Facts, tell};
use crate::round::{Action, Body};
use crate::slope::Series;
use crate::world::World;

/// Number of runs that the server keeps: its history grows until it has this many.
const KEPT: u32 = 60;
/// Number of clients, and the time that each takes for an action.
const CLIENTS: usize = 3;
const PACE: Duration = Duration::from_millis(300);
/// Share of the time, at the start, that is not evaluated: caches, pools and the history still fill.
const WARM_UP: f64 = 0.15;

/// Loads a server for this time, prints its resource usage as charts, and fails if it grows.
pub(crate) fn soak(time: Duration) {
    let mut world = World::new(1, false, KEPT);
    world.start();
    let (scene, over) = (&world.scene(&[]), &AtomicBool::new(false));
    fill_audit_log(scene.served.data());
    let mut series = scope(|threads| {
        for number in 0..CLIENTS {
            threads.spawn(move || load(Client::new(scene, format!("c{number}")), over));
        }
        let series = watch(scene.served.process(), scene.served.data(), time);
        over.store(true, Ordering::Release);
        series
    });
    for series in &mut series {
        series.values.drain(..(series.values.len() as f64 * WARM_UP) as usize);
        tell(&series.picture());
    }
    let growing: Vec<&str> =
        series.iter().filter(|series| series.grows()).map(|series| series.name).collect();
    assert!(growing.is_empty(), "found that {growing:?} grow under a steady load");
    assert_eq!(*scene.found.lock().unwrap(), [""; 0]);
    let answers = scene.answers.lock().unwrap();
    tell(&format!("answers by status: {answers:?}"));
    let (made, refused) = (answers.get(&201).unwrap_or(&0), answers.get(&422).unwrap_or(&0));
    // A client repeats a round of actions that creates four objects, and in which one prediction may be refused because the run
    // is too short. The last round of each client may be incomplete.
    let rounds = *made / 4 + CLIENTS as u64;
    assert!(
        *made > 10 * u64::from(KEPT) && *refused <= rounds,
        "found {made} things made and {refused} refused, expected more of the first: increase TIME"
    );
}

/// Writes more entries than an audit log keeps, so that it does not grow during the test: requests would need most of a day to
/// fill it.
fn fill_audit_log(data: &Path) {
    let history = Connection::open(data.join("penstock.sqlite")).unwrap();
    let entries = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100001) \
        INSERT INTO audit (at, token, address, action, target, status) \
        SELECT '2026-01-01T00:00:00Z', 'anyone', '127.0.0.1', 'submit_run', \
        'runs -> runs/00000000-0000-0000-0000-000000000000', 201 FROM numbers";
    history.execute_batch(entries).unwrap();
}

/// Samples the server's process and its history a hundred times per block.
#[expect(clippy::disallowed_methods, reason = "it runs for a set time")]
fn watch(process: u32, data: &Path, time: Duration) -> Vec<Series> {
    let series = |name, unit, tolerance| Series { name, unit, tolerance, values: Vec::new() };
    let mut all = vec![
        series("memory", "MiB", 4.0),
        series("shared memory", "MiB", 1.0),
        series("threads", "number", 1.0),
        series("files", "number", 1.0),
        series("history", "MiB", 2.0),
    ];
    let (start, every) = (Instant::now(), (time / 6_000).max(Duration::from_millis(100)));
    while start.elapsed() < time {
        sleep(every);
        let Facts { rss_kib, shared_kib, threads, files, .. } = Facts::of(process).expect("the server lives");
        let history = ["penstock.sqlite", "penstock.sqlite-wal"].map(|name| fs::metadata(data.join(name)));
        let history: u64 = history.into_iter().flatten().map(|file| file.len() >> 10).sum();
        let mib = |kib: u64| kib as f64 / 1024.0;
        let values = [mib(rss_kib), mib(shared_kib), threads as f64, files as f64, mib(history)];
        all.iter_mut().zip(values).for_each(|(series, value)| series.values.push(value));
    }
    all
}

/// Repeats the same actions, at a pace that does not depend on the server.
#[expect(clippy::disallowed_methods, reason = "the load is steady")]
fn load(mut client: Client<'_>, over: &AtomicBool) {
    let document = |stages: Value, consumer: Value| {
        let source = json!({ "records": { "store": "here", "key": "records.ndjson" } });
        Document(json!({
            "name": "soak", "threads": 1, "buffer_mib": 16, "source": source, "stages": stages, "consumer": consumer
        }))
    };
    let batches =
        json!([{ "wasm": { "module": "carrying" } }, { "aggregate": { "size": 100 } }, { "collate": {} }]);
    let failing = json!([{ "wasm": { "module": "misbehaving", "params": { "how": "panic-on-bad" } } }]);
    let submit = |stages| Action::Submit {
        document: document(stages, json!({ "discard": {} })),
        for_s: None,
        is_keyed: true,
    };
    let ask =
        |method, path, body: &str| Action::Ask { method, path, body: Body(body.to_owned()), allowed: &[200] };
    let actions = [
        submit(batches.clone()),
        Action::Wait,
        Action::Run("predict"),
        submit(failing),
        Action::Wait,
        Action::Stream(document(batches, json!({ "stream": { "wait_s": 1 } })), 3),
        ask("GET", "/runs?limit=200", ""),
        ask("POST", "/modules/text-filter/versions/1/try", r#"{"samples":[{"key":"a","text":"b"}]}"#),
        Action::Report(1),
        Action::Delete("/benchmarks"),
    ];
    let start = Instant::now();
    for (action, number) in actions.iter().cycle().zip(1..) {
        if over.load(Ordering::Acquire) {
            return;
        }
        client.act(action);
        sleep((PACE * number).saturating_sub(start.elapsed()));
    }
}
