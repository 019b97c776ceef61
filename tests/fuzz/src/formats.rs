//! Targets for data in formats with many samples in one object.

use penstock_engine::item::{Origin, Sample};
use penstock_formats::tfrecord::RecordFields;
use penstock_formats::{IndexKind, SampleIndex};
use serde_json::{from_value, json};

use crate::told::assert_printable;

/// Limit of the fields of a record, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Decodes a record as `tf.train.Example`, with and without a feature of lists of blobs: its whole numbers and places keep within the
/// limit, and nothing else is larger than the record.
pub fn example(input: &[u8]) {
    for lists in [&[][..], &["id"]] {
        let source = json!({ "store": "memory", "lists": lists });
        let fields = RecordFields::of(&from_value(source).expect("a source is written"));
        let mut sample = Sample::new("a", Origin::default());
        match fields.add(&mut sample, &input.to_vec().into(), MOST_BYTES) {
            // An empty list and a list of one blob have one place and two.
            Ok(_) => assert!(sample.bytes() <= MOST_BYTES + 64 + input.len() as u64, "{sample:?}"),
            Err(reason) => assert_printable(&reason.to_string()),
        }
    }
}

/// Reads an index of samples: one that is accepted can be written and read again without loss.
pub fn index(input: &[u8]) {
    for kind in [IndexKind::Tar, IndexKind::Tfrecord] {
        match SampleIndex::read(input.to_vec().into(), kind) {
            Ok(index) => {
                let again = SampleIndex::read(index.to_bytes().into(), kind).expect("it was accepted before");
                assert_eq!((again.samples(), again.shards()), (index.samples(), index.shards()));
            }
            Err(reason) => assert_printable(&reason.to_string()),
        }
    }
}
