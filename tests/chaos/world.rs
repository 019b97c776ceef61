//! A server and its environment, round after round: injected faults, and checks afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{panicking, scope, sleep};
use std::time::Duration;

use penstock_s3_server::{Fault as StoreFault, Server, Settings};
use penstock_tests::{Call, Chance, Folder, Served, Serving, module, trouble};
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::clients::{Client, Scene, dawdle};
use crate::documents::{GUESTS, objects};
use crate::machine::{Disk, Facts, children, limit_memory, lives, shared_memory, signal, tell};
use crate::model::{Model, Presence, ask, get};
use crate::round::{Fault, Round};

/// Pause between two checks, and maximum number of checks: 90 s in all. Data of ended runs is dropped from memory within 60 s,
/// and idle threads of the runtime end after 10 s.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 900;
const REST: Duration = Duration::from_secs(11);
/// Memory limits in MiB: for all runs together, and for the rest of the server (modules, threads and requests).
const BUDGET_MIB: u64 = 512;
const BESIDE_MIB: u64 = 384;
/// Tolerated growth of resident memory. The allocator keeps some freed memory for each thread; a leak grows from round to round.
const LEFT_RSS_KIB: u64 = 160 << 10;
/// Tolerated growth of shared memory: memory images of modules, of which the server keeps 16.
const LEFT_SHARED_KIB: u64 = 32 << 10;
/// Tolerated growth of open files: connections of the history's readers, and files of modules.
const LEFT_FILES: u64 = 24;
const LEFT_THREADS: u64 = 2;

/// A server, its environment, and the acknowledged changes.
pub(crate) struct World {
    served: Option<Served>,
    clock_jumps: bool,
    /// Resource usage of the idle server after its first round.
    rested: Option<Facts>,
    bucket: Option<Server>,
    bucket_port: u16,
    model: Mutex<Model>,
    report: Value,
    config: PathBuf,
    log_read: usize,
    shared_memory: BTreeSet<PathBuf>,
    disk: Option<Disk>,
    folder: Folder,
}

impl World {
    /// Creates a world with an empty data directory, on a separate file system if one can be mounted, whose server keeps `kept`
    /// runs.
    pub(crate) fn new(seed: u64, mounts: bool, kept: u32) -> Self {
        let folder = Folder::new();
        for (key, bytes) in objects(&mut Chance::new(seed)) {
            folder.write(&format!("store/{key}"), bytes);
        }
        folder.write(
            "keys",
            "[default]\naws_access_key_id = penstock-test\naws_secret_access_key = penstock-test-secret\n",
        );
        fs::create_dir_all(folder.join("out")).unwrap();
        let bench = json!({
            "name": "nothing", "source": { "memory": { "count": 100, "bytes": 1000 } }, "ceiling": false,
            "actions": [{ "whole_set": { "workers": [2], "repeats": 1 } }]
        });
        let bench = folder.write("bench.json", bench.to_string());
        let report = Call::new(&["bench", "storage", "--json"]).argument(bench).finish().exits(0).stdout;
        let mut world = Self {
            served: None,
            clock_jumps: false,
            rested: None,
            bucket: None,
            bucket_port: 0,
            model: Mutex::default(),
            report: serde_json::from_str(&report).unwrap(),
            config: folder.join("penstock.json"),
            log_read: 0,
            shared_memory: shared_memory(),
            disk: mounts.then(|| Disk::mount(&folder.join("data"))),
            folder,
        };
        world.open_bucket();
        let endpoint = format!("http://127.0.0.1:{}", world.bucket_port);
        let bucket = json!({ "bucket": "data", "endpoint": endpoint, "region": "us-east-1", "credentials_file": "keys" });
        let stores = json!({
            "here": { "folder": { "root": "store" } },
            "out": { "folder": { "root": "out", "writable": true } },
            "bucket": { "s3": bucket }
        });
        let config = json!({ "stores": stores, "limits": { "runs": { "kept": kept } } });
        world.folder.write("penstock.json", config.to_string());
        world
    }

    /// Reopens the bucket at the same address, without faults and connections.
    fn open_bucket(&mut self) {
        self.bucket = None;
        let (root, port) = (Some(self.folder.join("store")), self.bucket_port);
        let bucket = Server::start(Settings { root, port, remembers: false, ..Settings::default() }).unwrap();
        self.bucket_port = bucket.endpoint().rsplit(':').next().unwrap().parse().unwrap();
        self.bucket = Some(bucket);
    }

    pub(crate) fn start(&mut self) {
        let serving = Serving::over(&self.folder.join("data")).logging_to(&self.folder.join("log"), "info");
        let serving = serving.argument("--threads=6").argument(format!("--memory-mib={BUDGET_MIB}"));
        let serving = serving.argument("--config").argument(&self.config);
        let mut serving = GUESTS
            .iter()
            .fold(serving, |serving, (_, guest)| serving.argument("--module").argument(module(guest)));
        if self.clock_jumps {
            serving = serving
                .variable("LD_PRELOAD", trouble().to_str().unwrap())
                .variable("TROUBLE_CLOCK_S", "3600");
        }
        self.served = Some(serving.start());
        self.rested = None;
    }

