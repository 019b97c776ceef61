//! Tests of data that are damaged, cut, empty or changed, under both settings of `on_damage`.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::{NumberedSource, Open};
use penstock_engine::ports::{Produced, Source};
use penstock_engine::typed::Typing;
use penstock_formats::{
    Access, Damage, IndexKind, RecordFormat, RecordSource, SampleIndex, Shards, expand, mds, parquet,
    record_samples, tar, tfrecord,
};
use penstock_storage::BoundedStore;
use penstock_types::left_out::LeftOutReason;
use penstock_types::resume::{DataSet, StartPoint, Token};
use penstock_types::spec::{FillValue, OnDamage, WhenMissing};
use penstock_types::traversal::TraversalSettings;
use serde_json::{Value as Json, json};

use crate::hostile::{data_page, file};
use crate::{access, data, store_of, with, written};

const MOST: u64 = 1 << 20;
const IN_ORDER: TraversalSettings = TraversalSettings::IN_ORDER;
const SHUFFLED: TraversalSettings = TraversalSettings { seed: 3, shuffle: true, ..IN_ORDER };
const SKIP: &str = "; `\"on_damage\": \"skip\"` on the source leaves out what is damaged";

/// Everything that a source returns: keys of the samples that are passed on, the others with their reasons, and the fault at the end.
#[derive(Debug, Default)]
struct Read {
    samples: Vec<Sample>,
    ended: Vec<String>,
    fault: String,
    data: DataSet,
}

impl Read {
    fn keys(&self) -> Vec<&str> {
        assert_eq!(self.fault, "");
        self.samples.iter().map(|sample| &*sample.key).collect()
    }

    fn sorted(&self) -> Vec<&str> {
        let mut keys = self.keys();
        keys.sort_unstable();
        keys
    }
}

async fn read(mut source: impl Source) -> Read {
    let mut read = Read::default();
    loop {
        match source.next().await {
            Ok(Some(Produced::Samples(chunk))) => {
                for (sample, outcome) in chunk.into_outcomes() {
                    match outcome {
                        None => read.samples.push(sample),
                        Some(outcome) => read.ended.push(format!("{}: {outcome:?}", sample.key)),
                    }
                }
            }
            Ok(Some(Produced::EpochEnd)) => {}
            Ok(None) => {
                read.data = source.data();
                return read;
            }
            Err(fault) => {
                read.fault = fault.to_string();
                return read;
            }
        }
    }
}

async fn numbered(open: Open, settings: TraversalSettings) -> Read {
    read(NumberedSource::new(open, settings, MOST)).await
}

fn handling(policy: OnDamage) -> Damage {
    Damage { policy, notes: Notes::default(), is_chosen: true }
}

fn skip() -> Damage {
    handling(OnDamage::Skip)
}

/// Number of damaged parts and of samples in them.
fn lost(damage: &Damage) -> (u64, Option<u64>) {
    let left_out = damage.notes.left_out();
    let lost = left_out.iter().find(|left_out| left_out.reason == LeftOutReason::Damage);
    lost.map_or((0, None), |lost| (lost.count, lost.samples))
}

/// Access to these objects, of which damage is handled so.
fn handled(store: &BoundedStore, damage: &Damage) -> Access {
    Access { damage: damage.clone(), ..access(store, MOST) }
}

fn indexed() -> Json {
    json!({ "index": "all.index" })
}

fn shards(pattern: &str) -> Shards {
    Shards::Keys(expand(pattern).unwrap())
}

