//! Tests of tar archives of many writers, and of compressed ones.

use std::num::NonZeroU32;
use std::sync::Arc;

use penstock_engine::item::{Sample, Value};
use penstock_engine::notes::Notes;
use penstock_engine::numbered::NumberedSource;
use penstock_engine::ports::Source;
use penstock_engine::typed::Typing;
use penstock_formats::{Access, Damage, IndexKind, SampleIndex, ShardStream, Shards, expand, tar};
use penstock_storage::{BoundedStore, DEFAULT_READS, FolderStore};
use penstock_types::spec::OnDamage;
use penstock_types::traversal::{Shard, TraversalSettings, Uneven};
use serde_json::json;

use crate::{COMPRESSORS, access, data, drain, gzip, store_of, with, written};

const MOST: u64 = 1 << 20;
const IN_ORDER: TraversalSettings = TraversalSettings::IN_ORDER;

/// A member of an archive: its header, and what follows padded to whole blocks.
fn member(name: &[u8], kind: u8, size: &[u8], content: &[u8]) -> Vec<u8> {
    sealed(header(name, kind, size), content, false)
}

fn header(name: &[u8], kind: u8, size: &[u8]) -> [u8; 512] {
    let mut header = [0_u8; 512];
    let stored = &name[..name.len().min(100)];
    header[..stored.len()].copy_from_slice(stored);
    header[124..124 + size.len()].copy_from_slice(size);
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header
}

