//! Clients: each performs its actions one after another, records acknowledged changes, and reports violations.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use penstock_stream::StreamAddress;
use penstock_stream::client::{Client as StreamClient, Received};
use penstock_tests::{Answer, Call, Folder, Served, module};
use penstock_types::run::RunSnapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::documents::{Document, GUESTS};
use crate::machine::signal;
use crate::model::{Content, KeptRun, Model, Presence, Thing, ask};
use crate::round::{Action, Fate};

/// Pause between two checks, and maximum number of checks.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 150;
/// Statuses of a server that is overloaded or shutting down.
const BUSY: [u16; 2] = [429, 503];
const JSON: &str = "application/json";

/// State shared by all clients of a round.
pub(crate) struct Scene<'a> {
    pub(crate) served: &'a Served,
    pub(crate) model: &'a Mutex<Model>,
    /// Configuration file of the server, and a benchmark report for uploads.
    pub(crate) config: &'a Path,
    pub(crate) report: &'a Value,
    /// Statuses caused by injected faults of disks and stores.
    pub(crate) troubles: Vec<u16>,
    /// Set before the server is killed or shut down.
    pub(crate) is_struck: AtomicBool,
    /// Number of responses so far, by status.
    pub(crate) answers: Mutex<BTreeMap<u16, u64>>,
    /// Number of completed actions.
    pub(crate) acts: AtomicU64,
    pub(crate) found: Mutex<Vec<String>>,
}

/// One client, with the addresses of the objects that it created.
pub(crate) struct Client<'a> {
    scene: &'a Scene<'a>,
    name: String,
    made: Vec<String>,
    /// Number of actions so far, which makes idempotency keys unique.
    number: u64,
}

impl Scene<'_> {
    fn find(&self, wrong: String) {
        self.found.lock().unwrap().push(wrong);
    }

    /// Sends a request; reports a status that is neither allowed nor caused by an injected fault.
    fn ask(
        &self,
        allowed: &[u16],
        method: &str,
        path: &str,
        content: Content<'_>,
        key: Option<&str>,
    ) -> Option<Answer> {
        let answer = ask(self.served, method, path, content, key);
        match &answer {
            Some(answer) if [allowed, &BUSY, &self.troubles].concat().contains(&answer.status) => {}
            Some(answer) => {
                let (status, text) = (answer.status, answer.text());
                self.find(format!("{method} {path}: found {status} {text}, expected one of {allowed:?}"));
            }
            None if self.is_struck.load(Ordering::Acquire) => return None,
            None => self.find(format!("{method} {path}: found no response of a live server")),
        }
        if let Some(answer) = &answer {
            *self.answers.lock().unwrap().entry(answer.status).or_default() += 1;
        }
        answer
    }
}

impl<'a> Client<'a> {
    pub(crate) fn new(scene: &'a Scene<'a>, name: String) -> Self {
        Self { scene, name, made: Vec::new(), number: 0 }
    }

    pub(crate) fn act(&mut self, action: &Action) {
        self.number += 1;
        let last_run = self.made.iter().rfind(|path| path.starts_with("/runs")).cloned();
        match (action, last_run) {
            (Action::Submit { document, for_s, is_keyed }, _) => {
                let query = for_s.map(|s| format!("?for_s={s}")).unwrap_or_default();
                let key = is_keyed.then(|| format!("{}-{}", self.name, self.number));
                self.submit(KeptRun { document: document.0.clone(), query, key, end: None });
            }
            (Action::Stream(document, takes), _) => self.stream(document, *takes),
            (Action::Command(document, fate, after), _) => self.command(document, *fate, *after),
            (Action::Upload(guest, number), _) => self.upload(guest, *number),
            (Action::MoveAlias, _) => self.move_alias(),
            (Action::Report(number), _) => {
                let mut report = self.scene.report.clone();
                report["name"] = json!(format!("{} {number}", self.name));
                let text = report.to_string();
                let kept = self.scene.ask(&[201], "POST", "/benchmarks", Some((JSON, text.as_bytes())), None);
                self.note(kept, |kept| {
                    (format!("/benchmarks/{}", kept["id"].as_str().unwrap()), Thing::Report(report))
                });
            }
            (Action::Delete(what), _) => self.delete(what),
            (Action::Wait, Some(run)) => self.wait(&run),
            (Action::Clone, Some(run)) => {
                let Thing::Run(cloned) = self.scene.model.lock().unwrap().things[&run].1.clone() else {
                    return;
                };
                let answer = self.scene.ask(&[201, 422], "POST", &format!("{run}/clone"), None, None);
                self.note_run(answer, KeptRun { key: None, end: None, ..cloned });
            }
            (Action::Run(what), Some(run)) => {
                self.scene.ask(&[200, 409, 422], "POST", &format!("{run}/{what}"), Some((JSON, b"{}")), None);
            }
            (Action::Wait | Action::Clone | Action::Run(_), None) => {}
            (Action::Ask { method, path, body, allowed }, _) => {
                let kind = if *path == "/modules" { "application/wasm" } else { JSON };
                let content = (*method == "POST").then_some((kind, body.0.as_bytes()));
                self.scene.ask(allowed, method, path, content, None);
            }
        }
        self.scene.acts.fetch_add(1, Ordering::AcqRel);
    }