/// An archive of these files, without its end mark.
fn unmarked(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(content.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive
}

fn marked(files: &[(&str, &str)]) -> Vec<u8> {
    [unmarked(files), vec![0; 1024]].concat()
}

/// Policies that hide the absence of `txt`, if it were no damage.
fn typing(damage: &Damage) -> Typing {
    let fill = WhenMissing::Value(FillValue::Text("none".to_owned()));
    let missing = BTreeMap::from([("txt".to_owned(), fill)]);
    Typing { missing, kind_of: tar::type_of, notes: damage.notes.clone(), ..Typing::default() }
}

/// The samples of tar shards: in order, in order by a scan, and shuffled by a scan.
async fn three_ways(store: &BoundedStore, pattern: &str, policy: OnDamage) -> Vec<(Read, Damage)> {
    let mut found = Vec::new();
    for way in 0..3 {
        let (damage, source) = (handling(policy), written(json!({ "shards": pattern })));
        let access = handled(store, &damage);
        let read = match way {
            0 => read(tar::stream(&source, access, typing(&damage), IN_ORDER)).await,
            _ => {
                let samples = tar::open(&source, access);
                let settings = if way == 1 { IN_ORDER } else { SHUFFLED };
                numbered(typing(&damage).samples(samples), settings).await
            }
        };
        found.push((read, damage));
    }
    found
}

#[tokio::test]
async fn a_cut_within_the_padding_of_a_file_is_damage() {
    let mut cut = unmarked(&[("a.cls", "1"), ("a.txt", "one"), ("b.cls", "2"), ("b.txt", "two")]);
    cut.truncate(3 * 1024 + 600);
    let store =
        store_of(&[("s-0.tar", cut), ("s-1.tar", marked(&[("c.cls", "3"), ("c.txt", "three")]))]).await;
    for (read, _) in three_ways(&store, "s-{0..1}.tar", OnDamage::Fail).await {
        assert_eq!(
            read.fault,
            format!(
                "the tar archive `s-0.tar` in store `data`, at byte 3072, ends within the padding behind `b.txt`: is it truncated?{SKIP}"
            )
        );
    }
    for (read, damage) in three_ways(&store, "s-{0..1}.tar", OnDamage::Skip).await {
        assert_eq!((read.sorted(), lost(&damage).0), (vec!["a", "c"], 1));
    }
}

#[tokio::test]
async fn the_sample_before_a_cut_file_of_another_one_is_whole() {
    let text = "x".repeat(2000);
    for length in [2 * 1024 + 512 + 100, 2 * 1024 + 512 + 2010] {
        let mut cut = unmarked(&[("a.cls", "1"), ("a.txt", "one"), ("b.txt", &text), ("b.cls", "2")]);
        cut.truncate(length);
        let store =
            store_of(&[("s-0.tar", cut), ("s-1.tar", marked(&[("c.cls", "3"), ("c.txt", "three")]))]).await;
        for (read, damage) in three_ways(&store, "s-{0..1}.tar", OnDamage::Skip).await {
            assert_eq!((read.sorted(), lost(&damage).0), (vec!["a", "c"], 1));
        }
    }
}

#[tokio::test]
async fn the_last_sample_without_an_end_mark_behind_it_is_damaged_if_it_lacks_a_field() {
    let whole = [("c.cls", "3"), ("c.txt", "three"), ("d.cls", "4")];
    let cut = unmarked(&[("a.cls", "1"), ("a.txt", "one"), ("b.cls", "2")]);
    let store = store_of(&[("s-0.tar", cut), ("s-1.tar", marked(&whole))]).await;
    for (read, _) in three_ways(&store, "s-{0..1}.tar", OnDamage::Fail).await {
        assert_eq!(
            read.fault,
            format!(
                "the shard `s-0.tar` in store `data` ends without an end mark, and its last sample `b` lacks the field `txt`: is it \
                 truncated?{SKIP}"
            )
        );
    }
    for (read, damage) in three_ways(&store, "s-{0..1}.tar", OnDamage::Skip).await {
        assert_eq!((read.sorted(), read.ended.len(), lost(&damage)), (vec!["a", "c", "d"], 0, (1, Some(1))));
        // `d` has its end mark behind it: it lacks the field as it was written.
        let of_d = read.samples.iter().find(|sample| &*sample.key == "d").unwrap();
        assert_eq!(of_d.field("txt"), Some(&Value::Text("none".to_owned())));
        let mut indexes: Vec<u64> = read.samples.iter().map(|sample| sample.origin.index).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, [0, 1, 2]);
    }
}

