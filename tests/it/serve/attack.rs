//! Requests of untrusted clients, of pages of other sites, and of misbehaving clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use penstock_tests::{Folder, Serving};
use serde_json::json;

use super::{sleepy, with_photos};

/// Maximum time for any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "CanaryTokenOfTheServer-0123456789";

/// Sends raw bytes; returns the response until the connection ends, or until nothing is received for 20 s.
fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may respond and close before it has read everything.
    let _sent = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("nothing")
}

#[test]
fn requests_with_other_host_names_or_origins_are_refused() {
    let served = with_photos();
    let document = sleepy(1, 0.0).to_string();
    let post = |headers: &[(&str, &str)]| {
        served.ask("POST", "/api/v1/runs", Some(("application/json", document.as_bytes())), headers).status
    };
    assert_eq!(post(&[("host", "evil.example")]), 421);
    assert_eq!(post(&[("origin", "http://evil.example")]), 403);
    assert_eq!(post(&[("origin", "null")]), 403);
    assert_eq!(post(&[("sec-fetch-site", "cross-site")]), 403);
    // Requests that a form of another site can send without a preflight.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let sent = served.ask("POST", "/api/v1/runs", Some((kind, document.as_bytes())), &[]);
        assert_eq!(sent.status, 415, "{kind}");
    }
    let delete =
        served.ask("DELETE", "/api/v1/modules/image/versions/1", None, &[("origin", "http://evil.example")]);
    assert_eq!(delete.status, 403);
    assert_eq!(served.get("/runs").is(200).json()["items"], json!([]));
    served.get("/modules/image").is(200);
    for path in ["/", "/runs/new", "/api/v1/runs", "/metrics"] {
        assert_eq!(served.ask("GET", path, None, &[("host", "evil.example:80")]).status, 421, "{path}");
    }
}

#[test]
fn a_server_on_other_addresses_requires_its_token_and_never_prints_it() {
    let folder = Folder::new();
    let file = folder.write("token", format!("{TOKEN}\n"));
    let served = Serving::default().argument("--token-file").argument(&file).start();
    let plain = |method: &str, path: &str, headers: &[(&str, &str)]| served.ask(method, path, None, headers);
    let bearer = format!("Bearer {TOKEN}");
    for path in ["/api/v1/runs", "/api/v1/system", "/api/v1/events", "/api/openapi.json", "/metrics"] {
        let refused = plain("GET", path, &[]).is(401);
        assert_eq!(refused.header("www-authenticate"), "Bearer");
        assert!(!refused.text().contains(TOKEN));
        assert_eq!(plain("GET", &format!("{path}?token={TOKEN}"), &[]).status, 401);
        assert_eq!(plain("GET", path, &[("authorization", "Bearer wrong-wrong-wrong-wrong")]).status, 401);
    }
    plain("GET", "/api/v1/runs", &[("authorization", &bearer)]).is(200);
    assert_eq!(plain("GET", "/health", &[]).is(200).text(), "ok\n");
    let session = served.get("/session").is(200).json();
    assert_eq!(session, json!({ "token_required": true, "signed_in": false, "name": null, "role": null }));

    let wrong = served.post("/session", &json!({ "token": "wrong-wrong-wrong-wrong" }));
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, ""));
    let signed = served.post("/session", &json!({ "token": TOKEN })).is(204);
    let cookie = signed.header("set-cookie");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(TOKEN),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    plain("GET", "/api/v1/runs", &[("cookie", &cookie)]).is(200);
    let from_elsewhere = [("cookie", &*cookie), ("origin", "http://evil.example")];
    assert_eq!(plain("GET", "/api/v1/runs", &from_elsewhere).status, 403);
    assert!(!served.post("/session", &json!({ "tokn": TOKEN })).text().contains(TOKEN));
}

#[test]
fn a_server_without_a_token_listens_on_loopback_addresses_only() {
    let folder = Folder::new();
    let call = penstock_tests::Call::new(&["serve", "--no-token", "--listen=0.0.0.0:0", "--data-dir"])
        .argument(folder.path());
    let told = call.finish().exits(2).stderr;
    insta::assert_snapshot!(told);
    let short = folder.write("token", "secret");
    let call =
        penstock_tests::Call::new(&["serve", "--listen=127.0.0.1:0", "--data-dir"]).argument(folder.path());
    insta::assert_snapshot!(call.argument("--token-file").argument(&short).finish().exits(2).stderr);
}

