//! Tests of tables, against what Python's `csv` module reads.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::typed::Typing;
use penstock_formats::{Damage, RecordFormat, RecordSource, Shards, expand, record_samples};
use penstock_storage::{BoundedStore, Wanted};
use penstock_types::spec::{ColumnType, OnDamage};
use penstock_types::traversal::{NextVisits, Shard, Traversal, TraversalSettings, Uneven};
use proptest::prelude::*;
use serde::Deserialize;

use crate::records::{drain, drain_boxed, one, records};
use crate::{data, store_of, wanted};

const SHUFFLED: TraversalSettings =
    TraversalSettings { seed: 3, shuffle: true, ..TraversalSettings::IN_ORDER };

/// A text, and the rows that Python reads from it, without blank ones.
#[derive(Debug, Deserialize)]
struct Case {
    text: String,
    delimiter: char,
    rows: Vec<Vec<String>>,
    /// Set if the text ends within quotes.
    is_open: bool,
}

fn plain(delimiter: u8) -> RecordFormat {
    RecordFormat::rows(delimiter, BTreeMap::new())
}

fn texts(sample: &Sample) -> Vec<&str> {
    let texts = sample.fields.iter().map(|field| match &field.value {
        Value::Text(text) => text.as_str(),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

#[tokio::test]
async fn rows_are_read_as_python_reads_them() {
    let cases: Vec<Case> = serde_json::from_slice(&data("csv.json")).unwrap();
    let mut whole = 0;
    for case in cases {
        let store = store_of(&[("t.csv", case.text.clone().into_bytes())]).await;
        let format = plain(case.delimiter as u8);
        let source = RecordSource::new(
            store.clone(),
            one("t.csv"),
            format.clone(),
            TraversalSettings::IN_ORDER,
            Typing::default(),
        );
        let [header, rows @ ..] = case.rows.as_slice() else { panic!("{case:?}") };
        assert_eq!(source.count().await.unwrap(), rows.len() as u64, "{case:?}");
        let fits = rows.iter().take_while(|row| row.len() == header.len()).count();
        let fits = if case.is_open { fits.min(rows.len() - 1) } else { fits };
        for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
            let mut found = drain_boxed(records(&store, one("t.csv"), format.clone(), settings)).await;
            if fits < rows.len() {
                let fault = found.fault();
                assert!(
                    fault.contains(" values") || fault.contains("has a quote without its end"),
                    "{case:?}: {fault}"
                );
                if settings.shuffle {
                    continue;
                }
            } else {
                assert!(found.fault.is_none(), "{case:?}: {:?}", found.fault);
                whole += 1;
            }
            found.samples.sort_by_key(|sample| sample.origin.index);
            assert!(
                found
                    .samples
                    .iter()
                    .map(texts)
                    .eq(rows[..fits].iter().map(|row| row.iter().collect::<Vec<_>>())),
                "{case:?}"
            );
            let is_named = |sample: &Sample| {
                sample.fields.iter().map(|field| &*field.name).eq(header.iter().map(String::as_str))
            };
            assert!(found.samples.iter().all(is_named), "{case:?}");
        }
    }
    assert!(whole > 600, "{whole}");
}

#[tokio::test]
async fn keys_come_from_a_column_or_are_numbers_of_rows_with_the_header_as_the_first() {
    let table = b",id,key,label\n0,a,x,7\n\n1,\"b\nc\",,8\n".to_vec();
    let store = store_of(&[("t/1.csv", table), ("t/2.csv", b"label,id\r\n9,d".to_vec())]).await;
    let types = BTreeMap::from([("label".to_owned(), ColumnType::Int)]);
    let read = async |objects: Shards, format: RecordFormat| {
        let mut found = Vec::new();
        for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
            let mut drained = drain_boxed(records(&store, objects.clone(), format.clone(), settings)).await;
            drained.samples.sort_by_key(|sample| sample.origin.index);
            assert!(found.is_empty() || found == drained.samples);
            drained.keys();
            found = drained.samples;
        }
        found
    };
    let keys = |samples: &[Sample]| samples.iter().map(|sample| sample.key.to_string()).collect::<Vec<_>>();
    let all = RecordFormat::rows(b',', types);
    let found = read(one("t/1.csv"), all.clone()).await;
    assert_eq!(keys(&found), ["x", "3"]);
    let wanted = wanted("t/", ".csv");
    let found = read(Shards::Listed(wanted.clone()), all.clone().of_several()).await;
    assert_eq!(keys(&found), ["x", "t/1.csv:3", "t/2.csv:2"]);
    assert_eq!(found[2].field("label"), Some(&Value::Int(9)));
    assert_eq!(found.iter().map(|sample| sample.origin.index).collect::<Vec<_>>(), [0, 1, 2]);
    let found = read(Shards::Listed(wanted), all.with_key(Some("id")).of_several()).await;
    assert_eq!(keys(&found), ["a", "b\nc", "d"]);
    assert_eq!(found[0].fields.iter().map(|field| &*field.name).collect::<Vec<_>>(), ["key", "label"]);
}

#[tokio::test]
async fn faults_name_the_row_and_the_reason() {
    let store = store_of(&[
        ("empty.csv", b"".to_vec()),
        ("blank.csv", b"\n\r\n".to_vec()),
        ("twice.csv", b"a,b,a\n".to_vec()),
        ("lacks.csv", b"a,b\n1,2\n".to_vec()),
        ("short.csv", b"id,b\n1,2\n3\n4,5\n".to_vec()),
        ("open.csv", b"id,b\n1,\"2\n".to_vec()),
        ("none.csv", b"id,b\n1,2\n,3\n".to_vec()),
        ("latin.csv", b"id,b\n1,caf\xe9\n".to_vec()),
        ("type.csv", b"id,b\n1,2\n2,two\n".to_vec()),
    ])
    .await;
    let mut faults = Vec::new();
    for name in ["empty", "blank", "twice", "lacks", "short", "open", "none", "latin", "type"] {
        let key = format!("{name}.csv");
        let types = if name == "type" {
            BTreeMap::from([("b".to_owned(), ColumnType::Int)])
        } else {
            BTreeMap::new()
        };
        let key_name = (name != "twice" && name != "empty" && name != "blank").then_some("id");
        let format = RecordFormat::rows(b',', types).with_key(key_name);
        let found =
            drain_boxed(records(&store, one(&key), format.clone(), TraversalSettings::IN_ORDER)).await;
        let shuffled = drain_boxed(records(&store, one(&key), format, SHUFFLED)).await;
        assert_eq!(found.fault(), shuffled.fault());
        faults.push(format!("{} samples, {}", found.samples.len(), found.fault()));
    }
    insta::assert_snapshot!(faults.join("\n"));
}

#[tokio::test]
async fn a_whole_number_that_its_type_does_not_hold_ends_the_run_although_bad_rows_are_left_out() {
    let types = BTreeMap::from([("a".to_owned(), ColumnType::Float)]);
    let table = b"a\n1\nx\n9007199254740993\n2\n".to_vec();
    let lines = b"{\"a\":1}\n{\"a\":\"x\"}\n{\"a\":9007199254740993}\n{\"a\":2}\n".to_vec();
    let store = store_of(&[("t.csv", table), ("t.ndjson", lines)]).await;
    for (key, format, place) in [
        ("t.csv", RecordFormat::rows(b',', types.clone()), "row 4"),
        ("t.ndjson", RecordFormat::lines(types.clone()), "line 3"),
    ] {
        let damage = Damage { policy: OnDamage::Skip, ..Damage::default() };
        let source = records(&store, one(key), format.with_damage(damage), TraversalSettings::IN_ORDER);
        let found = drain_boxed(source).await;
        assert_eq!(found.samples.len(), 1, "{key}");
        let told = format!(
            "{place} of `{key}` in store `data` has the whole number 9007199254740993 as `a`, a `float`, which does not"
        );
        assert!(found.fault().starts_with(&told), "{}", found.fault());
    }
}

#[tokio::test]
async fn rows_across_block_borders_are_complete_and_a_quote_without_its_end_takes_no_more_than_64_mib() {
    // Line ends, quotes and delimiters lie at all distances from the borders of blocks.
    let mut text = "a,b\n".to_owned();
    let mut rows = Vec::new();
    for number in 0_usize.. {
        let value = format!("{}\"\r\n,{number}", "ü".repeat(number * 7919 % 90_001));
        text.push_str(&format!("{number},\"{}\"\r\n", value.replace('"', "\"\"")));
        rows.push(value);
        if text.len() > 34 << 20 {
            break;
        }
    }
    let store = store_of(&[("t.csv", text.into_bytes())]).await;
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let mut found = drain_boxed(records(&store, one("t.csv"), plain(b','), settings)).await;
        assert!(found.fault.is_none(), "{:?}", found.fault);
        found.samples.sort_by_key(|sample| sample.origin.index);
        assert!(found.samples.iter().map(|sample| texts(sample)[1]).eq(&rows));
    }
    let mut open = b"a\n\"".to_vec();
    open.resize(70 << 20, b'x');
    let store = store_of(&[("t.csv", open)]).await;
    let found = drain_boxed(records(&store, one("t.csv"), plain(b','), TraversalSettings::IN_ORDER)).await;
    assert_eq!(
        found.fault(),
        "row 2 of `t.csv` in store `data` is longer than 64 MiB; is there a quote without its end?"
    );
}

