//! Runs over buckets whose objects are kept on this machine: `--store-cache`, and the command `data-cache`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use penstock_s3_server::{Latency, Server, Settings};
use penstock_tests::{Call, Chance, Finished, Folder};
use serde_json::{Value, json};

use crate::files::objects;

const OBJECTS: usize = 60;

struct Bucket {
    server: Server,
    folder: Folder,
}

impl Bucket {
    fn new(latency: Duration) -> Self {
        let latency = Latency { usual: latency, ..Latency::default() };
        let server = Server::start(Settings { latency, ..Settings::default() }).unwrap();
        let bucket = Self { server, folder: Folder::new() };
        (0..OBJECTS).for_each(|number| bucket.put(number, 0));
        bucket.folder.write("bucket.json", bucket.dataset().to_string());
        bucket
    }

    fn put(&self, number: usize, version: u8) {
        let bytes: Vec<u8> = (0..number * 500).map(|at| (at * number) as u8 ^ version).collect();
        self.server.put(&format!("{number:03}.bin"), bytes);
    }

    fn dataset(&self) -> Value {
        json!({
            "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
            "bucket_name": "data", "endpoint_url": self.server.endpoint()
        })
    }

    /// Call of a run that writes all objects to the store `out`, in batches, in order.
    fn run(&self, out: &str) -> Call {
        let document = json!({
            "seed": 7,
            "source": { "list": { "store": "data", "shuffle": true } },
            "stages": [
                { "fetch": { "concurrency": 8, "queue": 8, "order": "input" } }, { "aggregate": { "size": 7 } }, { "collate": {} }
            ],
            "consumer": { "files": { "store": "out", "prefix": "train" } }
        });
        let out = self.folder.join(out);
        fs::create_dir_all(&out).unwrap();
        let file = self.folder.document(&document);
        Call::run(&file).store("data", &self.folder.join("bucket.json")).store("out", &out).json()
    }

    fn cached(&self, out: &str) -> Call {
        self.run(out).argument("--store-cache").argument(format!("{}:0.5", self.cache().display()))
    }

    fn cache(&self) -> std::path::PathBuf {
        self.folder.join("cache")
    }

    fn command(&self, command: &str) -> Finished {
        Call::new(&["data-cache", command]).argument(self.cache()).finish()
    }

    /// Number of objects that were read since the last call.
    fn reads(&self, since: &mut usize) -> usize {
        let seen = self.server.seen();
        let reads = seen[*since..].iter().filter(|seen| seen.method == "GET" && !seen.key.is_empty()).count();
        *since = seen.len();
        reads
    }

    /// Files that a run has written, without the state that names it.
    fn written(&self, out: &str) -> BTreeMap<String, Vec<u8>> {
        let mut written: BTreeMap<_, _> = objects(&self.folder.join(out)).into_iter().collect();
        written.retain(|name, _| !name.ends_with(".json"));
        assert!(!written.is_empty());
        written
    }
}

/// Flips a bit of each file of the sets.
fn damage(cache: &Path, chance: &mut Chance) {
    for set in fs::read_dir(cache.join("data/sets")).unwrap() {
        for file in ["0.data", "0.rows"] {
            let path = set.as_ref().unwrap().path().join(file);
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let at = chance.below(file.metadata().unwrap().len());
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
        }
    }
}

#[test]
fn a_second_run_downloads_nothing_and_delivers_the_same() {
    let bucket = Bucket::new(Duration::ZERO);
    let mut since = 0;
    bucket.run("plain").finish().exits(0);
    assert_eq!(bucket.reads(&mut since), OBJECTS);
    let first = bucket.cached("first").finish().exits(0).snapshot();
    assert_eq!(bucket.reads(&mut since), OBJECTS);
    let second = bucket.cached("second").finish().exits(0).snapshot();
    assert_eq!(bucket.reads(&mut since), 0);
    let figures = |snapshot: &penstock_types::run::RunSnapshot| {
        let figures = snapshot.caches["data"];
        (figures.hits, figures.misses, figures.asked)
    };
    assert_eq!((figures(&first), figures(&second)), ((0, 60, 0), (60, 0, 0)));
    for out in ["first", "second"] {
        assert!(bucket.written(out) == bucket.written("plain"), "{out}");
    }
    bucket.put(33, 1);
    bucket.cached("third").finish().exits(0);
    assert_eq!(bucket.reads(&mut since), 1);
    assert!(bucket.written("third") != bucket.written("plain"));

    let list = bucket.command("list").exits(0).stdout;
    assert!(list.contains(&format!("objects of s3 {} data", bucket.server.endpoint())), "{list}");
    let verified = bucket.command("verify").exits(0).stdout;
    assert!(verified.contains("61 whole, 0 damaged"), "{verified}");
    damage(&bucket.cache(), &mut Chance::new(1));
    let verified = bucket.command("verify").exits(1).stdout;
    assert!(verified.contains("damaged") && !verified.contains("0 damaged"), "{verified}");
    let text = bucket.cached("fourth").finish().exits(0);
    assert!(bucket.written("fourth") == bucket.written("third"));
    let damaged = text.snapshot().caches["data"].damaged;
    assert!((1..=2).contains(&damaged), "{damaged}");
    let cleared = bucket.command("clear").exits(0).stdout;
    assert!(cleared.starts_with("removed 1 set, "), "{cleared}");
    assert_eq!(bucket.command("list").exits(0).stdout, "the cache is empty\n");
    bucket.cached("fifth").finish().exits(0);
    assert!(bucket.reads(&mut since) > OBJECTS);
}

