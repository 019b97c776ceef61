//! Start, end and crashes of a server.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::{env, fs, thread};

use penstock_tests::{Call, Folder, Served, Serving, module};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{pause, quick_photos, sleepy};

#[test]
fn runs_of_a_killed_server_become_interrupted_and_the_rest_is_kept() {
    let folder = Folder::new();
    let data = folder.join("data");
    let serving = || Serving::over(&data).store("photos", penstock_tests::photos()).argument("--threads=2");
    let served = serving().argument("--module").argument(module("image")).start();
    let done = served.submit(&quick_photos());
    let before = served.over(&done);
    let alive = served.submit(&{
        let mut document = sleepy(1_000_000, 1.0);
        document["threads"] = json!(2);
        document
    });
    let queued = served.submit(&sleepy(1, 0.0));
    served.until(&alive, |run| run["samples"].as_u64().is_some_and(|samples| samples > 100));
    pause(500);
    served.kill();

    let served = serving().start();
    for id in [&alive, &queued] {
        assert_eq!(served.get(&format!("/runs/{id}")).is(200).json()["state"], "interrupted");
    }
    assert_eq!(served.get(&format!("/runs/{done}")).is(200).json(), before);
    let series = served.get(&format!("/runs/{done}/series")).is(200).json();
    assert!(!series["t_s"].as_array().unwrap().is_empty());
    // The module is still stored and compiled.
    let again = served.post(&format!("/runs/{done}/clone"), &json!({})).is(201).json();
    let again = served.over(again["id"].as_str().unwrap());
    assert_eq!((&again["state"], &again["cloned_from"]), (&json!("completed"), &json!(done)));
}

#[test]
fn a_server_that_is_asked_to_end_stops_its_runs_and_reports_it() {
    let folder = Folder::new();
    let data = folder.join("data");
    let served = Serving::over(&data).start();
    let alive = served.submit(&sleepy(1_000_000, 1.0));
    served.until(&alive, |run| run["state"] == "running");
    let (_, code) = served.end();
    assert_eq!(code, Some(0));
    let served = Serving::over(&data).start();
    let run = served.get(&format!("/runs/{alive}")).is(200).json();
    assert_eq!(run["state"], "stopped");
    assert_eq!(run["snapshot"]["ledger"]["balanced"], true);
}

#[test]
fn a_server_that_still_loads_modules_ends_at_a_signal() {
    let folder = Folder::new();
    let (data, pipe) = (folder.join("data"), folder.join("module"));
    // A pipe without a writer: the read never ends.
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let call = Call::new(&["serve", "--listen=127.0.0.1:0"]);
    let call = call.argument("--data-dir").argument(&data).argument("--module").argument(&pipe);
    let server = call.start();
    // The server handles signals before it opens this file.
    while !data.join("penstock.sqlite").is_file() {
        pause(10);
    }
    kill_process(Pid::from_child(&server), Signal::INT).unwrap();
    call.finished(server).exits(0);
}

#[test]
fn two_servers_do_not_share_their_data() {
    let folder = Folder::new();
    let data = folder.join("data");
    let _served = Serving::over(&data).start();
    let second = Call::new(&["serve", "--listen=127.0.0.1:0", "--data-dir"]).argument(&data);
    let told = second.finish().exits(1).stderr;
    assert!(told.contains("another server") && !told.contains("memory_mib"), "{told}");
    // A budget that leaves no room for documents and answers is told first.
    let told = second.argument("--memory-mib=4294967295").finish().exits(1).stderr;
    let beside = "runs may take 4294967295 MiB (`memory_mib`), and documents, answers and the server itself 576 MiB more, but the system allows ";
    assert!(told.starts_with(beside) && told.contains("another server"), "{told}");
}

/// Number of kills of a server; `PENSTOCK_TEST_KILLS` overrides it.
const KILLS: u64 = 6;