    /// Records an object if its creation was acknowledged.
    fn note(
        &mut self,
        answer: Option<Answer>,
        thing: impl FnOnce(&Value) -> (String, Thing),
    ) -> Option<Answer> {
        let answer = answer.filter(|answer| answer.status == 201)?;
        let (path, thing) = thing(&answer.json());
        self.scene.model.lock().unwrap().things.insert(path.clone(), (Presence::There, thing));
        self.made.push(path);
        Some(answer)
    }

    fn note_run(&mut self, answer: Option<Answer>, run: KeptRun) -> Option<Answer> {
        self.note(answer, |told| (format!("/runs/{}", told["id"].as_str().unwrap()), Thing::Run(run)))
    }

    /// Submits a run. Returns its address.
    fn submit(&mut self, run: KeptRun) -> Option<String> {
        let (path, text) = (format!("/runs{}", run.query), run.document.to_string());
        let (content, key) = (Some((JSON, text.as_bytes())), run.key.clone());
        let answer = self.scene.ask(&[201, 422], "POST", &path, content, key.as_deref());
        let id = self.note_run(answer, run)?.json()["id"].clone();
        if key.is_some() {
            let again = self.scene.ask(&[200], "POST", &path, content, key.as_deref());
            if again.as_ref().is_some_and(|again| again.status == 200 && again.json()["id"] != id) {
                self.scene.find(format!("{key:?}: found the run {}, expected {id}", again?.json()["id"]));
            }
        }
        self.made.last().cloned()
    }

