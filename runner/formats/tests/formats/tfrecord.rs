//! Tests of TFRecord files.

use std::collections::BTreeMap;
use std::io::Read;
use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_engine::item::{Dtype, Origin, Sample, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::Source;
use penstock_engine::typed::Typing;
use penstock_formats::tfrecord::{self, RecordFields};
use penstock_formats::{Access, Damage, IndexKind, SampleIndex, Shards, expand};
use penstock_storage::{BoundedStore, Wanted};
use penstock_types::data_set::FieldType;
use penstock_types::traversal::TraversalSettings;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::{COMPRESSORS, access, data, drain, store_of, with, written};

const MOST: u64 = 1 << 20;
const FILES: [&str; 2] = ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002"];
const IN_ORDER: TraversalSettings = TraversalSettings::IN_ORDER;

fn file(name: &str) -> Vec<u8> {
    data(&format!("tfrecord/{name}"))
}

/// Samples as the package tfrecord reads them: type and elements of each feature.
fn expected(name: &str) -> Vec<BTreeMap<String, (String, Vec<Json>)>> {
    let mut all: BTreeMap<String, Vec<_>> = serde_json::from_slice(&file("expected.json")).unwrap();
    all.remove(name).unwrap()
}

fn examples() -> Json {
    json!({})
}

fn bytes() -> Json {
    json!({ "decode": "bytes" })
}

fn selected(fields: &[(&str, &str)], key: Option<&str>, texts: &[&str]) -> Json {
    let fields: BTreeMap<_, _> = fields.iter().copied().collect();
    json!({ "fields": fields, "sample_key": key, "texts": texts })
}

async fn store() -> BoundedStore {
    let names = ["raw.tfrecord", "sequence.tfrecord", "gzip.tfrecord.gz"];
    let objects: Vec<_> = FILES.iter().chain(&names).map(|name| (*name, file(name))).collect();
    store_of(&objects).await
}

fn shards(pattern: &str) -> Shards {
    Shards::Keys(expand(pattern).unwrap())
}

fn stream(store: &BoundedStore, pattern: &str, fields: Json) -> Box<dyn Source> {
    let source = written(with(fields, "shards", pattern));
    Box::new(tfrecord::stream(&source, access(store, MOST), Typing::default(), IN_ORDER))
}

async fn put_index(store: &BoundedStore, pattern: &str) {
    let index =
        SampleIndex::build(IndexKind::Tfrecord, store, &shards(pattern), &Damage::default(), |_, _| {})
            .await
            .unwrap();
    store.put(Arc::from("index"), index.to_bytes().into()).await.unwrap();
}

fn indexed(store: &BoundedStore, fields: Json, settings: TraversalSettings) -> Box<dyn Source> {
    let open = tfrecord::open(&written(with(fields, "index", "index")), access(store, MOST));
    Box::new(NumberedSource::new(open, settings, MOST))
}

/// A value as the package tfrecord has it.
fn elements(value: &Value) -> (String, Vec<Json>) {
    match value {
        Value::Blob(bytes) => ("bytes".to_owned(), bytes.iter().map(|byte| Json::from(*byte)).collect()),
        Value::Int(number) => ("int64".to_owned(), vec![Json::from(*number)]),
        Value::Real(number) => ("float32".to_owned(), vec![Json::from(*number)]),
        Value::Tensor(tensor) => {
            assert_eq!(
                tensor.shape.iter().product::<u32>() as usize * tensor.dtype.size(),
                tensor.data.len()
            );
            let elements = tensor.data.chunks(tensor.dtype.size()).map(|element| match tensor.dtype {
                Dtype::Float32 => Json::from(f64::from(f32::from_le_bytes(element.try_into().unwrap()))),
                Dtype::Int64 => Json::from(i64::from_le_bytes(element.try_into().unwrap())),
                other => panic!("{other:?}"),
            });
            (tensor.dtype.name().to_owned(), elements.collect())
        }
        other => panic!("{other:?}"),
    }
}

fn assert_same(samples: &[Sample], name: &str) {
    let expected = expected(name);
    assert_eq!(samples.len(), expected.len());
    for (number, (sample, expected)) in samples.iter().zip(expected).enumerate() {
        assert_eq!(*sample.key, format!("{name}#{number}"));
        let found = sample.fields.iter().map(|field| (field.name.to_string(), elements(&field.value)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{name} {number}");
    }
}

#[tokio::test]
async fn examples_are_read_as_tfrecord_reads_them_with_and_without_an_index() {
    let store = store().await;
    for name in FILES {
        let (samples, _, fault) = drain(stream(&store, name, examples())).await;
        assert_eq!(fault, None);
        assert_same(&samples, name);
        put_index(&store, name).await;
        let (samples, _, fault) = drain(indexed(&store, examples(), IN_ORDER)).await;
        assert_eq!(fault, None);
        assert_same(&samples, name);
    }
    let (samples, _, fault) = drain(stream(&store, "gzip.tfrecord.gz", examples())).await;
    assert_eq!(fault, None);
    assert_same(&samples, "gzip.tfrecord.gz");
    let (samples, _, fault) = drain(stream(&store, "raw.tfrecord", bytes())).await;
    assert_eq!(fault, None);
    assert_same(&samples, "raw.tfrecord");
}

#[tokio::test]
async fn an_index_names_each_record_once_in_any_order() {
    let store = store().await;
    put_index(&store, "train.tfrecord-{00000..00001}-of-00002").await;
    for window in [None, NonZeroU32::new(1)] {
        let settings = TraversalSettings { seed: 7, shuffle: true, window, ..IN_ORDER };
        let (samples, _, fault) = drain(indexed(&store, examples(), settings)).await;
        assert_eq!(fault, None);
        let mut keys: Vec<String> = samples.iter().map(|sample| sample.key.to_string()).collect();
        let in_order: Vec<String> = [(FILES[0], 5), (FILES[1], 3)]
            .iter()
            .flat_map(|(name, count)| (0..*count).map(move |number| format!("{name}#{number}")))
            .collect();
        assert_ne!(keys, in_order);
        keys.sort();
        assert_eq!(keys, in_order);
    }
}

#[tokio::test]
async fn files_are_found_by_their_names_and_their_records_are_counted() {
    let store = store().await;
    let files = Shards::TfrecordFiles(Wanted::default());
    let keys = files.keys(&store).await.unwrap();
    assert_eq!(
        keys.iter().map(|key| &**key).collect::<Vec<_>>(),
        ["gzip.tfrecord.gz", "raw.tfrecord", "sequence.tfrecord", FILES[0], FILES[1],]
    );
    let all = written(json!({ "prefix": "" }));
    assert_eq!(tfrecord::count(&all, &access(&store, MOST)).await.unwrap(), 5 + 3 + 1 + 5 + 3);
    let other = store_of(&[("train-00000-of-00002", file(FILES[0]))]).await;
    let fault = files.keys(&other).await.unwrap_err().to_string();
    assert!(fault.contains("none of the 1 objects of store `data`"), "{fault}");
}

#[tokio::test]
async fn a_document_names_fields_texts_and_the_key() {
    let store = store().await;
    let fields = selected(&[("bytes", "image/encoded"), ("label", "image/class/label")], Some("id"), &["id"]);
    let (samples, _, fault) = drain(stream(&store, FILES[1], fields)).await;
    assert_eq!(fault, None);
    assert_eq!(&*samples[2].key, "id-1-2 ä");
    let mut names: Vec<&str> = samples[2].fields.iter().map(|field| &*field.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["bytes", "label"]);
    assert_eq!(samples[2].field("label"), Some(&Value::Int(12)));
    // A key that `fields` names is also a field; a feature that a record lacks is none.
    let fields = selected(&[("name", "id"), ("rare", "rare")], Some("id"), &["id"]);
    let (samples, _, _) = drain(stream(&store, FILES[1], fields)).await;
    assert_eq!(samples[1].field("name"), Some(&Value::Text("id-1-1 ä".to_owned())));
    assert_eq!([0, 1].map(|number| samples[number].field("rare").cloned()), [None, Some(Value::Int(-1))]);
    // Of a sequence, the context is read.
    let (samples, _, fault) = drain(stream(&store, "sequence.tfrecord", examples())).await;
    assert_eq!(fault, None);
    assert_eq!(samples[0].field("length"), Some(&Value::Int(2)));
    assert_eq!(samples[0].fields.len(), 1);
}

/// Faults of a file, read in order and by an index, after the number of samples before it.
async fn faults(content: Vec<u8>, fields: Json) -> [(usize, String); 2] {
    let store = store_of(&[("a.tfrecord", content)]).await;
    let (samples, _, fault) = drain(stream(&store, "a.tfrecord", fields.clone())).await;
    let streamed = (samples.len(), fault.unwrap_or_default());
    let index =
        SampleIndex::build(IndexKind::Tfrecord, &store, &shards("a.tfrecord"), &Damage::default(), |_, _| {})
            .await;
    let read = match index {
        Err(fault) => (0, fault.to_string()),
        Ok(index) => {
            store.put(Arc::from("index"), index.to_bytes().into()).await.unwrap();
            let (samples, _, fault) = drain(indexed(&store, fields, IN_ORDER)).await;
            (samples.len(), fault.unwrap_or_default())
        }
    };
    [streamed, read]
}

fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// A frame of a record that claims a length.
fn frame(length: u64, record: &[u8]) -> Vec<u8> {
    let length = length.to_le_bytes();
    [&length[..], &masked_crc(&length), record, &masked_crc(record)].concat()
}

pub(crate) fn framed(record: &[u8]) -> Vec<u8> {
    frame(record.len() as u64, record)
}

#[tokio::test]
async fn damaged_files_are_refused_with_place_and_reason_after_the_records_before() {
    let whole = file("raw.tfrecord");
    let mut told = Vec::new();
    let changed = |at: usize| {
        let mut file = whole.clone();
        file[at] ^= 1;
        file
    };
    let cases = [
        ("record", changed(42 + 12 + 3)),
        ("length", changed(26)),
        ("checksum", changed(22)),
        ("cut", whole[..100].to_vec()),
        ("cut header", whole[..46].to_vec()),
        ("huge", [whole.clone(), frame(1 << 63, b"")].concat()),
        ("endless", [whole.clone(), frame(u64::MAX, b"")].concat()),
        ("no file", b"no TFRecord file".to_vec()),
        ("large", framed(&vec![0; MOST as usize + 1])),
    ];
    for (name, content) in cases {
        let [streamed, read] = faults(content, bytes()).await;
        told.push(format!(
            "{name}\n  in order, after {}: {}\n  indexed, after {}: {}",
            streamed.0, streamed.1, read.0, read.1
        ));
    }
    insta::assert_snapshot!(told.join("\n"));
}

#[tokio::test]
async fn each_truncation_and_many_changes_of_a_file_are_found() {
    let whole = file(FILES[1]);
    let ends: Vec<usize> = (0..=whole.len())
        .filter(|end| {
            (0..3)
                .scan(0, |at, _| {
                    *at += 16 + u64::from_le_bytes(whole[*at..*at + 8].try_into().unwrap()) as usize;
                    Some(*at)
                })
                .any(|at| at == *end)
                || *end == 0
        })
        .collect();
    for length in 0..whole.len() {
        let [streamed, read] = faults(whole[..length].to_vec(), examples()).await;
        let complete = ends.iter().filter(|end| **end <= length).count() - 1;
        assert_eq!(streamed.0, complete, "{length}");
        // A file without a byte is damaged, too.
        let is_whole = length > 0 && ends.contains(&length);
        assert_eq!(streamed.1.is_empty(), is_whole, "{length} {}", streamed.1);
        assert_eq!(read.1.is_empty(), is_whole, "{length} {}", read.1);
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        for (_, fault) in faults(changed, examples()).await {
            assert!(fault.contains("wrong checksum") || fault.contains("ends before"), "{at}: {fault}");
        }
    }
}

#[tokio::test]
async fn a_compressed_file_is_streamed_but_not_indexed_and_its_damage_is_found() {
    let plain = unzipped(&file("gzip.tfrecord.gz"));
    for (name, compress) in COMPRESSORS {
        let whole = compress(&plain);
        let [(samples, fault), (_, refused)] = faults(whole.clone(), examples()).await;
        assert_eq!((samples, &*fault), (5, ""));
        let reason = format!("is compressed with {name} as a whole");
        assert!(
            refused.contains(&reason) && refused.contains("in order, without an index, `shuffle`, "),
            "{refused}"
        );
        for length in 4..whole.len() {
            let [(_, fault), _] = faults(whole[..length].to_vec(), examples()).await;
            assert!(
                fault.contains(&format!("ends within its {name} data: is it truncated?")),
                "{length} {fault}"
            );
        }
        // Content that is cut before it is compressed.
        for length in 1..plain.len() {
            let [(samples, fault), _] = faults(compress(&plain[..length]), examples()).await;
            assert!(
                samples < 5 && (fault.is_empty() || fault.contains("is it truncated?")),
                "{length} {fault}"
            );
        }
        // Two members are one file; zeros that become 64 MiB are refused before they take memory.
        let [(samples, fault), _] = faults([&whole[..], &whole].concat(), examples()).await;
        assert_eq!((samples, &*fault), (10, ""));
        let bomb = [&frame(64 << 20, b"")[..12], &vec![0; 64 << 20]].concat();
        let [(_, fault), _] = faults(compress(&bomb), examples()).await;
        assert!(
            fault.ends_with("has a record of 67108864 bytes, more than 1048576; raise `buffer_mib`"),
            "{fault}"
        );
    }
    // The length of a first record may look like compressed content.
    let lengths = [0x0008_8b1f, 0xfd2f_b528];
    let [(samples, fault), _] = faults(framed(&vec![0; lengths[0]]), bytes()).await;
    assert_eq!((samples, &*fault), (1, ""));
    let [(_, fault), _] = faults(frame(lengths[1] as u64, b""), bytes()).await;
    assert!(fault.contains("ends before the 4247762216 bytes of a record"), "{fault}");
    let [(_, fault), _] = faults(b"BZh91AY&SY......".to_vec(), bytes()).await;
    assert!(fault.contains("is compressed with bzip2, which is not read: decompress it, or"), "{fault}");
}

/// Content of a file that is compressed with gzip.
fn unzipped(file: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut content).unwrap();
    content
}

#[tokio::test]
async fn a_file_that_changed_after_its_index_was_made_is_a_fault() {
    let store = store().await;
    put_index(&store, FILES[0]).await;
    store.put(Arc::from(FILES[0]), file(FILES[1]).into()).await.unwrap();
    let (samples, _, fault) = drain(indexed(&store, examples(), IN_ORDER)).await;
    assert_eq!(samples.len(), 0);
    assert!(fault.unwrap().contains(FILES[0]));
    // An index of tar shards is another one.
    let index = store.get(Arc::from("index")).await.0.unwrap();
    let fault = SampleIndex::read(index, IndexKind::Tar).unwrap_err().to_string();
    assert_eq!(fault, "is not an index of tar shards; make one with `penstock index create --tar`");
}

/// A field of a message in the encoding of protocol buffers, whose content is shorter than 128 bytes.
fn part(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, content.len() as u8][..], content].concat()
}

