//! Benchmarks of the sandbox: an identity stage on a sample, a fresh instance, and loading a module from the cache. Needs `make
//! guests`.
#![expect(clippy::unwrap_used, reason = "a bench that cannot set up its case should say where")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{StopFlag, ThreadOpFactory};
use penstock_wasm::{Compilation, Sandbox, SandboxSettings, StageSettings};
use serde_json::json;

fn guest() -> Vec<u8> {
    let built = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let path = built.join("wasm32-unknown-unknown/guest/guest_misbehaving.wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

fn settings() -> StageSettings {
    StageSettings {
        name: "identity".into(),
        params: json!({ "how": "good" }),
        deadline: Duration::from_secs(5),
        memory_bytes: 256 << 20,
        output_bytes: 128 << 20,
        held_bytes: 256 << 20,
        assets: Default::default(),
        document_seed: 7,
    }
}

fn sample(bytes: usize) -> Sample {
    let mut sample = Sample::new("photos/0001.jpg", Origin::at(0, 1));
    sample.set("blob", Value::Blob(Bytes::from(vec![7; bytes])));
    sample
}

fn identity(criterion: &mut Criterion) {
    let sandbox = Sandbox::new(SandboxSettings::default()).unwrap();
    let factory = sandbox.load(&guest()).unwrap().stage(settings());
    let stop = StopFlag::default();
    let mut op = factory.build(&stop).unwrap();
    let mut group = criterion.benchmark_group("identity");
    for (name, bytes) in [("0 B", 0), ("1 KB", 1000), ("150 KB", 150_000)] {
        let sample = sample(bytes);
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(op.apply(Item::Sample(sample.clone()), &stop)));
        });
    }
    group.finish();
    criterion.bench_function("fresh instance with init", |bencher| {
        bencher.iter(|| drop(factory.build(&stop).unwrap()));
    });
}

fn cached_load(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let settings = || SandboxSettings { cache_dir: Some(folder.path().into()), ..SandboxSettings::default() };
    let sandbox = Sandbox::new(settings()).unwrap();
    // A module of a megabyte. Most of it is a section that is only hashed, because large modules consist mostly of data and
    // names.
    let mut bytes = guest();
    let padding = (1 << 20) - bytes.len();
    bytes.push(0); // a custom section
    let name = b"\x03pad";
    let mut length = padding + name.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(name);
    bytes.resize(bytes.len() + padding, 0);
    assert_eq!(sandbox.load(&bytes).unwrap().compilation(), Compilation::Compiled);
    let stop = StopFlag::default();
    criterion.bench_function("cached load of 1 MB and first instance", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                let module = sandbox.load(&bytes).unwrap();
                assert_eq!(module.compilation(), Compilation::Cached);
                let op = module.stage(self::settings()).build(&stop).unwrap();
                (module, drop(op))
            },
            BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, identity, cached_load);
criterion_main!(benches);
