//! The consumer `stream`: batches of a server's run in other processes, including processes that die or misbehave.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use penstock_engine::item::{Collated, Item, Stacked};
use penstock_engine::ports::{Consumer, Fault, StopFlag};
use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_stream::StreamAddress;
use penstock_stream::client::{Batch, Client, Received, StreamError};
use penstock_stream::protocol::{End, FromConsumer, PROTOCOL, Refusal, ToConsumer};
use penstock_tests::{Call, Folder, Served, Serving, photos};
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Number of kills of a consumer; `PENSTOCK_TEST_KILLS` overrides it.
const KILLS: u64 = 50;

/// Number of samples in a batch of records: enough for a batch's numbers to be passed in shared memory.
const SIZE: usize = 520;

/// Environment variable with the instructions for a consumer process, as JSON.
const ORDERS: &str = "PENSTOCK_TEST_CONSUMER";

const PATIENCE: Duration = Duration::from_secs(30);

/// Document that delivers photos in the order of the source.
fn of_photos() -> Value {
    json!({
        "name": "photos", "seed": 7, "threads": 2,
        "source": { "list": { "store": "photos", "suffix": ".jpg", "shuffle": true } },
        "stages": [
            { "fetch": { "concurrency": 4, "order": "input" } },
            { "wasm": { "module": "std/image", "params": { "ops": [{ "Resize": { "size": [224, 224] } }] }, "concurrency": 2, "order": "input" } },
            { "aggregate": { "size": 4 } },
            { "collate": { "order": "input" } }
        ],
        "consumer": { "stream": {} }
    })
}

/// Document that delivers records with keys from `0` on, whose `x` is three times the key.
fn of_records(consumer: Value) -> Value {
    json!({
        "name": "records", "threads": 1,
        "source": { "records": { "store": "here", "key": "records.ndjson" } },
        "stages": [{ "aggregate": { "size": SIZE } }, { "collate": {} }],
        "consumer": { "stream": consumer }
    })
}

/// A server with this many batches of records.
fn with_records(batches: usize) -> (Served, Folder) {
    let folder = Folder::new();
    let line = |number: usize| format!("{{\"key\":\"{number}\",\"x\":{}}}\n", number * 3);
    folder.write("records.ndjson", (0..batches * SIZE).map(line).collect::<String>());
    (Serving::default().store("here", folder.path()).start(), folder)
}

/// Waits for the address of a run's stream.
#[expect(clippy::disallowed_methods, reason = "a test waits no longer than anything may take")]
fn address(served: &Served, run: &str) -> StreamAddress {
    let start = Instant::now();
    loop {
        let answer = served.get(&format!("/runs/{run}/stream"));
        if answer.status == 200 {
            return serde_json::from_slice(&answer.bytes).unwrap();
        }
        assert!(answer.status == 409 && start.elapsed() < PATIENCE, "{}", answer.text());
        sleep(Duration::from_millis(10));
    }
}

fn connect(address: &StreamAddress) -> Result<Client, StreamError> {
    Client::connect(Path::new(&address.socket), &address.secret.0)
}

fn next(client: &Client) -> Batch {
    match client.next(PATIENCE).unwrap() {
        Received::Batch(batch) => batch,
        other => panic!("expected a batch: {other:?}"),
    }
}

/// Receives and acknowledges all batches.
fn drain(client: &Client) -> (Vec<Batch>, End) {
    let mut batches = Vec::new();
    loop {
        match client.next(PATIENCE).unwrap() {
            Received::Batch(batch) => {
                client.acknowledge(batch.seq).unwrap();
                batches.push(batch);
            }
            Received::End(end) => return (batches, end),
            Received::Nothing => panic!("nothing received after {} batches", batches.len()),
        }
    }
}

/// Reason for which a connection was refused.
fn refusal(connected: Result<Client, StreamError>) -> Refusal {
    match connected {
        Err(StreamError::Refused(refused)) => refused.reason,
        other => panic!("expected a refusal: {other:?}"),
    }
}

