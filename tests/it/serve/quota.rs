//! Quotas of one client, as other clients see them.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use penstock_fuzz::{Encoding, typed, with_manifest};
use penstock_tests::{Folder, Served, Serving};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::{Value, json};

use super::bounded::PATIENCE;
use super::{pause, sleepy};

/// Loopback address that the server counts as a second client: all other tests use 127.0.0.1.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Sends a request from another address; returns the status and the body.
fn ask_from(from: Ipv4Addr, served: &Served, request: &str, kind: &str, body: &[u8]) -> (u16, Value) {
    let SocketAddr::V4(to) = served.address() else { panic!("it listens to IPv4") };
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&stream, &to).unwrap();
    let mut stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

/// Starts a server with a configuration.
fn with_limits(limits: Value) -> (Folder, Serving) {
    let folder = Folder::new();
    let config = folder.write("penstock.json", json!({ "limits": limits }).to_string());
    (folder, Serving::default().argument("--config").argument(config).argument("--threads").argument("8"))
}

#[test]
fn endless_runs_of_one_client_leave_another_one_room() {
    let (_folder, serving) = with_limits(json!({}));
    let served = serving.start();
    let endless = json!({
        "name": "endless", "threads": 1, "buffer_mib": 1,
        "source": { "range": { "count": 1 , "epochs": null } },
        "stages": [{ "sleep": { "mean_ms": 100 } }]
    });
    let mut accepted = 0;
    for _ in 0..101 {
        let answer = served.post("/runs", &endless);
        if answer.status == 201 {
            accepted += 1;
            continue;
        }
        assert_eq!((answer.is(429).header("retry-after"), accepted), ("30", 6 + 75));
    }
    let refused = served.post("/runs", &endless).is(429).json();
    assert_eq!(refused["type"], "/problems/quota");
    assert!(refused["detail"].as_str().unwrap().contains("`127.0.0.1` has 75 waiting runs"), "{refused}");

    let document = sleepy(3, 1.0).to_string();
    let (status, run) =
        ask_from(OTHER, &served, "POST /api/v1/runs", "application/json", document.as_bytes());
    assert_eq!((status, &run["waiting"]), (201, &Value::Null), "{run:#}");
    assert_eq!(served.over(run["id"].as_str().unwrap())["state"], "completed");

    let (status, run) =
        ask_from(OTHER, &served, "POST /api/v1/runs", "application/json", endless.to_string().as_bytes());
    assert_eq!(status, 201, "{run:#}");
    served.until(run["id"].as_str().unwrap(), |run| run["state"] == "running");
    let clients = served.get("/system").is(200).json()["clients"].clone();
    let told: Vec<_> = clients
        .as_array()
        .unwrap()
        .iter()
        .map(|client| {
            [&client["client"], &client["threads_used"], &client["runs_alive"], &client["runs_queued"]]
                .map(Value::to_string)
                .join(" ")
        })
        .collect();
    assert_eq!(told, [r#""127.0.0.1" 6 6 75"#, r#""127.0.0.2" 1 1 0"#]);
}

#[test]
fn a_run_beyond_the_time_limit_fails() {
    let (_folder, serving) = with_limits(json!({ "runs": { "max_time": "1s" } }));
    let served = serving.start();
    assert_eq!(served.get("/system").json()["limits"]["run_max_s"], 1.0);
    let run = served.over(&served.submit(&sleepy(1_000_000, 10.0)));
    assert_eq!(run["state"], "failed");
    let told = "the run took longer than 1s, which is the limit (`limits.runs.max_time`)";
    assert_eq!((&run["error"], &run["snapshot"]["ledger"]["balanced"]), (&json!(told), &json!(true)));
}

#[test]
fn a_full_disk_quota_is_reported_with_its_figures() {
    let (_folder, serving) = with_limits(json!({ "disk_mib": 1 }));
    let served = serving.start();
    let storage = || served.get("/system").is(200).json()["storage"].clone();
    let used = |storage: &Value| storage["data_dir_bytes"].as_u64().unwrap();
    let left = (1 << 20) - used(&storage()) as usize;
    // The module is so large that the client is still sending when the quota is reached.
    let refused = served.upload(&vec![0; left + (16 << 20)]).is(507).json();
    assert_eq!(refused["type"], "/problems/disk-full");
    let told = refused["detail"].as_str().unwrap();
    assert!(told.contains("of 1.0 MiB (`limits.disk_mib`)") && told.contains("delete runs"), "{told}");
    assert_eq!(fs::read_dir(served.data().join("modules/drafts")).unwrap().count(), 0);
    let after = storage();
    assert_eq!(after["data_dir_limit_bytes"], 1 << 20);
    assert!(used(&after) < 1 << 20, "{after}");
    served.over(&served.submit(&sleepy(3, 1.0)));
}

/// A module with the minimum that a stage requires, and this many functions that take long to compile.
fn slow(number: usize, functions: usize) -> Vec<u8> {
    let mut text = String::from(
        r#"(module (memory (export "memory") 1)
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
            (func (export "penstock:stage/transform@0.1.0#init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "penstock:stage/transform@0.1.0#process") (param i32 i32) (result i32) (i32.const 0))
            (func (export "penstock:stage/transform@0.1.0#finish") (result i32) (i32.const 0))"#,
    );
    for function in 0..functions {
        text.push_str("(func (param i32) (result i32)");
        text.push_str(&" (local i32)".repeat(100));
        for step in 0..2_000 {
            let [to, from, other] = [step, step * 7 + function, step * 13 + number].map(|local| local % 100);
            let block = "(local.set {to} (i32.add (i32.mul (local.get {from}) (local.get {other})) (local.get {to})))";
            let block = block
                .replace("{to}", &to.to_string())
                .replace("{from}", &from.to_string())
                .replace("{other}", &other.to_string());
            write!(text, "(if (local.get {from}) (then {block}))").unwrap();
        }
        text.push_str("(local.get 1))");
    }
    text.push(')');
    let manifest = json!({ "name": format!("slow-{number}"), "version": "1" }).to_string();
    with_manifest(typed(&text, Encoding::UTF8), manifest.as_bytes())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn a_small_upload_does_not_wait_for_the_slow_ones_of_another_client() {
    let served = Serving::default().start();
    let drafts = || fs::read_dir(served.data().join("modules/drafts")).unwrap().count();
    let ended = AtomicUsize::new(0);
    let modules: Vec<Vec<u8>> = (0..8).map(|number| slow(number, 20)).collect();
    thread::scope(|scope| {
        for module in &modules {
            scope.spawn(|| {
                // An upload that has waited too long is refused temporarily.
                let status = served.upload(module).status;
                assert!([201, 503].contains(&status), "{status}");
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        let start = Instant::now();
        while drafts() < 8 && ended.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < PATIENCE);
            pause(5);
        }
        let before = ended.load(Ordering::SeqCst);
        let (status, told) =
            ask_from(OTHER, &served, "POST /api/v1/modules", "application/wasm", &slow(8, 0));
        let after = ended.load(Ordering::SeqCst);
        assert_eq!(status, 201, "{told:#}");
        assert!(after - before <= 1, "{before} were through before it, and {after} after it");
    });
}
