//! Passes over a bucket whose objects are kept on this machine, beside passes without a cache and over a folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_tests::{Call, Folder};
use penstock_types::run::RunSnapshot;
use serde_json::json;

use crate::s3::Server;
use crate::{Bound, Row, median, photos_dir};

const LATENCY: Duration = Duration::from_millis(20);
const ROUNDS: usize = 5;

/// Epochs of a run that reads from this machine alone: one takes a tenth of a second.
const EPOCHS: u32 = 10;

pub(crate) fn first_pass() -> Row {
    let bench = Bench::new();
    let found = ratio(
        |round| bench.pass(&bench.bucket(), Some(&bench.folder.join(&format!("cache-{round}"))), 1).elapsed_s,
        |_| bench.pass(&bench.bucket(), None, 1).elapsed_s,
    );
    Row {
        what: "S3, 20 ms: time of a pass that fills a cache, to one without",
        must: Bound::AtMost(1.03, "x"),
        aim: Bound::AtMost(1.01, "x"),
        found,
        from: format!("median of {ROUNDS} rounds over the photos of the demo"),
    }
}

pub(crate) fn second_pass() -> Row {
    let bench = Bench::new();
    let cache = bench.folder.join("cache");
    bench.pass(&bench.bucket(), Some(&cache), 1);
    let cached = |_| {
        let snapshot = bench.pass(&bench.bucket(), Some(&cache), EPOCHS);
        assert_eq!(snapshot.caches["photos"].misses, 0, "all is in the cache");
        snapshot.elapsed_s
    };
    let found = ratio(|_| bench.pass(&photos_dir(), None, EPOCHS).elapsed_s, cached);
    Row {
        what: "S3, 20 ms: rate of passes from a cache, to those over a folder",
        must: Bound::AtLeast(0.95, "x"),
        aim: Bound::AtLeast(1.0, "x"),
        found,
        from: format!(
            "median of {ROUNDS} rounds of {EPOCHS} epochs of the photos of the demo, without decoding"
        ),
    }
}

/// Median of the ratios of two times. Each is measured first in every second round.
fn ratio(over: impl Fn(usize) -> f64, under: impl Fn(usize) -> f64) -> f64 {
    let ratios = (0..ROUNDS).map(|round| match round % 2 {
        0 => over(round) / under(round),
        _ => {
            let under = under(round);
            over(round) / under
        }
    });
    median(ratios.collect())
}

struct Bench {
    _server: Server,
    folder: Folder,
}

impl Bench {
    fn new() -> Self {
        let photos = photos_dir();
        let server = Server::start(LATENCY, &["--root", photos.to_str().expect("the path is UTF-8")]);
        let folder = Folder::new();
        let dataset = json!({
            "aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret",
            "bucket_name": "data", "endpoint_url": server.endpoint()
        });
        folder.write("bucket.json", dataset.to_string());
        Self { _server: server, folder }
    }

    /// File that describes the bucket.
    fn bucket(&self) -> PathBuf {
        self.folder.join("bucket.json")
    }

    fn pass(&self, photos: &Path, cache: Option<&Path>, epochs: u32) -> RunSnapshot {
        let document = json!({
            "source": { "list": { "store": "photos", "suffix": ".jpg", "shuffle": true, "epochs": epochs } },
            "stages": [{ "fetch": { "concurrency": 32, "queue": 32 } }, { "aggregate": { "size": 16 } }],
            "consumer": { "discard": {} }
        });
        let call = Call::run(&self.folder.document(&document)).store("photos", photos).json();
        let call = match cache {
            Some(cache) => call.argument("--store-cache").argument(format!("{}:1", cache.display())),
            None => call,
        };
        call.finish().exits(0).snapshot()
    }
}