#[tokio::test]
async fn a_shard_without_its_end_mark_is_warned_of_if_its_last_sample_is_whole() {
    let store =
        store_of(&[("s.tar", unmarked(&[("a.cls", "1"), ("a.txt", "one"), ("b.txt", "x"), ("b.cls", "2")]))])
            .await;
    for (read, damage) in three_ways(&store, "s.tar", OnDamage::Fail).await {
        assert_eq!(read.sorted(), ["a", "b"]);
        assert_eq!(
            damage.notes.warnings("0:tar"),
            ["the source `0:tar`: shards without an end mark, as if they were cut: 1 (`s.tar`)"]
        );
    }
}

#[tokio::test]
async fn an_index_remembers_that_a_shard_has_no_end_mark() {
    let cut = unmarked(&[("a.cls", "1"), ("a.txt", "one"), ("b.cls", "2")]);
    let store = store_of(&[("s.tar", cut)]).await;
    put_index(&store, IndexKind::Tar, "s.tar").await;
    let damage = skip();
    let samples = tar::open(&written(indexed()), handled(&store, &damage));
    assert_eq!(numbered(samples, IN_ORDER).await.keys(), ["a"]);
    assert_eq!(lost(&damage), (1, Some(1)));
    let only_cls = written(with(indexed(), "fields", json!({ "label": "cls" })));
    let samples = tar::open(&only_cls, access(&store, MOST));
    assert_eq!(
        numbered(samples, IN_ORDER).await.keys(),
        ["a", "b"],
        "the field that it lacks is not selected"
    );
}

async fn put_index(store: &BoundedStore, kind: IndexKind, pattern: &str) {
    let index =
        SampleIndex::build(kind, store, &shards(pattern), &Damage::default(), |_, _| {}).await.unwrap();
    store.put(Arc::from("all.index"), index.to_bytes().into()).await.unwrap();
}

#[tokio::test]
async fn an_object_of_no_bytes_is_damaged_in_every_form() {
    let rows = |text: &str| text.as_bytes().to_vec();
    let store = store_of(&[
        ("l-0", Vec::new()),
        ("l-1", rows("{\"key\": \"a\"}\n")),
        ("t-0", Vec::new()),
        ("t-1", rows("key,n\nb,1\n")),
        ("f-0", Vec::new()),
    ])
    .await;
    let lines = || RecordFormat::lines([].into());
    let table = || RecordFormat::rows(b',', [].into());
    for (pattern, format, key) in [("l-{0..1}", lines(), "a"), ("t-{0..1}", table(), "b")] {
        for policy in [OnDamage::Fail, OnDamage::Skip] {
            for settings in [IN_ORDER, SHUFFLED] {
                let (damage, typing) = (handling(policy), Typing::default());
                let format = format.clone().with_damage(damage.clone());
                let read = match settings.shuffle {
                    false => {
                        read(RecordSource::new(store.clone(), shards(pattern), format, settings, typing))
                            .await
                    }
                    true => {
                        let open = record_samples(store.clone(), shards(pattern), format, MOST);
                        numbered(typing.samples(open), settings).await
                    }
                };
                if policy == OnDamage::Skip {
                    assert_eq!((read.keys(), lost(&damage).0), (vec![key], 1));
                    continue;
                }
                let name = &pattern[..1];
                assert_eq!(
                    read.fault,
                    format!("the object `{name}-0` in store `data` is empty: was it written in full?{SKIP}")
                );
            }
        }
    }
    let source = written(json!({ "shards": "f-0", "decode": "bytes" }));
    let access = handled(&store, &handling(OnDamage::Fail));
    let fault = read(tfrecord::stream(&source, access, Typing::default(), IN_ORDER)).await.fault;
    assert!(fault.contains("`f-0` in store `data`, at byte 0, is empty") && fault.ends_with(SKIP), "{fault}");
}

/// A shard, changed after its index was made.
async fn changed(kind: IndexKind, keys: [&str; 2], contents: [Vec<u8>; 2], then: Vec<u8>) -> BoundedStore {
    let [one, two] = contents;
    let store = store_of(&[(keys[0], one), (keys[1], two)]).await;
    put_index(&store, kind, &format!("{{{},{}}}", keys[0], keys[1])).await;
    store.put(Arc::from(keys[0]), then.into()).await.unwrap();
    store
}

