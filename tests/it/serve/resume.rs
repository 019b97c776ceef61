//! Runs of a server that continue where an earlier run ended.

use std::env;
use std::path::Path;

use penstock_tests::{Folder, Served, Serving, module};
use serde_json::{Value, json};

use super::sleepy;
use crate::files::{BATCHES, SAMPLES, batches, call, objects, prepared, random};

/// Number of kills of a server; `PENSTOCK_TEST_KILLS` overrides it.
const KILLS: u64 = 6;

/// A server whose stores are in the folder.
fn serving(folder: &Folder) -> Serving {
    let stores = json!({
        "here": { "folder": { "root": folder.path() } },
        "out": { "folder": { "root": folder.join("out"), "writable": true } },
    });
    let limits = json!({ "runs": { "max_time": "200ms" } });
    let config = if folder.join("limited").exists() {
        json!({ "stores": stores, "limits": limits })
    } else {
        json!({ "stores": stores })
    };
    let config = folder.write("penstock.json", config.to_string());
    Serving::over(&folder.join("data")).argument("--config").argument(config).argument("--threads=8")
}

fn read(document: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(document).unwrap()).unwrap()
}

fn delivered(book: &Value) -> u64 {
    book["delivered"].as_u64().unwrap_or(0)
}

fn resume(served: &Served, id: &str) -> String {
    let run = served.post(&format!("/runs/{id}/resume"), &json!({})).is(201).json();
    assert_eq!(run["resumes"], id);
    run["id"].as_str().unwrap().to_owned()
}

/// Runs the document of `prepared` to its end; returns the files.
fn undisturbed() -> std::collections::BTreeMap<String, Vec<u8>> {
    let (folder, document) = prepared();
    call(&folder, &document).finish().exits(0);
    objects(&folder.join("out"))
}

#[test]
fn runs_that_ended_early_are_resumed_and_deliver_each_sample_once() {
    let reference = undisturbed();
    for way in ["stopped", "shut down", "failed"] {
        let (folder, document) = prepared();
        let mut document = read(&document);
        document["stages"][0]["sleep"]["mean_ms"] = json!(8);
        if way == "failed" {
            folder.write("limited", "");
        }
        let mut served = serving(&folder).start();
        let first = served.submit(&document);
        if way != "failed" {
            served.until(&first, |run| batches(&objects(&folder.join("out"))) > 3 && run["samples"] != 0);
        }
        match way {
            "stopped" => drop(served.post(&format!("/runs/{first}/stop"), &json!({})).is(200)),
            "shut down" => {
                served.end();
                served = serving(&folder).start();
            }
            _ => {}
        }
        let (mut id, mut sum, mut written) = (first.clone(), 0, 0);
        loop {
            let run = served.over(&id);
            assert_eq!(delivered(&run["snapshot"]["resumed"]), sum, "{way}: {run:#}");
            sum += delivered(&run["snapshot"]["ledger"]["total"]);
            written += run["snapshot"]["files"]["written"].as_u64().unwrap();
            if run["state"] == "completed" {
                assert_eq!((&run["resumable"], id == first), (&json!(false), false), "{way}");
                break;
            }
            assert_eq!(run["resumable"], true, "{way}: {run:#}");
            id = resume(&served, &id);
        }
        assert_eq!((sum, written), (SAMPLES, BATCHES), "{way}");
        assert!(objects(&folder.join("out")) == reference, "{way}");
        let before = served.get(&format!("/runs/{id}")).is(200).json();
        served.ask("DELETE", &format!("/api/v1/runs/{first}"), None, &[]).is(204);
        assert_eq!(served.get(&format!("/runs/{id}")).is(200).json(), before);
    }
}

