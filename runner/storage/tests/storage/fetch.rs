//! Tests of the `fetch` stage.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use penstock_engine::item::{Collated, Item, Origin, Sample, Value};
use penstock_engine::ports::{Items, Output, TaskOp};
use penstock_s3_server::{Fault, Trouble};
use penstock_storage::{BYTES_FIELD, BoundedStore, DEFAULT_READS, FetchOp, s3_store};
use penstock_types::run::FailureClass;

use crate::folder_with;
use crate::s3::{server, settings};

fn sample(key: &str) -> Sample {
    let mut sample = Sample::new(key, Origin { epoch: 1, index: 2, path: 3, ..Origin::default() });
    sample.set("label", Value::Int(4));
    sample
}

fn fetched(key: &str, bytes: &'static [u8]) -> Sample {
    let mut sample = sample(key);
    sample.set(BYTES_FIELD, Value::Blob(bytes.into()));
    sample
}

fn faults(output: &Output) -> Vec<(Sample, FailureClass, String)> {
    let failed = output.failed.iter();
    failed
        .map(|failed| (failed.sample.clone(), failed.fault.class, failed.fault.message.to_string()))
        .collect()
}

#[tokio::test]
async fn a_sample_keeps_its_fields_and_gets_its_bytes() {
    let (_folder, store) = folder_with(&[("a", b"one")]);
    let output = FetchOp::new(store, None).start(Item::Sample(sample("a"))).await;
    assert!(matches!(&output.items, Items::One(Item::Sample(found)) if *found == fetched("a", b"one")));
    assert!(output.failed.is_empty() && output.op_time.is_some());
}

#[tokio::test]
async fn a_read_without_valid_credentials_ends_the_run_and_other_failures_do_not() {
    let codes = [
        (400, "ExpiredToken", true),
        (400, "TokenRefreshRequired", true),
        (400, "InvalidToken", true),
        (403, "InvalidAccessKeyId", true),
        (403, "SignatureDoesNotMatch", true),
        (403, "AccessDenied", true),
        (401, "Unauthorized", true),
        (404, "NoSuchKey", false),
        (400, "InvalidRequest", false),
    ];
    for (status, code, is_fatal) in codes {
        let server = server();
        ["a", "b", "c"].iter().for_each(|key| server.put(key, "one"));
        server.inject(Fault::on("b", Trouble::Status(status, code)));
        let store = s3_store("data", settings(server.endpoint())).unwrap();
        let op = FetchOp::new(BoundedStore::new(store, DEFAULT_READS), None);
        let output = op.start(Item::Batch(vec![sample("a"), sample("b"), sample("c")])).await;
        assert!(matches!(&output.items, Items::One(Item::Batch(read)) if read.len() == 2), "{code}");
        let [(failed, FailureClass::Storage, message)] = &faults(&output)[..] else { panic!("{output:?}") };
        assert_eq!(&*failed.key, "b");
        assert_eq!(output.fatal.as_ref(), is_fatal.then_some(message), "{code}");
        let alone = op.start(Item::Sample(sample("b"))).await;
        assert_eq!((alone.fatal.is_some(), alone.failed.len()), (is_fatal, 1), "{code}");
        if is_fatal {
            let said =
                format!("store `data` denies reading `b`; check its credentials and permissions: {code}");
            assert!(message.starts_with(&said), "{message}");
        }
    }
}

#[tokio::test]
async fn a_file_without_permissions_fails_its_sample_only() {
    let (folder, store) = folder_with(&[("a", b"one")]);
    std::fs::set_permissions(folder.path().join("a"), std::fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser reads each file.
    if std::fs::File::open(folder.path().join("a")).is_ok() {
        return;
    }
    let output = FetchOp::new(store, None).start(Item::Sample(sample("a"))).await;
    assert_eq!((output.fatal, output.failed.len()), (None, 1));
}

#[tokio::test]
async fn a_field_names_the_object_and_a_sample_without_it_fails_alone() {
    let (_folder, store) = folder_with(&[("a", b"one"), ("b", b"two")]);
    let named = |key: &str, path: Option<Value>| {
        let mut sample = Sample::new(key, Origin::default());
        path.into_iter().for_each(|path| sample.set("path", path));
        sample
    };
    let text = |text: &str| Some(Value::Text(text.to_owned()));
    let batch =
        vec![named("1", text("b")), named("2", None), named("3", Some(Value::Int(3))), named("b", text("a"))];
    let output = FetchOp::new(store, Some("path")).start(Item::Batch(batch.clone())).await;
    let Items::One(Item::Batch(found)) = &output.items else { panic!("{output:?}") };
    let bytes = |sample: &Sample| sample.field(BYTES_FIELD).cloned();
    assert_eq!(found.iter().map(|sample| &*sample.key).collect::<Vec<_>>(), ["1", "b"]);
    assert_eq!(
        found.iter().filter_map(bytes).collect::<Vec<_>>(),
        [Value::Blob("two".into()), Value::Blob("one".into())]
    );
    let why = "`fetch` reads the object that the field `path` names, but this field is";
    let contract = FailureClass::Contract;
    let expected = [
        (batch[1].clone(), contract, format!("{why} missing")),
        (batch[2].clone(), contract, format!("{why} no text")),
    ];
    assert_eq!(faults(&output), expected);
}

#[tokio::test]
async fn a_missing_key_does_not_fail_the_other_samples() {
    let (_folder, store) = folder_with(&[("a", b"one"), ("b", b""), ("c", b"three")]);
    let batch = ["c", "missing", "a", "../a", "b", "a"].map(sample).to_vec();
    let output = FetchOp::new(store, None).start(Item::Batch(batch)).await;
    let expected =
        vec![fetched("c", b"three"), fetched("a", b"one"), fetched("b", b""), fetched("a", b"one")];
    assert!(matches!(&output.items, Items::One(Item::Batch(found)) if *found == expected), "{output:?}");
    let storage = FailureClass::Storage;
    assert_eq!(
        faults(&output),
        [
            (sample("missing"), storage, "store `data` has no object `missing`".to_owned()),
            (
                sample("../a"),
                storage,
                "store `data` refuses the key `../a`: it has a segment `.` or `..`; keys name objects directly"
                    .to_owned()
            ),
        ]
    );
    assert!(output.op_time.is_some());
}

#[tokio::test]
async fn no_item_is_passed_on_if_all_samples_failed() {
    let (_folder, store) = folder_with(&[]);
    let op = FetchOp::new(store, None);
    let output = op.start(Item::Batch(vec![sample("a"), sample("b")])).await;
    assert!(matches!(output.items, Items::None));
    assert_eq!(output.failed.len(), 2);
    let output = op.start(Item::Sample(sample("a"))).await;
    assert!(matches!(output.items, Items::None));
    assert_eq!(faults(&output)[0].2, "store `data` has no object `a`");
}

#[tokio::test]
async fn all_samples_of_a_collated_batch_fail_and_none_is_lost() {
    let (_folder, store) = folder_with(&[]);
    let keys: Vec<Arc<str>> = vec![Arc::from("a"), Arc::from("b")];
    let batch = Collated { keys, origins: vec![Origin::default(); 2], fields: Vec::new() };
    let output = FetchOp::new(store, None).start(Item::Collated(batch)).await;
    assert_eq!(output.failed.len(), 2);
    assert!(output.failed.iter().all(|failed| failed.fault.class == FailureClass::Contract));
}