    /// Polls until `look` returns a value, for a limited time.
    fn until<T>(&self, look: impl Fn(&Scene<'_>) -> Option<T>) -> Option<T> {
        (0..LOOKS).find_map(|_| {
            look(self.scene).or_else(|| {
                sleep(LOOK);
                None
            })
        })
    }

    fn wait(&self, run: &str) {
        self.until(|scene| {
            let told = scene.ask(&[200], "GET", run, None, None).filter(|answer| answer.status == 200);
            let state = told.map(|told| told.json()["state"].clone());
            let is_alive = state
                .is_some_and(|state| ["queued", "running", "draining"].iter().any(|alive| state == *alive));
            (!is_alive).then_some(())
        });
    }

    fn stream(&mut self, document: &Document, takes: u64) {
        let run = KeptRun { document: document.0.clone(), query: String::new(), key: None, end: None };
        let Some(run) = self.submit(run) else { return };
        let address = self.until(|scene| {
            let answer = scene.ask(&[200, 409], "GET", &format!("{run}/stream"), None, None)?;
            serde_json::from_slice::<StreamAddress>(&answer.bytes).ok()
        });
        let Some(address) = address else { return };
        // Disconnects with unacknowledged batches.
        let Ok(client) = StreamClient::connect(Path::new(&address.socket), &address.secret.0) else { return };
        for number in 0..takes {
            match client.next(Duration::from_secs(1)) {
                Ok(Received::Batch(batch)) if number.is_multiple_of(2) => drop(client.acknowledge(batch.seq)),
                Ok(Received::Batch(_)) => {}
                Ok(Received::Nothing | Received::End(_)) | Err(_) => return,
            }
        }
    }

    fn upload(&mut self, guest: &str, number: u64) {
        let mut bytes = fs::read(module(guest)).unwrap();
        // Appends a custom section, which makes each upload a different module.
        bytes.extend([0, 18, 1, b'n']);
        bytes.extend(format!("{number:016x}").bytes());
        let name = GUESTS.iter().find(|(_, file)| *file == guest).unwrap().0;
        let alias = format!("/modules/{name}/aliases/{}", self.name);
        self.scene.model.lock().unwrap().aliases.insert(alias.clone(), None);
        let path = format!("/modules?alias={}", self.name);
        let answer = self.scene.ask(&[201], "POST", &path, Some(("application/wasm", &bytes)), None);
        let answer = self.note(answer, |told| {
            (format!("/modules/{name}/versions/{}", told["version"]), Thing::Version(bytes))
        });
        let version = answer.and_then(|answer| answer.json()["version"].as_u64());
        self.scene.model.lock().unwrap().aliases.insert(alias, version);
    }

    fn move_alias(&self) {
        let Some(first) = self.made.iter().find(|path| path.starts_with("/modules")) else { return };
        let (module, version) = first.split_once("/versions/").unwrap();
        let (path, version) = (format!("{module}/aliases/{}", self.name), version.parse().unwrap());
        let text = json!({ "version": version }).to_string();
        self.scene.model.lock().unwrap().aliases.insert(path.clone(), None);
        let answer = self.scene.ask(&[200], "PUT", &path, Some((JSON, text.as_bytes())), None);
        let version = answer.filter(|answer| answer.status == 200).map(|_| version);
        self.scene.model.lock().unwrap().aliases.insert(path, version);
    }

    fn delete(&mut self, what: &str) {
        let Some(at) = self.made.iter().position(|path| path.starts_with(what)) else { return };
        let path = self.made[at].clone();
        let note = |presence| self.scene.model.lock().unwrap().things.get_mut(&path).unwrap().0 = presence;
        note(Presence::Unsure);
        let answer = self.scene.ask(&[204, 409], "DELETE", &path, None, None);
        match answer.map(|answer| answer.status) {
            // The object is in use, so the server has not deleted it.
            Some(409) => return note(Presence::There),
            Some(204) => note(Presence::Gone),
            _ => {}
        }
        self.made.remove(at);
    }

    fn command(&self, document: &Document, fate: Fate, after: Duration) {
        let folder = Folder::new();
        let out = folder.join("out");
        let call = Call::run(&folder.document(&document.0)).argument("--config").argument(self.scene.config);
        let call = GUESTS.iter().fold(call, |call, (name, guest)| call.module(name, guest));
        let call = call.argument("--for=3s").argument("--quiet").out(&out);
        let child = call.start();
        if fate != Fate::Ends {
            sleep(after);
        }
        match fate {
            Fate::Ends => {}
            Fate::Killed => signal(child.id(), Signal::KILL),
            Fate::Interrupted => signal(child.id(), Signal::INT),
            Fate::Paused => {
                signal(child.id(), Signal::STOP);
                sleep(after);
                signal(child.id(), Signal::CONT);
            }
        }
        let finished = call.finished(child);
        let is_told_to = match finished.code {
            Some(0..=2) => true,
            Some(130) => fate == Fate::Interrupted,
            // An interrupt before the signal handler is installed ends the process without an exit code.
            None => fate == Fate::Killed || fate == Fate::Interrupted,
            _ => false,
        };
        // The snapshot file is complete or absent, however the process ended.
        let snapshot =
            fs::read(out.join("snapshot.json")).ok().map(|text| serde_json::from_slice::<RunSnapshot>(&text));
        let is_balanced = match &snapshot {
            Some(snapshot) => snapshot.as_ref().is_ok_and(|snapshot| snapshot.ledger.balanced),
            None => finished.code != Some(0),
        };
        let is_defect =
            ["panicked at", "defect of Penstock"].iter().any(|word| finished.stderr.contains(word));
        if !is_told_to || !is_balanced || is_defect {
            let (code, told) = (finished.code, finished.stderr);
            self.scene
                .find(format!("`penstock run` of {}: found {code:?}, {snapshot:?} and {told}", document.0));
        }
    }
}

/// Runs very slow clients until `over` is set: one third reads live events, one third downloads a module, one third sends a
/// document.
pub(crate) fn dawdle(served: &Served, count: usize, over: &AtomicBool) {
    let requests = [
        "GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /api/v1/modules/misbehaving/versions/1/content HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n",
    ];
    let connect = |request: &&str| {
        let mut stream = TcpStream::connect(served.address()).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((stream, request.starts_with("POST")))
    };
    let mut streams: Vec<_> = requests.iter().cycle().take(count).filter_map(connect).collect();
    while !over.load(Ordering::Acquire) {
        for (stream, sends) in &mut streams {
            // Errors are ignored: the server may have disconnected the client.
            if *sends {
                stream.write_all(b"{").ok()
            } else {
                stream.read_exact(&mut [0; 64]).ok()
            };
        }
        sleep(Duration::from_millis(200));
    }
}