#[test]
fn a_run_of_a_killed_server_is_resumed_with_the_same_files() {
    let reference = undisturbed();
    let kills: u64 = env::var("PENSTOCK_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (mut seed, mut done, mut resumed) = (7, 0, 0);
    while done < kills {
        let (folder, document) = prepared();
        let document = read(&document);
        let mut last: Option<String> = None;
        let next = |served: &Served, last: Option<&str>| {
            let Some(id) = last else { return served.submit(&document) };
            let run = served.get(&format!("/runs/{id}")).is(200).json();
            match (run["resumable"].as_bool(), run["state"].as_str()) {
                (Some(true), Some("interrupted")) => resume(served, id),
                (_, Some("completed")) => id.to_owned(),
                // Killed before its start.
                _ => {
                    served.post(&format!("/runs/{id}/resume"), &json!({})).is(409);
                    served.submit(&document)
                }
            }
        };
        // Killed twice, each time after another number of batches and some milliseconds.
        for most in [BATCHES / 3, BATCHES] {
            let served = serving(&folder).start();
            let id = next(&served, last.as_deref());
            let after = random(&mut seed) % (most + 1);
            let is_over = || served.get(&format!("/runs/{id}")).json()["ended_at"].is_string();
            while batches(&objects(&folder.join("out"))) < after && !is_over() {
                // The server writes what it has before it answers.
                served.get(&format!("/runs/{id}/errors")).is(200);
            }
            std::thread::sleep(std::time::Duration::from_micros(random(&mut seed) % 30_000));
            served.kill();
            last = Some(id);
            done += 1;
        }
        let served = serving(&folder).start();
        let run = served.over(&next(&served, last.as_deref()));
        assert_eq!(run["state"], "completed", "kill {done}: {run:#}");
        let earlier = delivered(&run["snapshot"]["resumed"]);
        resumed += u64::from(earlier > 0);
        assert_eq!(earlier + delivered(&run["snapshot"]["ledger"]["total"]), SAMPLES, "kill {done}");
        assert!(objects(&folder.join("out")) == reference, "kill {done}: the files differ");
    }
    assert!(resumed > 0, "no run was resumed in its middle");
}

#[test]
fn a_rank_continues_its_own_part() {
    let served = Serving::default().start();
    let mut document = sleepy(1_000, 1.0);
    document["source"]["range"]["shard"] = json!({ "rank": 1, "world": 2 });
    let first = served.submit(&document);
    served.until(&first, |run| run["samples"].as_u64() > Some(20));
    let stopped = served.post(&format!("/runs/{first}/stop"), &json!({})).is(200).json();
    let second = served.over(&resume(&served, &first));
    let books = [&stopped["snapshot"]["ledger"]["total"], &second["snapshot"]["ledger"]["total"]];
    assert_eq!(books.map(delivered).iter().sum::<u64>(), 500);
    assert_eq!(second["state"], "completed");
}

#[test]
fn runs_that_cannot_be_resumed_are_refused_with_a_reason() {
    let served = Serving::default()
        .argument("--threads=1")
        .argument("--module")
        .argument(module("guest-misbehaving"))
        .start();
    let refused = |id: &str, status: u16, reason: &str| {
        let told = served.post(&format!("/runs/{id}/resume"), &json!({})).is(status).json();
        assert!(told["detail"].as_str().unwrap().contains(reason), "{told}");
        told["type"].as_str().unwrap().to_owned()
    };
    refused("unknown", 404, "no run `unknown`");
    let done = served.submit(&sleepy(3, 0.0));
    served.over(&done);
    refused(&done, 409, "it has completed, and nothing is left to do");

    let mut document = sleepy(1_000_000, 1.0);
    document["stages"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "wasm": { "module": "misbehaving", "params": { "how": "many" } } }));
    let active = served.submit(&document);
    served.until(&active, |run| run["state"] == "running");
    let waiting = served.submit(&document);
    refused(&active, 409, "the run has not ended; stop it first");
    refused(&waiting, 409, "the run has not ended; stop it first");
    for id in [&waiting, &active] {
        served.post(&format!("/runs/{id}/stop"), &json!({})).is(200);
    }
    refused(&waiting, 409, "it never started");

    // The name now refers to another version of the module.
    let mut bytes = std::fs::read(module("guest-misbehaving")).unwrap();
    bytes.extend([0, 2, 1, b'n']);
    served.upload(&bytes).is(201);
    assert_eq!(refused(&active, 409, "`/stages/1/wasm/module` differs"), "/problems/run-differs");
    let forced = served.post(&format!("/runs/{active}/resume?force=true"), &json!({})).is(201).json();
    let forced = forced["id"].as_str().unwrap();
    served.post(&format!("/runs/{forced}/stop"), &json!({})).is(200);
    // The forced run began with the new version.
    let again = resume(&served, forced);
    served.post(&format!("/runs/{again}/stop"), &json!({})).is(200);
    for version in [1, 2] {
        served.ask("DELETE", &format!("/api/v1/modules/misbehaving/versions/{version}"), None, &[]).is(204);
    }
    assert_eq!(refused(&again, 422, "1 fault was found"), "/problems/invalid-document");
}