#[tokio::test]
async fn damaged_tables_are_read_or_refused_with_a_reason() {
    let whole = "id,text,n\r\n1,\"a \"\"b\"\"\n\",3\r\n2,\"ü\",\r\n\"3\",,\"7\"\r\n".as_bytes();
    let read = async |bytes: Vec<u8>| {
        let store = store_of(&[("t.csv", bytes)]).await;
        let types = BTreeMap::from([("n".to_owned(), ColumnType::Int)]);
        let format = RecordFormat::rows(b',', types).with_key(Some("id"));
        let found =
            drain_boxed(records(&store, one("t.csv"), format.clone(), TraversalSettings::IN_ORDER)).await;
        let shuffled = drain_boxed(records(&store, one("t.csv"), format, SHUFFLED)).await;
        assert_eq!(found.fault.is_some(), shuffled.fault.is_some());
        assert!(found.fault.is_none_or(|fault| fault.to_string().contains("`t.csv` in store `data` ")));
        found.samples.len()
    };
    for length in 0..=whole.len() {
        assert!(read(whole[..length].to_vec()).await <= 3);
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.to_vec();
            changed[at] ^= 1 << bit;
            read(changed).await;
        }
    }
}

#[tokio::test]
async fn places_of_records_and_headers_count_towards_the_memory() {
    let store = store_of(&[("1.csv", b"a,b\n1,2\n3,4\n".to_vec()), ("2.csv", b"a,b\n".to_vec())]).await;
    let open = |bytes| {
        record_samples(store.clone(), Shards::Keys(expand("{1..2}.csv").unwrap()), plain(b','), bytes)
    };
    let samples = open(u64::MAX).await.unwrap();
    let kept = samples.kept_bytes();
    assert_eq!(samples.count(), 2);
    // Both objects are in memory: 16 bytes of them.
    assert!(kept > 2 * 256 + 16 + 4 * 8, "{kept}");
    let fault = drain(NumberedSource::new(open(300), SHUFFLED, 0)).await.fault();
    assert!(
        fault.contains("take more than the 300 bytes of memory")
            && fault.ends_with("or raise `buffer_mib`, of which the source may use a part"),
        "{fault}"
    );
}