#[test]
fn four_runs_at_a_time_read_each_object_once() {
    let bucket = Bucket::new(Duration::from_millis(10));
    let runs: Vec<_> = (0..4).map(|run| bucket.cached(&run.to_string())).collect();
    let children: Vec<_> = runs.iter().map(Call::start).collect();
    for (run, child) in runs.iter().zip(children) {
        run.finished(child).exits(0);
    }
    assert_eq!(bucket.reads(&mut 0), OBJECTS);
    (1..4).for_each(|run| assert!(bucket.written(&run.to_string()) == bucket.written("0")));
}

#[test]
fn runs_that_are_killed_at_any_time_leave_whole_entries() {
    let kills = std::env::var("PENSTOCK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12);
    let bucket = Bucket::new(Duration::from_millis(3));
    bucket.run("plain").finish().exits(0);
    let mut chance = Chance::new(44);
    for kill in 0..kills {
        let mut child = bucket.cached(&format!("killed-{kill}")).start();
        sleep(Duration::from_millis(chance.below(400)));
        child.kill().unwrap();
        child.wait().unwrap();
        if bucket.cache().join("data/sets").is_dir() {
            bucket.command("verify").exits(0);
        }
        if chance.once_in(8) && bucket.cache().join("data/sets").is_dir() {
            bucket.command("clear").exits(0);
        }
    }
    bucket.cached("last").finish().exits(0);
    assert!(bucket.written("last") == bucket.written("plain"));
    let mut since = bucket.server.seen().len();
    bucket.cached("again").finish().exits(0);
    assert_eq!(bucket.reads(&mut since), 0);
}

#[test]
fn room_for_half_of_the_data_finds_half_of_it_in_each_pass() {
    const SIZE: usize = 30_000;
    const COUNT: usize = 200;
    let bucket = Bucket::new(Duration::ZERO);
    (0..COUNT).for_each(|number| bucket.server.put(&format!("{number:03}.bin"), vec![number as u8; SIZE]));
    // Each entry has a row and a check.
    let half = (COUNT * (SIZE + 96) / 2 + 1000) as f64 / (1_u64 << 30) as f64;
    let mut since = 0;
    for pass in 0..3 {
        let cache = format!("{}:{half}", bucket.cache().display());
        let call = bucket.run(&format!("half-{pass}")).argument("--store-cache").argument(cache);
        let figures = call.finish().exits(0).snapshot().caches["data"];
        let reads = bucket.reads(&mut since);
        let expected = if pass == 0 { COUNT..=COUNT } else { COUNT / 2 - 2..=COUNT / 2 + 2 };
        assert!(expected.contains(&reads), "pass {pass}: {reads} of {COUNT}");
        assert_eq!(figures.misses as usize, reads);
        assert_eq!(figures.full as usize, if pass == 0 { COUNT - kept(&bucket) } else { reads });
    }
}

/// Entries that the cache has.
fn kept(bucket: &Bucket) -> usize {
    let verified = bucket.command("verify").exits(0).stdout;
    let whole = verified.split(" whole").next().and_then(|before| before.split_whitespace().last());
    whole.and_then(|whole| whole.parse().ok()).expect("the table states a number")
}

#[test]
fn a_cache_that_cannot_be_used_is_told_and_one_without_room_is_none() {
    let bucket = Bucket::new(Duration::ZERO);
    let file = bucket.folder.write("file", "");
    let refused = bucket.run("a").argument("--store-cache").argument(&file).finish().exits(2);
    assert!(refused.stderr.contains("the cache of its objects cannot be used"), "{}", refused.stderr);
    for (flag, told) in
        [("/x:0", "the size is invalid"), ("/x:many", "the size is invalid"), (":5", "the folder is missing")]
    {
        let refused = bucket.run("b").argument("--store-cache").argument(flag).finish().exits(2);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
    assert!(bucket.command("list").exits(2).stderr.contains("has no data cache"));

    let tiny =
        bucket.run("c").argument("--store-cache").argument(format!("{}:0.001", bucket.cache().display()));
    let figures = tiny.finish().exits(0).snapshot().caches["data"];
    bucket.run("plain").finish().exits(0);
    assert!(bucket.written("c") == bucket.written("plain"));
    assert_eq!((figures.hits, figures.misses), (0, 60));
}
