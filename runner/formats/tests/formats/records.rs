//! Tests of the `records` source.

use std::fs::File;
use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::{Produced, Source, SourceFault};
use penstock_engine::typed::Typing;
use penstock_formats::{Damage, RecordFormat, RecordSource, Shards, record_samples};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore};
use penstock_types::spec::{FillValue, WhenMissing};
use penstock_types::traversal::{NextVisits, Shard, Traversal, TraversalSettings, Uneven};
use proptest::prelude::*;

const SHUFFLED: TraversalSettings =
    TraversalSettings { seed: 3, shuffle: true, ..TraversalSettings::IN_ORDER };

/// The complete output of a source.
pub(crate) struct Drained {
    pub(crate) samples: Vec<Sample>,
    /// Number of samples before the end of each epoch, counted from the start.
    pub(crate) ends: Vec<usize>,
    pub(crate) fault: Option<SourceFault>,
}

impl Drained {
    pub(crate) fn keys(&self) -> Vec<&str> {
        assert!(self.fault.is_none(), "{:?}", self.fault);
        self.samples.iter().map(|sample| &*sample.key).collect()
    }

    pub(crate) fn fault(&self) -> String {
        self.fault.as_ref().unwrap().to_string()
    }
}

pub(crate) async fn drain(source: impl Source + 'static) -> Drained {
    drain_boxed(Box::new(source)).await
}

pub(crate) async fn drain_boxed(mut source: Box<dyn Source>) -> Drained {
    let mut drained = Drained { samples: Vec::new(), ends: Vec::new(), fault: None };
    loop {
        match source.next().await {
            Ok(Some(Produced::Samples(samples))) => drained.samples.extend(samples.into_kept()),
            Ok(Some(Produced::EpochEnd)) => drained.ends.push(drained.samples.len()),
            Ok(None) => return drained,
            Err(fault) => {
                drained.fault = Some(fault);
                return drained;
            }
        }
    }
}

