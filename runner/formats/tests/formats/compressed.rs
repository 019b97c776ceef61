//! Tests of NDJSON and tables that are compressed as a whole.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use penstock_engine::ports::Source;
use penstock_engine::typed::Typing;
use penstock_formats::{Damage, RecordFormat, RecordSource, Shards, expand};
use penstock_storage::Wanted;
use penstock_types::spec::{OnDamage, Suffix, TableForm, TextEncoding};
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};

use crate::records::{drain, drain_boxed, one, records};
use crate::{COMPRESSORS, gzip, store_of, zstd};

const SHUFFLED: TraversalSettings =
    TraversalSettings { seed: 3, shuffle: true, ..TraversalSettings::IN_ORDER };

fn lines() -> RecordFormat {
    RecordFormat::lines([].into())
}

fn table() -> RecordFormat {
    RecordFormat::rows(b',', BTreeMap::new())
}

/// Splits the content in the middle of a line, and compresses both parts and an empty one.
fn joined(compress: fn(&[u8]) -> Vec<u8>, content: &[u8]) -> Vec<u8> {
    let (first, second) = content.split_at(content.len() / 2 + 1);
    [compress(first), compress(b""), compress(second)].concat()
}

#[tokio::test]
async fn compressed_records_are_those_of_the_same_content_whatever_its_name() {
    let mut long = String::new();
    for number in 0..40_000 {
        long.push_str(&format!("{{\"n\": {number}, \"text\": \"{}\"}}\n", "ü".repeat(number % 97)));
    }
    let cases: [(&str, RecordFormat, Vec<u8>); 8] = [
        ("plain", lines(), b"{\"n\": 1}\n\n{\"n\": 2}\r\n{\"n\": 3}".to_vec()),
        ("marked", lines(), b"\xef\xbb\xbf{\"n\": 1}\n  \n".to_vec()),
        ("short", lines(), b"{}".to_vec()),
        ("long", lines(), long.into_bytes()),
        ("table", table(), b"\xef\xbb\xbfid,b\r\n1,\"x\ny\"\r\n\r\n2,z".to_vec()),
        ("header", table(), b"id,b".to_vec()),
        (
            "named",
            RecordFormat::rows(form(b';', TextEncoding::Windows1252), [].into()),
            b"sep=;\na;b\ncaf\xe9;2\n".to_vec(),
        ),
        (
            "units",
            RecordFormat::rows(form(b',', TextEncoding::Utf16), [].into()),
            "a,b\n1,𝄞\n".encode_utf16().flat_map(u16::to_le_bytes).collect(),
        ),
    ];
    for (name, format, content) in cases {
        let store = store_of(&[("a", content.clone())]).await;
        let source = |store, key: &str| {
            RecordSource::new(store, one(key), format.clone(), TraversalSettings::IN_ORDER, Typing::default())
        };
        let mut plain = source(store.clone(), "a");
        let expected = drain_by(&mut plain).await;
        for (compression, compress) in COMPRESSORS {
            for key in ["a", "a.jsonl", "a.csv.gz", "a.ndjson.zst"] {
                for bytes in [compress(&content), joined(compress, &content)] {
                    let store = store_of(&[(key, bytes)]).await;
                    let mut compressed = source(store.clone(), key);
                    let found = drain_by(&mut compressed).await;
                    assert_eq!(found, expected, "{name} with {compression} as {key}");
                    // The same state fits both.
                    assert_eq!(compressed.data(), plain.data(), "{name} with {compression} as {key}");
                    assert_eq!(source(store.clone(), key).count().await.unwrap(), expected.len() as u64);
                    let shuffled = drain_boxed(records(&store, one(key), format.clone(), SHUFFLED)).await;
                    assert!(shuffled.samples.is_empty());
                    assert_eq!(
                        shuffled.fault(),
                        format!(
                            "the object `{key}` in store `data` is compressed with {compression} as a whole, so that its samples have no \
                             places: decompress it, or read it in order, without an index, `shuffle`, a mixture, a join of labels, or \
                             several ranks with `skip`"
                        )
                    );
                }
            }
        }
    }
}

fn form(delimiter: u8, encoding: TextEncoding) -> TableForm {
    TableForm { delimiter, is_named: true, quote: Some(b'"'), encoding }
}

async fn drain_by(source: &mut RecordSource) -> Vec<penstock_engine::item::Sample> {
    let mut samples = Vec::new();
    while let Some(produced) = source.next().await.unwrap() {
        if let penstock_engine::ports::Produced::Samples(more) = produced {
            samples.extend(more.into_kept());
        }
    }
    samples
}