/// A member with the checksum of its header.
fn sealed(mut header: [u8; 512], content: &[u8], is_signed: bool) -> Vec<u8> {
    header[148..156].fill(b' ');
    let value = |byte: u8| if is_signed { i64::from(byte.cast_signed()) } else { i64::from(byte) };
    let sum: i64 = header.iter().map(|byte| value(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut member = [&header[..], content].concat();
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

pub(crate) fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    member(name, b'0', format!("{:011o}", content.len()).as_bytes(), content)
}

/// An extended header of this kind.
fn extension(kind: u8, content: &[u8]) -> Vec<u8> {
    member(b"././@Extension", kind, format!("{:011o}", content.len()).as_bytes(), content)
}

fn pax(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in records {
        let rest = name.len() + value.len() + 3;
        let length = (rest..).map(|length| length + length.to_string().len()).zip(rest..);
        let length = length.map(|(all, _)| all).find(|all| all - all.to_string().len() == rest).unwrap();
        text.extend_from_slice(format!("{length} {name}=").as_bytes());
        text.extend_from_slice(value);
        text.push(b'\n');
    }
    extension(kind, &text)
}

pub(crate) fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    [&members.concat()[..], &[0; 1024]].concat()
}

fn shown(samples: &[Sample]) -> Vec<String> {
    let value = |value: &Value| match value {
        Value::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    };
    let fields = |sample: &Sample| {
        sample
            .fields
            .iter()
            .map(|field| format!(" {}={}", field.name, value(&field.value)))
            .collect::<String>()
    };
    samples.iter().map(|sample| format!("{}{}", sample.key, fields(sample))).collect()
}

fn stream(store: &BoundedStore, pattern: &str, settings: TraversalSettings) -> ShardStream {
    tar::stream(&written(json!({ "shards": pattern })), access(store, MOST), Typing::default(), settings)
}

/// The same in order, with this handling of damage.
fn handled(store: &BoundedStore, pattern: &str, damage: Damage) -> ShardStream {
    let access = Access { damage, ..access(store, MOST) };
    tar::stream(&written(json!({ "shards": pattern })), access, Typing::default(), IN_ORDER)
}

/// Samples of an archive in order and by an index, which are the same, and what is left out, or the fault.
async fn read(bytes: Vec<u8>) -> Result<(Vec<String>, Vec<String>), String> {
    let store = store_of(&[("a.tar", bytes)]).await;
    let notes = Notes::default();
    let damage = Damage { notes: notes.clone(), ..Damage::default() };
    let (streamed, _, fault) = drain(Box::new(handled(&store, "a.tar", damage))).await;
    let shards = Shards::Keys(expand("a.tar").unwrap());
    let index = SampleIndex::build(IndexKind::Tar, &store, &shards, &Damage::default(), |_, _| {}).await;
    if let Some(fault) = fault {
        assert!(index.is_err(), "{fault}");
        return Err(fault);
    }
    store.put(Arc::from("index"), index.unwrap().to_bytes().into()).await.unwrap();
    let open = tar::open(&written(json!({ "index": "index" })), access(&store, MOST));
    let (indexed, _, fault) = drain(Box::new(NumberedSource::new(open, IN_ORDER, MOST))).await;
    assert_eq!((fault, &indexed), (None, &streamed));
    let left_out = notes.left_out();
    let left_out = left_out.iter().map(|left_out| format!("{:?} {}", left_out.reason, left_out.count));
    Ok((shown(&streamed), left_out.collect()))
}

/// Name, members of an archive, its samples or the reason why it is refused, and the files that are left out.
type Case<'a> = (&'a str, Vec<Vec<u8>>, Result<Vec<String>, &'a str>, &'a [&'a str]);

/// The right samples are those of tarfile with webdataset, but for names that are not UTF-8.
#[tokio::test]
async fn members_of_all_kinds_are_read_or_counted() {
    let long = [&[b'a'; 99][..], b"/x.jpg"].concat();
    let size = |size: u64| format!("{size:011o}").into_bytes();
    let old = |name: &[u8], content: &[u8]| {
        let mut header = header(name, 0, &size(content.len() as u64));
        header[257..265].fill(0);
        sealed(header, content, false)
    };
    let after = || file(b"z.jpg", b"z");
    let with_content = |kind: u8| member(b"d.x", kind, &size(3), b"");
    let mut signed = header(b"caf\xe8.jpg", b'0', &size(1));
    signed[257..265].fill(0);
    let mut prefixed = header(b"b.jpg", b'0', &size(1));
    prefixed[345..348].copy_from_slice(b"a/b");
    let mut negative = header(b"a.jpg", b'0', b"");
    negative[124..136].fill(0xff);
    let mut binary = header(b"a.jpg", b'0', b"");
    (binary[124], binary[135]) = (0x80, 2);
    let key = String::from_utf8(long[..long.len() - 4].to_vec()).unwrap();
    let cases: Vec<Case> = vec![
        (
            "long pax name",
            vec![pax(b'x', &[("path", &long)]), file(&long, b"1")],
            Ok(vec![format!("{key} jpg=1")]),
            &[],
        ),
        (
            "long GNU name",
            vec![extension(b'L', &long), file(&long, b"1")],
            Ok(vec![format!("{key} jpg=1")]),
            &[],
        ),
        (
            "NULs behind a GNU name",
            vec![extension(b'L', b"b.jpg\0\0\0"), file(b"a", b"1")],
            Ok(vec!["b jpg=1".into()]),
            &[],
        ),
        (
            "long name of an old file",
            vec![pax(b'x', &[("path", &long)]), old(&long, b"1")],
            Ok(vec![format!("{key} jpg=1")]),
            &[],
        ),
        (
            "both names",
            vec![extension(b'L', b"l.jpg"), pax(b'x', &[("path", b"p.jpg")]), file(b"a", b"1")],
            Ok(vec!["l jpg=1".into()]),
            &[],
        ),
        (
            "both names",
            vec![pax(b'x', &[("path", b"p.jpg")]), extension(b'L', b"l.jpg"), file(b"a", b"1")],
            Ok(vec!["p jpg=1".into()]),
            &[],
        ),
        (
            "a slash behind a file",
            vec![pax(b'x', &[("path", b"p.jpg/")]), file(b"a", b"1")],
            Ok(vec!["p jpg=1".into()]),
            &[],
        ),
        (
            "Solaris",
            vec![pax(b'X', &[("path", b"p.jpg")]), file(b"a", b"1")],
            Ok(vec!["p jpg=1".into()]),
            &[],
        ),
        (
            "folders",
            vec![
                with_content(b'5'),
                pax(b'x', &[("path", b"v1.0/"), ("size", b"3")]),
                with_content(b'5'),
                old(b"v2.0/", b""),
                file(b"v3.0/", b""),
            ],
            Ok(vec![]),
            &[],
        ),
        ("a file named as a folder", vec![file(b"a.jpg/", b"1")], Ok(vec![]), &["NoField 1"]),
        ("links with sizes", vec![with_content(b'1'), with_content(b'2')], Ok(vec![]), &["Link 2"]),
        (
            "devices",
            vec![with_content(b'3'), with_content(b'4'), with_content(b'6')],
            Ok(vec![]),
            &["NoFile 3"],
        ),
        ("contiguous", vec![member(b"a.jpg", b'7', &size(1), b"1")], Ok(vec!["a jpg=1".into()]), &[]),
        (
            "unknown",
            vec![member(b"a.jpg", b'M', &size(1), b"1"), member(b"a.jpg", b'?', &size(1), b"1")],
            Ok(vec![]),
            &["NoFile 2"],
        ),
        (
            "labels and lists",
            vec![member(b"v.x", b'V', &size(0), b""), member(b"d.x/", b'D', &size(4), b"Ya\0\0")],
            Ok(vec![]),
            &[],
        ),
        ("old", vec![old(b"a.jpg", b"1")], Ok(vec!["a jpg=1".into()]), &[]),
        (
            "dots",
            vec![file(b"./a.jpg", b"1"), file(b"a.cls", b"2")],
            Ok(vec!["a jpg=1 cls=Int(2)".into()]),
            &[],
        ),
        ("prefix", vec![sealed(prefixed, b"1", false)], Ok(vec!["a/b/b jpg=1".into()]), &[]),
        (
            "pax size",
            vec![pax(b'x', &[("size", b"2")]), member(b"a.jpg", b'0', &size(0), b"12")],
            Ok(vec!["a jpg=12".into()]),
            &[],
        ),
        ("binary size", vec![sealed(binary, b"12", false)], Ok(vec!["a jpg=12".into()]), &[]),
        ("negative size", vec![sealed(negative, b"", false)], Err("has a header with an invalid size"), &[]),
        ("empty name", vec![pax(b'x', &[("path", b"")]), file(b"a.jpg", b"1")], Ok(vec![]), &["NoField 1"]),
        (
            "comments for all",
            vec![pax(b'g', &[("comment", b"path=1")]), file(b"a.jpg", b"1")],
            Ok(vec!["a jpg=1".into()]),
            &[],
        ),
        (
            "a path for all",
            vec![pax(b'g', &[("path", b"b.jpg")]), file(b"a.jpg", b"1")],
            Err("has a global header with a path, a size or holes"),
            &[],
        ),
        (
            "sparse 0",
            vec![pax(b'x', &[("GNU.sparse.size", b"9"), ("GNU.sparse.map", b"0,1")]), file(b"a.jpg", b"1")],
            Err("has a sparse file, which is not read"),
            &[],
        ),
        (
            "sparse 1",
            vec![
                pax(b'x', &[("GNU.sparse.major", b"1"), ("GNU.sparse.name", b"a.jpg")]),
                file(b"GNUSparseFile.1/a.jpg", b"1"),
            ],
            Err("has a sparse file, which is not read"),
            &[],
        ),
        (
            "sparse, old",
            vec![member(b"a.jpg", b'S', &size(1), b"1")],
            Err("has a sparse file, which is not read"),
            &[],
        ),
        (
            "two bytes",
            vec![file(b"caf\xe8.jpg", b"1"), file(b"caf\xe9.cls", b"2")],
            Ok(vec!["caf\\xe8 jpg=1".into(), "caf\\xe9 cls=Int(2)".into()]),
            &[],
        ),
        (
            "two fields",
            vec![file(b"a.\xe8", b"1"), file(b"a.\xc8", b"2"), file(b"a.\\xE8", b"3")],
            Ok(vec!["a \\xe8=1 \\xc8=2 \\x5cxe8=3".into()]),
            &[],
        ),
        (
            "binary pax",
            vec![pax(b'x', &[("hdrcharset", b"BINARY"), ("path", b"\xff.jpg")]), file(b"a", b"1")],
            Ok(vec!["\\xff jpg=1".into()]),
            &[],
        ),
        ("signed sum", vec![sealed(signed, b"1", true)], Ok(vec!["caf\\xe8 jpg=1".into()]), &[]),
    ];
    for (name, mut members, expected, left_out) in cases {
        members.push(after());
        match (read(archive(&members)).await, expected) {
            (Ok((samples, found)), Ok(mut expected)) => {
                expected.push("z jpg=z".to_owned());
                assert_eq!(
                    (samples, found),
                    (expected, left_out.iter().map(|text| (*text).to_owned()).collect()),
                    "{name}"
                );
            }
            (Err(fault), Err(reason)) => assert!(fault.contains(reason), "{name}: {fault}"),
            (found, expected) => panic!("{name}: {found:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn compressed_archives_have_the_samples_of_plain_ones() {
    let plain = data("shard-00.tar");
    let notes = Notes::default();
    for (name, compress) in COMPRESSORS {
        let (first, second) = plain.split_at(plain.len() / 3);
        let joined = [compress(first), compress(second)].concat();
        let store =
            store_of(&[("p.tar", plain.clone()), ("0.tar", joined.clone()), ("1.t", compress(&plain))]).await;
        let (expected, _, fault) = drain(Box::new(stream(&store, "p.tar", IN_ORDER))).await;
        assert_eq!(fault, None);
        for key in ["0.tar", "1.t"] {
            let (samples, _, fault) = drain(Box::new(stream(&store, key, IN_ORDER))).await;
            assert_eq!((fault, &samples), (None, &expected), "{name}");
        }
        let damage = Damage { notes: notes.clone(), ..Damage::default() };
        let source = handled(&store, "{0.tar,1.t}", damage);
        assert_eq!(drain(Box::new(source)).await.0.len(), 2 * expected.len());
        assert_eq!((notes.left_out().len(), notes.warnings("s").len()), (0, 0));
        // Ranks share the samples of several shards.
        let mut dealt = Vec::new();
        for rank in 0..2 {
            let shard = Some(Shard { rank, world: NonZeroU32::new(2).unwrap(), uneven: Uneven::Keep });
            let settings = TraversalSettings { shard, ..IN_ORDER };
            let (samples, _, fault) = drain(Box::new(stream(&store, "{0.tar,1.t}", settings))).await;
            assert_eq!(fault, None);
            dealt.extend(shown(&samples));
        }
        let mut all = [shown(&expected), shown(&expected)].concat();
        all.sort_unstable();
        dealt.sort_unstable();
        assert_eq!(dealt, all);
        let shards = Shards::Keys(expand("0.tar").unwrap());
        let index = SampleIndex::build(IndexKind::Tar, &store, &shards, &Damage::default(), |_, _| {}).await;
        let fault = index.unwrap_err().to_string();
        assert!(
            fault.contains(&format!(
                "is compressed with {name} as a whole, so that its samples have no places: decompress it"
            )),
            "{fault}"
        );
    }
    let store = store_of(&[("b.tar", b"BZh91AY&SY and more".to_vec())]).await;
    let (_, _, fault) = drain(Box::new(stream(&store, "b.tar", IN_ORDER))).await;
    assert_eq!(
        fault.as_deref(),
        Some(
            "the object `b.tar` in store `data` is compressed with bzip2, which is not read: decompress it, or compress it with gzip or zstd"
        )
    );
}

#[tokio::test]
async fn compressed_archives_that_are_cut_keep_the_samples_before_the_cut() {
    let plain = archive(
        &(0..9)
            .map(|number| file(format!("{number}.jpg").as_bytes(), &[b'a' + number; 700]))
            .collect::<Vec<_>>(),
    );
    for (name, compress) in COMPRESSORS {
        let whole = compress(&plain);
        // The content ends early, within sound compressed data.
        for length in (1..plain.len()).step_by(97) {
            let store =
                store_of(&[("a.tar", plain[..length].to_vec()), ("b.tar", compress(&plain[..length]))]).await;
            let (expected, _, fault) = drain(Box::new(stream(&store, "a.tar", IN_ORDER))).await;
            let (samples, _, found) = drain(Box::new(stream(&store, "b.tar", IN_ORDER))).await;
            assert_eq!(
                (samples, found.is_some()),
                (expected, fault.is_some()),
                "{name} {length} {found:?} {fault:?}"
            );
        }
        // The compressed data end early; what is left out is counted, and the next shard is read.
        for length in (4..whole.len()).step_by(7) {
            let store = store_of(&[("a.tar", whole[..length].to_vec()), ("b.tar", whole.clone())]).await;
            let (samples, _, fault) = drain(Box::new(stream(&store, "{a,b}.tar", IN_ORDER))).await;
            let fault = fault.unwrap();
            assert!(fault.contains(&format!("ends within its {name} data: is it truncated?")), "{fault}");
            let damage = Damage { policy: OnDamage::Skip, ..Damage::default() };
            let notes = damage.notes.clone();
            let source = handled(&store, "{a,b}.tar", damage);
            let (skipped, _, fault) = drain(Box::new(source)).await;
            assert_eq!((fault, skipped.len()), (None, samples.len() + 9), "{name} {length}");
            assert_eq!(notes.left_out().len(), 1);
        }
    }
}

#[tokio::test]
async fn an_index_notices_other_names_that_only_extended_headers_have() {
    let [long, other] = [b'a', b'b'].map(|letter| [&[letter; 120][..], b".cls"].concat());
    let named = |by_pax: bool, name: &[u8], content: &[u8]| match by_pax {
        true => [pax(b'x', &[("path", name)]), file(b"????.cls", content)].concat(),
        false => [extension(b'L', name), file(&[b'n'; 100], content)].concat(),
    };
    for (by_pax, one, other) in
        [(true, "猫.cls".as_bytes(), "狗.cls".as_bytes()), (true, &long, &other), (false, &long, &other)]
    {
        let shard =
            |names: [&[u8]; 2]| archive(&[named(by_pax, names[0], b"1"), named(by_pax, names[1], b"2")]);
        let store = store_of(&[("a.tar", shard([one, other]))]).await;
        let shards = Shards::Keys(expand("a.tar").unwrap());
        let index =
            SampleIndex::build(IndexKind::Tar, &store, &shards, &Damage::default(), |_, _| {}).await.unwrap();
        for (names, is_same) in [([one, other], true), ([other, one], false)] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("a.tar"), shard(names)).unwrap();
            std::fs::write(folder.path().join("index"), index.to_bytes()).unwrap();
            let store =
                BoundedStore::new(Arc::new(FolderStore::open("data", folder.path()).unwrap()), DEFAULT_READS);
            let open = tar::open(&written(json!({ "index": "index" })), access(&store, MOST));
            let (samples, _, fault) = drain(Box::new(NumberedSource::new(open, IN_ORDER, MOST))).await;
            match is_same {
                true => assert_eq!((samples.len(), fault), (2, None)),
                false => {
                    assert!(fault.unwrap().contains("has changed since `index` was made: make it again"))
                }
            }
        }
    }
}

#[tokio::test]
async fn a_shard_that_changes_between_two_passes_is_a_fault() {
    let [one, two] = [1, 2].map(|count| {
        archive(&vec![file(b"a.jpg", b"1"), file(b"b.jpg", b"2"), file(b"c.jpg", b"3")][..count + 1])
    });
    for compress in [<[u8]>::to_vec, gzip] {
        let store = store_of(&[("a.tar", compress(&one))]).await;
        let settings = TraversalSettings { epochs: None, ..IN_ORDER };
        let mut source = stream(&store, "a.tar", settings);
        let first = source.next().await.unwrap();
        assert!(first.is_some());
        store.put(Arc::from("a.tar"), compress(&two).into()).await.unwrap();
        let (_, _, fault) = drain(Box::new(source)).await;
        let fault = fault.unwrap();
        assert!(
            fault.contains("the shard `a.tar` in store `data` has changed since the pass before"),
            "{fault}"
        );
    }
}

#[tokio::test]
async fn two_files_of_one_field_are_no_sample_if_one_is_compressed() {
    let (plain, packed) = (file(b"a.txt", b"one"), file(b"a.txt.gz", &gzip(b"two")));
    for members in [[plain.clone(), packed.clone()], [packed, plain]] {
        let store = store_of(&[("a.tar", archive(&members))]).await;
        let shards = Shards::Keys(expand("a.tar").unwrap());
        let index = SampleIndex::build(IndexKind::Tar, &store, &shards, &Damage::default(), |_, _| {}).await;
        store.put(Arc::from("index"), index.unwrap().to_bytes().into()).await.unwrap();
        for chosen in [None, Some("txt.gz")] {
            let selected = chosen.map_or(json!({}), |name| json!({ "fields": { "text": name } }));
            let source = written(with(selected.clone(), "index", "index"));
            let open = tar::open(&source, access(&store, MOST));
            let (indexed, _, by_index) = drain(Box::new(NumberedSource::new(open, IN_ORDER, MOST))).await;
            let source = written(with(selected, "shards", "a.tar"));
            let streamed = tar::stream(&source, access(&store, MOST), Typing::default(), IN_ORDER);
            let (streamed, _, in_order) = drain(Box::new(streamed)).await;
            for (samples, fault) in [(indexed, by_index), (streamed, in_order)] {
                match chosen {
                    None => assert!(
                        fault
                            .unwrap()
                            .contains("for one field of the sample `a`: name one of them in `fields`")
                    ),
                    Some(_) => {
                        assert_eq!((shown(&samples), fault), (vec!["a text=Text(\"two\")".to_owned()], None))
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn the_files_of_a_sample_share_its_memory() {
    let packed = gzip(&vec![0; MOST as usize / 2]);
    let members = [b"a.1.gz", b"a.2.gz", b"a.3.gz"].map(|name| file(name, &packed));
    let store = store_of(&[("a.tar", archive(&members))]).await;
    let (_, _, fault) = drain(Box::new(stream(&store, "a.tar", IN_ORDER))).await;
    let fault = fault.unwrap();
    assert!(fault.contains("raise `buffer_mib`"), "{fault}");
}

#[tokio::test]
async fn what_follows_an_end_mark_is_warned_of() {
    let one = archive(&[file(b"a.jpg", b"1")]);
    let padded = [&one[..], &[0; 10240]].concat();
    for (bytes, warnings) in [(one.clone(), 0), (padded.clone(), 0), ([&padded[..], &one].concat(), 1)] {
        for bytes in [bytes.clone(), gzip(&bytes)] {
            let notes = Notes::default();
            let damage = Damage { notes: notes.clone(), ..Damage::default() };
            let store = store_of(&[("a.tar", bytes)]).await;
            let source = handled(&store, "a.tar", damage);
            let (samples, _, fault) = drain(Box::new(source)).await;
            assert_eq!((samples.len(), fault, notes.warnings("s").len()), (1, None, warnings));
        }
    }
}

#[tokio::test]
async fn bombs_in_compressed_archives_are_refused_before_they_take_memory() {
    let bomb = |size: &[u8], content: &[u8]| [&member(b"a.jpg", b'0', size, b"")[..], content].concat();
    let zeros = vec![b'x'; 64 << 20];
    let mut huge = header(b"a.jpg", b'0', b"");
    huge[124..136].copy_from_slice(b"\x80\0\0\0\x10\0\0\0\0\0\0\0");
    for (name, content, reason) in [
        (
            "large",
            bomb(format!("{:011o}", zeros.len()).as_bytes(), &zeros),
            "of 67108864 bytes, more than the 1048576 that are left",
        ),
        (
            "huge",
            sealed(huge, b"", false),
            "of 1152921504606846976 bytes, more than the 1048576 that are left",
        ),
        ("name", extension(b'L', &zeros), "has an extended header of 67108864 bytes, more than 1048576"),
    ] {
        for (_, compress) in COMPRESSORS {
            let store = store_of(&[("a.tar", compress(&content))]).await;
            let (_, _, fault) = drain(Box::new(stream(&store, "a.tar", IN_ORDER))).await;
            let fault = fault.unwrap();
            assert!(fault.contains(reason), "{name}: {fault}");
        }
    }
}
