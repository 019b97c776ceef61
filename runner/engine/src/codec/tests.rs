use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn bytes(len: usize) -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), len).prop_map(Bytes::from)
}

fn dtype() -> impl Strategy<Value = Dtype> {
    any::<Index>().prop_map(|at| *at.get(&Dtype::all().collect::<Vec<_>>()))
}

/// Tensors of one element type whose shapes begin with `first`, if given.
fn tensors(count: usize, first: Option<u32>) -> impl Strategy<Value = Vec<Tensor>> {
    let shape = proptest::collection::vec(0_u32..4, 0..4);
    (dtype(), proptest::collection::vec(shape, count)).prop_flat_map(move |(dtype, shapes)| {
        let tensor = move |shape: Vec<u32>| {
            let shape: Vec<u32> = first.into_iter().chain(shape).collect();
            let len = array_bytes(dtype, &shape).unwrap();
            bytes(len).prop_map(move |data| Tensor { dtype, shape: shape.clone(), data })
        };
        shapes.into_iter().map(tensor).collect::<Vec<_>>()
    })
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..200_usize).prop_flat_map(bytes).prop_map(Value::Blob),
        text().prop_map(Value::Text),
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_map(Value::Real),
        tensors(1, None).prop_map(|mut tensors| Value::Tensor(tensors.remove(0))),
    ]
}

fn origin() -> impl Strategy<Value = Origin> {
    any::<(u32, u64, u64)>().prop_map(|(epoch, index, path)| Origin { path, ..Origin::at(epoch, index) })
}

fn sample() -> impl Strategy<Value = Sample> {
    let fields = proptest::collection::vec((text(), value()), 0..5);
    (text(), origin(), fields).prop_map(|(key, origin, fields)| {
        let mut sample = Sample::new(key, origin);
        fields.into_iter().for_each(|(name, value)| sample.set(name, value));
        sample
    })
}

fn stacked(samples: usize) -> impl Strategy<Value = Stacked> {
    let blob = (0..200_usize).prop_flat_map(bytes);
    prop_oneof![
        tensors(1, Some(samples as u32)).prop_map(|mut tensors| Stacked::Tensor(tensors.remove(0))),
        tensors(samples, None).prop_map(Stacked::Tensors),
        proptest::collection::vec(text(), samples).prop_map(Stacked::Texts),
        proptest::collection::vec(blob, samples).prop_map(Stacked::Blobs),
    ]
}

fn collated() -> impl Strategy<Value = Collated> {
    let samples = proptest::collection::vec((text(), origin()), 0..5);
    samples.prop_flat_map(|samples| {
        let columns = proptest::collection::vec((text(), stacked(samples.len())), 0..5);
        columns.prop_map(move |columns| {
            let (keys, origins) = samples.iter().map(|(key, origin)| (Arc::from(&**key), *origin)).unzip();
            let column = |(name, values): (String, _)| Column { name: name.into(), values };
            Collated { keys, origins, fields: columns.into_iter().map(column).collect() }
        })
    })
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        sample().prop_map(Item::Sample),
        proptest::collection::vec(sample(), 0..5).prop_map(Item::Batch),
        collated().prop_map(Item::Collated),
    ]
}

fn frame(item: &Item) -> Vec<u8> {
    Encoded::of(item).unwrap().frame().concat()
}