/// The same for content of up to 16 KiB.
fn long_part(number: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    [&[number << 3 | 2, length as u8 & 0x7f | 0x80, (length >> 7) as u8][..], content].concat()
}

/// An example of one feature.
fn example(name: &[u8], value: &[u8]) -> Vec<u8> {
    part(1, &part(1, &[part(1, name), part(2, value)].concat()))
}

fn decoded(record: &[u8], fields: &Json) -> Result<Sample, String> {
    let mut sample = Sample::new("a", Origin::default());
    RecordFields::of(&written(fields.clone())).add(&mut sample, &record.to_vec().into(), 4096)?;
    Ok(sample)
}

#[test]
fn lists_are_read_packed_and_unpacked_and_unknown_fields_are_skipped() {
    let field =
        |value: &[u8]| decoded(&example(b"x", value), &examples()).map(|sample| sample.field("x").cloned());
    let ints = |bytes: &[u8]| field(&part(3, bytes)).unwrap().map(|value| elements(&value).1);
    let numbers =
        |numbers: &[i64]| Some(numbers.iter().map(|number| Json::from(*number)).collect::<Vec<_>>());
    assert_eq!(ints(&part(1, &[1, 0x80, 0x01])), numbers(&[1, 128]));
    assert_eq!(ints(&[8, 1, 8, 0x80, 0x01]), numbers(&[1, 128]));
    assert_eq!(ints(&[[8, 7].to_vec(), part(1, &[1, 2])].concat()), numbers(&[7, 1, 2]));
    let minus = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(ints(&part(1, &minus)), numbers(&[-1]));
    // Fields of other numbers, of each type.
    let others = [&[0x10, 5, 0x19][..], &[0; 8], &[0x25], &[0; 4], &part(6, b"abc"), &[8, 9]].concat();
    assert_eq!(ints(&others), numbers(&[9]));
    assert_eq!(field(&part(2, &part(1, &1.5_f32.to_le_bytes()))), Ok(Some(Value::Real(1.5))));
    assert_eq!(field(&part(2, &[&[0x0d][..], &1.5_f32.to_le_bytes()].concat())), Ok(Some(Value::Real(1.5))));
    // A list without elements is an array, one of bytes is no field; so is a feature without a list.
    assert_eq!(ints(&[]), numbers(&[]));
    assert_eq!(field(&part(1, &[])), Ok(None));
    assert_eq!(field(&[]), Ok(None));
    // Of several lists the last is taken, as of several features of one name.
    assert_eq!(
        field(&[part(3, &[8, 1]), part(1, &part(1, b"b"))].concat()),
        Ok(Some(Value::Blob(b"b"[..].into())))
    );
    let twice = [example(b"x", &part(3, &[8, 1])), example(b"x", &part(3, &[8, 2]))].concat();
    assert_eq!(decoded(&twice, &examples()).unwrap().field("x"), Some(&Value::Int(2)));
}