/// A field as it stands in a table, quoted or not.
fn quoted(value: &str, always: bool) -> String {
    match always || value.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

async fn tables(
    files: &[Vec<[String; 2]>],
    always: bool,
    end: &str,
    marked: bool,
    ends_last: bool,
) -> BoundedStore {
    let text = |rows: &Vec<[String; 2]>| {
        let lines = rows.iter().map(|[a, b]| format!("{},{}", quoted(a, always), quoted(b, always)));
        let text = std::iter::once("a,b".to_owned()).chain(lines).collect::<Vec<_>>().join(end);
        format!("{}{text}{}", if marked { "\u{feff}" } else { "" }, if ends_last { end } else { "" })
    };
    let objects: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(number, rows)| (format!("t-{number}.csv"), text(rows).into_bytes()))
        .collect();
    store_of(&objects.iter().map(|(key, text)| (key.as_str(), text.clone())).collect::<Vec<_>>()).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn rows_of_several_files_are_read_as_written_and_a_shuffle_visits_each_once(
        files in proptest::collection::vec(proptest::collection::vec(["[a\"\\n\\r, ü]{0,6}", "[a\"\\n\\r, ü]{1,6}"], 0..12), 1..5),
        always: bool, crlf: bool, marked: bool, ends_last: bool, seed: u64,
    ) {
        let end = if crlf { "\r\n" } else { "\n" };
        let rows: Vec<_> = files.iter().flatten().map(|row| row.to_vec()).collect();
        let found = runtime().block_on(async {
            let store = tables(&files, always, end, marked, ends_last).await;
            let objects = Shards::Listed(Wanted { prefix: "t-".to_owned(), ..Wanted::default() });
            let mut found = Vec::new();
            for settings in [TraversalSettings::IN_ORDER, TraversalSettings { seed, shuffle: true, ..TraversalSettings::IN_ORDER }] {
                found.push(drain_boxed(records(&store, objects.clone(), plain(b',').of_several(), settings)).await);
            }
            found
        });
        for found in &found {
            prop_assert!(found.fault.is_none(), "{:?}", found.fault);
            let indexes: BTreeSet<u64> = found.samples.iter().map(|sample| sample.origin.index).collect();
            prop_assert_eq!((indexes.len(), found.samples.len()), (rows.len(), rows.len()));
            for sample in &found.samples {
                prop_assert_eq!(texts(sample), rows[sample.origin.index as usize].clone());
            }
        }
    }

    #[test]
    fn records_of_several_files_are_visited_in_the_order_of_a_traversal(
        sizes in proptest::collection::vec(0_u64..40, 1..5), world in 1_u32..5, rank in 0_u32..5, keep: bool, shuffle: bool, seed: u64,
        limit in proptest::option::of(0_u64..130), epochs in 1_u32..4, lines: bool,
    ) {
        let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
        let shard = Some(Shard { rank: rank % world, world: NonZeroU32::new(world).unwrap(), uneven });
        let settings = TraversalSettings { seed, shuffle, shard, limit, epochs: NonZeroU32::new(epochs), ..TraversalSettings::IN_ORDER };
        let mut next = 0;
        let objects = sizes.iter().enumerate().map(|(number, size)| {
            let keys = next..next + size;
            next += size;
            let text: String = match lines {
                true => std::iter::once("\n".to_owned()).chain(keys.map(|key| format!("{{\"key\": {key}}}\n"))).collect(),
                false => std::iter::once("key\n".to_owned()).chain(keys.map(|key| format!("{key}\n"))).collect(),
            };
            (format!("t-{number}"), text.into_bytes())
        });
        let objects: Vec<_> = objects.collect();
        let found = runtime().block_on(async {
            let store = store_of(&objects.iter().map(|(key, text)| (key.as_str(), text.clone())).collect::<Vec<_>>()).await;
            let shards = Shards::Keys(objects.iter().map(|(key, _)| Arc::from(key.as_str())).collect());
            let format = if lines { RecordFormat::lines([].into()) } else { plain(b',') };
            drain_boxed(records(&store, shards, format, settings)).await
        });
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let mut traversal = Traversal::new(next, settings).unwrap();
        while let Some(visits) = traversal.next_visits(7) {
            match visits {
                NextVisits::Visits { indexes, .. } => keys.extend(indexes.iter().map(ToString::to_string)),
                NextVisits::EpochEnd => ends.push(keys.len()),
            }
        }
        prop_assert_eq!(found.keys(), keys);
        prop_assert_eq!(found.ends, ends);
    }
}