/// Replaces the checksum by the right one, as an attacker would.
fn sum_up(frame: &mut [u8]) {
    let checksum = crc32fast::hash(&frame[CHECKSUM.end..]);
    frame[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// A sample with one array.
fn photo(data: Bytes) -> Item {
    let mut sample = Sample::new("a.jpg", Origin { ticket: 7, ..Origin::at(1, 2) });
    let shape = vec![data.len() as u32];
    sample.set("pixels", Value::Tensor(Tensor { dtype: Dtype::Uint8, shape, data }));
    Item::Sample(sample)
}

fn pixels(item: &Item) -> &Bytes {
    let Item::Sample(sample) = item else { panic!("{item:?}") };
    let Some(Value::Tensor(tensor)) = sample.field("pixels") else { panic!("{sample:?}") };
    &tensor.data
}

proptest! {
    #[test]
    fn every_item_is_the_same_after_a_round_trip(item in item()) {
        // Reals are compared as text: a value that is no number differs from itself.
        let decoded = decode(&frame(&item).into(), &[]).unwrap();
        prop_assert_eq!(format!("{decoded:?}"), format!("{item:?}"));
    }

    #[test]
    fn a_frame_with_a_changed_bit_is_refused(item in item(), at in any::<Index>(), bit in 0..8_u32) {
        let mut frame = frame(&item);
        let at = at.index(frame.len());
        frame[at] ^= 1_u8 << bit;
        prop_assert!(decode(&frame.into(), &[]).is_err());
    }

    #[test]
    fn a_frame_that_is_cut_is_refused(item in item(), at in any::<Index>()) {
        let mut frame = frame(&item);
        frame.truncate(at.index(frame.len()));
        prop_assert!(decode(&frame.into(), &[]).is_err());
    }

    /// Decoding may succeed here: with a right checksum, other bytes may describe another item.
    #[test]
    fn a_frame_that_was_changed_on_purpose_does_no_harm(
        item in item(),
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..8),
    ) {
        let mut frame = frame(&item);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        sum_up(&mut frame);
        decode(&frame.into(), &[]).ok();
    }
}

#[test]
fn values_are_neither_copied_when_encoded_nor_when_decoded() {
    let data = Bytes::from(vec![7; 1 << 20]);
    let item = photo(data.clone());
    let pieces = Encoded::of(&item).unwrap().frame();
    assert_eq!(pieces.last().unwrap().as_ptr(), data.as_ptr());
    let frame = Bytes::from_owner(pieces.concat());
    let decoded = decode(&frame, &[]).unwrap();
    assert_eq!(decoded, item);
    let offset = pixels(&decoded).as_ptr().addr() - frame.as_ptr().addr();
    assert_eq!((offset, offset % ALIGNMENT), (frame.len() - data.len(), 0));
}

#[test]
fn parts_may_be_in_other_memory() {
    let memory = Bytes::from(vec![7; 1000]);
    let item = photo(memory.slice(100..600));
    let mut encoded = Encoded::of(&item).unwrap();
    encoded.parts[0].outside = Some(Outside { memory: 1, offset: 100 });
    let frame: Bytes = encoded.frame().concat().into();
    assert!(frame.len() < 100);
    let decoded = decode(&frame, &[Bytes::new(), memory.clone()]).unwrap();
    assert_eq!(pixels(&decoded).as_ptr(), memory[100..].as_ptr());
    for outside in [&[][..], &[Bytes::new()], &[memory.clone(), memory.slice(..599)]] {
        assert_eq!(decode(&frame, outside), Err(DecodeFault::Mismatch));
    }
}

#[test]
fn frames_of_another_form_and_other_files_are_refused() {
    let mut frame = frame(&photo(Bytes::new()));
    frame[4] = 2;
    assert_eq!(decode(&frame.into(), &[]), Err(DecodeFault::Version(2)));
    assert_eq!(decode(&Bytes::from_static(&[0; 100]), &[]), Err(DecodeFault::NotAFrame));
    assert_eq!(decode(&Bytes::new(), &[]), Err(DecodeFault::NotAFrame));
}

#[test]
fn lengths_that_no_frame_has_allocate_nothing() {
    for head in [
        // A batch of 2^62 samples, and a collated batch with one text of 2^62 bytes.
        &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f][..],
        &[2, 1, 0, 0, 0, 0, 1, 0, 2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 1, 0, 0, 0],
    ] {
        let lengths =
            [head.len() as u64, (PREAMBLE_BYTES + head.len()) as u64].map(u64::to_le_bytes).concat();
        let mut frame = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &lengths, head].concat();
        sum_up(&mut frame);
        let fault = decode(&frame.into(), &[]).unwrap_err();
        assert!(matches!(fault, DecodeFault::Head(_) | DecodeFault::Mismatch), "{fault:?}");
    }
}
