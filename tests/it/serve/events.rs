//! Live events of a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use penstock_tests::{Served, Serving, module};
use serde_json::{Value, json};

use super::{pause, sleepy};

/// An event: its name, its id and its data.
#[derive(Debug)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

struct Events(BufReader<TcpStream>);

impl Events {
    fn open(served: &Served, query: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let last = last.map_or_else(String::new, |last| format!("last-event-id: {last}\r\n"));
        let address = served.address();
        let request = format!(
            "GET /api/v1/events{query} HTTP/1.1\r\nhost: {address}\r\naccept-encoding: gzip, br\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        Self(reader)
    }

    /// Next event; `None` if the stream has ended.
    fn next(&mut self) -> Option<Event> {
        let (mut name, mut id, mut data) = (String::new(), String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let line = line.trim_end();
            match line.split_once(": ") {
                Some(("event", value)) => value.clone_into(&mut name),
                Some(("id", value)) => value.clone_into(&mut id),
                Some(("data", value)) => data.push_str(value),
                _ if !name.is_empty() && line.is_empty() => {
                    return Some(Event { name, id, data: serde_json::from_str(&data).unwrap() });
                }
                // Other lines are chunk sizes, comments or empty.
                _ => {}
            }
        }
    }

    fn until(&mut self, name: &str) -> Vec<Event> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().unwrap_or_else(|| panic!("no `{name}` came: {seen:#?}"));
            let is_last = event.name == name;
            seen.push(event);
            if is_last {
                return seen;
            }
        }
    }
}

#[test]
fn events_cover_a_run_from_start_to_end() {
    let served = Serving::default().start();
    let id = served.submit(&sleepy(300, 5.0));
    let mut events = Events::open(&served, &format!("?runs={id}"), None);
    let seen = events.until("end");
    assert_eq!(seen[0].name, "hello");
    assert_eq!(seen[0].data["hz"], 4);
    let samples: Vec<&Event> = seen.iter().filter(|event| event.name == "sample").collect();
    assert!(samples.len() >= 4, "{}", samples.len());
    for pair in samples.windows(2) {
        assert_eq!(pair[0].data["t1_s"], pair[1].data["t0_s"], "the windows have no gaps");
    }
    let last = samples.last().unwrap();
    assert_eq!(last.data["samples"], 300);
    assert!(last.data["values"]["1:sleep"]["ave_time_s"].as_f64().is_none_or(|time| time > 0.004));
    assert!(last.data["verdict"]["sentence"].is_string(), "{}", last.data);
    let end = seen.last().unwrap();
    assert_eq!((&end.data["state"], &end.data["samples"]), (&json!("completed"), &json!(300)));
    // The end is reported after everything is stored.
    let windows = served.get(&format!("/runs/{id}/windows")).is(200).json();
    let items: u64 = windows["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|window| window["queues"][2]["num_items"].as_u64().unwrap())
        .sum();
    assert_eq!(items, 300);
}

#[test]
fn missed_events_come_first_and_gaps_are_reported() {
    let served = Serving::default().start();
    let id = served.submit(&sleepy(100_000, 1.0));
    let query = format!("?runs={id}");
    let mut events = Events::open(&served, &query, None);
    let seen = events.until("sample");
    let last = seen.last().unwrap();
    let (from, after) = (last.id.clone(), last.data["t1_s"].clone());
    drop(events);
    pause(1000);
    let mut again = Events::open(&served, &query, Some(&from));
    let next = again.until("sample").pop().unwrap();
    assert_eq!(next.data["t0_s"], after, "it continues after the last event");
    let (epoch, _) = from.split_once('-').unwrap();
    let mut lost = Events::open(&served, &query, Some(&format!("x{epoch}-7")));
    let told = lost.until("gap");
    assert_eq!(told.last().unwrap().data["run"], json!(id));
}

#[test]
fn changes_of_the_list_of_runs_are_sent_to_all() {
    let served = Serving::default().start();
    let mut events = Events::open(&served, "", None);
    assert_eq!(events.next().unwrap().name, "hello");
    let id = served.submit(&sleepy(1, 0.0));
    let mut states = Vec::new();
    while states.last().is_none_or(|state| state != "completed") {
        let event = events.next().unwrap();
        assert_eq!((event.name.as_str(), &event.data["id"]), ("runs", &json!(id)));
        states.push(event.data["state"].as_str().unwrap().to_owned());
    }
}

#[test]
fn a_client_that_does_not_read_blocks_no_other_client() {
    let served = Serving::default().argument("--module").argument(module("guest-misbehaving"));
    let served = served.variable("PENSTOCK_LOG", "off").start();
    // Each sample logs more lines than are kept between two updates.
    let id = served.submit(&json!({
        "threads": 1, "source": { "range": { "count": 100_000_000 } },
        "stages": [{ "wasm": { "module": "misbehaving", "params": { "how": "log-flood" } } }]
    }));
    let query = format!("?runs={id}");
    let silent: Vec<_> = (0..20).map(|_| Events::open(&served, &query, None)).collect();
    let mut witness = Events::open(&served, &query, None);
    // Waits for more bytes than the buffers between the server and a client that does not read can hold.
    let mut bytes = 0;
    while bytes < 5 << 20 {
        bytes += witness.next().expect("the stream continues").data.to_string().len();
    }
    let samples = |run: &Value| run["samples"].as_u64().unwrap_or(0);
    let before = samples(&served.get(&format!("/runs/{id}")).is(200).json());
    served.until(&id, |run| samples(run) > before);
    let unknown = served.ask("GET", "/api/v1/events?runs=nothing", None, &[]);
    assert_eq!(unknown.status, 404);
    drop(silent);
}

#[test]
fn streams_end_with_the_server() {
    let served = Serving::default().start();
    let id = served.submit(&sleepy(100_000, 1.0));
    let mut events = Events::open(&served, &format!("?runs={id}"), None);
    events.until("sample");
    let (took, code) = served.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(8), "{took:?}");
    let mut rest = Vec::new();
    events.0.read_to_end(&mut rest).unwrap();
}