#[test]
fn acknowledged_changes_survive_a_kill_at_any_moment() {
    let folder = Folder::new();
    let data = folder.join("data");
    let module = fs::read(module("mu-law")).unwrap();
    let kills: u64 = env::var("PENSTOCK_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut runs: Vec<String> = Vec::new();
    let mut modules: Vec<(u64, Vec<u8>)> = Vec::new();
    for kill in 0..kills {
        let served = Serving::over(&data).argument("--threads=64").start();
        let (more_runs, more_modules) = acknowledged_until_killed(served, kill, &module);
        runs.extend(more_runs);
        modules.extend(more_modules);

        let store = Folder::new();
        store.write("a.wav", "");
        let served = Serving::over(&data).store("here", store.path()).start();
        for id in &runs {
            let run = served.get(&format!("/runs/{id}")).is(200).json();
            let state = run["state"].as_str().unwrap();
            assert!(["completed", "interrupted"].contains(&state), "kill {kill}: {state}");
            if state == "completed" {
                assert_eq!(
                    (&run["samples"], &run["snapshot"]["ledger"]["balanced"]),
                    (&json!(30), &json!(true))
                );
            }
        }
        for (version, bytes) in &modules {
            let kept = served.get(&format!("/modules/mu-law/versions/{version}/content")).is(200);
            assert!(kept.bytes == *bytes, "kill {kill}: version {version} is torn");
        }
        // The stored modules work: the newest one runs.
        if !modules.is_empty() {
            let source = json!({ "list": { "store": "here" } });
            let plan =
                json!({ "source": source, "stages": [{ "fetch": {} }, { "wasm": { "module": "mu-law" } }] });
            let run = served.over(&served.submit(&plan));
            let newest: u64 =
                run["modules"][0].as_str().unwrap().strip_prefix("mu-law@").unwrap().parse().unwrap();
            assert!(modules.iter().all(|(version, _)| *version <= newest), "{newest}");
            assert!(run["snapshot"]["ledger"]["balanced"] == true, "kill {kill}: {run:#}");
        }
        served.kill();
    }
    // In every other round, at least one run was acknowledged.
    assert!(runs.len() as u64 >= kills.div_ceil(2) && !modules.is_empty(), "{} runs", runs.len());
}

/// Submits and uploads as fast as possible until the server is killed, at another moment each time; returns what was
/// acknowledged.
fn acknowledged_until_killed(served: Served, kill: u64, module: &[u8]) -> (Vec<String>, Vec<(u64, Vec<u8>)>) {
    let mut document = sleepy(30, 1.0);
    document["threads"] = json!(1);
    let (runs, modules) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| {
            let text = document.to_string();
            let content = Some(("application/json", text.as_bytes()));
            while let Some(answer) = served.try_ask("POST", "/api/v1/runs", content, &[]) {
                if answer.status == 201 {
                    runs.lock().unwrap().push(answer.json()["id"].as_str().unwrap().to_owned());
                }
            }
        });
        scope.spawn(|| {
            for number in 0_u32.. {
                let mut bytes = module.to_vec();
                // Appends a custom section, which makes each upload a different module.
                bytes.extend([0, 10, 1, b'n']);
                bytes.extend(format!("{kill:04}{number:04}").bytes());
                let content = Some(("application/wasm", &*bytes));
                let Some(answer) = served.try_ask("POST", "/api/v1/modules", content, &[]) else { break };
                if answer.status == 201 {
                    modules.lock().unwrap().push((answer.json()["version"].as_u64().unwrap(), bytes));
                }
            }
        });
        if kill.is_multiple_of(2) {
            // In every other round, waits for at least one acknowledgement, however busy the machine is.
            while runs.lock().unwrap().is_empty() || modules.lock().unwrap().is_empty() {
                pause(5);
            }
        }
        pause(kill * 613 % 1500);
        served.strike();
    });
    (runs.into_inner().unwrap(), modules.into_inner().unwrap())
}

#[test]
fn planted_secrets_are_never_printed() {
    let folder = Folder::new();
    let secret = "CanaryOfTheSecretKey";
    folder.write(
        "keys",
        format!("[default]\naws_access_key_id = CanaryOfTheKeyId\naws_secret_access_key = {secret}\n"),
    );
    let config = folder.write(
        "penstock.json",
        json!({ "stores": { "bucket": { "s3": {
            "bucket": "b", "endpoint": "http://127.0.0.1:9", "region": "us-east-1", "credentials_file": "keys"
        } } } })
        .to_string(),
    );
    let served =
        Serving::default().argument("--config").argument(&config).variable("PENSTOCK_LOG", "off").start();
    let run = served.submit(&json!({
        "source": { "range": { "count": 1 } }, "stages": [{ "fetch": { "store": "bucket" } }]
    }));
    let detail = served.over(&run);
    let mut shown = vec![detail.to_string()];
    for path in [
        "/stores",
        "/system",
        "/runs",
        &format!("/runs/{run}/errors"),
        &format!("/runs/{run}/spec"),
        "/stores/bucket/keys",
    ] {
        shown.push(served.get(path).text());
    }
    shown.push(served.ask("GET", "/metrics", None, &[]).text());
    for text in shown {
        assert!(!text.contains("Canary") && !text.contains("127.0.0.1:9"), "{text}");
    }
}

#[test]
fn a_server_and_its_children_cannot_gain_privileges() {
    let served = Serving::default().start();
    let tasks = fs::read_dir(format!("/proc/{}/task", served.process())).unwrap();
    for task in tasks {
        // The thread may have ended.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"), "{status}");
    }
}

#[test]
fn files_in_an_accessible_data_directory_are_private() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    Serving::over(folder.path()).start().kill();
    let opened = |entry: &fs::DirEntry| entry.metadata().unwrap().permissions().mode() & 0o077 > 0;
    let make_open = |entry: fs::DirEntry| {
        let mode = if entry.path().is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(entry.path(), Permissions::from_mode(mode)).unwrap();
    };
    fs::read_dir(folder.path()).unwrap().for_each(|entry| make_open(entry.unwrap()));
    let served = Serving::over(folder.path()).start();
    let names: Vec<_> = fs::read_dir(served.data())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| opened(entry))
        .map(|entry| entry.file_name())
        .collect();
    assert!(names.is_empty(), "{names:?}");
}