/// Checks that a batch of records has the content that follows from its number.
fn check(batch: &Batch) {
    let first = batch.seq as usize * SIZE;
    let Collated { keys, origins, fields } = &batch.contents;
    assert_eq!((keys.len(), &*keys[0]), (SIZE, first.to_string().as_str()));
    assert!(origins.iter().zip(first..).all(|(origin, index)| origin.index == index as u64));
    let Stacked::Tensor(x) = &fields[0].values else { panic!("{fields:?}") };
    assert_eq!((&*fields[0].name, &x.shape[..]), ("x", &[SIZE as u32][..]));
    let numbers = x.data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
    assert!(numbers.eq((first..first + SIZE).map(|number| number as i64 * 3)), "batch {}", batch.seq);
}

/// A consumer that keeps every item of a run in this process.
struct Keeps(Arc<Mutex<Vec<Item>>>);

impl Consumer for Keeps {
    fn consume(&mut self, item: Item, _: &StopFlag) -> Result<(), Fault> {
        self.0.lock().unwrap().push(item);
        Ok(())
    }
}

fn in_this_process(document: Value) -> Vec<Item> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut stores = Stores::default();
    stores.add_folder("photos", photos()).unwrap();
    let settings = SandboxSettings { instances: 64, ..SandboxSettings::default() };
    let spec = Spec::from_value(document).unwrap();
    let mut modules = Modules::new(Sandbox::new(settings).unwrap());
    modules.add_std(&spec).unwrap();
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    let items = Arc::new(Mutex::new(Vec::new()));
    let ends = RunEnds { consumer: Some(Box::new(Keeps(items.clone()))), ..RunEnds::default() };
    let run = runtime.block_on(prepared.start(None, ends)).unwrap();
    run.wait();
    std::mem::take(&mut *items.lock().unwrap())
}

#[test]
fn another_process_receives_the_batches_of_a_run() {
    let served = Serving::default().store("photos", photos()).start();
    let run = served.submit(&of_photos());
    let address = address(&served, &run);
    let socket = PathBuf::from(&address.socket);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    let client = connect(&address).unwrap();
    let welcome = client.welcome();
    assert_eq!((&*welcome.run, &*welcome.name, welcome.ahead), (run.as_str(), "photos", 4));
    let (batches, end) = drain(&client);
    assert_eq!(end, End { whole: true, error: None });
    assert!(batches.iter().all(|batch| !batch.redelivered));
    let items: Vec<Item> = batches.into_iter().map(|batch| Item::Collated(batch.contents)).collect();
    assert!(items == in_this_process(of_photos()), "they differ from those of a run in this process");
    let over = served.over(&run);
    assert_eq!((&over["state"], &over["samples"]), (&json!("completed"), &json!(100)), "{over:#}");
    assert!(!socket.exists());
    served.get(&format!("/runs/{run}/stream")).is(409);
}