    /// Plays a round; returns the violations found after it.
    pub(crate) fn play(&mut self, round: &Round) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(jumps) = round.clock_jumps.filter(|jumps| *jumps != self.clock_jumps) {
            self.clock_jumps = jumps;
            let code = self.served.take().map(|served| served.end().1);
            if code.is_some_and(|code| code != Some(0)) {
                found.push(format!("found that a server without runs ended with {code:?}, expected 0"));
            }
        }
        match &self.served {
            None => self.start(),
            Some(served) if self.rested.is_none() => {
                sleep(REST);
                self.rested = Facts::of(served.process());
            }
            Some(_) => {}
        }
        let orphans = self.strike(round, &mut found);
        self.heal();
        if self.has_fallen(round, &mut found) {
            self.start();
        }
        found.extend(self.settle().err());
        found.extend(self.model.get_mut().unwrap().check(self.served.as_ref().unwrap()));
        self.check_files(&mut found);
        found.extend(self.check_facts().err());
        let orphans: Vec<u32> = orphans.into_iter().filter(|process| lives(*process)).collect();
        let left: Vec<PathBuf> = shared_memory().difference(&self.shared_memory).cloned().collect();
        if !orphans.is_empty() || !left.is_empty() {
            found.push(format!(
                "found processes {orphans:?} and shared memory {left:?} of servers that are gone"
            ));
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap();
        let words = ["panicked at", "defect of Penstock", "damaged", "memory allocation of", "is lost"];
        let is_telling = |line: &&str| words.iter().any(|word| line.contains(word));
        found.extend(
            log[self.log_read..].lines().filter(is_telling).map(|line| format!("found in the log: {line}")),
        );
        self.log_read = log.len();
        found
    }

