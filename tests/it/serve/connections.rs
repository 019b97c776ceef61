//! Connections: their number, speed and origin, and the syntax of requests.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use penstock_fuzz::{Encoding, core};
use penstock_tests::{Served, Serving};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::bounded::{PATIENCE, connect, head};
use super::pause;

/// Sends an incomplete request, which keeps its connection busy.
fn incomplete(served: &Served) -> TcpStream {
    let mut stream = connect(served.address());
    stream.write_all(format!("{}{{", head("/runs", 100)).as_bytes()).unwrap();
    stream
}

fn get(served: &Served, path: &str) -> String {
    let mut stream = connect(served.address());
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok();
    answer
}

#[test]
fn idle_connections_do_not_block_new_ones() {
    let served = Serving::default().start();
    let held: Vec<TcpStream> = (0..900)
        .map(|_| {
            let mut stream = connect(served.address());
            stream.write_all(b"G").unwrap();
            stream
        })
        .collect();
    for _ in 0..100 {
        assert!(get(&served, "/health").starts_with("HTTP/1.1 200 "));
    }
    served.get("/runs").is(200);
    drop(held);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn health_and_sign_in_work_when_all_connections_are_busy() {
    let served = Serving::default().start();
    let mut held: Vec<TcpStream> = (0..600).map(|_| incomplete(&served)).collect();
    let start = Instant::now();
    let full = loop {
        let answer = get(&served, "/api/v1/runs");
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        assert!(start.elapsed() < PATIENCE);
        // On a busy machine, opening the connections takes so long that the first of them time out.
        held.extend((0..50).map(|_| incomplete(&served)));
    };
    assert!(full.starts_with("HTTP/1.1 503 ") && full.contains("retry-after: 5"), "{full}");
    assert!(full.contains("too many connections; try again soon"), "{full}");
    for _ in 0..20 {
        for path in ["/health", "/api/v1/session"] {
            let answer = get(&served, path);
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
        }
    }
    drop(held);
    while !get(&served, "/api/v1/runs").starts_with("HTTP/1.1 200 ") {
        assert!(start.elapsed() < PATIENCE);
        pause(20);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn a_very_slow_reader_is_disconnected() {
    let served = Serving::default().start();
    // An additional custom section makes the module large.
    let mut large = core(br#"{"name":"large","version":"1"}"#, Encoding::UTF8);
    let padding = 16 << 20;
    large.extend([0, 0x82, 0x80, 0x80, 0x08, 1, b'x']);
    large.extend(vec![0; padding]);
    served.upload(&large).is(201);
    let files = || fs::read_dir(format!("/proc/{}/fd", served.process())).unwrap().count();
    let ask = |receives: Option<usize>| {
        let mut stream = connect(served.address());
        if let Some(bytes) = receives {
            set_socket_recv_buffer_size(&stream, bytes).unwrap();
        }
        let request = "GET /api/v1/modules/large/versions/1/content HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let mut whole = Vec::new();
    ask(None).read_to_end(&mut whole).unwrap();
    assert!(whole.len() > padding);
    let before = files();
    // A small receive buffer, so that the server has to wait.
    let mut stream = ask(Some(4 << 10));
    let mut piece = [0; 256];
    stream.read_exact(&mut piece).unwrap();
    let start = Instant::now();
    // The file and the socket of the response are open until the server ends the response.
    while files() > before {
        assert!(start.elapsed() < PATIENCE, "the response is still in progress");
        stream.read_exact(&mut piece).unwrap();
        pause(100);
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).ok();
    assert!(rest.len() < padding);
}

#[test]
fn heads_with_bare_line_feeds_are_refused() {
    let served = Serving::default().start();
    let ask = |request: &str| {
        let mut stream = connect(served.address());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok();
        answer
    };
    for head in [
        "GET /health HTTP/1.1\nhost: localhost\n\n",
        "GET /health HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: localhost\r\nx: y\ntransfer-encoding: chunked\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\n",
    ] {
        let answer = ask(head);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
    }
    let twice =
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health HTTP/1.1\nhost: localhost\r\n\r\n";
    let answer = ask(twice);
    // The first request is answered; then the connection ends without a second response.
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1 200 ").count() == 1, "{answer}");
    // Parsers may disagree on where a body ends, so the server reads no further request after a body.
    let document = "{\n}";
    let posted =
        format!("{}{document}GET /health HTTP/1.1\nhost: localhost\n\n", head("/runs", document.len()));
    let answer = ask(&posted);
    assert!(answer.starts_with("HTTP/1.1 422 ") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
}

#[test]
fn pages_of_other_sites_open_no_event_stream() {
    let served = Serving::default().start();
    for mode in ["no-cors", "cors", "navigate"] {
        let headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode)];
        let refused = served.ask("GET", "/api/v1/events", None, &headers).is(403);
        assert_eq!(refused.json()["type"], "/problems/wrong-origin");
    }
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    served.ask("GET", "/runs", None, &link).is(200);
}