#[test]
fn one_consumer_at_a_time_may_connect_and_only_with_the_secret() {
    let (served, _folder) = with_records(6);
    let address = address(&served, &served.submit(&of_records(json!({ "ahead": 2 }))));
    let first = connect(&address).unwrap();
    assert_eq!(next(&first).seq, 0);
    assert_eq!(refusal(connect(&address)), Refusal::Busy);
    let mut wrong = address.clone();
    wrong.secret.0 = wrong.secret.0.chars().rev().collect();
    assert_eq!(refusal(connect(&wrong)), Refusal::Stranger);
    wrong.secret.0.clear();
    assert_eq!(refusal(connect(&wrong)), Refusal::Stranger);
    drop(first);
    let (batches, end) = drain(&connect(&address).unwrap());
    assert!(end.whole);
    batches.iter().for_each(check);
    assert_eq!(batches.iter().map(|batch| batch.seq).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(batches[0].redelivered && !batches[5].redelivered);
}

#[test]
fn the_api_returns_the_secret_only_to_holders_of_the_token() {
    let folder = Folder::new();
    let serving = Serving::default().variable("PENSTOCK_TOKEN", "0123456789abcdef").argument("--threads=1");
    let served = serving.store("here", folder.path()).start();
    folder.write("records.ndjson", "{}\n".repeat(SIZE));
    let run = served.submit(&of_records(json!({})));
    let queued = served.submit(&of_records(json!({})));
    let address = address(&served, &run);
    let path = format!("/api/v1/runs/{run}/stream");
    served.ask("GET", &path, None, &[("authorization", "Bearer no")]).is(401);
    let why = |answer: penstock_tests::Answer| answer.is(409).json()["detail"].as_str().unwrap().to_owned();
    assert!(why(served.get(&format!("/runs/{queued}/stream"))).starts_with("the run is queued"));
    served.get("/runs/nothing/stream").is(404);
    for shown in ["/runs".to_owned(), format!("/runs/{run}"), format!("/runs/{run}/spec")] {
        assert!(!served.get(&shown).text().contains(&address.secret.0), "{shown}");
    }
    drain(&connect(&address).unwrap());
    served.over(&run);
    assert!(why(served.get(&format!("/runs/{run}/stream"))).starts_with("the run has ended"));
    served.post(&format!("/runs/{queued}/stop"), &json!({})).is(200);
    let other = served.submit(&json!({ "source": { "range": { "count": 1 } }, "stages": [], "threads": 1 }));
    assert!(
        why(served.get(&format!("/runs/{other}/stream"))).starts_with("the run's consumer is not `stream`")
    );
}

#[test]
fn a_run_without_a_consumer_fails_with_a_reason() {
    let (served, _folder) = with_records(3);
    let over = served.over(&served.submit(&of_records(json!({ "wait_s": 1 }))));
    assert_eq!((&over["state"], &over["samples"]), (&json!("failed"), &json!(0)));
    let error = over["error"].as_str().unwrap();
    let wanted = "the consumer cannot continue: no consumer was connected for 1 s, and 3 batches wait: take batches with \
         `penstock.connect(url).stream(";
    assert!(error.starts_with(wanted), "{error}");
    assert_eq!(over["snapshot"]["ledger"]["balanced"], true);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test observes a server from outside, with a separate clock")]
fn batches_acknowledged_before_a_stop_are_delivered_and_the_rest_is_left() {
    let (served, _folder) = with_records(20);
    let run = served.submit(&of_records(json!({ "ahead": 3 })));
    let client = connect(&address(&served, &run)).unwrap();
    let batches: Vec<Batch> = (0..3).map(|_| next(&client)).collect();
    // A consumer that does not acknowledge receives no more batches, and the run waits.
    assert!(matches!(client.next(Duration::from_millis(300)).unwrap(), Received::Nothing));
    client.acknowledge(1).unwrap();
    assert_eq!(next(&client).seq, 3);
    client.acknowledge(0).unwrap();
    assert!(matches!(client.acknowledge(0), Err(StreamError::NotGiven(0))));
    let start = Instant::now();
    let stopped = served.post(&format!("/runs/{run}/stop"), &json!({})).is(200).json();
    assert!(start.elapsed() < Duration::from_secs(3));
    let ledger = &stopped["snapshot"]["ledger"];
    assert_eq!((&stopped["state"], &stopped["samples"]), (&json!("stopped"), &json!(2 * SIZE)));
    assert_eq!((&ledger["balanced"], &ledger["total"]["delivered"]), (&json!(true), &json!(2 * SIZE)));
    loop {
        match client.next(PATIENCE).unwrap() {
            Received::Batch(_) => {}
            other => break assert!(matches!(other, Received::End(End { whole: false, .. })), "{other:?}"),
        }
    }
    assert!(client.acknowledge(2).is_err());
    batches.iter().for_each(check);
}

#[test]
fn arrays_are_not_overwritten_while_a_reader_holds_them() {
    let (served, _folder) = with_records(60);
    let address = address(&served, &served.submit(&of_records(json!({ "ahead": 2 }))));
    let mut kept = Vec::new();
    for _ in 0..3 {
        let client = connect(&address).unwrap();
        let batch = next(&client);
        client.acknowledge(batch.seq).unwrap();
        kept.push(batch);
        // This batch is not acknowledged: the next consumer receives it again.
        kept.push(next(&client));
    }
    let client = connect(&address).unwrap();
    for number in 3..60 {
        let batch = next(&client);
        assert_eq!(batch.seq, number);
        check(&batch);
        client.acknowledge(batch.seq).unwrap();
    }
    kept.iter().for_each(check);
    assert!(drain(&client).1.whole);
}

#[test]
fn acknowledgements_of_a_dead_consumer_count_even_if_they_arrive_late() {
    let (served, _folder) = with_records(8);
    let address = address(&served, &served.submit(&of_records(json!({ "ahead": 3 }))));
    let client = connect(&address).unwrap();
    let batches: Vec<Batch> = (0..3).map(|_| next(&client)).collect();
    let process = Pid::from_raw(i32::try_from(served.process()).unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    client.acknowledge(2).unwrap();
    client.acknowledge(0).unwrap();
    drop((client, batches));
    kill_process(process, Signal::CONT).unwrap();
    let (batches, _) = drain(&connect(&address).unwrap());
    let given = batches.iter().map(|batch| (batch.seq, batch.redelivered)).collect::<Vec<_>>();
    // Batches after the third may have been sent, but were not received.
    assert_eq!(given[0], (1, true));
    assert_eq!(given.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 3, 4, 5, 6, 7]);
}

/// A connection to the socket that does not use the client library.
struct Raw(UnixStream);

impl Raw {
    fn connect(address: &StreamAddress) -> Self {
        let socket = UnixStream::connect(&address.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn send(&mut self, message: &FromConsumer) {
        let head = serde_json::to_vec(message).unwrap();
        let lengths = [(head.len() as u32).to_le_bytes(), [0; 4]].concat();
        self.0.write_all(&[lengths, head].concat()).unwrap();
    }

    fn hello(address: &StreamAddress, protocol: u32) -> Self {
        let mut raw = Self::connect(address);
        raw.send(&FromConsumer::Hello { protocol, secret: address.secret.clone() });
        raw
    }

    fn receive(&mut self) -> ToConsumer {
        let mut lengths = [0; 8];
        self.0.read_exact(&mut lengths).unwrap();
        let length = |at: usize| u32::from_le_bytes(lengths[at..at + 4].try_into().unwrap()) as usize;
        let mut bytes = vec![0; length(0) + length(4)];
        self.0.read_exact(&mut bytes).unwrap();
        serde_json::from_slice(&bytes[..length(0)]).unwrap()
    }

    /// Reason of the refusal, after any other messages.
    fn refusal(&mut self) -> (Refusal, String) {
        loop {
            if let ToConsumer::Refused(refused) = self.receive() {
                return (refused.reason, refused.why);
            }
        }
    }
}

#[test]
fn misbehaving_consumers_are_disconnected_without_loss_of_a_batch() {
    let (served, _folder) = with_records(12);
    let address = address(&served, &served.submit(&of_records(json!({ "ahead": 3 }))));
    let garbage = |bytes: &[u8]| {
        let mut raw = Raw::connect(&address);
        raw.0.write_all(bytes).unwrap();
        raw.refusal().0
    };
    assert_eq!(garbage(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"), Refusal::Garbled);
    assert_eq!(garbage(&[0xff; 8]), Refusal::Garbled, "a huge length");
    assert_eq!(garbage(&[4, 0, 0, 0, 0, 0, 0, 0, b'n', b'u', b'l', b'l']), Refusal::Garbled);
    let silent = [Raw::connect(&address), Raw::connect(&address)];
    for mut silent in silent {
        assert_eq!(silent.refusal(), (Refusal::Garbled, "it did not authenticate in time".to_owned()));
    }
    assert_eq!(Raw::hello(&address, PROTOCOL + 1).refusal().0, Refusal::Version);
    let mut early = Raw::connect(&address);
    early.send(&FromConsumer::Ack { seq: 0 });
    assert_eq!(early.refusal().0, Refusal::Garbled);
    let lies = [
        FromConsumer::Ack { seq: 1_000_000 },
        FromConsumer::Release { region: 1_000_000 },
        FromConsumer::Hello { protocol: PROTOCOL, secret: address.secret.clone() },
    ];
    for lie in lies {
        let mut raw = Raw::hello(&address, PROTOCOL);
        assert!(matches!(raw.receive(), ToConsumer::Welcome(_)));
        assert!(matches!(raw.receive(), ToConsumer::Batch(head) if head.seq == 0));
        raw.send(&lie);
        assert_eq!(raw.refusal().0, Refusal::Garbled);
    }
    // A consumer that acknowledges a batch together with its hello, before it can have received it.
    let mut hasty = Raw::hello(&address, PROTOCOL);
    hasty.send(&FromConsumer::Ack { seq: 5 });
    drop(hasty);
    // A consumer that reads nothing.
    let deaf = Raw::hello(&address, PROTOCOL);
    sleep(Duration::from_millis(200));
    drop(deaf);
    let (batches, end) = drain(&connect(&address).unwrap());
    batches.iter().for_each(check);
    assert_eq!(batches.iter().map(|batch| batch.seq).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
    assert!(end.whole);
}

#[test]
fn a_server_that_ends_notifies_its_consumers() {
    let (served, _folder) = with_records(20);
    let run = served.submit(&of_records(json!({})));
    let client = connect(&address(&served, &run)).unwrap();
    next(&client);
    let (took, code) = served.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(8), "{took:?}");
    loop {
        match client.next(PATIENCE).unwrap() {
            Received::Batch(_) => {}
            other => break assert!(matches!(other, Received::End(End { whole: false, .. })), "{other:?}"),
        }
    }
}

#[test]
fn a_run_of_the_command_line_has_no_stream() {
    let folder = Folder::new();
    folder.write("records.ndjson", "{}\n");
    let file = folder.document(&of_records(json!({})));
    let told = Call::run(&file).store("here", folder.path()).finish().exits(2).stderr;
    assert!(told.contains("the consumer `stream` is for runs of a server"), "{told}");
}

/// A step that a consumer process has recorded, with the number of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Received a batch; true if the batch was delivered before.
    Got(u64, bool),
    /// About to acknowledge the batch.
    Acknowledges(u64),
    /// Has acknowledged the batch.
    Acknowledged(u64),
}

fn deeds(log: &Path) -> Vec<Deed> {
    let written = fs::read_to_string(log).unwrap_or_default();
    let deed = |line: &str| {
        let mut words = line.split(' ');
        let (what, seq) = (words.next()?, words.next()?.parse().ok()?);
        Some(match what {
            "got" => Deed::Got(seq, words.next()? == "true"),
            "acknowledges" => Deed::Acknowledges(seq),
            _ => Deed::Acknowledged(seq),
        })
    };
    written.lines().filter_map(deed).collect()
}

/// A process that receives batches, checks them, waits a while, acknowledges them, and records each step before the next one.
#[test]
#[ignore = "it is the second process of another test"]
fn a_consumer_process() {
    let Some(orders) = env::var_os(ORDERS) else { return };
    let orders: Value = serde_json::from_str(orders.to_str().unwrap()).unwrap();
    let address: StreamAddress = serde_json::from_value(orders["address"].clone()).unwrap();
    let mut log =
        OpenOptions::new().create_new(true).append(true).open(orders["log"].as_str().unwrap()).unwrap();
    let mut write = |line: String| log.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut chance = orders["chance"].as_u64().unwrap();
    let client = connect(&address).unwrap();
    let mut batches = Vec::new();
    loop {
        let Received::Batch(batch) = client.next(PATIENCE).unwrap() else { return };
        write(format!("got {} {}", batch.seq, batch.redelivered));
        check(&batch);
        batches.push(batch);
        chance = below(&mut chance);
        sleep(Duration::from_millis(chance % 12));
        // Acknowledges mostly one batch at a time, sometimes several.
        while batches.len() > (chance % 3) as usize {
            let seq = batches.remove(0).seq;
            write(format!("acknowledges {seq}"));
            client.acknowledge(seq).unwrap();
            write(format!("acknowledged {seq}"));
        }
    }
}

/// Next random number of a generator, of whose state only the high bits are used.
fn below(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn consumer_process(address: &StreamAddress, log: &Path, chance: u64) -> Child {
    let orders = json!({ "address": address, "log": log, "chance": chance });
    // Starts the running test binary, even if cargo has replaced its file.
    Command::new("/proc/self/exe")
        .args(["--exact", "stream::a_consumer_process", "--ignored", "--quiet"])
        .env(ORDERS, orders.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_consumer_that_is_killed_loses_nothing_and_gets_nothing_twice() {
    const BATCHES: u64 = 600;
    let kills: u64 = env::var("PENSTOCK_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (served, folder) = with_records(BATCHES as usize);
    let run = served.submit(&of_records(json!({ "ahead": 4 })));
    let address = address(&served, &run);
    let mut chance = 7;
    let mut lives = Vec::new();
    for life in 0..kills {
        let log = folder.join(&format!("life-{life}"));
        let mut process = consumer_process(&address, &log, below(&mut chance));
        // Every other process lives until it has recorded a step; each is then killed after a random time.
        while life % 2 == 0 && deeds(&log).is_empty() && process.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(below(&mut chance) % 90));
        process.kill().unwrap();
        process.wait().unwrap();
        lives.push(deeds(&log));
    }
    let (rest, end) = drain(&connect(&address).unwrap());
    assert!(end.whole && !rest.is_empty(), "the run was over before the last kill");
    rest.iter().for_each(check);
    let last = rest
        .iter()
        .flat_map(|batch| [Deed::Got(batch.seq, batch.redelivered), Deed::Acknowledged(batch.seq)]);
    lives.push(last.collect());

    // Batches that were certainly acknowledged, and those whose consumer was killed while it acknowledged them.
    let (mut acknowledged, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
    let mut given = BTreeSet::new();
    let mut given_again = 0;
    for (life, deeds) in lives.iter().enumerate() {
        let mut last = None;
        for deed in deeds {
            match *deed {
                Deed::Got(seq, redelivered) => {
                    assert!(last < Some(seq), "life {life}: {seq} comes after {last:?}");
                    last = Some(seq);
                    assert!(!acknowledged.contains(&seq), "life {life}: {seq} was acknowledged");
                    assert!(redelivered || !given.contains(&seq), "life {life}: {seq} was given before");
                    perhaps.remove(&seq);
                    given_again += u64::from(!given.insert(seq));
                }
                Deed::Acknowledges(seq) => drop(perhaps.insert(seq)),
                Deed::Acknowledged(seq) => {
                    perhaps.remove(&seq);
                    acknowledged.insert(seq);
                }
            }
        }
    }
    assert!(given_again > 0, "no kill hit a consumer that had a batch");
    // No batch is lost: those not certainly acknowledged were being acknowledged when their consumer was killed.
    let all: BTreeSet<u64> = acknowledged.union(&perhaps).copied().collect();
    assert_eq!(all, (0..BATCHES).collect());
    let over = served.over(&run);
    let samples = json!(BATCHES * SIZE as u64);
    assert_eq!((&over["state"], &over["samples"]), (&json!("completed"), &samples), "{over:#}");
    assert_eq!(over["snapshot"]["ledger"]["total"]["delivered"], samples);
}
