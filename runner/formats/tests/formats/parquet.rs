//! Tests of Parquet files. Damaged files are in `hostile.rs`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::Encoding;
use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::{ByteArray, ByteArrayType, Int96};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use penstock_engine::item::{Dtype, Sample, Tensor, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::{Produced, Source};
use penstock_engine::share::Share;
use penstock_engine::typed::Typing;
use penstock_formats::parquet;
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore};
use penstock_types::spec::{ComparedValue, Comparison, Operator};
use penstock_types::traversal::{NextVisits, Shard, Traversal, TraversalSettings, Uneven};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::{access, data, drain, store_of, with, written};

const MOST: u64 = 64 << 20;

/// A value as pyarrow reads it; numbers and bytes in hexadecimal digits.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Int(i64),
    Real(String),
    Text(String),
    Blob(String),
    Tensor(String, Vec<u32>, String),
}

type Row = BTreeMap<String, Expected>;

impl Expected {
    fn of(value: &Value) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match value {
            Value::Int(number) => Self::Int(*number),
            Value::Real(number) => Self::Real(hex(&number.to_le_bytes())),
            Value::Text(text) => Self::Text(text.clone()),
            Value::Blob(bytes) => Self::Blob(hex(bytes)),
            Value::Tensor(Tensor { dtype, shape, data }) => {
                Self::Tensor(dtype.name().to_owned(), shape.clone(), hex(data))
            }
        }
    }
}

fn expected() -> BTreeMap<String, Vec<Row>> {
    serde_json::from_slice(&data("parquet/expected.json")).unwrap()
}

fn store() -> BoundedStore {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parquet");
    BoundedStore::new(Arc::new(FolderStore::open("data", folder).unwrap()), DEFAULT_READS)
}

fn query(columns: &[&str]) -> Json {
    json!({ "columns": columns })
}

async fn read_within(
    pattern: &str,
    query: Json,
    settings: TraversalSettings,
    most: u64,
) -> (Vec<Sample>, Option<String>) {
    let query = with(with(query, "shards", pattern), "shuffle", settings.shuffle);
    let query = with(query, "window", settings.window.map(NonZeroU32::get));
    let open = parquet::open(&written(query), access(&store(), most));
    let mut source = NumberedSource::new(open, settings, most);
    let mut samples = Vec::new();
    loop {
        match source.next().await {
            Ok(Some(Produced::Samples(more))) => {
                for (sample, outcome) in more.into_outcomes() {
                    match outcome {
                        None => samples.push(sample),
                        Some(outcome) => return (samples, Some(format!("{}: {outcome:?}", sample.key))),
                    }
                }
            }
            Ok(Some(Produced::EpochEnd)) => {}
            Ok(None) => return (samples, None),
            Err(fault) => return (samples, Some(fault.to_string())),
        }
    }
}

async fn read(pattern: &str, query: Json, settings: TraversalSettings) -> (Vec<Sample>, Option<String>) {
    read_within(pattern, query, settings, MOST).await
}

fn row(sample: &Sample) -> Row {
    sample.fields.iter().map(|field| (field.name.to_string(), Expected::of(&field.value))).collect()
}

#[tokio::test]
async fn each_file_is_read_as_pyarrow_reads_it() {
    for (name, expected) in expected() {
        let (samples, fault) = read(&format!("{name}.parquet"), json!({}), TraversalSettings::IN_ORDER).await;
        assert_eq!(fault, None, "{name}");
        assert_eq!(samples.len(), expected.len(), "{name}");
        for (number, (sample, expected)) in samples.iter().zip(&expected).enumerate() {
            assert_eq!(row(sample), *expected, "row {number} of {name}");
            assert_eq!(*sample.key, format!("{name}.parquet#{number}"));
            assert_eq!(sample.origin.index, number as u64);
        }
    }
}

#[tokio::test]
async fn files_of_a_listing_follow_each_other() {
    let source = written(with(query(&["number"]), "prefix", "codec-"));
    let open = parquet::open(&source, access(&store(), MOST));
    let (samples, _, fault) =
        drain(Box::new(NumberedSource::new(open, TraversalSettings::IN_ORDER, MOST))).await;
    assert_eq!((samples.len(), fault), (6 * 40, None));
    assert_eq!(*samples[40].key, *"codec-gzip.parquet#0");
    assert!(
        (0..).zip(&samples).all(|(number, sample)| sample.field("number") == Some(&Value::Int(number % 40)))
    );
}

