//! One round: actions of clients, and faults between them.

use std::fmt;
use std::time::Duration;

use penstock_s3_server::Trouble;
use penstock_tests::Chance;
use serde_json::json;

use crate::documents::{Document, GUESTS, broken, document, misdeed};

const CLIENTS: u64 = 6;
/// Number of actions of each client.
const ACTIONS: u64 = 12;

/// An action of a client. It refers to runs, versions and reports that the client created.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Submits a document, with an optional time limit in seconds. With a key, the request is sent twice.
    Submit {
        document: Document,
        for_s: Option<u64>,
        is_keyed: bool,
    },
    /// Submits a run with the consumer `stream`, and receives this many batches in another process.
    Stream(Document, u64),
    /// Runs a document with the command `penstock run`; after this time, its process meets this fate.
    Command(Document, Fate, Duration),
    /// Uploads a guest and points an alias at it. This number, in a custom section, makes it a different module.
    Upload(&'static str, u64),
    /// Points the alias at the client's first version.
    MoveAlias,
    Report(u64),
    /// Deletes the client's oldest object whose address has this prefix.
    Delete(&'static str),
    /// Waits for the end of the client's last run, for a limited time.
    Wait,
    /// Submits the client's last run again.
    Clone,
    /// Requests this resource of the client's last run.
    Run(&'static str),
    /// Sends a request without lasting effect.
    Ask {
        method: &'static str,
        path: &'static str,
        body: Body,
        allowed: &'static [u16],
    },
}

/// Body of a request; its debug form is truncated.
#[derive(Clone)]
pub(crate) struct Body(pub(crate) String);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.160}", self.0)
    }
}

/// Event that hits a process of `penstock run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Ends,
    Killed,
    Interrupted,
    Paused,
}

/// A fault of the server, or of its environment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Kills the server with SIGKILL.
    Kill,
    /// Shuts the server down with SIGINT.
    End,
    /// Stops the server with SIGSTOP for this time.
    Pause(Duration),
    /// Leaves this many bytes in the file system, until the end of the round.
    FullDisk(u64),
    /// Injects a fault into this many requests to the bucket.
    Store(Trouble, u64),
    /// Runs clients that read or send very slowly, until the end of the round.
    SlowClients(usize),
    /// Limits memory to the budget of the runs and the server's own needs.
    Memory,
}

/// Actions and faults of one round.
pub(crate) struct Round {
    pub(crate) number: u64,
    pub(crate) clients: Vec<Vec<Action>>,
    /// Faults, each with the number of actions after which it is injected.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Makes the server's wall clock jump, or stop jumping, from now on; `None` leaves it unchanged.
    pub(crate) clock_jumps: Option<bool>,
}

impl Round {
    /// Creates round `number` of a seed. The first round is without faults: its resource usage is the baseline for the others.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut chance = Chance::new((seed << 16) + number);
        let mut client = |client| {
            let name = |at| format!("r{number}c{client}a{at}");
            (0..ACTIONS).map(|at| action(&mut chance, &name(at))).collect()
        };
        let clients = (0..CLIENTS).map(&mut client).collect();
        let count = if number > 0 { chance.from(1, 3) } else { 0 };
        let mut faults: Vec<(u64, Fault)> =
            (0..count).map(|_| (chance.from(8, CLIENTS * ACTIONS - 16), fault(&mut chance))).collect();
        faults.sort_by_key(|(after, _)| *after);
        let clock_jumps = (number > 0 && chance.once_in(4)).then(|| chance.once_in(2));
        Self { number, clients, faults, clock_jumps }
    }

    pub(crate) fn has(&self, wanted: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| wanted(fault))
    }
}

fn fault(chance: &mut Chance) -> Fault {
    let (bytes, time) = (chance.below(20_000) as usize, Duration::from_millis(chance.from(5, 300)));
    let troubles = [
        Trouble::Status(503, "SlowDown"),
        Trouble::Status(500, "InternalError"),
        Trouble::SlowDown { after_s: 1 },
        Trouble::Reset,
        Trouble::ResetInBody(bytes),
        Trouble::Truncated(bytes),
        Trouble::Slow(time),
        Trouble::Trickle(64, time / 10),
        Trouble::Hang,
        Trouble::HangInBody(bytes),
        Trouble::Page(200),
        Trouble::FlippedBit,
    ];
    match chance.below(10) {
        0 | 1 => Fault::Kill,
        2 => Fault::End,
        3 => Fault::Pause(10 * time),
        4 | 5 => Fault::FullDisk(chance.pick(&[0, 0, 4 << 10, 60 << 10, 300 << 10])),
        6 | 7 => Fault::Store(chance.pick(&troubles), chance.from(5, 300)),
        8 => Fault::SlowClients(200),
        _ => Fault::Memory,
    }
}

fn action(chance: &mut Chance, name: &str) -> Action {
    let ask = |method, path, body, allowed| Action::Ask { method, path, body: Body(body), allowed };
    match chance.below(30) {
        0..8 => {
            let document = document(chance, name, false);
            let for_s = (!chance.once_in(4)).then(|| chance.from(1, 3));
            Action::Submit { document, for_s, is_keyed: chance.once_in(3) }
        }
        8 => Action::Stream(document(chance, name, true), chance.below(6)),
        9..12 => {
            let fate = chance.pick(&[Fate::Ends, Fate::Ends, Fate::Killed, Fate::Interrupted, Fate::Paused]);
            Action::Command(document(chance, name, false), fate, Duration::from_millis(chance.below(1_500)))
        }
        12..15 => Action::Upload(chance.pick(&GUESTS).1, chance.below(u64::MAX)),
        15 => Action::MoveAlias,
        16 | 17 => Action::Report(chance.below(u64::MAX)),
        18..20 => Action::Delete(chance.pick(&["/runs", "/modules", "/benchmarks"])),
        20..23 => Action::Wait,
        23 => Action::Clone,
        24 | 25 => Action::Run(chance.pick(&["stop", "replay", "predict"])),
        26 => ask("POST", "/runs", broken(chance, name), &[400, 413, 422]),
        27 => {
            let samples = ["bad", "a"].map(|key| json!({ "key": key, "text": "split" }));
            let tried = json!({ "samples": samples, "params": misdeed(chance), "deadline_ms": 100, "memory_mib": 64 });
            ask("POST", "/modules/misbehaving/versions/latest/try", tried.to_string(), &[200, 422])
        }
        28 => ask("POST", "/modules", "\0asm and nothing else".to_owned(), &[415, 422]),
        _ => {
            let paths = [
                "/runs?state=failed,stopped&sort=-samples",
                "/runs?q=r1",
                "/modules",
                "/modules/misbehaving",
                "/system",
                "/stores/here/keys?prefix=objects",
                "/stores/bucket/keys",
                "/schema/pipeline",
                "/benchmarks",
            ];
            ask("GET", chance.pick(&paths), String::new(), &[200])
        }
    }
}
