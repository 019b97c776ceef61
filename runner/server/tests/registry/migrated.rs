//! A data folder that an earlier version wrote.

use std::fs;

use penstock_server::{ErrorQuery, LogQuery, SeriesQuery, WindowQuery};
use penstock_types::series::Metric;
use serde::Serialize;
use serde_json::Value;

use crate::support::{open, stores};

/// Whether `now` says all that `then` said; it may say more.
fn holds(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(key, then)| now.get(key).is_some_and(|now| holds(now, then)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| holds(now, then))
        }
        // Shares may be computed in another order.
        (Value::Number(now), Value::Number(then)) => {
            let (now, then) = (now.as_f64().unwrap(), then.as_f64().unwrap());
            (now - then).abs() <= 1e-9 * then.abs()
        }
        (now, then) => now == then,
    }
}

fn check(now: &impl Serialize, then: &Value) {
    let now = serde_json::to_value(now).unwrap();
    assert!(holds(&now, then), "{now}\n{then}");
}

/// `schema-2.sqlite` and `schema-2.json` are of a server that wrote schema 2: see `make-schema-2.sh` beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_schema_2_opens_and_tells_what_its_own_server_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("penstock.sqlite"), include_bytes!("../data/schema-2.sqlite")).unwrap();
    let told: Vec<Value> = serde_json::from_slice(include_bytes!("../data/schema-2.json")).unwrap();
    assert_eq!(told.len(), 3);
    // The second time it is migrated already.
    for _ in 0..2 {
        let runs = open(&data, stores(folder.path()));
        for told in &told {
            let id = told["id"].as_str().unwrap();
            let coarse = SeriesQuery { points: Some(8), ..SeriesQuery::default() };
            check(&runs.series(id, coarse).await.unwrap(), &told["series"]);
            let metrics = vec![Metric::Readiness, Metric::Busy];
            let fine = SeriesQuery { points: Some(600), metrics, ..SeriesQuery::default() };
            let mut fine = runs.series(id, fine).await.unwrap();
            fine.columns.truncate(2);
            check(&fine, &told["fine"]);
            let windows = WindowQuery { every_s: Some(20.0), ..WindowQuery::default() };
            let windows = runs.windows(id, windows).await.unwrap();
            check(&windows, &told["windows"]["items"]);
            check(&runs.times(id, &windows[0].stages[0].id).await.unwrap(), &told["times"]);
            let errors = ErrorQuery { limit: Some(3), ..ErrorQuery::default() };
            check(&runs.errors(id, errors).await.unwrap().items, &told["errors"]);
            let logs = LogQuery { limit: Some(3), ..LogQuery::default() };
            check(&runs.logs(id, logs).await.unwrap().items, &told["logs"]);
        }
        runs.shutdown().await;
    }
}
