//! Target for values that a guest returns: valid values must be read as written, even if others fail.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::item::{Sample, Value as EngineValue};
use penstock_engine::ports::{Items, Output};
use penstock_types::manifest::Mode;

use crate::answer::{Answer, Field, Item, Key, MAX_VALUE_BYTES, Outcome, Text, Value, tensor_bytes};
use crate::guest::Encoding;
use crate::input::Input;
use crate::returned::{CARRIED, CARRIED_TEXT, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_RANK, Stage};

/// Total size of one sample's values, in bytes, with their overhead: up to the first limit they must be accepted; above the
/// second limit they must be refused.
const SURELY_FITS: u64 = 16 << 20;
const NEVER_FITS: u64 = 128 << 20;
/// Maximum size of an item or a field in addition to its values, in bytes.
const SHELL_BYTES: u64 = 256;
/// Size of an answer in bytes from which on parts of it may have been cut off.
const MAX_ANSWER_BYTES: usize = 0x3_0000;
/// Maximum number of children of one sample.
const MAX_CHILDREN: u32 = 65_536;
/// Maximum number of different items in a list.
const MAX_LIST: usize = 40;
/// Size of the guest's memory after the start of the answer, in bytes.
const MEMORY_BYTES: u32 = 0x17_0000;
/// Limits of the contract.
const DTYPES: u8 = 11;
const MAX_SHAPE_BYTES: u128 = 1 << 42;
const NAMES: [&str; 6] = ["answer", CARRIED, "a", "b", "ä", "pixels"];

/// Calls a guest once, with an answer whose values may overlap in memory: a few bytes can then claim a very large output.
pub fn values(input: &[u8]) {
    let answer = Answer { outcomes: vec![outcome(&mut Input(input))], ..Answer::default() };
    let mut stage = Stage::start(Mode::Sample, Encoding::UTF8);
    let output = stage.call(1, &answer);
    let is_written = answer.bytes(&["a"]).len() < MAX_ANSWER_BYTES;
    match &answer.outcomes[0] {
        Outcome::Keep(item) if is_written => check(&[item], &output),
        Outcome::Many(items) if is_written => check(&items.iter().collect::<Vec<_>>(), &output),
        Outcome::Copies(item, times) if is_written && *times <= MAX_CHILDREN => {
            check(&vec![item; *times as usize], &output)
        }
        _ => {}
    }
    stage.recovers();
}

fn outcome(input: &mut Input<'_>) -> Outcome {
    match input.u8() % 4 {
        0 => Outcome::Keep(item(input)),
        1 => Outcome::Many(input.list(item)),
        2 => Outcome::Copies(item(input), input.u16().into()),
        // The number of copies may exceed what memory can hold.
        _ => Outcome::Copies(item(input), input.u32()),
    }
}

fn item(input: &mut Input<'_>) -> Item {
    let key = if !input.u8().is_multiple_of(4) { Key::Given(0) } else { Key::Made(text(input)) };
    Item { key, seed: 0, fields: input.list(field) }
}

fn field(input: &mut Input<'_>) -> Field {
    let name = match usize::from(input.u8()) {
        number if number < 250 => NAMES[number % NAMES.len()].into(),
        _ => text(input),
    };
    let value = match input.u8() % 5 {
        0 => Value::Blob(text(input)),
        1 => Value::Text(text(input)),
        2 => Value::Int(input.u64().cast_signed()),
        3 => Value::Real(f64::from_bits(input.u64())),
        _ => Value::Tensor {
            dtype: input.u8() % 12,
            shape: input.list(|input| input.u8().into()),
            fits: !input.u8().is_multiple_of(4),
            data: input.list(Input::u8),
        },
    };
    Field { name, value }
}

fn text(input: &mut Input<'_>) -> Text {
    match input.u8() % 4 {
        0 => Text::Memory(input.u32() % (MEMORY_BYTES * 2)),
        1 => Text::Bytes(input.list(Input::u8)),
        2 => Text::Long(input.u16()),
        _ => Text::Valid(input.list(|input| char::from(input.u8())).into_iter().collect()),
    }
}

/// Compares the output with the written values.
fn check(items: &[&Item], output: &Output) {
    let fields = || items.iter().flat_map(|item| &item.fields);
    let bytes: u64 = fields().map(|field| claimed(&field.value)).sum();
    let shells = (items.len() + fields().count()) as u64 * SHELL_BYTES;
    // All copies of an item are equal, so only the first items are examined.
    let Some(is_good) = all(items.iter().take(MAX_LIST).map(|item| is_good(item))) else { return };
    if !output.failed.is_empty() {
        assert!(
            !is_good || bytes + shells > SURELY_FITS,
            "found {:?}, expected {:?}",
            output.failed,
            items.first()
        );
        return;
    }
    let samples: Vec<Sample> = match &output.items {
        Items::None => Vec::new(),
        Items::One(one) => one.clone().into_samples(),
        Items::Many(many) => many.iter().flat_map(|item| item.clone().into_samples()).collect(),
    };
    let count = samples.len();
    assert!(
        is_good && bytes <= NEVER_FITS,
        "found {count} samples of {:?}, which break the contract",
        items.first()
    );
    assert_eq!(count, items.len());
    // If there are very many samples, only a few are checked.
    for (sample, item) in samples.iter().zip(items).step_by(count / 16 + 1) {
        check_sample(sample, item);
    }
}

