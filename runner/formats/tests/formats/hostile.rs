//! Tests of Parquet files that are damaged, or made to take much memory or time.

use std::sync::Arc;

use bytes::Bytes;
use penstock_engine::numbered::{Numbered, ReadFault};
use penstock_engine::share::Share;
use penstock_formats::parquet;
use penstock_types::spec::{ComparedValue, Comparison, Operator};
use serde_json::{Value as Json, json};

use crate::mds::BROTLI_BOMB;
use crate::{access, data, store_of, with, written, zstd};

const MOST: u64 = 1 << 20;

/// A value in Thrift's compact protocol.
#[derive(Clone)]
enum Thrift {
    I32(i64),
    I64(i64),
    Text(&'static str),
    List(Vec<Thrift>),
    Struct(Vec<(u8, Thrift)>),
}

use Thrift::{I32, I64, List, Struct, Text};

impl Thrift {
    fn kind(&self) -> u8 {
        match self {
            I32(_) => 5,
            I64(_) => 6,
            Text(_) => 8,
            List(_) => 9,
            Struct(_) => 12,
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            I32(number) | I64(number) => varint(bytes, ((number << 1) ^ (number >> 63)) as u64),
            Text(text) => {
                varint(bytes, text.len() as u64);
                bytes.extend_from_slice(text.as_bytes());
            }
            List(values) => {
                bytes.push(0xf0 | values.first().map_or(0, Self::kind));
                varint(bytes, values.len() as u64);
                values.iter().for_each(|value| value.write(bytes));
            }
            Struct(fields) => {
                let mut last = 0;
                for (number, value) in fields {
                    bytes.push((number - last) << 4 | value.kind());
                    value.write(bytes);
                    last = *number;
                }
                bytes.push(0);
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A page: its kind, the numbers of its header, and its content as it is stored.
fn page(kind: i64, uncompressed: i64, part: Thrift, content: &[u8]) -> Vec<u8> {
    let place = match kind {
        0 => 5,
        2 => 7,
        _ => 8,
    };
    let header =
        Struct(vec![(1, I32(kind)), (2, I32(uncompressed)), (3, I32(content.len() as i64)), (place, part)]);
    [header.bytes(), content.to_vec()].concat()
}

pub(crate) fn data_page(uncompressed: i64, values: i64, encoding: i64, content: &[u8]) -> Vec<u8> {
    let part = Struct(vec![(1, I32(values)), (2, I32(encoding)), (3, I32(3)), (4, I32(3))]);
    page(0, uncompressed, part, content)
}

fn element(name: &'static str, children: i64) -> Thrift {
    Struct(vec![(3, I32(0)), (4, Text(name)), (5, I32(children))])
}

/// A file of one column `a` whose values are required.
pub(crate) fn file(physical: i64, codec: i64, pages: Vec<u8>, numbers: [i64; 3]) -> Vec<u8> {
    file_of(&[(1, I32(physical))], (codec, &[]), pages, numbers)
}

/// A file of `rows` texts that are one text of `length` bytes.
pub(crate) fn repeated_text(rows: i64, length: u32) -> Vec<u8> {
    let text = [&length.to_le_bytes()[..], &vec![b'x'; length as usize]].concat();
    let dictionary = page(2, text.len() as i64, Struct(vec![(1, I32(1)), (2, I32(0))]), &zstd(&text));
    // Indexes of one bit: a run of zeros.
    let mut indexes = vec![1];
    varint(&mut indexes, rows as u64 * 2);
    indexes.push(0);
    let values = data_page(indexes.len() as i64, rows, 8, &zstd(&indexes));
    let uncompressed = (text.len() + 100) as i64;
    let column = [(1, I32(6)), (6, I32(0))];
    file_of(&column, (6, &[]), [dictionary, values].concat(), [rows, rows, uncompressed])
}

/// A file of one column `a` of these properties, whose footer names encodings.
fn file_of(
    column: &[(u8, Thrift)],
    (codec, encodings): (i64, &[i64]),
    pages: Vec<u8>,
    [values, rows, uncompressed]: [i64; 3],
) -> Vec<u8> {
    let mut column: Vec<(u8, Thrift)> = column.iter().cloned().chain([(3, I32(0)), (4, Text("a"))]).collect();
    column.sort_by_key(|(number, _)| *number);
    let numbers = vec![
        (2, List(encodings.iter().map(|encoding| I32(*encoding)).collect())),
        (4, I32(codec)),
        (5, I64(values)),
        (6, I64(uncompressed)),
        (7, I64(pages.len() as i64)),
        (9, I64(4)),
    ];
    let chunk = Struct(vec![(2, I64(4)), (3, Struct(numbers))]);
    let group = Struct(vec![(1, List(vec![chunk])), (2, I64(uncompressed)), (3, I64(rows))]);
    with_footer(
        pages,
        vec![
            (1, I32(1)),
            (2, List(vec![element("root", 1), Struct(column)])),
            (3, I64(rows)),
            (4, List(vec![group])),
        ],
    )
}

fn with_footer(pages: Vec<u8>, fields: Vec<(u8, Thrift)>) -> Vec<u8> {
    let footer = Struct(fields).bytes();
    [b"PAR1".to_vec(), pages, footer.clone(), (footer.len() as u32).to_le_bytes().to_vec(), b"PAR1".to_vec()]
        .concat()
}

/// Samples before the first fault, and the fault.
async fn read(file: Vec<u8>, query: Json) -> (usize, Option<String>) {
    let store = store_of(&[("a.parquet", file)]).await;
    let samples: Arc<dyn Numbered> =
        match parquet::open(&written(with(query, "shards", "a.parquet")), access(&store, MOST)).await {
            Ok(samples) => samples,
            Err(fault) => return (0, Some(fault.to_string())),
        };
    assert!(samples.kept_bytes() <= MOST);
    let indexes = (0..samples.count().min(1_000)).collect();
    match samples.clone().read(0, indexes, Share::alone(u64::MAX)).await {
        Ok(read) => (read.len(), None),
        Err(ReadFault { before, fault }) => (before.len(), Some(fault.to_string())),
    }
}

#[tokio::test]
async fn a_file_of_our_own_is_read() {
    let content: Vec<u8> = (0..4_i32).flat_map(i32::to_le_bytes).collect();
    let size = content.len() as i64;
    let good = file(1, 0, data_page(size, 4, 0, &content), [4, 4, size]);
    assert_eq!(read(good, json!({})).await, (4, None));
}

#[tokio::test]
async fn sizes_and_counts_that_are_lies_are_refused_before_memory_is_taken() {
    let zeros = |size: usize| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), size as u64), &mut encoder).unwrap();
        encoder.finish().unwrap()
    };
    let huge = i64::from(i32::MAX);
    let dictionary = |values: i64| page(2, 8, Struct(vec![(1, I32(values)), (2, I32(0))]), &[0; 8]);
    // A length for each of 2^60 texts.
    let mut lengths = Vec::new();
    [128, 4, 1 << 60, 0].into_iter().for_each(|number| varint(&mut lengths, number));
    // 4,096 texts that share a kilobyte with the first. Lengths differ in the first block of eight only.
    let (mut shared, count, length) = (Vec::new(), 4096, 1_i64 << 10);
    for (first, step, differences) in [
        (0, 0, u128::from(1_u64 << 10)),
        (length, -length, (1..8).map(|place| 1_u128 << (10 + 11 * place)).sum()),
    ] {
        [8, 1, count as u64, 2 * first as u64].into_iter().for_each(|number| varint(&mut shared, number));
        varint(&mut shared, (step << 1 ^ step >> 63) as u64);
        shared.push(11);
        shared.extend_from_slice(&differences.to_le_bytes()[..11]);
        shared.resize(shared.len() + 2 * (count as usize / 8 - 1), 0);
    }
    shared.resize(shared.len() + length as usize, b'x');
    let shared = data_page(shared.len() as i64, count, 7, &shared);
    let mut nested = vec![element("root", 1)];
    nested.extend((0..5_000).map(|_| element("g", 1)));
    let schema = |elements: Vec<Thrift>| {
        with_footer(Vec::new(), vec![(1, I32(1)), (2, List(elements)), (3, I64(0)), (4, List(Vec::new()))])
    };
    let mut footer_too_long = file(1, 0, data_page(4, 1, 0, &[0; 4]), [1, 1, 100]);
    let end = footer_too_long.len() - 8;
    footer_too_long[end..end + 4].fill(0xff);
    let cases = [
        ("bomb", file(1, 2, data_page(4, 1, 0, &zeros(64 << 20)), [1, 1, 100])),
        ("size of a page", file(1, 2, data_page(huge, 1, 0, &zeros(4)), [1, 1, 100])),
        ("size in both", file(1, 2, data_page(huge, 1, 0, &zeros(4)), [1, 1, huge])),
        ("snappy", file(1, 1, data_page(4, 1, 0, &[0xff, 0xff, 0xff, 0xff, 0x0f]), [1, 1, 100])),
        ("zstd", file(1, 6, data_page(4, 1, 0, &[0x28, 0xb5, 0x2f, 0xfd]), [1, 1, 100])),
        ("lz4", file(1, 7, data_page(4, 1, 0, &[0xff; 9]), [1, 1, 100])),
        ("values of a page", file(1, 0, data_page(4, huge, 0, &[0; 4]), [1, 1, 100])),
        ("values in both", file(1, 0, data_page(4, huge, 0, &[0; 4]), [huge, huge, 100])),
        ("rows", file(1, 0, data_page(4, 1, 0, &[0; 4]), [1, i64::MAX, 100])),
        ("negative", file(1, 0, data_page(4, 1, 0, &[0; 4]), [-1, -1, 100])),
        ("too few values", file(1, 0, data_page(4, 2, 0, &[0; 4]), [2, 2, 100])),
        ("dictionary", file(1, 0, [dictionary(huge), data_page(2, 1, 8, &[1, 2])].concat(), [1, 1, 100])),
        ("two dictionaries", file(1, 0, [dictionary(2), dictionary(2)].concat(), [0, 0, 100])),
        ("no dictionary", file(1, 0, data_page(2, 1, 8, &[1, 2]), [1, 1, 100])),
        (
            "beyond the dictionary",
            file(1, 0, [dictionary(2), data_page(3, 1, 8, &[8, 2, 200])].concat(), [1, 1, 100]),
        ),
        ("lengths", file(6, 0, data_page(20, 1, 6, &lengths), [1, 1, 100])),
        ("text", file(6, 0, data_page(8, 1, 0, &[0xff, 0xff, 0xff, 0x7f, 1, 2, 3, 4]), [1, 1, 100])),
        ("delta", file(1, 0, data_page(8, 1, 5, &[0x80, 1, 4, 1, 0, 0, 0xff, 0xff]), [1, 1, 100])),
        ("brotli", file(1, 4, data_page(4, 1, 0, BROTLI_BOMB), [1, 1, 100])),
        ("cut brotli", file(1, 4, data_page(4, 1, 0, &BROTLI_BOMB[..9]), [1, 1, 100])),
        ("lzo", file(1, 3, data_page(4, 1, 0, &[0; 4]), [1, 1, 100])),
        ("older lz4", file(1, 5, data_page(4, 1, 0, &[0; 4]), [1, 1, 100])),
        ("method", file(1, 99, data_page(4, 1, 0, &[0; 4]), [1, 1, 100])),
        ("encoding", file(1, 0, data_page(4, 1, 10, &[0; 4]), [1, 1, 100])),
        ("bits", file(1, 0, data_page(4, 1, 4, &[0; 4]), [1, 1, 100])),
        (
            "texts that share",
            file_of(&[(1, I32(6))], (0, &[7]), shared.clone(), [count, count, shared.len() as i64]),
        ),
        ("nested", schema(nested)),
        ("children", schema(vec![element("root", huge), element("a", huge)])),
        ("footer", footer_too_long),
        ("outside", with_footer(Vec::new(), vec![(1, I32(1))])),
    ];
    let mut faults = Vec::new();
    for (name, file) in cases {
        let (samples, fault) = read(file, json!({})).await;
        faults.push(format!("{name}: {samples} samples, {}", fault.unwrap_or_default()));
    }
    insta::assert_snapshot!(faults.join("\n"));
}

#[tokio::test]
async fn a_file_that_is_cut_off_at_any_byte_is_refused() {
    let whole = data("parquet/v2-snappy.parquet");
    for length in 0..whole.len() {
        let (samples, fault) = read(whole[..length].to_vec(), json!({})).await;
        assert!(samples == 0 && fault.is_some(), "{length} bytes: {samples} samples");
    }
}

#[tokio::test]
async fn changed_bytes_give_samples_or_a_reason() {
    let filter =
        vec![Comparison { column: "number".to_owned(), op: Operator::Less, value: ComparedValue::Int(30) }];
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let mut faults = 0;
    for name in [
        "types",
        "lists",
        "structs",
        "codec-gzip",
        "codec-lz4",
        "v2-zstd",
        "encodings",
        "encodings-v2",
        "pages",
    ] {
        let whole = data(&format!("parquet/{name}.parquet"));
        for round in 0..400 {
            let mut changed = whole.clone();
            for _ in 0..=round % 3 {
                let at = random() % changed.len();
                changed[at] ^= 1 << (random() % 8);
            }
            let is_compared = round % 4 == 0 && name != "types" && name != "lists" && name != "structs";
            let query = if is_compared { json!({ "where": filter }) } else { json!({}) };
            faults += usize::from(read(changed, query).await.1.is_some());
        }
    }
    assert!(faults > 500, "{faults} faults");
}

#[tokio::test]
async fn bytes_without_a_meaning_are_no_file() {
    for file in [Vec::new(), b"PAR1".to_vec(), b"PAR1PAR1PAR1".to_vec(), vec![0; 5000]] {
        assert!(read(file, json!({})).await.1.is_some());
    }
    let file = Bytes::from_static(b"PAR1\0\0\0\0PARE");
    let fault = read(file.to_vec(), json!({})).await.1.unwrap();
    assert_eq!(fault, "`a.parquet` in store `data` is an encrypted Parquet file; decrypt it first");
}
