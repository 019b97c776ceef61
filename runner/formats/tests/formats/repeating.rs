//! Tests of values that repeat: few bytes of a file that make many bytes of samples stay within the part of the budget that the source has.

use std::time::Duration;

use futures::future::join_all;
use penstock_engine::item::Sample;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source};
use penstock_engine::share::Room;
use penstock_engine::typed::Typing;
use penstock_formats::{RecordFormat, RecordSource, mds, parquet, record_samples, tar, tfrecord};
use penstock_storage::BoundedStore;
use penstock_types::traversal::TraversalSettings;
use serde_json::json;

use crate::archives::{archive, file};
use crate::hostile::repeated_text;
use crate::records::one;
use crate::tfrecord::framed;
use crate::{COMPRESSORS, access, gzip, store_of, written, zstd};

/// Part of the source of a budget of 64 MiB.
const MOST: u64 = 32 << 20;
const IN_ORDER: TraversalSettings = TraversalSettings::IN_ORDER;
const SHUFFLED: TraversalSettings = TraversalSettings { seed: 3, shuffle: true, ..IN_ORDER };
const MIB: usize = 1 << 20;

/// Number of samples, and the sum of their sizes, of a source that never takes more than its part, with one sample and one chunk beyond.
async fn read(name: &str, mut source: impl Source) -> Result<(usize, u64), String> {
    let (mut samples, mut bytes) = (0, 0);
    loop {
        let produced = source.next().await.map_err(|fault| fault.to_string())?;
        // What is read ahead has time to be read.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let kept = source.kept_bytes();
        assert!(kept <= MOST, "{name}: {kept} bytes are kept");
        match produced {
            Some(Produced::Samples(chunk)) => {
                let of_chunk = chunk.iter().map(Sample::memory_bytes).sum::<u64>();
                assert!(of_chunk <= MOST / 2, "{name}: a chunk has {of_chunk} bytes");
                (samples, bytes) = (samples + chunk.len(), bytes + of_chunk);
            }
            Some(Produced::EpochEnd) => {}
            None => return Ok((samples, bytes)),
        }
    }
}

/// The same in order and shuffled. Reads at the same time take the room that they share, and one sample more.
async fn numbered(name: &str, open: impl Fn() -> Open) -> [(usize, u64); 2] {
    let (samples, room) = (open().await.unwrap(), Room::new(MOST / 8));
    let count = samples.count();
    let shares: Vec<_> = (0..8).map(|number| room.share(number == 0)).collect();
    let reads = shares.iter().zip(0_u64..).map(|(share, number)| {
        let indexes = (0..100).map(|index| (100 * number + index) % count).collect();
        samples.clone().read(0, indexes, share.clone())
    });
    let made = join_all(reads).await.into_iter().flat_map(|chunk| chunk.unwrap().into_kept());
    let sizes: Vec<u64> = made.map(|sample| sample.memory_bytes()).collect();
    let most = MOST / 8 + sizes.iter().max().unwrap();
    assert!(
        sizes.iter().sum::<u64>() <= most,
        "{name}: {} bytes, may take {most}",
        sizes.iter().sum::<u64>()
    );
    let both =
        [IN_ORDER, SHUFFLED].map(|settings| read(name, NumberedSource::new(open(), settings, MOST / 4)));
    let [in_order, shuffled] = both;
    [in_order.await.unwrap(), shuffled.await.unwrap()]
}

fn rows_of(store: &BoundedStore) -> Open {
    parquet::open(&written(json!({ "shards": "a", "shuffle": true })), access(store, MOST))
}

#[tokio::test]
async fn a_text_in_all_rows_of_a_parquet_file_takes_its_memory_in_each_sample() {
    let (rows, length) = (600, 1_000_000);
    let content = repeated_text(rows, length);
    assert!(content.len() < 1_000, "{} bytes", content.len());
    let store = store_of(&[("a", content)]).await;
    for (samples, bytes) in numbered("parquet", || rows_of(&store)).await {
        assert_eq!(samples, rows as usize);
        assert!(bytes > rows as u64 * u64::from(length));
    }
}

#[tokio::test]
async fn compressed_files_of_tar_shards_take_their_memory_in_each_sample() {
    let count = 150;
    let members = |name: &str, content: &[u8]| {
        let members: Vec<_> =
            (0..count).map(|number| file(format!("{number:04}.{name}").as_bytes(), content)).collect();
        archive(&members)
    };
    let zeros = vec![0; MIB];
    let mut shards =
        vec![("blob.gz", members("blob.gz", &gzip(&zeros))), ("txt.zst", members("txt.zst", &zstd(&zeros)))];
    for (name, content) in shards.clone() {
        let store = store_of(&[("a", content)]).await;
        let open = || tar::open(&written(json!({ "shards": "a" })), access(&store, MOST));
        for (samples, bytes) in numbered(name, open).await {
            assert_eq!((samples, bytes / MIB as u64), (count, count as u64), "{name}");
        }
    }
    shards.extend(COMPRESSORS.map(|(name, compress)| (name, compress(&members("blob", &zeros)))));
    for (name, content) in shards {
        let store = store_of(&[("a", content)]).await;
        let source = written(json!({ "shards": "a" }));
        let stream = tar::stream(&source, access(&store, MOST), Typing::default(), IN_ORDER);
        let (samples, bytes) = read(name, stream).await.unwrap();
        assert_eq!((samples, bytes / MIB as u64), (count, count as u64), "{name}");
    }
}