/// A folder with these files, and a store named `data` for the folder.
pub(crate) fn folder_with(files: &[(&str, &[u8])]) -> (tempfile::TempDir, BoundedStore) {
    let folder = tempfile::tempdir().unwrap();
    for (key, bytes) in files {
        let path = folder.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let store = FolderStore::open("data", folder.path()).unwrap();
    (folder, BoundedStore::new(Arc::new(store), DEFAULT_READS))
}

/// The lines of one object, in order.
pub(crate) fn lines(store: &BoundedStore, key: &str, settings: TraversalSettings) -> RecordSource {
    RecordSource::new(store.clone(), one(key), RecordFormat::lines([].into()), settings, Typing::default())
}

pub(crate) fn one(key: &str) -> Shards {
    Shards::Keys(vec![Arc::from(key)])
}

/// The records of objects: in order, or, for a shuffle, by their numbers.
pub(crate) fn records(
    store: &BoundedStore,
    objects: Shards,
    format: RecordFormat,
    settings: TraversalSettings,
) -> Box<dyn Source> {
    match settings.shuffle {
        true => {
            let open = Typing::default().samples(record_samples(store.clone(), objects, format, u64::MAX));
            Box::new(NumberedSource::new(open, settings, 0))
        }
        false => Box::new(RecordSource::new(store.clone(), objects, format, settings, Typing::default())),
    }
}

async fn read(store: &BoundedStore, settings: TraversalSettings) -> Drained {
    drain_boxed(source(store, settings)).await
}

fn source(store: &BoundedStore, settings: TraversalSettings) -> Box<dyn Source> {
    records(store, one("lines.ndjson"), RecordFormat::lines([].into()), settings)
}

fn file(text: &[u8]) -> (tempfile::TempDir, BoundedStore) {
    folder_with(&[("lines.ndjson", text)])
}

#[tokio::test]
async fn lines_become_samples() {
    let (_folder, store) = file(b"{\"key\": \"a\", \"text\": \"one\"}\n{\"key\": 7, \"n\": 2}\n");
    let found = read(&store, TraversalSettings::IN_ORDER).await;
    assert_eq!(found.keys(), ["a", "7"]);
    assert_eq!(found.samples[0].field("text"), Some(&Value::Text("one".to_owned())));
    assert_eq!(found.samples[1].field("n"), Some(&Value::Int(2)));
    assert_eq!(found.samples[1].origin.index, 1);
}

#[tokio::test]
async fn blank_lines_line_ends_and_byte_order_marks_do_not_matter() {
    let (_folder, store) = file(b"\xef\xbb\xbf{\"n\":1}\r\n\r\n  \t\n{\"n\":2}\n\n{\"n\":3}\n{\"n\":4}");
    let found = read(&store, TraversalSettings::IN_ORDER).await;
    // The key of each sample is its line number; blank lines count.
    assert_eq!(found.keys(), ["1", "4", "6", "7"]);
    let mut shuffled = read(&store, SHUFFLED).await;
    shuffled.samples.sort_by_key(|sample| sample.origin.index);
    assert_eq!(shuffled.samples, found.samples);
}

#[tokio::test]
async fn an_object_of_blank_lines_has_no_samples_and_no_endless_epochs() {
    let (_folder, store) = file(b"\n \n");
    for shuffle in [false, true] {
        let settings = TraversalSettings { shuffle, epochs: None, ..TraversalSettings::IN_ORDER };
        let found = read(&store, settings).await;
        assert!(found.keys().is_empty() && found.ends.is_empty());
    }
}

#[tokio::test]
async fn numbers_that_json_lacks_make_a_field_float_and_are_not_missing() {
    let text =
        b"{\"n\": 1}\n{\"n\": NaN}\n{\"n\": -Infinity, \"m\": [NaN]}\n{\"n\": null}\n{\"n\": Infinity}\n";
    let (_folder, store) = file(text);
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let missing = [("n".to_owned(), WhenMissing::Value(FillValue::Real(7.5)))].into();
        let typing = Typing { missing, ..Typing::default() };
        let format = RecordFormat::lines([].into());
        let source: Box<dyn Source> = match settings.shuffle {
            true => {
                let open =
                    typing.samples(record_samples(store.clone(), one("lines.ndjson"), format, u64::MAX));
                Box::new(NumberedSource::new(open, settings, 0))
            }
            false => {
                Box::new(RecordSource::new(store.clone(), one("lines.ndjson"), format, settings, typing))
            }
        };
        let mut found = drain_boxed(source).await;
        assert!(found.fault.is_none(), "{:?}", found.fault);
        found.samples.sort_by_key(|sample| sample.origin.index);
        let reals: Vec<f64> = found
            .samples
            .iter()
            .map(|sample| match sample.field("n") {
                Some(Value::Real(real)) => *real,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(reals[1].is_nan());
        assert_eq!([reals[0], reals[2], reals[3], reals[4]], [1.0, f64::NEG_INFINITY, 7.5, f64::INFINITY]);
        assert_eq!(found.samples[2].field("m"), Some(&Value::Text("[NaN]".to_owned())));
    }
}

#[tokio::test]
async fn halves_of_surrogate_pairs_become_replacement_characters_and_are_warned_of_once() {
    let text = br#"{"a": "\ud83d\ude00"}
{"a": "\ud83d\n"}
{"\ude00": "x", "a": "\ude00\ud83d"}
{"a": "y", "b": ["\ud800", NaN]}
"#;
    let (_folder, store) = file(text);
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let damage = Damage::default();
        let format = RecordFormat::lines([].into()).with_damage(damage.clone());
        let settings = TraversalSettings { epochs: NonZeroU32::new(2), ..settings };
        let mut found = drain_boxed(records(&store, one("lines.ndjson"), format, settings)).await;
        found.samples.sort_by_key(|sample| (sample.origin.epoch, sample.origin.index));
        let texts: Vec<_> =
            found.samples[..4].iter().map(|sample| sample.field("a").unwrap().clone()).collect();
        let expected = ["😀", "\u{fffd}\n", "\u{fffd}\u{fffd}", "y"];
        assert_eq!(texts, expected.map(|text| Value::Text(text.to_owned())));
        assert!(found.samples[2].field("\u{fffd}").is_some());
        let warnings = damage.notes.warnings("0:records").join("\n");
        let start = "the source `0:records`: lines with half of a surrogate pair, which became U+FFFD: 3 (`lines.ndjson:";
        assert!(warnings.starts_with(start), "{warnings}");
        for line in 2..=4 {
            assert!(warnings.contains(&format!("`lines.ndjson:{line}`")), "{warnings}");
        }
    }
}

#[tokio::test]
async fn samples_before_a_bad_line_are_made_and_the_line_is_named() {
    let (_folder, store) = file(b"{\"n\":1}\n\n{\"n\":2}\n{\"n\":\n{\"n\":4}\n");
    let found = read(&store, TraversalSettings::IN_ORDER).await;
    assert_eq!(found.samples.len(), 2);
    assert_eq!(
        found.fault(),
        "line 4 of `lines.ndjson` in store `data` is not a JSON object: EOF while parsing a value, at column 5"
    );
    let shuffled = read(&store, SHUFFLED).await;
    assert!(shuffled.fault().starts_with("line 4 of `lines.ndjson` in store `data` is not a JSON object"));
}

#[tokio::test]
async fn a_missing_object_is_a_fault_that_names_it() {
    let (_folder, store) = folder_with(&[]);
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        assert_eq!(read(&store, settings).await.fault(), "store `data` has no object `lines.ndjson`");
    }
}

#[tokio::test]
async fn an_endless_line_is_refused_before_it_fills_the_memory() {
    let (folder, store) = file(b"{\"n\":1}\n");
    let sparse = File::options().write(true).open(folder.path().join("lines.ndjson")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let found = read(&store, settings).await;
        assert_eq!(
            found.fault(),
            "line 2 of `lines.ndjson` in store `data` is longer than 64 MiB; is it NDJSON, with one object per line?"
        );
    }
}

