//! The photo pipeline: damaged files are reported without affecting others, and batches depend only on the seed.

use std::sync::{Arc, Mutex, OnceLock};

use penstock_engine::item::{Collated, Item, Stacked};
use penstock_engine::ports::{Consumer, Fault, StopFlag};
use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_tests::{Call, Folder, lines, photos, repository, shown};
use penstock_types::run::{FailureRecord, RunState};
use penstock_types::spec::{self, Spec};
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[test]
fn damaged_photos_are_named_with_key_and_reason_and_the_others_are_delivered() {
    let folder = Folder::new();
    folder.copy_photos();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let mut corrupt = read("000/000010.jpg");
    // A Huffman table without a valid code: marker, length, class, then the number of codes of each length.
    let table = corrupt.windows(2).position(|marker| marker == [0xff, 0xc4]).unwrap();
    corrupt[table + 5..table + 21].fill(0xfe);
    folder.write("000/000010.jpg", corrupt);
    let whole = read("000/000020.jpg");
    folder.write("000/000020.jpg", &whole[..whole.len() / 2]);
    folder.write("000/000030.jpg", b"");

    let out = Folder::new();
    let call = Call::run(&repository().join("examples/pipelines/photos.json")).store("photos", folder.path());
    let call = call.threads(2).set("/consumer/simulate/step_ms=0");
    let finished = call.out(out.path()).finish().exits(0);
    let snapshot = finished.snapshot();
    assert_eq!(snapshot.state, RunState::Completed);
    assert_eq!((snapshot.ledger.total.delivered, snapshot.ledger.total.skipped), (97, 3));

    let mut errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    errors.sort_by_key(|error| error.index);
    let mut told: Vec<String> = finished.section("Failures").lines().map(str::to_owned).collect();
    told.sort();
    shown().bind(|| insta::assert_snapshot!(told.join("\n")));
    shown().bind(|| insta::assert_json_snapshot!(errors));
}

#[test]
fn batches_are_the_same_bytes_for_any_number_of_threads_and_differ_for_another_seed() {
    let one = batches(7, 1);
    assert_eq!(one.len(), 25);
    for threads in [2, 12] {
        assert_eq!(batches(7, threads), one, "{threads} threads");
    }
    let other = batches(8, 2);
    assert_eq!(other.len(), 25);
    assert!(one.iter().zip(&other).all(|(one, other)| one != other), "the seeds share a batch");
}

fn batches(seed: u64, threads: u32) -> Vec<[u8; 32]> {
    let mut stores = Stores::default();
    stores.add_folder("photos", photos()).unwrap();
    batches_of(stores, in_input_order(seed, threads))
}

/// Digests of the batches of [`in_input_order`] over the photos, collected by a consumer of this file, since no consumer of a
/// document exposes bytes.
pub(crate) fn batches_of(stores: Stores, document: Value) -> Vec<[u8; 32]> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let spec = Spec::from_value(document).unwrap();
    let runner = Runner::new(runtime.handle().clone(), stores, modules(&spec).clone());
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    let digests = Arc::new(Mutex::new(Vec::new()));
    let consumer = Box::new(Digests(digests.clone()));
    let ends = RunEnds { consumer: Some(consumer), ..RunEnds::default() };
    let ended = runtime.block_on(prepared.start(None, ends)).unwrap().wait();
    assert_eq!(ended.snapshot.state, RunState::Completed, "{:?}", ended.snapshot.error);
    assert_eq!(
        (ended.snapshot.ledger.total.delivered, Some(ended.snapshot.threads)),
        (100, prepared.plan.threads)
    );
    std::mem::take(&mut digests.lock().unwrap())
}

/// `photos.json` with every stage in input order.
pub(crate) fn in_input_order(seed: u64, threads: u32) -> Value {
    let written = std::fs::read(repository().join("examples/pipelines/photos.json")).unwrap();
    let mut document = spec::parse(&written).unwrap();
    spec::set(&mut document, "/seed", json!(seed)).unwrap();
    spec::set(&mut document, "/threads", json!(threads)).unwrap();
    let stages = document["stages"].as_array_mut().unwrap();
    for stage in stages.iter_mut().flat_map(|stage| stage.as_object_mut().unwrap().iter_mut()) {
        if let (kind, Value::Object(fields)) = stage
            && kind != "aggregate"
            && kind != "disaggregate"
        {
            fields.insert("order".into(), json!("input"));
        }
    }
    document
}

/// The modules of `photos.json`, compiled once.
fn modules(spec: &Spec) -> &'static Modules {
    static MODULES: OnceLock<Modules> = OnceLock::new();
    MODULES.get_or_init(|| {
        let settings = SandboxSettings { instances: 16, ..SandboxSettings::default() };
        let mut modules = Modules::new(Sandbox::new(settings).unwrap());
        modules.add_std(spec).unwrap();
        modules
    })
}

/// Keeps the digest of every batch, in order.
struct Digests(Arc<Mutex<Vec<[u8; 32]>>>);

impl Consumer for Digests {
    fn consume(&mut self, item: Item, _: &StopFlag) -> Result<(), Fault> {
        let Item::Collated(batch) = item else { panic!("photos.json collates: {item:?}") };
        self.0.lock().unwrap().push(digest(&batch));
        Ok(())
    }
}

/// Digest over keys, names, types, shapes and elements, each with its length.
fn digest(batch: &Collated) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    batch.keys.iter().for_each(|key| add(key.as_bytes()));
    for column in &batch.fields {
        let Stacked::Tensor(tensor) = &column.values else { panic!("images are tensors: {column:?}") };
        assert_eq!(tensor.shape[1..], [3, 224, 224]);
        add(column.name.as_bytes());
        add(tensor.dtype.name().as_bytes());
        tensor.shape.iter().for_each(|length| add(&length.to_le_bytes()));
        add(&tensor.data);
    }
    hash.finalize().into()
}