#[tokio::test]
async fn numbers_of_tfrecord_files_take_their_memory_in_each_sample() {
    let part = |number: u8, content: &[u8]| {
        let length = content.len();
        let length = [length as u8 & 0x7f | 0x80, (length >> 7) as u8 & 0x7f | 0x80, (length >> 14) as u8];
        [&[number << 3 | 2][..], &length, content].concat()
    };
    // One byte each in the file, and eight in a tensor.
    let (count, numbers) = (150, 100_000);
    let feature = [part(1, b"x"), part(2, &part(3, &part(1, &vec![1; numbers])))].concat();
    let record = framed(&part(1, &part(1, &feature)));
    let content = record.repeat(count);
    let store = store_of(&[("a", content.clone()), ("a.gz", gzip(&content))]).await;
    let open = || tfrecord::open(&written(json!({ "shards": "a" })), access(&store, MOST));
    let least = (count * numbers * 8) as u64;
    for (samples, bytes) in numbered("tfrecord", open).await {
        assert!(samples == count && bytes > least, "{samples} samples of {bytes} bytes");
    }
    let source = written(json!({ "shards": "a.gz" }));
    let stream = tfrecord::stream(&source, access(&store, MOST), Typing::default(), IN_ORDER);
    let (samples, bytes) = read("tfrecord.gz", stream).await.unwrap();
    assert!(samples == count && bytes > least, "{samples} samples of {bytes} bytes");
}

#[tokio::test]
async fn small_columns_of_mds_shards_take_their_memory_in_each_sample() {
    let (count, columns) = (1_500_u32, 250);
    let head = 4 * (count + 2);
    let places = (0..=count).map(|number| head + number * columns);
    let content: Vec<u8> = [count].into_iter().chain(places).flat_map(u32::to_le_bytes).collect();
    let content = [content, vec![7; (count * columns) as usize]].concat();
    for (compression, stored) in [(None, content.clone()), (Some("zstd"), zstd(&content))] {
        let file = |name: &str, size: usize| json!({ "basename": name, "bytes": size, "hashes": {} });
        let names: Vec<String> = (0..columns).map(|number| format!("c{number}")).collect();
        let index = json!({ "version": 2, "shards": [{
            "format": "mds",
            "version": 2,
            "column_names": names,
            "column_encodings": vec!["uint8"; columns as usize],
            "column_sizes": vec![1; columns as usize],
            "compression": compression,
            "hashes": [],
            "raw_data": file("raw", content.len()),
            "zip_data": compression.map(|_| file("zip", stored.len())),
            "samples": count,
            "size_limit": null,
        }] });
        let key = if compression.is_some() { "zip" } else { "raw" };
        let store = store_of(&[("index.json", index.to_string().into_bytes()), (key, stored)]).await;
        let open = || mds::open(&written(json!({})), access(&store, MOST));
        for (samples, bytes) in numbered("mds", open).await {
            assert_eq!(samples, count as usize);
            assert!(bytes > 10 * content.len() as u64, "{bytes}");
        }
    }
}

#[tokio::test]
async fn small_values_of_tables_take_their_memory_in_each_sample() {
    let (count, columns) = (1_000, 1_000);
    let header: Vec<String> = (0..columns).map(|number| format!("c{number}")).collect();
    let row = vec!["1"; columns].join(",");
    let content = format!("{}\n{}", header.join(","), format!("{row}\n").repeat(count)).into_bytes();
    let store = store_of(&[("a", content.clone()), ("a.gz", gzip(&content))]).await;
    let format = || RecordFormat::rows(b',', [].into());
    let open = || Typing::default().samples(record_samples(store.clone(), one("a"), format(), MOST));
    let least = 10 * content.len() as u64;
    for (samples, bytes) in numbered("csv", open).await {
        assert!(samples == count && bytes > least, "{samples} samples of {bytes} bytes");
    }
    let source = RecordSource::new(store, one("a.gz"), format(), IN_ORDER, Typing::default());
    let (samples, bytes) = read("csv.gz", source.within(MOST)).await.unwrap();
    assert!(samples == count && bytes > least, "{samples} samples of {bytes} bytes");
}

#[tokio::test]
async fn a_line_that_is_longer_than_the_part_of_the_source_is_refused_with_a_remedy() {
    let line = |length: usize| format!("{{\"a\": \"{}\"}}\n", "x".repeat(length));
    let short = line(MIB).repeat(100);
    for (name, compress) in COMPRESSORS {
        let content = compress(short.as_bytes());
        let store = store_of(&[("a", content), ("long", compress(line(40 * MIB).as_bytes()))]).await;
        let source = |key: &str| {
            let format = RecordFormat::lines([].into());
            RecordSource::new(store.clone(), one(key), format, IN_ORDER, Typing::default()).within(MOST)
        };
        assert_eq!(read(name, source("a")).await.unwrap().0, 100, "{name}");
        let fault = read(name, source("long")).await.unwrap_err();
        let told = "line 1 of `long` in store `data` is longer than 33554432 bytes; split it up, or raise `buffer_mib`";
        assert!(fault.starts_with(told), "{fault}");
    }
    let store = store_of(&[("a", line(40 * MIB).into_bytes())]).await;
    let open = record_samples(store, one("a"), RecordFormat::lines([].into()), MOST);
    let fault = open.await.err().unwrap().to_string();
    assert!(fault.contains("is longer than 33554432 bytes; split it up, or raise `buffer_mib`"), "{fault}");
}
