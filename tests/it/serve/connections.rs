//! Connections: how many, how slow, from whom, and how their heads are written.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use penstock_fuzz::{Encoding, core};
use penstock_tests::{Served, Serving};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::bounded::{PATIENCE, connect, head};
use super::pause;

/// A request that is not complete: its connection is busy.
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
fn connections_that_only_wait_keep_nobody_out() {
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
fn when_all_connections_are_busy_health_and_sign_in_go_on() {
    let served = Serving::default().start();
    let mut held: Vec<TcpStream> = (0..600).map(|_| incomplete(&served)).collect();
    let start = Instant::now();
    let full = loop {
        let answer = get(&served, "/api/v1/runs");
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        assert!(start.elapsed() < PATIENCE);
        // A busy machine makes them so slowly that the first ones have had their time.
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
fn one_who_takes_an_answer_very_slowly_is_let_go() {
    let served = Serving::default().start();
    // With a custom section that makes it large.
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
    // Little is on its way, so that it is the server that waits.
    let mut stream = ask(Some(4 << 10));
    let mut piece = [0; 256];
    stream.read_exact(&mut piece).unwrap();
    let start = Instant::now();
    // Its file and its socket.
    while files() > before {
        assert!(start.elapsed() < PATIENCE, "it is answered still");
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
    // The first one is answered, and the connection ends at the latest behind it.
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1 200 ").count() == 1, "{answer}");
    // Where a body ends only its parser knows: nothing is read behind it.
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
