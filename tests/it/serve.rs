//! The server: use over HTTP, and misuse.

mod api;
mod attack;
mod benching;
mod benchmarks;
mod bounded;
mod client;
mod conformance;
mod connections;
mod events;
mod life;
mod profile;
mod quota;
mod resume;
mod settings;
mod stores;
mod tags;
mod tokens;
mod trouble;

use std::fs;
use std::time::Duration;

use penstock_tests::{Served, Serving, module, photos};
use serde_json::{Value, json};

/// Starts a server with the photos and the module that decodes them.
fn with_photos() -> Served {
    Serving::default().store("photos", photos()).argument("--module").argument(module("image")).start()
}

/// A pipeline of `count` samples with a sleep of `ms` milliseconds each.
fn sleepy(count: u64, ms: f64) -> Value {
    json!({
        "name": "sleepy", "threads": 1,
        "source": { "range": { "count": count } },
        "stages": [{ "sleep": { "mean_ms": ms } }]
    })
}

/// `photos.json` without its slow training step.
fn quick_photos() -> Value {
    let file = penstock_tests::repository().join("examples/pipelines/photos.json");
    let mut document: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    document["consumer"]["simulate"]["step_ms"] = json!(0);
    document["threads"] = json!(2);
    document
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