#[tokio::test]
async fn lines_across_block_borders_are_complete() {
    // The object is larger than `HELD_BYTES`, so it is not kept in memory for a shuffled order; its lines have 10 bytes to 3 MB.
    let mut text = String::new();
    let mut lengths = Vec::new();
    for number in 0_usize.. {
        let length = if number % 50 == 49 { 3_000_000 } else { number * 7919 % 20_000 };
        lengths.push(length);
        text.push_str(&format!("{{\"x\":\"{}\"}}\n", "y".repeat(length)));
        if text.len() > 34 << 20 {
            break;
        }
    }
    let (_folder, store) = file(text.as_bytes());
    let length_of = |value: Option<&Value>| match value {
        Some(Value::Text(text)) => text.len(),
        other => panic!("{other:?}"),
    };
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let mut found = read(&store, settings).await;
        found.samples.sort_by_key(|sample| sample.origin.index);
        let numbers: Vec<String> = (1..=lengths.len()).map(|number| number.to_string()).collect();
        assert_eq!(found.keys(), numbers);
        assert!(found.samples.iter().map(|sample| length_of(sample.field("x"))).eq(lengths.iter().copied()));
    }
}

#[tokio::test]
async fn a_limit_ends_the_reading_before_the_object_does() {
    let (folder, store) = file(b"{\"n\":1}\n{\"n\":2}\n");
    let sparse = File::options().write(true).open(folder.path().join("lines.ndjson")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let limited = TraversalSettings { limit: Some(2), ..TraversalSettings::IN_ORDER };
    assert_eq!(read(&store, limited).await.keys(), ["1", "2"]);
}

#[tokio::test]
async fn an_object_that_shrinks_while_being_read_is_a_fault() {
    // More than is read for the types of its first records, and ahead.
    let line = format!("{{\"x\":\"{}\"}}\n", "y".repeat(1000));
    let (folder, store) = file(line.repeat(60_000).as_bytes());
    let mut source = lines(&store, "lines.ndjson", TraversalSettings::IN_ORDER);
    assert!(matches!(source.next().await, Ok(Some(Produced::Samples(_)))));
    File::options().write(true).open(folder.path().join("lines.ndjson")).unwrap().set_len(5_000).unwrap();
    let rest = drain(source).await;
    assert!(rest.fault().contains("ends at byte 5000"), "{}", rest.fault());
}

#[tokio::test]
async fn an_object_that_is_replaced_while_being_read_is_a_fault() {
    // The object is too large to be kept in memory, so it is read in ranges.
    let lines = |letter: &str| format!("{{\"x\":\"{}\"}}\n", letter.repeat(1000)).repeat(40_000);
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let (_folder, store) = file(lines("y").as_bytes());
        let mut source = source(&store, settings);
        assert!(matches!(source.next().await, Ok(Some(Produced::Samples(_)))));
        store.put(Arc::from("lines.ndjson"), lines("z").into()).await.unwrap();
        let fault = drain_boxed(source).await.fault.unwrap();
        let cause = std::error::Error::source(&fault).unwrap().to_string();
        assert_eq!(
            (fault.to_string().as_str(), cause.as_str()),
            ("reading `lines.ndjson` of store `data` failed", "the object changed while it was read")
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn records_are_visited_in_the_order_of_a_traversal(
        count in 0_u64..700, world in 1_u32..6, rank in 0_u32..6, keep: bool, shuffle: bool, seed: u64,
        limit in proptest::option::of(0_u64..800), epochs in 1_u32..4, first_epoch in 0_u32..3,
    ) {
        let uneven = if keep { Uneven::Keep } else { Uneven::Drop };
        let shard = Shard { rank: rank % world, world: NonZeroU32::new(world).unwrap(), uneven };
        let (shard, epochs) = (Some(shard), NonZeroU32::new(epochs));
        let settings = TraversalSettings { seed, shuffle, window: None, shard, limit, epochs, first_epoch };
        let lines: String = (0..count).map(|number| format!("{{\"key\":{number}}}\n")).collect();
        // A file of 0 bytes is damaged.
        let (_folder, store) = file(if count == 0 { b"\n" } else { lines.as_bytes() });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(read(&store, settings));

        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        let mut traversal = Traversal::new(count, settings).unwrap();
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

#[tokio::test]
async fn line_starts_count_as_kept_memory_and_are_a_fault_beyond_the_limit() {
    let (_folder, store) = file("{\"n\": 1}\n".repeat(100).as_bytes());
    let open =
        |bytes| record_samples(store.clone(), one("lines.ndjson"), RecordFormat::lines([].into()), bytes);
    let source = |bytes| NumberedSource::new(open(bytes), SHUFFLED, 0);
    // This limit is too small to keep the object in memory, and just sufficient for the starts of its lines.
    let mut enough = source(100 * 8 + 256);
    assert!(enough.next().await.unwrap().is_some());
    assert_eq!(enough.kept_bytes(), 101 * 8 + 256);
    let fault = drain(source(100 * 8 + 255)).await.fault();
    assert_eq!(
        fault,
        "line 100 of `lines.ndjson` in store `data` and those before it take more than the 1055 bytes of memory that places of \
         records may take, 8 for each; split the object up, read it without `shuffle`, or raise `buffer_mib`, of which the source may \
         use a part"
    );
}
