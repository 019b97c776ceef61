//! System failures: a clock that jumps, no threads, no files.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use penstock_tests::{Folder, Served, Serving, module, trouble};
use rusqlite::Connection;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use super::{pause, sleepy};

fn troubled(variable: &str, value: &str) -> Serving {
    Serving::default().variable("LD_PRELOAD", trouble().to_str().unwrap()).variable(variable, value)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test observes a server from outside, with a separate clock")]
fn a_clock_that_jumps_by_an_hour_affects_no_times_and_no_deadlines() {
    let served =
        troubled("TROUBLE_CLOCK_S", "3600").argument("--module").argument(module("text-filter")).start();
    let start = Instant::now();
    let run = served.over(&served.submit(&sleepy(150, 10.0)));
    let took_s = start.elapsed().as_secs_f64();
    assert_eq!((&run["state"], &run["samples"]), (&json!("completed"), &json!(150)), "{run:#}");
    let elapsed_s = run["elapsed_s"].as_f64().unwrap();
    assert!((1.5..took_s).contains(&elapsed_s), "{elapsed_s} of {took_s}");
    let series = served.get(&format!("/runs/{}/series", run["id"].as_str().unwrap())).is(200).json();
    let times: Vec<f64> =
        series["t_s"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    // Each time is the end of a window of 0.25 s.
    assert!(times.is_sorted() && times.iter().all(|time| *time <= took_s + 0.25), "{times:?} of {took_s}");
    let tried = json!({ "samples": [{ "key": "a", "text": "b" }], "deadline_ms": 1000, "repeat": 3 });
    let tried = served.post("/modules/text-filter/versions/1/try", &tried).is(200).json();
    assert_ne!(tried["calls"][0]["samples"][0]["outcome"], "failed", "{tried:#}");
}

#[test]
fn a_machine_without_threads_fails_the_run_that_needs_them_and_recovers() {
    let folder = Folder::new();
    let none = folder.join("no-threads");
    let served = troubled("TROUBLE_THREADS", none.to_str().unwrap()).start();
    assert_eq!(served.over(&served.submit(&sleepy(3, 1.0)))["state"], "completed");
    fs::write(&none, "").unwrap();
    let run = served.over(&served.submit(&sleepy(3, 1.0)));
    assert_eq!(run["state"], "failed");
    let error = run["error"].as_str().unwrap();
    assert!(error.starts_with("cannot start a thread for the run"), "{error}");
    served.get("/runs").is(200);
    fs::remove_file(&none).unwrap();
    assert_eq!(served.over(&served.submit(&sleepy(3, 1.0)))["state"], "completed");
}

#[test]
fn bytes_of_an_upload_that_cannot_be_registered_are_not_kept() {
    let served = Serving::default().variable("PENSTOCK_LOG", "off").start();
    let kept = || fs::read_dir(served.data().join("modules/sha256")).unwrap().count();
    let history = Connection::open(served.data().join("penstock.sqlite")).unwrap();
    // Locks the history, so that the server cannot write to it, as on a full disk.
    history.execute_batch("BEGIN IMMEDIATE").unwrap();
    let bytes = fs::read(module("text-filter")).unwrap();
    served.upload(&bytes).is(507);
    assert_eq!(kept(), 0);
    history.execute_batch("ROLLBACK").unwrap();
    served.upload(&bytes).is(201);
    assert_eq!(kept(), 1);
}

/// Limits the open files of a server to `more` above the current number.
fn leave_files(served: &Served, more: u64) {
    let process = served.process();
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
    let limit = Rlimit { current: Some(open + more), maximum: Some(4096) };
    prlimit(Pid::from_raw(i32::try_from(process).unwrap()), Resource::Nofile, limit).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn a_server_out_of_files_reports_it_and_recovers() {
    let served = Serving::default().variable("PENSTOCK_LOG", "off").start();
    let run = served.submit(&sleepy(300, 10.0));
    leave_files(&served, 12);
    let mut idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(served.address()).unwrap()).collect();
    let told = idle.last_mut().unwrap();
    told.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answer = String::new();
    told.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    drop(idle);
    // The server detects closed connections one after the other.
    let start = Instant::now();
    while served.get("/system").status == 503 {
        assert!(start.elapsed() < Duration::from_secs(60));
        pause(50);
    }
    let over = served.over(&run);
    assert_eq!((&over["state"], &over["samples"]), (&json!("completed"), &json!(300)));
}