#[test]
fn a_feature_of_lists_keeps_its_form_for_any_number_of_values() {
    let fields = |texts: &[&str]| json!({ "texts": texts, "lists": ["x"] });
    let lists =
        |values: &[&[u8]]| part(1, &values.iter().flat_map(|value| part(1, value)).collect::<Vec<_>>());
    /// Values, with the bytes, places and JSON that they become.
    type Case = (&'static [&'static [u8]], &'static [u8], &'static [i64], &'static str);
    let cases: [Case; 4] = [
        (&[], b"", &[0], "[]"),
        (&[b"ab"], b"ab", &[0, 2], r#"["ab"]"#),
        (&[b"ab", b"", b"c"], b"abc", &[0, 2, 2, 3], r#"["ab","","c"]"#),
        (&[b"", b"a"], b"a", &[0, 0, 1], r#"["","a"]"#),
    ];
    for (values, bytes, places, json) in cases {
        let record = example(b"x", &lists(values));
        let sample = decoded(&record, &fields(&[])).unwrap();
        let names: Vec<&str> = sample.fields.iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["x", "x.offsets"]);
        assert_eq!(sample.field("x"), Some(&Value::Blob(bytes.to_vec().into())));
        let found = elements(sample.field("x.offsets").unwrap());
        assert_eq!(found, ("int64".to_owned(), places.iter().map(|place| Json::from(*place)).collect()));
        let sample = decoded(&record, &fields(&["x"])).unwrap();
        assert_eq!(sample.field("x"), Some(&Value::Text(json.to_owned())));
    }
    // A record without the feature has none.
    assert!(decoded(&example(b"x", &[]), &fields(&[])).unwrap().fields.is_empty());
    assert!(decoded(&example(b"y", &lists(&[b"a", b"b"])), &fields(&[])).unwrap_err().contains("in `lists`"));
    let key = json!({ "sample_key": "x", "lists": ["x"] });
    let refused = decoded(&example(b"x", &lists(&[b"a"])), &key).unwrap_err();
    assert_eq!(refused, "has the feature `x`, which is a list, which is no key");
    // A stage would read one file.
    let file = json!({ "fields": { "bytes": "x" }, "lists": ["x"] });
    let refused = decoded(&example(b"x", &lists(&[b"a"])), &file).unwrap_err();
    assert!(
        refused.ends_with("the field `bytes` is one file: give it another name in `fields`"),
        "{refused}"
    );
    // A place takes more memory than an element without a byte.
    let list = [&b"\x0a\0"[..]; 600].concat();
    let many = long_part(1, &long_part(1, &[part(1, b"x"), long_part(2, &long_part(1, &list))].concat()));
    assert_eq!(
        decoded(&many, &fields(&[])).unwrap_err(),
        "has lists that take more than 4096 bytes; raise `buffer_mib`"
    );
}

/// A file whose records have this many values of a feature of bytes each; `None` is a record without the feature.
fn of_counts(counts: &[Option<usize>]) -> Vec<u8> {
    counts
        .iter()
        .flat_map(|count| {
            let values = count.map(|count| part(1, &[part(1, b"ab")].concat().repeat(count)));
            framed(
                &[
                    example(b"n", &part(3, &[8, 1])),
                    values.map_or_else(Vec::new, |values| example(b"x", &values)),
                ]
                .concat(),
            )
        })
        .collect()
}

#[tokio::test]
async fn lists_of_blobs_have_one_form_in_order_and_by_an_index() {
    for (counts, optional) in [
        (&[Some(3), Some(1), Some(0), Some(2)][..], None),
        (&[Some(1), Some(2)], Some(false)),
        (&[None, Some(2)], None),
    ] {
        let store = store_of(&[("a.tfrecord", of_counts(counts))]).await;
        let fields = json!({ "lists": ["x"] });
        put_index(&store, "a.tfrecord").await;
        let open = tfrecord::open(&written(with(fields.clone(), "index", "index")), access(&store, MOST));
        let known = open.await.unwrap().fields().unwrap();
        for (name, kind) in [("x", FieldType::Bytes), ("x.offsets", FieldType::tensor(Dtype::Int64, 1))] {
            assert_eq!(known.field(name).map(|field| (field.kind, field.optional)), Some((kind, optional)));
        }
        for source in [stream(&store, "a.tfrecord", fields.clone()), indexed(&store, fields, IN_ORDER)] {
            let (samples, _, fault) = drain(source).await;
            assert_eq!((samples.len(), fault), (counts.len(), None));
            for (sample, count) in samples.iter().zip(counts) {
                let found = sample.field("x").zip(sample.field("x.offsets"));
                let found = found.map(|(bytes, places)| (elements(bytes).1.len(), elements(places).1));
                let places =
                    |count: usize| (0..=count).map(|place| Json::from(2 * place)).collect::<Vec<_>>();
                assert_eq!(found, count.map(|count| (2 * count, places(count))));
            }
        }
    }
}

#[tokio::test]
async fn lists_of_features_that_are_not_read_are_warned_of() {
    let store = store().await;
    for (name, warnings) in [("sequence.tfrecord", 1), (FILES[0], 0)] {
        let [in_order, by_index] = [(); 2].map(|()| Damage::default());
        let reads = |damage: &Damage| Access { damage: damage.clone(), ..access(&store, MOST) };
        let source = written(json!({ "shards": name }));
        drain(Box::new(tfrecord::stream(&source, reads(&in_order), Typing::default(), IN_ORDER))).await;
        put_index(&store, name).await;
        let open = tfrecord::open(&written(json!({ "index": "index" })), reads(&by_index));
        drain(Box::new(NumberedSource::new(open, IN_ORDER, MOST))).await;
        for damage in [in_order, by_index] {
            let told = damage.notes.warnings("source");
            assert_eq!(told.len(), warnings, "{told:?}");
            assert!(
                told.iter().all(|told| told.contains("SequenceExample") && told.contains(name)),
                "{told:?}"
            );
        }
    }
}

#[test]
fn records_that_are_no_examples_are_refused_with_a_reason() {
    let told = [
        ("text", decoded(b"no example", &examples())),
        (
            "several blobs",
            decoded(&example(b"x", &part(1, &[part(1, b"a"), part(1, b"b")].concat())), &examples()),
        ),
        ("uneven floats", decoded(&example(b"x", &part(2, &part(1, &[0; 5]))), &examples())),
        ("endless number", decoded(&example(b"x", &part(3, &part(1, &[0xff; 11]))), &examples())),
        ("group", decoded(&[0x0b, 0x0c], &examples())),
        ("name", decoded(&example(&[0xff], &[]), &examples())),
        ("no key", decoded(&example(b"x", &part(3, &[8, 1])), &selected(&[], Some("id"), &[]))),
        ("real key", decoded(&example(b"id", &part(2, &part(1, &[0; 4]))), &selected(&[], Some("id"), &[]))),
        ("no text", decoded(&example(b"x", &part(1, &part(1, &[0xff]))), &selected(&[], None, &["x"]))),
        (
            "many",
            decoded(
                &(0..257).flat_map(|number| example(format!("{number}").as_bytes(), &[])).collect::<Vec<_>>(),
                &examples(),
            ),
        ),
    ];
    let told = told.map(|(name, result)| {
        format!("{name}: {}", result.map_or_else(|reason| reason, |sample| format!("{sample:?}")))
    });
    insta::assert_snapshot!(told.join("\n"));
    // One byte of a packed list becomes eight: the list may take no more than the limit.
    let list = long_part(1, &[1_u8; 600]);
    let record = long_part(1, &long_part(1, &[part(1, b"x"), long_part(2, &long_part(3, &list))].concat()));
    assert_eq!(
        decoded(&record, &examples()).unwrap_err(),
        "has lists that take more than 4096 bytes; raise `buffer_mib`"
    );
}

proptest! {
    #[test]
    fn damaged_examples_never_panic(at in 0_usize..400, byte: u8, cut in 0_usize..400) {
        let file = file(FILES[0]);
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut record = file[12..12 + length].to_vec();
        let place = at % length;
        record[place] = byte;
        record.truncate(length - cut % length);
        drop(decoded(&record, &examples()));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(record in proptest::collection::vec(any::<u8>(), 0..80)) {
        drop(decoded(&record, &examples()));
    }
}
