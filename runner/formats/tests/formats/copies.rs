//! Tests of indexes whose shards were copied, changed or indexed by an earlier build.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_engine::item::Sample;
use penstock_engine::notes::Notes;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_formats::{Access, Damage, IndexKind, SampleIndex, Shards, expand, tar, tfrecord};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore};
use penstock_types::spec::OnDamage;
use penstock_types::traversal::TraversalSettings;
use serde_json::{Value as Json, json};

use crate::{access, data, drain, store_of, with, written};

const MOST: u64 = 1 << 20;
const STALE: &str = "has changed since `index` was made: make it again with `penstock index create";

fn store(folder: &Path) -> BoundedStore {
    BoundedStore::new(Arc::new(FolderStore::open("data", folder).unwrap()), DEFAULT_READS)
}

/// A shard of this kind, and of another one with the same places.
fn shards(kind: IndexKind) -> [Vec<u8>; 2] {
    match kind {
        IndexKind::Tar => {
            let one = data("shard-00.tar");
            let mut other = one.clone();
            // Each header has another time, and its checksum.
            for at in (0..other.len()).step_by(512).filter(|at| one[at + 257..].starts_with(b"ustar")) {
                other[at + 146] ^= 1;
                let header = &mut other[at..at + 512];
                header[148..156].fill(b' ');
                let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
                header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            }
            [one, other]
        }
        // Records of the same lengths.
        IndexKind::Tfrecord => [b'a', b'b'].map(|byte| [&frame(&[byte; 9])[..], &frame(&[byte; 5])].concat()),
    }
}

fn frame(record: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
            let crc = crc ^ u32::from(*byte);
            (0..8).fold(crc, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
        });
        (!crc).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), record, &masked(record)].concat()
}

async fn put_index(store: &BoundedStore, kind: IndexKind) {
    let shards = Shards::Keys(expand("shard").unwrap());
    let index = SampleIndex::build(kind, store, &shards, &Damage::default(), |_, _| {}).await.unwrap();
    store.put(Arc::from("index"), index.to_bytes().into()).await.unwrap();
}

fn open(store: &BoundedStore, kind: IndexKind, damage: Damage) -> Open {
    let (index, access) = (json!({ "index": "index" }), Access { damage, ..access(store, MOST) });
    match kind {
        IndexKind::Tar => tar::open(&written(index), access),
        IndexKind::Tfrecord => tfrecord::open(&written(with(index, "decode", "bytes")), access),
    }
}

async fn read(store: &BoundedStore, kind: IndexKind, damage: Damage) -> (Vec<Sample>, Option<String>) {
    let settings = TraversalSettings { seed: 5, shuffle: true, ..TraversalSettings::IN_ORDER };
    let source = NumberedSource::new(open(store, kind, damage), settings, MOST);
    let (samples, _, fault) = drain(Box::new(source)).await;
    (samples, fault)
}

fn set_time(file: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

#[tokio::test]
async fn an_index_survives_a_copy_and_notices_another_shard() {
    for kind in [IndexKind::Tar, IndexKind::Tfrecord] {
        let [shard, other] = shards(kind);
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(one.path().join("shard"), &shard).unwrap();
        set_time(&one.path().join("shard"), 1000);
        put_index(&store(one.path()), kind).await;
        let (expected, fault) = read(&store(one.path()), kind, Damage::default()).await;
        assert_eq!(fault, None);
        // A copy with another time, and one with the same.
        fs::copy(one.path().join("index"), two.path().join("index")).unwrap();
        for (content, time, is_same) in [(&shard, 2000, true), (&shard, 1000, true), (&other, 1000, false)] {
            // The files of before keep their numbers.
            let name = format!("{time}{is_same}");
            fs::write(two.path().join(&name), content).unwrap();
            fs::rename(two.path().join(&name), two.path().join("shard")).unwrap();
            set_time(&two.path().join("shard"), time);
            let (samples, fault) = read(&store(two.path()), kind, Damage::default()).await;
            match is_same {
                true => assert_eq!((fault, &samples), (None, &expected)),
                false => {
                    assert!(samples.is_empty());
                    assert!(fault.unwrap().contains(STALE));
                }
            }
            let damage = Damage { policy: OnDamage::Skip, notes: Notes::default(), ..Damage::default() };
            let (samples, fault) = read(&store(two.path()), kind, damage.clone()).await;
            assert_eq!((fault, samples.len()), (None, expected.len()));
            assert_eq!(damage.notes.warnings("s").is_empty(), is_same);
        }
        // A file that was touched, one that was overwritten with another of the same size and time, and one of another size.
        set_time(&one.path().join("shard"), 3000);
        let (samples, fault) = read(&store(one.path()), kind, Damage::default()).await;
        assert_eq!((fault, &samples), (None, &expected));
        fs::write(one.path().join("shard"), &other).unwrap();
        for time in [1000, 4000] {
            set_time(&one.path().join("shard"), time);
            let (samples, fault) = read(&store(one.path()), kind, Damage::default()).await;
            assert!(samples.is_empty() && fault.unwrap().contains(STALE));
        }
        fs::write(two.path().join("shard"), [&shard[..], &[0; 512]].concat()).unwrap();
        let (_, fault) = read(&store(two.path()), kind, Damage::default()).await;
        assert!(fault.unwrap().contains(STALE));
        // A bucket's tags are those of contents, but the index may come from a folder.
        let bucket =
            store_of(&[("shard", shard), ("index", fs::read(one.path().join("index")).unwrap())]).await;
        let (samples, fault) = read(&bucket, kind, Damage::default()).await;
        assert_eq!((fault, samples), (None, expected));
    }
}

/// An index of an earlier build, of an object with this key and tag.
fn earlier(kind: IndexKind, key: &str, tag: Option<&str>) -> Vec<u8> {
    let name = if kind == IndexKind::Tar { "tar" } else { "tfrecord" };
    let index = data(&format!("earlier-{name}.index"));
    let length = u64::from_le_bytes(index[8..16].try_into().unwrap()) as usize;
    let mut header: Json = serde_json::from_slice(&index[16..16 + length]).unwrap();
    header["shards"][0]["key"] = key.into();
    header["shards"][0]["tag"] = tag.into();
    let header = serde_json::to_vec(&header).unwrap();
    [&index[..8], &(header.len() as u64).to_le_bytes(), &header, &index[16 + length..]].concat()
}

#[tokio::test]
async fn an_index_of_an_earlier_build_is_read_and_its_copies_are_refused() {
    for (kind, name) in [(IndexKind::Tar, "shard-00.tar"), (IndexKind::Tfrecord, "tfrecord/raw.tfrecord")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("shard"), data(name)).unwrap();
        let store = store(folder.path());
        put_index(&store, kind).await;
        let (expected, fault) = read(&store, kind, Damage::default()).await;
        assert_eq!(fault, None);
        let version = store.version(Arc::from("shard")).await.unwrap();
        for (tag, is_same) in [(version.tag.as_deref(), true), (Some("1-2-3"), false)] {
            let index = earlier(kind, "shard", tag);
            assert_eq!(SampleIndex::read(index.clone().into(), kind).unwrap().to_bytes(), index);
            store.put(Arc::from("index"), index.into()).await.unwrap();
            let (samples, fault) = read(&store, kind, Damage::default()).await;
            assert_eq!(samples == expected, is_same);
            assert_eq!(fault.is_some_and(|fault| fault.contains(STALE)), !is_same);
        }
    }
}
