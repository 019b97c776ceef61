//! Sources of every format over a folder, a bucket of our own S3 server, and one of rclone: the same samples.

use std::fs;
use std::path::Path;

use penstock_engine::item::Sample;
use penstock_engine::ports::Produced;
use penstock_pipeline::{Modules, Outlets, Runner, Stores};
use penstock_s3_server::{Rclone, Server, Settings};
use penstock_tests::{Call, Folder, repository};
use penstock_types::config::DatasetConfig;
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::{Value, json};

const BUCKET: &str = "playground";
const SECRET: [&str; 2] = ["penstock-test", "penstock-test-secret"];

/// The fixtures of all formats, by their keys.
pub(crate) fn fixtures() -> Vec<(String, Vec<u8>)> {
    let data = repository().join("runner/formats/tests/data");
    let mut files = Vec::new();
    for folder in ["", "parquet", "tfrecord", "mds/zstd", "mds/plain"] {
        for entry in fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let key = Path::new(folder).join(name).to_str().unwrap().to_owned();
            if path.is_file() {
                files.push((key, fs::read(&path).unwrap()));
            }
        }
    }
    files.push(("rows/0.csv".to_owned(), b"key,text,n\na,\"x\ny\",1\nb,,2\n".to_vec()));
    files.push(("rows/1.csv".to_owned(), b"key,text,n\nc,z,3\n".to_vec()));
    files
}

/// A source of each format, in order and shuffled.
fn sources() -> Vec<Value> {
    let in_order = [
        json!({ "tar": { "store": "data", "shards": "shard-{00..02}.tar" } }),
        json!({ "tar": { "store": "data", "index": "tar.index" } }),
        json!({ "parquet": { "store": "data", "shards": "parquet/rows.parquet" } }),
        json!({ "parquet": { "store": "data", "shards": "parquet/images.parquet" } }),
        json!({ "tfrecord": { "store": "data", "prefix": "tfrecord/train" } }),
        json!({ "tfrecord": { "store": "data", "index": "tfrecord.index" } }),
        json!({ "mds": { "store": "data", "prefix": "mds/zstd" } }),
        json!({ "mds": { "store": "data", "prefix": "mds/plain" } }),
        json!({ "csv": { "store": "data", "prefix": "rows/", "types": { "n": "int" } } }),
    ];
    let shuffled = in_order.clone().map(|mut source| {
        let settings = source.as_object_mut().and_then(|kinds| kinds.values_mut().next()).unwrap();
        settings["shuffle"] = json!(true);
        source
    });
    // Without an index, tar shards and TFRecord files have no order but their own.
    let has_order = |source: &Value| {
        ["tar", "tfrecord"].iter().all(|kind| source.get(kind).is_none_or(|of| of.get("index").is_some()))
    };
    in_order.into_iter().chain(shuffled.into_iter().filter(has_order)).collect()
}

/// All samples of a source of these stores.
fn samples(stores: Stores, source: &Value) -> Vec<Sample> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    let spec = Spec::from_value(json!({ "seed": 7, "source": source })).unwrap();
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    let mut source = prepared.source();
    runtime.block_on(async {
        let mut all = Vec::new();
        while let Some(produced) = source.next().await.unwrap() {
            if let Produced::Samples(samples) = produced {
                all.extend(samples.into_kept());
            }
        }
        all
    })
}

/// Configuration of a data set on an S3 server.
fn dataset(endpoint: &str) -> String {
    let [id, secret] = SECRET;
    json!({
        "aws_access_key_id": id, "aws_secret_access_key": secret, "bucket_name": BUCKET, "endpoint_url": endpoint
    })
    .to_string()
}

#[test]
fn each_format_has_the_same_samples_from_a_folder_a_bucket_and_rclone() {
    let root = Folder::new();
    let data = root.join(BUCKET);
    let server = Server::start(Settings { bucket: BUCKET.to_owned(), ..Settings::default() }).unwrap();
    for (key, bytes) in fixtures() {
        let file = data.join(&key);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, &bytes).unwrap();
        server.put(&key, bytes);
    }
    let rclone = Rclone::serve(root.path(), SECRET[0], SECRET[1]);
    let mut folder = Stores::default();
    folder.add_folder("data", &data).unwrap();
    let expected = all_samples(&data, &folder);
    assert!(expected.iter().all(|(_, samples)| samples.len() > 2));
    for endpoint in [server.endpoint(), rclone.endpoint()] {
        let configuration = root.write("dataset.json", dataset(&endpoint));
        let mut stores = Stores::default();
        let read = DatasetConfig::read(dataset(&endpoint).as_bytes()).unwrap();
        stores.add_dataset("data", &read).unwrap();
        for ((source, samples), (_, expected)) in all_samples(&configuration, &stores).iter().zip(&expected) {
            // As text, numbers that are not equal to themselves are equal.
            assert_eq!(format!("{samples:?}"), format!("{expected:?}"), "{source} at {endpoint}");
        }
    }
}

/// Samples of each source in the store at this place. The indexes of shards are made first: they have the versions of these.
fn all_samples(place: &Path, stores: &Stores) -> Vec<(Value, Vec<Sample>)> {
    for [kind, prefix] in [["tar", "shard-"], ["tfrecord", "tfrecord/train"]] {
        let call = Call::new(&["index", "create", &format!("--{kind}"), &format!("--upload={kind}.index")]);
        call.argument("--prefix").argument(prefix).store("data", place).finish().exits(0);
    }
    sources().into_iter().map(|source| (source.clone(), samples(stores.clone(), &source))).collect()
}
