//! Runs that are ended before they have processed all of their data.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_tests::{Call, Folder, repository};
use penstock_types::run::RunState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Maximum time between Ctrl-C and the end of the process, in seconds.
const STOP_S: f64 = 3.0;

/// Starts a run and waits until it is in progress.
fn going(call: &Call, folder: &Folder) -> Child {
    has_begun(call.start(), folder)
}

/// Waits until the first window of a run is written to `--out`.
fn has_begun(mut child: Child, folder: &Folder) -> Child {
    let windows = folder.join("out/windows.ndjson");
    while std::fs::metadata(&windows).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before its first window");
        sleep(Duration::from_millis(5));
    }
    child
}

/// Starts a call through a program that changes signal settings and then replaces itself by the call, which inherits the
/// settings.
fn started_by(program: &str, arguments: &[&str], call: &Call) -> Child {
    let (command, mut starter) = (call.command(), Command::new(program));
    starter.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

fn toy() -> PathBuf {
    repository().join("examples/pipelines/toy-slow-loading.json")
}

#[test]
fn ctrl_c_stops_a_run_soon_and_still_prints_its_snapshot() {
    let folder = Folder::new();
    let call = Call::run(&toy()).set("/interval_s=0.1").set("/source/range/count=100000").json();
    let call = call.out(&folder.join("out"));
    let child = going(&call, &folder);
    let clock = MonotonicClock::start();
    interrupt(&child);
    let finished = call.finished(child).exits(130);
    assert!((clock.now().nanos() as f64) < STOP_S * 1e9);
    let snapshot = finished.snapshot();
    assert_eq!(snapshot.state, RunState::Stopped);
    assert!(snapshot.ledger.total.left > 0, "{:?}", snapshot.ledger.total);
    let printed: penstock_types::run::RunSnapshot = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, snapshot);
}

#[test]
fn ctrl_c_interrupts_a_guest_that_would_loop_for_a_minute() {
    let folder = Folder::new();
    folder.records(["a", "bad", "c"]);
    let document = folder.document(&json!({
        "threads": 1, "interval_s": 0.1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "wasm": { "module": "guest", "params": { "how": "loop" }, "deadline_ms": 60000 } }]
    }));
    let call = Call::run(&document).store("here", folder.path()).module("guest", "guest-misbehaving").json();
    let call = call.out(&folder.join("out"));
    let child = going(&call, &folder);
    let clock = MonotonicClock::start();
    interrupt(&child);
    let snapshot = call.finished(child).exits(130).snapshot();
    assert!((clock.now().nanos() as f64) < STOP_S * 1e9);
    assert!(snapshot.failures.is_empty(), "a stop causes no failures: {:?}", snapshot.failures);
    assert_eq!(snapshot.ledger.total.left, snapshot.ledger.total.made);
}

#[test]
fn sigterm_and_sighup_stop_a_run_like_ctrl_c_and_a_duplicate_signal_is_ignored() {
    for signal in [Signal::TERM, Signal::HUP] {
        let folder = Folder::new();
        let call = Call::run(&toy()).set("/interval_s=0.1").set("/source/range/count=100000").json();
        let call = call.out(&folder.join("out"));
        // The tests may run without a terminal, with SIGHUP ignored.
        let child = has_begun(started_by("env", &["--default-signal=HUP"], &call), &folder);
        for _duplicate in 0..2 {
            kill_process(Pid::from_child(&child), signal).unwrap();
            sleep(Duration::from_millis(2));
        }
        let finished = call.finished(child).exits(130);
        let printed: penstock_types::run::RunSnapshot = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!((printed.state, &printed), (RunState::Stopped, &finished.snapshot()));
    }
}

#[test]
fn a_run_started_to_ignore_sighup_outlives_its_terminal() {
    let folder = Folder::new();
    let call = Call::run(&toy()).set("/interval_s=0.1").set("/source/range/count=20").json();
    let call = call.out(&folder.join("out"));
    let ignoring = ["-c", r#"trap "" HUP; exec "$0" "$@""#];
    let child = has_begun(started_by("sh", &ignoring, &call), &folder);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let snapshot = call.finished(child).exits(0).snapshot();
    assert_eq!((snapshot.state, snapshot.ledger.total.delivered), (RunState::Completed, 20));
}

#[test]
fn a_run_with_a_time_limit_ends_as_completed() {
    let call = Call::run(&toy()).set("/source/range/count=100000").argument("--for=500ms").json();
    let snapshot = call.finish().exits(0).snapshot();
    assert_eq!(snapshot.state, RunState::Completed);
    assert!((0.5..3.5).contains(&snapshot.elapsed_s), "{}", snapshot.elapsed_s);
    assert!((1..100).contains(&snapshot.ledger.total.delivered), "{:?}", snapshot.ledger.total);
}

#[test]
fn an_endless_run_ends_at_its_time_limit() {
    let folder = Folder::new();
    let document = folder.document(&json!({
        "source": { "range": { "count": 10, "epochs": null } },
        "stages": [{ "sleep": { "mean_ms": 1 } }]
    }));
    let snapshot = Call::run(&document).argument("--for=300ms").json().finish().exits(0).snapshot();
    assert!(snapshot.ledger.total.delivered > 10, "{:?}", snapshot.ledger.total);
}

#[test]
fn a_long_run_prints_its_progress_on_standard_error() {
    let call = Call::run(&toy()).set("/source/range/count=100000").argument("--for=20s").json();
    let mut child = call.start();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    interrupt(&child);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(call.finished(child).code, Some(130));
    assert!(
        line.starts_with("toy-slow-loading running: ") && line.contains(" samples delivered, "),
        "{line}"
    );
}