#[test]
fn oversized_bodies_are_refused_while_they_are_received() {
    let served = Serving::default().start();
    let address = served.address();
    let host = format!("host: {address}\r\n");
    let big = "x".repeat(2 << 20);
    let announced = format!(
        "POST /api/v1/runs HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-length: 99999999\r\n\r\n{{"
    );
    assert_eq!(status(&raw(address, announced.as_bytes())), "413");
    let mut chunked = format!(
        "POST /api/v1/runs HTTP/1.1\r\n{host}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    chunked.push_str(&format!("{:x}\r\n{big}\r\n0\r\n\r\n", big.len()));
    assert_eq!(status(&raw(address, chunked.as_bytes())), "413");
    // A client that reads the response only after it has sent everything gets it, too.
    for path in ["runs", "benchmarks"] {
        let body = "x".repeat(24 << 20);
        let whole = format!(
            "POST /api/v1/{path} HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(status(&raw(address, whole.as_bytes())), "413", "{path}");
    }
    let both = format!(
        "POST /api/v1/runs HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    assert_eq!(status(&raw(address, both.as_bytes())), "422");
    let packed = format!(
        "POST /api/v1/runs HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    assert_eq!(status(&raw(address, packed.as_bytes())), "415");
    let module = format!(
        "POST /api/v1/modules HTTP/1.1\r\n{host}content-type: application/wasm\r\ncontent-length: 999999999999\r\n\r\n\0asm"
    );
    assert_eq!(status(&raw(address, module.as_bytes())), "413");
    let report = format!(
        "POST /api/v1/benchmarks HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-length: 16777217\r\n\r\n{{"
    );
    assert_eq!(status(&raw(address, report.as_bytes())), "413");
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    assert_eq!(status(&raw(address, format!("GET / HTTP/1.1\r\n{host}{many}\r\n").as_bytes())), "431");
    let long = format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(100_000));
    assert!(["400", "414", "431"].contains(&status(&raw(address, long.as_bytes()))));
    served.get("/runs").is(200);
}

#[test]
fn paths_and_names_lead_nowhere_else() {
    let served = with_photos();
    for path in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/../index.html.bak",
        "/assets/..%5c..%5cboot.ini",
        "/etc/passwd.txt",
        "/api/v1/runs/..%2f..%2fsystem",
        "/api/v1/modules/..%2f..%2fx/versions/1/content",
        "/api/v1/runs/not-a-run",
        "/api/v1/stores/nowhere/keys",
        "/api/v1/modules/image/versions/..",
        "/api/nothing",
    ] {
        let answer = served.ask("GET", path, None, &[]);
        // Any path of a page returns the single HTML document, whose script then shows that the page does not exist.
        let is_shell = answer.status == 200 && answer.text().contains("<title>Penstock</title>");
        let is_refused = matches!(answer.status, 400 | 404 | 422);
        assert!(
            is_refused || is_shell && !path.starts_with("/api/"),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        assert!(!answer.text().contains("root:"), "{path}");
        if path.starts_with("/api/") {
            assert_eq!(answer.header("content-type"), "application/problem+json", "{path}");
        }
    }
    for prefix in ["../", "/etc/", "a/../../"] {
        let keys = served.get(&format!("/stores/photos/keys?prefix={prefix}"));
        assert!(keys.status == 422 || keys.json()["items"] == json!([]), "{prefix}: {}", keys.text());
    }
    let page = served.ask("GET", "/runs/anything", None, &[]).is(200);
    assert!(page.header("content-security-policy").starts_with("default-src 'self'"));
    assert_eq!(
        (page.header("x-content-type-options"), page.header("cache-control")),
        ("nosniff", "no-cache")
    );
}

#[test]
fn a_document_sent_by_http_brings_no_place_of_its_own() {
    let served = Serving::default().start();
    for source in [
        json!({ "list": { "store": "/etc" } }),
        json!({ "list": { "store": "../x" } }),
        json!({ "list": { "store": "s3://169.254.169.254/latest" } }),
        json!({ "list": { "store": "nowhere", "root": "/etc" } }),
        json!({ "index": { "store": { "s3": { "endpoint": "http://169.254.169.254" } } } }),
    ] {
        let problem =
            served.post("/runs", &json!({ "source": source, "stages": [{ "fetch": {} }] })).is(422).json();
        assert!(!problem["errors"].as_array().unwrap().is_empty(), "{problem}");
    }
}

#[test]
fn slow_and_idle_clients_are_disconnected_and_others_served() {
    let served = Serving::default().start();
    let address = served.address();
    let host = format!("host: {address}\r\n");
    let open = |bytes: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut held = vec![open(""), open("GET / HT"), open(&format!("GET / HTTP/1.1\r\n{host}"))];
    held.extend((0..200).map(|_| open("")));
    // A request whose document is never completed.
    held.push(open(&format!(
        "POST /api/v1/runs HTTP/1.1\r\n{host}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    )));
    served.get("/system").is(200);
    // The server closes each connection before the read below times out, those without a complete request head first.
    for mut stream in held {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server closes it");
    }
    served.get("/system").is(200);
}