#[tokio::test]
async fn a_listing_takes_compressed_objects_but_none_twice() {
    let content = |number: u32| format!("{{\"key\": \"{number}\"}}\n").into_bytes();
    let objects = [
        ("a-0.ndjson", content(0)),
        ("a-1.ndjson.gz", gzip(&content(1))),
        ("a-2.ndjson.zst", zstd(&content(2))),
    ];
    let wanted = || {
        let suffix = Suffix::Several([".ndjson", ".ndjson.gz", ".ndjson.zst"].map(str::to_owned).to_vec());
        Shards::Listed(Wanted { prefix: "a-".to_owned(), suffix, ..Wanted::default() })
    };
    let store = store_of(&objects).await;
    for world in [1, 2] {
        let mut keys = Vec::new();
        for rank in 0..world {
            let shard = Some(Shard { rank, world: NonZeroU32::new(world).unwrap(), uneven: Uneven::Keep });
            let settings =
                TraversalSettings { shard, epochs: NonZeroU32::new(2), ..TraversalSettings::IN_ORDER };
            let found = drain_boxed(records(&store, wanted(), lines(), settings)).await;
            keys.extend(found.keys().iter().map(|key| (*key).to_owned()));
        }
        keys.sort();
        assert_eq!(keys, ["0", "0", "1", "1", "2", "2"]);
    }
    let both = store_of(&[("a-1.ndjson", content(1)), ("a-1.ndjson.gz", gzip(&content(1)))]).await;
    for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
        let fault = drain_boxed(records(&both, wanted(), lines(), settings)).await.fault();
        assert_eq!(
            fault,
            "store `data` has both `a-1.ndjson` and `a-1.ndjson.gz`, which seem to be the same data: remove one of them, or name those to \
             read by `shards`"
        );
    }
}

#[tokio::test]
async fn cut_and_damaged_streams_end_after_the_records_before_and_can_be_left_out() {
    let content: String =
        (0..200_000).map(|number| format!("{{\"n\": {}}}\n", number * 7919 % 100_003)).collect();
    let last = b"{\"n\": -1}\n";
    for (name, compress) in COMPRESSORS {
        let whole = compress(content.as_bytes());
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 0x55;
        for (is_flipped, bytes) in [
            (false, whole[..whole.len() / 2].to_vec()),
            (false, whole[..whole.len() - 2].to_vec()),
            (true, flipped),
            (false, [&whole[..], b"trailing"].concat()),
        ] {
            let store = store_of(&[("1.gz", bytes), ("2.gz", compress(last))]).await;
            let objects = || Shards::Keys(expand("{1..2}.gz").unwrap());
            let source = |damage: Damage| {
                RecordSource::new(
                    store.clone(),
                    objects(),
                    lines().with_damage(damage),
                    TraversalSettings::IN_ORDER,
                    Typing::default(),
                )
            };
            let failed = drain(source(Damage::default())).await;
            assert!(failed.fault().contains("`1.gz` in store `data`"), "{name}: {}", failed.fault());
            let damage = Damage { policy: OnDamage::Skip, ..Damage::default() };
            let notes = damage.notes.clone();
            let skipped = drain(source(damage)).await;
            assert!(skipped.fault.is_none(), "{name}: {:?}", skipped.fault);
            // Behind flipped bits, there may be bad lines before the end.
            match is_flipped {
                true => assert!(skipped.samples.len() > failed.samples.len(), "{name}"),
                false => assert_eq!(skipped.samples.len(), failed.samples.len() + 1, "{name}"),
            }
            assert_eq!(notes.left_out().iter().map(|left_out| left_out.count).sum::<u64>(), 1, "{name}");
        }
    }
    for (name, first) in [
        ("bzip2", &b"BZh91AY&SY\x01\x02\x03\x04"[..]),
        ("xz", b"\xfd7zXZ\0\0\x04"),
        ("zip", b"PK\x03\x04\x14\0"),
    ] {
        let store = store_of(&[("a.csv", first.to_vec())]).await;
        for format in [lines(), table()] {
            for settings in [TraversalSettings::IN_ORDER, SHUFFLED] {
                let damage = Damage { policy: OnDamage::Skip, ..Damage::default() };
                let format = format.clone().with_damage(damage);
                let found = drain_boxed(records(&store, one("a.csv"), format, settings)).await;
                assert!(
                    found.fault().contains(&format!("is compressed with {name}, which is not read")),
                    "{}",
                    found.fault()
                );
            }
        }
    }
}

#[tokio::test]
async fn a_line_or_row_that_decompresses_to_more_than_64_mib_is_refused() {
    let bomb = vec![b'x'; 66 << 20];
    for ((name, compress), format) in COMPRESSORS.into_iter().zip([lines(), table()]) {
        let bytes = compress(&bomb);
        assert!(bytes.len() < 1 << 20, "{name}");
        let store = store_of(&[("bomb", bytes)]).await;
        let found = drain_boxed(records(&store, one("bomb"), format, TraversalSettings::IN_ORDER)).await;
        let start = "line 1 of `bomb` in store `data` is longer than 64 MiB";
        assert!(found.fault().starts_with(start), "{name}: {}", found.fault());
    }
    // Blank lines take no memory.
    let blank = [" ".repeat(1023), "\n".to_owned()].concat().repeat(70 << 10);
    let store = store_of(&[("blank", zstd(blank.as_bytes()))]).await;
    let found = drain_boxed(records(&store, one("blank"), lines(), TraversalSettings::IN_ORDER)).await;
    assert!(found.keys().is_empty());
}