#[tokio::test]
async fn a_shard_that_has_changed_since_its_index_was_made_is_read_again() {
    let one = [("a.cls", "1"), ("a.txt", "one"), ("b.cls", "2"), ("b.txt", "two")];
    let two = marked(&[("c.cls", "3"), ("c.txt", "three")]);
    // Equal in size: a flipped byte in the header of `b.cls`, and two samples that have changed their places.
    let mut flipped = marked(&one);
    flipped[2 * 1024] ^= 0x41;
    let swapped = marked(&[one[2], one[3], one[0], one[1]]);
    for (then, keys, lost_of) in [
        (flipped, vec!["c"], (1, Some(2))),
        (swapped, vec!["b", "a", "c"], (0, None)),
        (Vec::new(), vec!["c"], (1, Some(2))),
    ] {
        let store = changed(IndexKind::Tar, ["s-0.tar", "s-1.tar"], [marked(&one), two.clone()], then).await;
        let (damage, mut digests) = (skip(), Vec::new());
        for _rank in 0..2 {
            let samples = tar::open(&written(indexed()), handled(&store, &damage));
            let read = numbered(samples, IN_ORDER).await;
            assert_eq!((read.keys(), lost(&damage)), (keys.clone(), lost_of));
            digests.push(read.data);
        }
        assert_eq!(digests[0], digests[1]);
        let warnings = damage.notes.warnings("0:tar").join("\n");
        assert!(
            warnings.contains(
                "shards that have changed since their index was made (make it again): 1 (`s-0.tar, all.index`)"
            ),
            "{warnings}"
        );
        let samples = tar::open(&written(indexed()), access(&store, MOST));
        assert_eq!(
            numbered(samples, IN_ORDER).await.fault,
            "the shard `s-0.tar` in store `data` has changed since `all.index` was made: make it again with `penstock index create --tar`"
        );
    }
}

/// A state was resumed over other bytes of the same size, without a word.
#[tokio::test]
async fn objects_of_another_version_have_another_digest() {
    let archive = |one, two| marked(&[("a.txt", one), ("b.txt", two)]);
    let table = data("parquet/codec-none.parquet");
    let store = store_of(&[("s-0.tar", archive("one", "two")), ("t.parquet", table.clone())]).await;
    let digests = async || {
        put_index(&store, IndexKind::Tar, "s-0.tar").await;
        let access = handled(&store, &handling(OnDamage::Fail));
        let tar = tar::open(&written(indexed()), access.clone());
        let rows = parquet::open(&written(json!({ "shards": "t.parquet" })), access);
        let mut found = Vec::new();
        for samples in [tar.await.unwrap(), rows.await.unwrap()] {
            found.push((samples.digest().unwrap(), samples.older_digest().unwrap()));
        }
        found
    };
    let before = digests().await;
    assert_eq!(digests().await, before);
    store.put(Arc::from("s-0.tar"), archive("two", "one").into()).await.unwrap();
    store.put(Arc::from("t.parquet"), table.into()).await.unwrap();
    for ((now, older), (digest, older_digest)) in digests().await.into_iter().zip(before) {
        assert_ne!(now, digest);
        assert_eq!(older, older_digest, "earlier builds knew keys, sizes and numbers of samples");
    }
}

#[tokio::test]
async fn records_of_a_file_that_has_changed_since_its_index_was_made_are_read_again() {
    let names = ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002"];
    let [one, two] = names.map(|name| data(&format!("tfrecord/{name}")));
    let cut = one[..one.len() - 1].to_vec();
    let store = changed(IndexKind::Tfrecord, names, [one, two], cut).await;
    let (damage, source) = (skip(), written(with(indexed(), "decode", "bytes")));
    let all =
        SampleIndex::read(store.get(Arc::from("all.index")).await.0.unwrap(), IndexKind::Tfrecord).unwrap();
    let samples = tfrecord::open(&source, handled(&store, &damage));
    let read = numbered(samples, IN_ORDER).await;
    assert_eq!((read.keys().len() as u64, lost(&damage)), (all.samples() - 1, (1, Some(1))));
    let samples = tfrecord::open(&source, access(&store, MOST));
    let fault = numbered(samples, IN_ORDER).await.fault;
    assert!(fault.contains("has changed since `all.index` was made"), "{fault}");
}

