//! Cost of the sandbox: an identity stage, the image stages compared with the same code native, and a cold start.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{Items, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_guest::{Item as GuestItem, Params as _};
use penstock_wasm::{Compilation, Sandbox, SandboxSettings, StageFactory, StageSettings};
use serde_json::json;

use crate::engine::{Identity, run, runtime, sample_of};
use crate::{Bound, Row, guest, median, photos_dir, take_turns, workspace};

/// Number of photos decoded in one measurement.
const PHOTOS: usize = 200;
const ITEMS: u64 = 50_000;

pub(crate) fn cost_of_identity() -> Row {
    let runtime = runtime();
    let sandbox = Sandbox::new(SandboxSettings::default()).unwrap();
    let wasm = stage(&sandbox, "guest_misbehaving", json!({ "how": "good" }));
    let sample = sample_of(1000);
    let stop = StopFlag::default();
    let (mut guest, mut native) = (wasm.build(&stop).unwrap(), Identity.build(&stop).unwrap());
    // One thread calls the op in a loop, so that wake-ups of threads do not decide the figure.
    let in_a_loop = |op: &mut dyn ThreadOp| {
        let start = Instant::now();
        (0..ITEMS).for_each(|_| drop(black_box(apply(op, sample.clone(), &stop))));
        start.elapsed()
    };
    let (wasm_s, native_s, _) = take_turns(|| in_a_loop(&mut *guest), || in_a_loop(&mut *native));
    let (piped_s, native_piped_s, _) = take_turns(
        || run(&runtime, ITEMS, &sample, Arc::new(wasm.clone())),
        || run(&runtime, ITEMS, &sample, Arc::new(Identity)),
    );
    let us = |seconds: f64| seconds * 1e6 / ITEMS as f64;
    Row {
        what: "time per 1 KB sample added by a WASM identity stage",
        must: Bound::AtMost(1.5, " us"),
        aim: Bound::AtMost(0.7, " us"),
        found: us(wasm_s - native_s),
        from: format!(
            "in a loop on one thread {:.2} us against {:.2} us native; in a pipeline {:.2} us against {:.2} us",
            us(wasm_s),
            us(native_s),
            us(piped_s),
            us(native_piped_s)
        ),
    }
}

pub(crate) fn decode_against_native() -> Row {
    let photos = photos();
    let sandbox = Sandbox::new(SandboxSettings::default()).unwrap();
    let stop = StopFlag::default();
    let params = params_of("photos-max.json");
    let settings = image::Settings::from_json(&params.to_string()).unwrap();
    let mut decode = stage(&sandbox, "image", params).build(&stop).unwrap();
    let in_wasm = || timed(&photos, |sample| drop(apply(&mut *decode, sample, &stop)));
    let native = || {
        timed(&photos, |sample| {
            let Some(Value::Blob(bytes)) = sample.field("bytes") else { panic!("{sample:?}") };
            let item = GuestItem::new(&*sample.key).with("bytes", bytes.to_vec());
            drop(image::transform(item, &settings).unwrap());
        })
    };
    let (wasm_s, native_s, ratio) = take_turns(in_wasm, native);
    let ms = |seconds: f64| seconds * 1e3 / PHOTOS as f64;
    Row {
        what: "decode, resize, normalise in WASM, relative to native code",
        must: Bound::AtMost(1.9, "x"),
        aim: Bound::AtMost(1.4, "x"),
        found: ratio,
        from: format!("{:.2} ms against {:.2} ms a photo", ms(wasm_s), ms(native_s)),
    }
}

pub(crate) fn cold_start() -> Row {
    let (size_kb, starts) = starts();
    let first: Vec<f64> = starts.iter().map(|(first, _)| *first).collect();
    Row {
        what: "cold start of a cached module: load and first instance",
        must: Bound::AtMost(1.0, " ms"),
        aim: Bound::AtMost(0.5, " ms"),
        found: median(first.clone()),
        from: format!("image.wasm, {size_kb} kB: {first:.2?} ms"),
    }
}

pub(crate) fn second_instance() -> Row {
    let (size_kb, starts) = starts();
    let second: Vec<f64> = starts.iter().map(|(_, second)| *second).collect();
    Row {
        what: "second instance of a module",
        must: Bound::AtMost(0.1, " ms"),
        aim: Bound::AtMost(0.03, " ms"),
        found: median(second.clone()),
        from: format!("image.wasm, {size_kb} kB: {second:.3?} ms"),
    }
}

/// Size of a module in kB, and the times in ms of its load from the cache with the first instance, and of a second instance. No
/// module is alive when another one is loaded, so every load reads and verifies the cached code.
fn starts() -> (usize, Vec<(f64, f64)>) {
    let cache = tempfile::tempdir().unwrap();
    let settings =
        || SandboxSettings { cache_dir: Some(cache.path().to_owned()), ..SandboxSettings::default() };
    let code = guest("image");
    Sandbox::new(settings()).unwrap().load(&code).unwrap();
    let start = || {
        let sandbox = Sandbox::new(settings()).unwrap();
        let start = Instant::now();
        let module = sandbox.load(&code).unwrap();
        let stage = module.stage(stage_settings(params_of("photos-max.json")));
        let _first = stage.build(&StopFlag::default()).unwrap();
        let first = start.elapsed();
        assert_eq!(module.compilation(), Compilation::Cached);
        let start = Instant::now();
        let _second = stage.build(&StopFlag::default()).unwrap();
        (first.as_secs_f64() * 1e3, start.elapsed().as_secs_f64() * 1e3)
    };
    (code.len() / 1000, (0..crate::RUNS).map(|_| start()).collect())
}

/// Params of the first WASM stage of an example.
fn params_of(example: &str) -> serde_json::Value {
    let document = std::fs::read(workspace().join("examples/pipelines").join(example)).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    let mut stages = document["stages"].as_array().unwrap().iter();
    stages.find_map(|stage| stage.pointer("/wasm/params")).unwrap().clone()
}

fn stage(sandbox: &Sandbox, module: &str, params: serde_json::Value) -> StageFactory {
    sandbox.load(&guest(module)).unwrap().stage(stage_settings(params))
}

fn stage_settings(params: serde_json::Value) -> StageSettings {
    StageSettings {
        name: "bench".into(),
        params,
        deadline: Duration::from_secs(5),
        memory_bytes: 256 << 20,
        output_bytes: 128 << 20,
        held_bytes: 256 << 20,
        assets: Default::default(),
        document_seed: 7,
    }
}

fn apply(op: &mut dyn ThreadOp, sample: Sample, stop: &StopFlag) -> Sample {
    match op.apply(Item::Sample(sample), stop).items {
        Items::One(Item::Sample(sample)) => sample,
        other => panic!("{other:?}"),
    }
}

fn timed(photos: &[Sample], mut work: impl FnMut(Sample)) -> Duration {
    let start = Instant::now();
    photos.iter().for_each(|photo| work(photo.clone()));
    start.elapsed()
}

/// First photos of the demo, read into memory.
fn photos() -> Vec<Sample> {
    let mut files = walk(&photos_dir());
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let mut sample = Sample::new(path.display().to_string(), Origin::default());
        sample.set("bytes", Value::Blob(std::fs::read(path).unwrap().into()));
        sample
    };
    files.iter().take(PHOTOS).map(read).collect()
}

/// All JPEGs below a folder.
pub(crate) fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: std::path::PathBuf| if path.is_dir() { walk(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.extension().is_some_and(|end| end == "jpg")).collect()
}