fn check_sample(sample: &Sample, item: &Item) {
    let written = item.fields.iter().map(|field| (field.name.bytes(), Some(&field.value)));
    let mut expected: BTreeMap<Vec<u8>, Option<&Value>> = [(CARRIED.as_bytes().to_vec(), None)].into();
    expected.extend(written);
    assert_eq!(sample.fields.len(), expected.len(), "found {sample:?}, expected {item:?}");
    for field in &sample.fields {
        let is_same = match expected.get(field.name.as_bytes()) {
            Some(Some(value)) => is_same(value, &field.value),
            Some(None) => matches!(&field.value, EngineValue::Text(text) if text == CARRIED_TEXT),
            None => false,
        };
        assert!(is_same, "found {field:?}, expected {item:?}");
    }
}

fn is_same(written: &Value, found: &EngineValue) -> bool {
    match (written, found) {
        // The content of the memory is not known here, so only the length is checked.
        (Value::Blob(Text::Memory(length)), EngineValue::Blob(bytes)) => bytes.len() == *length as usize,
        (Value::Blob(text), EngineValue::Blob(bytes)) => text.bytes() == *bytes,
        (Value::Text(text), EngineValue::Text(found)) => text.bytes() == found.as_bytes(),
        (Value::Int(written), EngineValue::Int(found)) => written == found,
        (Value::Real(written), EngineValue::Real(found)) => {
            // The engine may change the bits of a NaN.
            written.to_bits() == found.to_bits() || written.is_nan() && found.is_nan()
        }
        (Value::Tensor { shape, .. }, EngineValue::Tensor(found)) => *shape == found.shape,
        _ => false,
    }
}

/// True if an item satisfies the contract; `None` if that depends on the content of the memory.
fn is_good(item: &Item) -> Option<bool> {
    let mut names = BTreeSet::new();
    let key = match &item.key {
        Key::Given(_) => Some(true),
        Key::Made(text) => is_text(text, MAX_KEY_BYTES),
    };
    let fields = item.fields.iter().map(|field| {
        let is_new = names.insert(field.name.bytes());
        all([is_text(&field.name, MAX_NAME_BYTES), Some(is_new), is_good_value(&field.value)])
    });
    all([key, all(fields)])
}

fn is_good_value(value: &Value) -> Option<bool> {
    match value {
        Value::Blob(Text::Memory(length)) => Some(*length <= MEMORY_BYTES),
        Value::Text(Text::Memory(_)) => None,
        Value::Text(text) => Some(std::str::from_utf8(&text.bytes()).is_ok()),
        Value::Tensor { dtype, shape, .. } => {
            let sizes = shape.iter().map(|size| u128::from(*size).max(1));
            let product = sizes.fold(tensor_bytes(*dtype, &[]) as u128, u128::saturating_mul);
            let needed = if shape.contains(&0) { 0 } else { product };
            let is_right = needed == claimed(value).into() && product <= MAX_SHAPE_BYTES;
            Some(*dtype < DTYPES && shape.len() <= MAX_RANK && is_right)
        }
        Value::Blob(_) | Value::Int(_) | Value::Real(_) => Some(true),
    }
}

fn is_text(text: &Text, most: usize) -> Option<bool> {
    let bytes = text.bytes();
    let is_good = (1..=most).contains(&bytes.len()) && std::str::from_utf8(&bytes).is_ok();
    (!matches!(text, Text::Memory(_))).then_some(is_good)
}

/// True if all are true; `None` if one is unknown.
fn all(known: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    known.into_iter().try_fold(true, |all, one| Some(all & one?))
}

/// Claimed size of a value, in bytes.
fn claimed(value: &Value) -> u64 {
    match value {
        Value::Blob(Text::Memory(length)) | Value::Text(Text::Memory(length)) => (*length).into(),
        Value::Blob(text) | Value::Text(text) => text.bytes().len() as u64,
        Value::Int(_) | Value::Real(_) => 8,
        Value::Tensor { dtype, shape, fits: true, .. } => tensor_bytes(*dtype, shape) as u64,
        Value::Tensor { data, .. } => data.len().min(MAX_VALUE_BYTES) as u64,
    }
}