#[tokio::test]
async fn a_column_is_the_key_and_only_the_columns_that_are_named_are_fields() {
    let keyed = |key: &str, columns: &[&str]| with(query(columns), "sample_key", key);
    let (samples, _) = read("codec-zstd.parquet", keyed("text", &[]), TraversalSettings::IN_ORDER).await;
    assert_eq!(*samples[8].key, *"value 1value 1value 1");
    assert_eq!(samples[8].fields.iter().map(|field| &*field.name).collect::<Vec<_>>(), ["number", "list"]);
    let (samples, _) =
        read("rows.parquet", keyed("value", &["kind", "value"]), TraversalSettings::IN_ORDER).await;
    let Some(Value::Int(value)) = samples[4].field("value") else { panic!("{:?}", samples[4]) };
    assert_eq!((&*samples[4].key, samples[4].fields.len()), (&*value.to_string(), 2));
    // The key of a row without a value is its place.
    assert_eq!((&*samples[3].key, samples[3].fields.len()), ("rows.parquet#3", 1));
    let renamed = with(keyed("label", &[]), "fields", json!({ "bytes": "image" }));
    let (samples, _) = read("images.parquet", renamed, TraversalSettings::IN_ORDER).await;
    assert!(matches!(samples[1].field("bytes"), Some(Value::Blob(bytes)) if bytes.starts_with(b"\x89PNG")));
    let (samples, _) =
        read("structs.parquet", query(&["s.b.c", "points.x"]), TraversalSettings::IN_ORDER).await;
    assert_eq!(samples[1].field("s.b.c"), Some(&Value::Text("c1".to_owned())));
    let point = Tensor { dtype: Dtype::Int8, shape: vec![1], data: vec![1].into() };
    assert_eq!(samples[1].field("points.x"), Some(&Value::Tensor(point)));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_a_reason() {
    let compare = |column: &str, value: Json| {
        with(query(&["id"]), "where", json!([{ "column": column, "op": "<", "value": value }]))
    };
    let mut faults = Vec::new();
    for (pattern, query, most) in [
        ("refused-values.parquet", query(&[]), MOST),
        ("refused-values.parquet", query(&["image"]), MOST),
        ("refused-values.parquet", query(&["ragged"]), MOST),
        ("refused-values.parquet", query(&["hole"]), MOST),
        ("refused-values.parquet", query(&["blobs"]), MOST),
        ("refused-values.parquet", query(&["nested"]), MOST),
        ("refused-values.parquet", query(&["files"]), MOST),
        ("refused-values.parquet", query(&["absent"]), MOST),
        ("image-lists.parquet", json!({ "fields": { "bytes": "images" } }), MOST),
        ("image-lists.parquet", json!({ "fields": { "a": "images", "a.offsets": "blobs" } }), MOST),
        ("refused-values.parquet", query(&["unsigned"]), MOST),
        ("rows.parquet", query(&["id", "nonsense"]), MOST),
        ("rows.parquet", json!({ "sample_key": "score" }), MOST),
        ("rows.parquet", compare("id", json!("a")), MOST),
        ("rows.parquet", compare("kind", json!(3)), MOST),
        ("lists.parquet", with(compare("floats", json!(3)), "columns", json!([])), MOST),
        ("rows.parquet", query(&[]), 8_000),
        ("expected.json", query(&[]), MOST),
        ("missing.parquet", query(&[]), MOST),
    ] {
        let (samples, fault) = read_within(pattern, query, TraversalSettings::IN_ORDER, most).await;
        faults.push(format!("{pattern}: {} samples, {}", samples.len(), fault.unwrap_or_default()));
    }
    insta::assert_snapshot!(faults.join("\n"));
    let (samples, fault) =
        read("refused-values.parquet", query(&["good"]), TraversalSettings::IN_ORDER).await;
    assert_eq!((samples.len(), fault), (1, None));
}

#[tokio::test]
async fn a_window_that_does_not_fit_into_memory_is_refused_with_one_that_does() {
    let window = |window| TraversalSettings {
        shuffle: true,
        window: NonZeroU32::new(window),
        ..TraversalSettings::IN_ORDER
    };
    let (_, fault) = read_within("rows.parquet", json!({}), window(3), 24_000).await;
    insta::assert_snapshot!(fault.unwrap());
    let (samples, fault) = read_within("rows.parquet", json!({}), window(2), 24_000).await;
    assert_eq!((samples.len(), fault), (200, None));
    // All row groups are mixed within the same memory.
    let all = TraversalSettings { window: None, ..window(1) };
    let (samples, fault) = read_within("rows.parquet", json!({}), all, 16_000).await;
    assert_eq!((samples.len(), fault), (200, None));
    assert!(samples.iter().all(|sample| sample.field("id") == Some(&Value::Int(sample.origin.index as i64))));
}

/// A file of row groups with two large blobs each, of which each byte is the number of the row.
fn blobs(groups: usize) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message photos { REQUIRED BYTE_ARRAY image; }").unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).unwrap();
    for group in 0..groups {
        let values = [2 * group, 2 * group + 1].map(|row| ByteArray::from(vec![row as u8; 40_000]));
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn samples_that_stay_keep_no_more_row_groups_than_are_counted() {
    let most = 1 << 20;
    let store = store_of(&[("photos.parquet", blobs(100))]).await;
    let source = written(with(query(&["image"]), "shards", "photos.parquet"));
    let samples = parquet::open(&source, access(&store, most)).await.unwrap();
    let mut held = Vec::new();
    for first in (0..200).step_by(8) {
        held.extend(
            samples
                .clone()
                .read(0, (first..first + 8).step_by(2).collect(), Share::alone(u64::MAX))
                .await
                .unwrap()
                .into_kept(),
        );
        assert!(samples.kept_bytes() <= most, "{}", samples.kept_bytes());
    }
    assert!(samples.kept_bytes() > most / 4);
    for (sample, row) in held.iter().zip((0..).step_by(2)) {
        assert_eq!(sample.field("image"), Some(&Value::Blob(vec![row; 40_000].into())));
    }
}

/// A file of one row with this column, of which whole numbers are 7, texts are `x`, and times of 96 bits are 9999-12-31. A column that
/// may be null is null, and a list has one element, or none if that may be null.
fn column(column: &str) -> Vec<u8> {
    let schema = parse_message_type(&format!("message m {{ {column} }}")).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut writing = rows.next_column().unwrap().unwrap();
    let (levels, repeats) = match column {
        list if list.contains("LIST") && list.contains("OPTIONAL") => (Some(&[0][..]), Some(&[0][..])),
        list if list.contains("LIST") => (Some(&[1_i16][..]), Some(&[0_i16][..])),
        null if null.contains("OPTIONAL") => (Some(&[0_i16][..]), None),
        _ => (None, None),
    };
    let count = usize::from(!column.contains("OPTIONAL"));
    match writing.untyped() {
        ColumnWriter::Int32ColumnWriter(to) => to.write_batch(&[7][..count], levels, repeats),
        ColumnWriter::Int64ColumnWriter(to) => to.write_batch(&[7][..count], levels, repeats),
        ColumnWriter::Int96ColumnWriter(to) => {
            to.write_batch(&[Int96::from(vec![0, 0, 5_373_484])], levels, repeats)
        }
        ColumnWriter::DoubleColumnWriter(to) => to.write_batch(&[7.0][..count], levels, repeats),
        ColumnWriter::ByteArrayColumnWriter(to) => {
            to.write_batch(&[ByteArray::from("x")][..count], levels, repeats)
        }
        _ => panic!("{column}"),
    }
    .unwrap();
    writing.close().unwrap();
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

/// A file of one row, whose list has `count` times the same value of `length` bytes, which is stored once.
fn repeated(annotation: &str, count: usize, length: usize) -> Vec<u8> {
    let column = format!(
        "REQUIRED group a (LIST) {{ REPEATED group list {{ REQUIRED BYTE_ARRAY element{annotation}; }} }}"
    );
    let schema = parse_message_type(&format!("message m {{ {column} }}")).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let values = vec![ByteArray::from(vec![b'x'; length]); count];
    let repeats: Vec<i16> = (0..count).map(|place| i16::from(place > 0)).collect();
    column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![1; count]), Some(&repeats)).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn a_list_that_a_dictionary_makes_large_fails_its_row_before_memory_is_taken() {
    for annotation in ["", " (STRING)"] {
        for (count, is_read) in [(40, true), (10_000, false)] {
            let file = repeated(annotation, count, 10_000);
            assert!(file.len() < 30_000);
            let store = store_of(&[("a.parquet", file)]).await;
            let open = parquet::open(&written(json!({ "shards": "a.parquet" })), access(&store, 4 << 20));
            let read = open.await.unwrap().read(0, vec![0], Share::alone(u64::MAX)).await.unwrap();
            let outcomes: Vec<_> = read.into_outcomes().collect();
            let told = format!("{:?}", outcomes[0].1);
            assert_eq!(outcomes[0].1.is_none(), is_read, "{told}");
            assert!(
                is_read || told.contains("bytes, and 2097152 may be used, or raise `buffer_mib`"),
                "{told}"
            );
        }
    }
}

/// A file of row groups of `rows` paths that begin alike, in the encoding DELTA_BYTE_ARRAY. Nothing states the size of the paths.
fn paths(groups: usize, rows: usize) -> (Vec<u8>, Vec<String>) {
    let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY path (STRING); }").unwrap());
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BYTE_ARRAY)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let paths: Vec<String> =
        (0..groups * rows).map(|number| format!("{}/{number:06}.jpg", "folder/".repeat(40))).collect();
    for of_group in paths.chunks(rows) {
        let values: Vec<ByteArray> = of_group.iter().map(|path| ByteArray::from(path.as_str())).collect();
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    (writer.into_inner().unwrap(), paths)
}

#[tokio::test]
async fn texts_that_begin_alike_are_read_however_often_they_repeat_it() {
    let (file, paths) = paths(8, 2_000);
    let all = paths.iter().map(String::len).sum::<usize>();
    assert!(file.len() * 16 < all, "{} of {all} bytes", file.len());
    let store = store_of(&[("a.parquet", file)]).await;
    let open = |query: &Json, most: u64| {
        let query = with(with(query.clone(), "shards", "a.parquet"), "shuffle", true);
        parquet::open(&written(query), access(&store, most))
    };
    let compared = Comparison {
        column: "path".to_owned(),
        op: Operator::AtLeast,
        value: ComparedValue::Text(paths[9_000].clone()),
    };
    let selecting = json!({ "where": [compared] });
    // Memory for all row groups, and for little more than one.
    for most in [64 << 20, 1_700_000] {
        for (query, expected) in [(json!({}), &paths[..]), (selecting.clone(), &paths[9_000..])] {
            for shuffle in [false, true] {
                let settings = TraversalSettings { shuffle, ..TraversalSettings::IN_ORDER };
                let source = NumberedSource::new(open(&query, most), settings, 1 << 20);
                let (mut samples, _, fault) = drain(Box::new(source)).await;
                assert_eq!(fault, None, "{most}");
                samples.sort_by_key(|sample| sample.origin.index);
                let found: Vec<_> = samples.iter().filter_map(|sample| sample.field("path")).collect();
                let texts: Vec<_> = expected.iter().map(|path| Value::Text(path.clone())).collect();
                assert!(found == texts.iter().collect::<Vec<_>>(), "{most}: {}", found.len());
            }
        }
    }
    let source = NumberedSource::new(open(&json!({}), 1_000_000), TraversalSettings::IN_ORDER, 1 << 20);
    let fault = drain(Box::new(source)).await.2.unwrap();
    insta::assert_snapshot!(fault);
}

async fn read_both(one: &str, other: &str, query: Json) -> (Vec<Sample>, Option<String>) {
    let store = store_of(&[("q-0.parquet", column(one)), ("q-1.parquet", column(other))]).await;
    let open = parquet::open(&written(with(query, "prefix", "q-")), access(&store, MOST));
    let (samples, _, fault) = drain(Box::new(NumberedSource::new(
        Typing::default().samples(open),
        TraversalSettings::IN_ORDER,
        MOST,
    )))
    .await;
    (samples, fault)
}

#[tokio::test]
async fn files_whose_columns_mean_different_things_are_refused_before_the_first_sample() {
    let files = [
        ("REQUIRED INT64 a;", "is a single int64"),
        ("REQUIRED DOUBLE a;", "is a single float64"),
        ("REQUIRED BYTE_ARRAY a (STRING);", "is a text"),
        ("REQUIRED BYTE_ARRAY a;", "is a blob"),
        (
            "REQUIRED group a (LIST) { REPEATED group list { REQUIRED BYTE_ARRAY element; } }",
            "has lists of blobs",
        ),
        ("REQUIRED INT32 a (DATE);", "has dates"),
        ("REQUIRED INT32 a (TIME(MILLIS,true));", "has times of day in milliseconds"),
        ("REQUIRED INT64 a (TIME(MICROS,true));", "has times of day in microseconds"),
        ("REQUIRED INT64 a (TIMESTAMP(MICROS,true));", "has timestamps of UTC in microseconds"),
        ("REQUIRED INT64 a (TIMESTAMP(NANOS,true));", "has timestamps of UTC in nanoseconds"),
        ("REQUIRED INT64 a (TIMESTAMP(NANOS,false));", "has timestamps without a time zone in nanoseconds"),
        ("REQUIRED INT64 a (TIMESTAMP_MICROS);", "has timestamps without a time zone in microseconds"),
        (
            "REQUIRED group a (LIST) { REPEATED group list { REQUIRED INT64 element; } }",
            "is int64 with 1 dimension",
        ),
        (
            "REQUIRED group a (LIST) { REPEATED group list { REQUIRED BYTE_ARRAY element (STRING); } }",
            "has lists of texts",
        ),
    ];
    for (one, one_in_words) in files {
        let (samples, fault) = read_both(one, one, json!({})).await;
        assert_eq!((samples.len(), fault), (2, None), "{one}");
        for (other, other_in_words) in files.into_iter().filter(|(other, _)| *other != one) {
            let (samples, fault) = read_both(one, other, json!({})).await;
            let numbers = ["REQUIRED INT64 a;", "REQUIRED DOUBLE a;"];
            if numbers.contains(&one) && numbers.contains(&other) {
                assert_eq!((samples[0].field("a"), fault), (Some(&Value::Real(7.0)), None));
                continue;
            }
            let fault = fault.unwrap_or_default();
            assert!(samples.is_empty(), "{one} {other}");
            for told in [
                "`a`",
                &format!(
                    "{one_in_words} in the file `q-0.parquet`, and {other_in_words} in the file `q-1.parquet`; write the files with"
                ),
            ] {
                assert!(fault.contains(told), "{fault}, without: {told}");
            }
        }
    }
    // A comparison would take other rows, too.
    let compared = with(query(&["a"]), "where", json!([{ "column": "a", "op": "<", "value": 9 }]));
    let times = files
        .map(|(column, _)| column)
        .into_iter()
        .filter(|column| column.contains("TIMESTAMP("))
        .collect::<Vec<_>>();
    let (_, fault) = read_both(times[0], times[1], compared).await;
    assert!(
        fault.is_some_and(|fault| fault.contains("the column `a` has timestamps of UTC in microseconds in"))
    );
}

#[tokio::test]
async fn a_time_of_96_bits_that_nanoseconds_do_not_hold_is_a_fault() {
    let late = "REQUIRED INT96 a;";
    let (samples, fault) = read_both(late, late, json!({})).await;
    let fault = fault.unwrap();
    assert!(
        samples.is_empty() && fault.contains("`a`") && fault.contains("a time before 1678 or after 2261"),
        "{fault}"
    );
    let (_, fault) = read_both("REQUIRED INT64 a (TIMESTAMP(NANOS,true));", late, json!({})).await;
    assert!(fault.unwrap().contains("and has timestamps without a time zone in nanoseconds"));
}

#[tokio::test]
async fn a_column_without_a_type_is_one_that_its_file_does_not_have() {
    let (nulls, texts) = ("OPTIONAL INT32 a (UNKNOWN);", "REQUIRED BYTE_ARRAY a (STRING);");
    let compared = with(query(&["a"]), "where", json!([{ "column": "a", "op": "==", "value": "x" }]));
    for (one, other, place) in [(nulls, texts, 1), (texts, nulls, 0)] {
        for query in [json!({}), query(&["a"])] {
            let (samples, fault) = read_both(one, other, query).await;
            assert_eq!((samples.len(), fault), (2, None));
            assert_eq!(samples[place].field("a"), Some(&Value::Text("x".to_owned())));
            assert_eq!(samples[1 - place].field("a"), None);
        }
        let (samples, fault) = read_both(one, other, compared.clone()).await;
        assert_eq!((samples.len(), fault), (1, None));
    }
    let list = |element: &str| format!("REQUIRED group a (LIST) {{ REPEATED group list {{ {element}; }} }}");
    let (empty, numbers) = (list("OPTIONAL INT32 element (UNKNOWN)"), list("REQUIRED INT64 element"));
    let (samples, fault) = read_both(&empty, &numbers, json!({})).await;
    assert_eq!(fault, None);
    let nothing = Tensor { dtype: Dtype::Int64, shape: vec![0], data: Vec::new().into() };
    assert_eq!(samples[0].field("a"), Some(&Value::Tensor(nothing)));
}

fn int(row: &Row, name: &str) -> Option<i64> {
    row.get(name).map(|value| if let Expected::Int(number) = value { *number } else { panic!("{value:?}") })
}

fn real(row: &Row, name: &str) -> f64 {
    let Some(Expected::Real(digits)) = row.get(name) else { panic!("{row:?}") };
    f64::from_bits(u64::from_str_radix(digits, 16).unwrap().swap_bytes())
}

const OPERATORS: [Operator; 6] = [
    Operator::Equal,
    Operator::NotEqual,
    Operator::Less,
    Operator::AtMost,
    Operator::Greater,
    Operator::AtLeast,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rows_that_meet_all_comparisons_are_the_samples(
        id in (0_usize..6, -5_i64..205), value in proptest::option::of((0_usize..6, -1_i64..22)),
        score in proptest::option::of((0_usize..6, 0.0..1.0)), kind in proptest::option::of((0_usize..6, "[abz]{0,2}")),
        shuffle: bool, seed: u64,
    ) {
        let one = |column: &str, op: usize, value| Comparison { column: column.to_owned(), op: OPERATORS[op], value };
        let mut filter = vec![one("id", id.0, ComparedValue::Int(id.1))];
        filter.extend(value.map(|(op, value)| one("value", op, ComparedValue::Real(value as f64))));
        filter.extend(score.map(|(op, score)| one("score", op, ComparedValue::Real(score))));
        filter.extend(kind.clone().map(|(op, kind)| one("kind", op, ComparedValue::Text(kind))));
        let meets = |row: &Row| {
            let accepts = |op: usize, order: Option<std::cmp::Ordering>| order.is_some_and(|order| OPERATORS[op].accepts(order));
            accepts(id.0, int(row, "id").map(|found| found.cmp(&id.1)))
                && value.is_none_or(|(op, value)| accepts(op, int(row, "value").map(|found| found.cmp(&value))))
                && score.is_none_or(|(op, score)| {
                    let found = real(row, "score");
                    if found.is_nan() { op == 1 } else { accepts(op, found.partial_cmp(&score)) }
                })
                && kind.as_ref().is_none_or(|(op, kind)| {
                    let Some(Expected::Text(found)) = row.get("kind") else { panic!("{row:?}") };
                    accepts(*op, Some(found.cmp(kind)))
                })
        };
        let rows = expected().remove("rows").unwrap();
        let selected: Vec<i64> = rows.iter().filter(|row| meets(row)).filter_map(|row| int(row, "id")).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let settings = TraversalSettings { shuffle, seed, ..TraversalSettings::IN_ORDER };
        let query = with(query(&["id", "value"]), "where", json!(filter));
        let (samples, fault) = runtime.block_on(read("rows.parquet", query, settings));
        prop_assert_eq!(fault, None);
        let id = |sample: &Sample| if let Some(Value::Int(id)) = sample.field("id") { *id } else { panic!("{sample:?}") };
        let mut ids: Vec<i64> = samples.iter().map(id).collect();
        for sample in &samples {
            prop_assert_eq!(selected[sample.origin.index as usize], id(sample));
            prop_assert_eq!(&*sample.key, format!("rows.parquet#{}", id(sample)));
        }
        if shuffle {
            ids.sort_unstable();
        }
        prop_assert_eq!(ids, selected);
    }

    #[test]
    fn samples_are_visited_in_the_order_of_a_traversal(
        world in 1_u32..4, rank in 0_u32..4, keep: bool, shuffle: bool, seed: u64, window in proptest::option::of(1_u32..9),
        limit in proptest::option::of(0_u64..100), epochs in 1_u32..3, most in 20_000_u64..60_000,
    ) {
        let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
        let shard = Some(Shard { rank: rank % world, world: NonZeroU32::new(world).unwrap(), uneven });
        let window = window.and_then(NonZeroU32::new).filter(|window| shuffle && u64::from(window.get()) * 2_500 < most / 2);
        let settings = TraversalSettings { seed, shuffle, window, shard, limit, epochs: NonZeroU32::new(epochs), first_epoch: 0 };
        let mut traversal = Traversal::in_units(80, [16, 16, 8, 16, 16, 8].into(), settings).unwrap();
        let mut numbers = Vec::new();
        while let Some(visits) = traversal.next_visits(7) {
            if let NextVisits::Visits { indexes, .. } = visits {
                numbers.extend(indexes.iter().map(|index| Value::Int((index % 40) as i64)));
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (samples, fault) = runtime.block_on(read_within("{codec-zstd,v2-gzip}.parquet", json!({}), settings, most));
        prop_assert_eq!(fault, None);
        prop_assert_eq!(samples.iter().map(|sample| sample.field("number").unwrap().clone()).collect::<Vec<_>>(), numbers);
    }
}