#[tokio::test]
async fn the_rows_of_a_damaged_page_fail_and_the_others_are_read() {
    let numbers: Vec<u8> = (0..3_i32).flat_map(i32::to_le_bytes).collect();
    let whole = |content: &[u8], codec| file(1, codec, data_page(12, 3, 0, content), [3, 3, 12]);
    let mut header = whole(&numbers, 0);
    header[4] = 0xff;
    for damaged in [whole(&[0x28, 0xb5, 0x2f, 0xfd], 6), whole(&[0xff; 9], 7), header] {
        let store = store_of(&[("q-0", damaged), ("q-1", whole(&numbers, 0))]).await;
        for shuffle in [false, true] {
            let settings = TraversalSettings { shuffle, ..SHUFFLED };
            let source = written(json!({ "shards": "q-{0..1}", "shuffle": shuffle }));
            let samples = |damage: Damage| parquet::open(&source, handled(&store, &damage));
            let read = numbered(samples(skip()), settings).await;
            assert_eq!((read.sorted(), read.ended.len()), (vec!["q-1#0", "q-1#1", "q-1#2"], 3));
            let first = &read.ended[0];
            assert!(
                first.contains("row group 0 of `q-0` in store `data` has the column `a`, which"),
                "{first}"
            );
            let fault = numbered(samples(Damage::default()), settings).await.fault;
            assert!(fault.contains("row group 0 of `q-0`"), "{fault}");
        }
    }
}

/// The first chunk of a source, the data that a state gets behind it, and the whole source that continues with it.
async fn state(source: &mut impl Source) -> Option<Arc<StartPoint>> {
    source.next().await.unwrap();
    let data = source.data();
    let mut token = Token::new(BTreeMap::new(), &IN_ORDER);
    (token.count, token.digest, token.blocks) = (data.count, data.digest, data.blocks);
    Some(Arc::new(StartPoint::new(token, None).unwrap()))
}

#[tokio::test]
async fn a_source_without_an_index_notices_that_records_have_changed() {
    let one = [("a.cls", "1"), ("b.cls", "2")];
    let store = store_of(&[("s-0.tar", marked(&one)), ("s-1.tar", marked(&[("c.cls", "3")]))]).await;
    let source = written(json!({ "shards": "s-{0..1}.tar" }));
    let stream = || tar::stream(&source, access(&store, MOST), Typing::default(), IN_ORDER);
    let start = state(&mut stream()).await;
    assert_eq!(read(stream().from(start.clone())).await.keys(), ["a", "b", "c"]);
    store.put(Arc::from("s-0.tar"), marked(&[one[1], one[0]]).into()).await.unwrap();
    assert_eq!(
        read(stream().from(start)).await.fault,
        "the source has other shards than it had, or other versions of them, when the state was written, so that positions stand for \
         other samples; restore the data, or resume with `force`"
    );
}

#[tokio::test]
async fn mds_notices_that_records_have_changed() {
    let (index, mut shard) = (data("mds/all/index.json"), data("mds/all/shard.00000.mds"));
    let store = store_of(&[("index.json", index), ("shard.00000.mds", shard.clone())]).await;
    let source = || {
        let samples = mds::open(&written(json!({})), handled(&store, &skip()));
        NumberedSource::new(samples, IN_ORDER, MOST)
    };
    let start = state(&mut source()).await;
    assert_eq!(read(source().from(start.clone())).await.fault, "");
    let last = shard.len() - 1;
    shard[last] ^= 1;
    store.put(Arc::from("shard.00000.mds"), shard.into()).await.unwrap();
    let fault = read(source().from(start)).await.fault;
    assert!(fault.starts_with("the source has other files, keys, sizes or bytes than it had"), "{fault}");
}
