//! Limits on the documents and checks of one client, which leave memory and time for other clients.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use penstock_fuzz::{Encoding, core};
use penstock_tests::{Served, Serving, module};
use serde_json::{Value, json};

use super::pause;

/// Maximum time for any step on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum memory of a server that reads documents: its budget for them, its own memory, and the allocator's reserve.
const MOST_MIB: u64 = 640;

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Head of a request with a JSON document of this many bytes.
pub(super) fn head(path: &str, bytes: usize) -> String {
    format!(
        "POST /api/v1{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
    )
}

/// Sends a request and returns the status of the response; 0 if the server closes the connection before the response is read.
fn status(address: SocketAddr, path: &str, document: &[u8]) -> u16 {
    let mut stream = connect(address);
    // The server may respond and close before it has read everything.
    let _sent =
        stream.write_all(head(path, document.len()).as_bytes()).and_then(|()| stream.write_all(document));
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok();
    String::from_utf8_lossy(&answer[9..]).parse().unwrap_or(0)
}

/// Peak memory of the server, in MiB.
fn peak_mib(served: &Served) -> u64 {
    let told = fs::read_to_string(format!("/proc/{}/status", served.process())).unwrap();
    let line = told.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_trial_of_very_many_small_values_costs_the_server_little() {
    let served = Serving::default().argument("--module").argument(module("text-filter")).start();
    let path = "/modules/text-filter/versions/1/try";
    let list = |values: usize| {
        format!(r#"{{"samples":[{{"key":"a","fields":{{"a":[{}0]}}}}]}}"#, "0,".repeat(values)).into_bytes()
    };
    let refused =
        served.ask("POST", &format!("/api/v1{path}"), Some(("application/json", &list(66_000)[..])), &[]);
    assert_eq!(refused.is(413).json()["type"], "/problems/too-large");
    assert_ne!(status(served.address(), path, &list(47 << 20)), 200);
    assert!(peak_mib(&served) < MOST_MIB, "{} MiB", peak_mib(&served));
    let tried = json!({ "samples": [{ "key": "a", "text": "b", "fields": { "a": vec![0; 10_000] } }] });
    served.post(path, &tried).is(200);
}

#[test]
fn concurrent_reports_share_one_budget() {
    let served = Serving::default().start();
    let report = |values: usize, text: usize| {
        format!(r#"{{"x":[{}0],"y":"{}"}}"#, "0,".repeat(values), "y".repeat(text)).into_bytes()
    };
    // A report with very many values, and one that alone takes half of the budget.
    for document in [report(7 << 20, 0), report(200_000, 10 << 20)] {
        let (served, document) = (&served, &document);
        let statuses: Vec<u16> = thread::scope(|scope| {
            let ask = move || status(served.address(), "/benchmarks", document);
            let asked: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|status| [0, 413, 422, 503].contains(status)), "{statuses:?}");
        assert!(peak_mib(served) < MOST_MIB, "{} MiB: {statuses:?}", peak_mib(served));
    }
    assert_eq!(
        status(served.address(), "/benchmarks", &report(200_000, 10 << 20)),
        422,
        "the body is complete, but not a report"
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn memory_of_a_client_is_freed_when_it_disconnects() {
    let served = Serving::default().start();
    let part = "0,".repeat(200_000);
    let document = |end: &str| format!(r#"{{"x":[{part}{end}"#).into_bytes();
    let begins = || {
        let mut stream = connect(served.address());
        stream.write_all(head("/benchmarks", 1 << 20).as_bytes()).unwrap();
        stream.write_all(&document("")).unwrap();
        stream
    };
    let is = |wanted: u16| status(served.address(), "/benchmarks", &document("0]}")) == wanted;
    let start = Instant::now();
    // Opens new connections in each attempt: clients that send nothing are disconnected.
    let held = loop {
        let held: Vec<TcpStream> = (0..3).map(|_| begins()).collect();
        if is(503) {
            break held;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    // Small documents need no reservation.
    assert_eq!(status(served.address(), "/runs?validate_only=true", b"{}"), 422);
    drop(held);
    let start = Instant::now();
    while !is(422) {
        assert!(start.elapsed() < PATIENCE);
        pause(20);
    }
}

/// Uploads a module whose schema of params has `count` large regular expressions with backtracking.
fn upload_expressions(served: &Served, count: usize) {
    let large: Vec<Value> =
        (0..count).map(|more| json!({ "pattern": format!("a[ab]{{{}}}[^ab]", 2962 + more) })).collect();
    let manifest = json!({
        "name": "expressions", "version": "1", "params": { "properties": { "text": { "allOf": large } } }
    });
    served.upload(&core(manifest.to_string().as_bytes(), Encoding::UTF8)).is(201);
}

fn with_text(text: &str) -> Value {
    json!({
        "source": { "range": { "count": 1 } },
        "stages": [{ "wasm": { "module": "expressions", "params": { "text": text } } }]
    })
}

#[test]
fn regular_expressions_of_a_module_are_limited_to_short_texts() {
    let served = Serving::default().start();
    upload_expressions(&served, 39);
    let text: String =
        (0..100_000_u32).map(|n| if n.wrapping_mul(2_654_435_761) >> 31 == 0 { 'a' } else { 'b' }).collect();
    let path = "/runs?validate_only=true";
    // Eight requests at the same time: the server refuses the long text in each without evaluating the regular expressions.
    let refused: Vec<Value> = thread::scope(|scope| {
        let ask = || served.post(path, &with_text(&text)).is(422).json();
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    for refused in refused {
        assert_eq!(refused["errors"][0]["pointer"], "/stages/0/wasm/params", "{refused}");
        let told = refused["errors"][0]["detail"].as_str().unwrap();
        assert!(
            told.contains("too long for the regular expressions with which the module `expressions`"),
            "{told}"
        );
    }
    let told = served.post(
        "/modules/expressions/versions/1/try",
        &json!({
            "samples": [{ "key": "a", "text": "b" }], "params": { "text": text }
        }),
    );
    assert!(told.text().contains("too long for the regular expressions"), "{}", told.text());
    let short = served.post(path, &with_text("ab")).is(422).json();
    assert!(short["errors"][0]["detail"].as_str().unwrap().contains("refuses this value"), "{short}");
}

#[test]
fn lists_do_not_wait_for_checks_and_checks_end_with_their_clients() {
    let served = Serving::default().start();
    upload_expressions(&served, 39);
    // The longest text for which the expressions are evaluated.
    let costly = with_text(&"ab".repeat(250)).to_string();
    let path = "/runs?validate_only=true";
    let send = || {
        let mut stream = connect(served.address());
        stream.write_all(format!("{}{costly}", head(path, costly.len())).as_bytes()).unwrap();
        stream
    };
    let asked: Vec<TcpStream> = (0..50).map(|_| send()).collect();
    for _ in 0..5 {
        served.get("/runs").is(200);
    }
    // Some of the earlier requests have no response yet.
    let open = asked.iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err()
    });
    assert!(open.count() > 0);
    drop(asked);
    // Abandoned requests leave the queue after a while and do not block others.
    served.post(path, &with_text("a")).is(422);
}