    /// State shared by the clients of the server. `troubles` are statuses caused by injected faults.
    pub(crate) fn scene(&self, troubles: &[u16]) -> Scene<'_> {
        Scene {
            served: self.served.as_ref().unwrap(),
            model: &self.model,
            config: &self.config,
            report: &self.report,
            troubles: troubles.to_vec(),
            is_struck: AtomicBool::new(false),
            answers: Mutex::default(),
            acts: AtomicU64::new(0),
            found: Mutex::default(),
        }
    }

    /// Runs the clients, with faults between their actions. Returns the processes that a killed server had started.
    fn strike(&self, round: &Round, found: &mut Vec<String>) -> Vec<u32> {
        let served = self.served.as_ref().unwrap();
        let mut troubles = Vec::new();
        if round.has(|fault| matches!(fault, Fault::FullDisk(_))) {
            troubles.push(507);
        }
        // The bucket rejects signatures whose time is off by an hour.
        if self.clock_jumps || round.has(|fault| matches!(fault, Fault::Store(..))) {
            troubles.push(502);
        }
        let scene = self.scene(&troubles);
        let (scene, over, mut orphans) = (&scene, &AtomicBool::new(false), Vec::new());
        scope(|threads| {
            let acting = round.clients.iter().zip(0..).map(|(actions, number)| {
                let mut client = Client::new(scene, format!("r{}c{number}", round.number));
                threads.spawn(move || actions.iter().for_each(|action| client.act(action)))
            });
            let acting: Vec<_> = acting.collect();
            for (after, fault) in &round.faults {
                let is_early = || scene.acts.load(Ordering::Acquire) < *after;
                while is_early() && !acting.iter().all(|acting| acting.is_finished()) {
                    sleep(Duration::from_millis(1));
                }
                let process = served.process();
                match fault {
                    Fault::Kill | Fault::End => {
                        scene.is_struck.store(true, Ordering::Release);
                        orphans.extend(children(process));
                        signal(process, if *fault == Fault::Kill { Signal::KILL } else { Signal::INT });
                    }
                    Fault::Pause(time) => {
                        signal(process, Signal::STOP);
                        sleep(*time);
                        signal(process, Signal::CONT);
                    }
                    Fault::FullDisk(left) => self.disk.iter().for_each(|disk| disk.fill(*left)),
                    Fault::Store(trouble, times) => {
                        let fault = StoreFault::on("", trouble.clone()).times(*times);
                        self.bucket.as_ref().unwrap().inject(fault);
                    }
                    Fault::SlowClients(count) => drop(threads.spawn(move || dawdle(served, *count, over))),
                    Fault::Memory => {
                        if let Some(facts) = Facts::of(process) {
                            limit_memory(process, Some(facts.data_kib + ((BUDGET_MIB + BESIDE_MIB) << 10)));
                        }
                    }
                }
            }
            acting.into_iter().for_each(|acting| acting.join().unwrap());
            over.store(true, Ordering::Release);
        });
        found.append(&mut scene.found.lock().unwrap());
        if round.number == 0 && scene.answers.lock().unwrap().get(&201).is_none_or(|made| *made < 10) {
            found.push(format!("found the answers {:?}, expected more successful creations", scene.answers));
        }
        tell(&format!("  answers by status: {:?}", scene.answers.lock().unwrap()));
        orphans
    }

    fn heal(&mut self) {
        self.disk.iter().for_each(Disk::empty);
        self.open_bucket();
        if let Some(served) = &mut self.served
            && served.ended().is_none()
        {
            limit_memory(served.process(), None);
        }
    }

    /// True if the server process has ended. Reports an end that no fault explains, and a missing end after a fault that requires
    /// one.
    fn has_fallen(&mut self, round: &Round, found: &mut Vec<String>) -> bool {
        let (is_killed, is_ended) =
            (round.has(|fault| *fault == Fault::Kill), round.has(|fault| *fault == Fault::End));
        let served = self.served.as_mut().unwrap();
        let looks = if is_killed || is_ended { LOOKS } else { 1 };
        let status = (0..looks).find_map(|_| {
            sleep(LOOK);
            served.ended()
        });
        match status {
            None if looks == 1 => return false,
            // The server may be killed while it is shutting down.
            Some(status) if is_killed || is_ended && status.success() => {}
            status => found.push(format!(
                "found that the server ended with {status:?}; killed: {is_killed}, asked to end: {is_ended}"
            )),
        }
        self.served = None;
        true
    }

    /// Stops all runs, and waits until they are over.
    fn settle(&self) -> Result<(), String> {
        let served = self.served.as_ref().unwrap();
        for _ in 0..LOOKS {
            let alive = get(served, "/runs?state=queued,running,draining&limit=200")?.json();
            let alive = alive["items"].as_array().unwrap();
            if alive.is_empty() {
                return Ok(());
            }
            for run in alive {
                ask(served, "POST", &format!("/runs/{}/stop", run["id"].as_str().unwrap()), None, None);
            }
            sleep(LOOK);
        }
        Err("found runs that are not over 90 s after they were asked to stop".to_owned())
    }

    /// Checks the history's database, and reports files that it does not reference.
    fn check_files(&self, found: &mut Vec<String>) {
        let data = self.folder.join("data");
        let history =
            Connection::open_with_flags(data.join("penstock.sqlite"), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let history = history.unwrap();
        let told = |query: &str| -> BTreeSet<String> {
            let mut query = history.prepare(query).unwrap();
            query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let damage =
            told("SELECT * FROM pragma_quick_check UNION SELECT \"table\" FROM pragma_foreign_key_check");
        if damage != ["ok".to_owned()].into() {
            found.push(format!("found a damaged history: {damage:?}"));
        }
        for (folder, known) in [
            ("runs", told("SELECT id FROM runs")),
            ("modules/sha256", told("SELECT substr(digest, 8) FROM modules")),
            ("modules/drafts", BTreeSet::new()),
            ("streams", BTreeSet::new()),
        ] {
            let files = fs::read_dir(data.join(folder)).into_iter().flatten().flatten();
            let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
            let left: Vec<String> = names.filter(|name| !known.contains(name)).collect();
            if !left.is_empty() {
                found.push(format!("found files in {folder} that the history does not reference: {left:?}"));
            }
        }
    }

    /// Compares the server's resource usage with that after its first round.
    fn check_facts(&self) -> Result<(), String> {
        let process = self.served.as_ref().unwrap().process();
        let gone = "found the server gone while it rested";
        // The first round of a server only sets the baseline.
        let Some(rested) = self.rested else { return Ok(()) };
        let mut now = Facts::of(process).ok_or(gone)?;
        for _ in 0..LOOKS {
            let is_back = now.rss_kib <= rested.rss_kib + LEFT_RSS_KIB
                && now.shared_kib <= rested.shared_kib + LEFT_SHARED_KIB
                && now.threads <= rested.threads + LEFT_THREADS
                && now.files <= rested.files + LEFT_FILES
                && children(process).is_empty();
            if is_back {
                return Ok(());
            }
            sleep(LOOK);
            now = Facts::of(process).ok_or(gone)?;
        }
        let children = children(process);
        Err(format!(
            "found {now:?} and processes {children:?} 90 s after all was over, expected about {rested:?}"
        ))
    }

    /// Summary of the world, in one line.
    pub(crate) fn told(&mut self) -> String {
        let there = |(presence, _): &&(Presence, _)| *presence == Presence::There;
        let things = self.model.get_mut().unwrap().things.values().filter(there).count();
        let facts = self.served.as_ref().and_then(|served| Facts::of(served.process())).unwrap_or_default();
        let Facts { rss_kib, shared_kib, threads, files, .. } = facts;
        format!(
            "{things} things; {} MiB, {} MiB shared, {threads} threads, {files} files",
            rss_kib >> 10,
            shared_kib >> 10
        )
    }

    /// Last lines of the server's log.
    pub(crate) fn last_logged(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for World {
    /// Prints the end of the server's log if a check panicked.
    fn drop(&mut self) {
        if panicking() {
            tell(&format!("the end of the server's log:\n{}", self.last_logged()));
        }
    }
}
