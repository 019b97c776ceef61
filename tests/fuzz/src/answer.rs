//! Answers of the guest of the fuzz targets, as bytes in the guest's memory: the canonical ABI of the contract, written by hand,
//! so that every pointer, length and discriminant can be wrong.

use crate::input::Input;

/// Address at which the guest stores the bytes that it receives; pointers in these bytes are relative to this address.
pub const BASE: u32 = 0x1_0000;
/// Maximum number of bytes stored at [`BASE`].
const MAX_MEMORY: usize = 0x4_0000;
/// Maximum number of elements of a list that are written; only a patch can claim a longer list.
const MAX_ELEMENTS: usize = 300;
/// Maximum number of bytes of a blob, text or tensor that are written.
pub(crate) const MAX_VALUE_BYTES: usize = 4 << 10;

/// Sizes of the contract's types in a guest's memory, in bytes.
const OUTCOME_BYTES: u32 = 32;
const ITEM_BYTES: u32 = 24;
const FIELD_BYTES: u32 = 40;
/// Alignment of all types of the contract, in bytes.
const ALIGNMENT: u32 = 8;

/// Answer to one call of `process`, the answer of `finish` after it, and the behaviour of the guest between the two calls.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Outcomes that `process` returns.
    pub outcomes: Vec<Outcome>,
    /// Removes or adds outcomes until there is one for each sample.
    pub is_complete: bool,
    /// Items that `finish` returns.
    pub finish: Vec<Item>,
    /// Bytes written over the answer, in order.
    pub patches: Vec<Patch>,
    /// Return value of `process` in place of the address of its answer.
    pub address: Option<u32>,
    /// Return value of `cabi_realloc` after this answer, in place of the address of free memory.
    pub lie: Option<u32>,
    /// If true, the guest function that frees the answer traps.
    pub traps_after: bool,
}

/// One outcome as written to the guest's memory.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each variant is the outcome of that name in stage.wit")]
pub enum Outcome {
    Keep(Item),
    Drop,
    Many(Vec<Item>),
    /// `Many` with one item repeated this many times, all sharing the same bytes.
    Copies(Item, u32),
    Held,
    Failed(Text),
}

/// One item as written to the guest's memory.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in stage.wit")]
pub struct Item {
    pub key: Key,
    pub seed: u64,
    pub fields: Vec<Field>,
}

/// Key of an item.
#[derive(Clone, Debug)]
pub enum Key {
    /// Key of the sample with this number in the call.
    Given(u8),
    /// A key that need not belong to a sample.
    Made(Text),
}

/// One field as written to the guest's memory.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in stage.wit")]
pub struct Field {
    pub name: Text,
    pub value: Value,
}

/// One value as written to the guest's memory.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each variant is the value of that name in stage.wit")]
pub enum Value {
    Blob(Text),
    Text(Text),
    Int(i64),
    Real(f64),
    /// Tensor; if `fits` is set, bytes of 1 replace `data`, as many as `shape` and `dtype` require.
    Tensor {
        dtype: u8,
        shape: Vec<u32>,
        data: Vec<u8>,
        fits: bool,
    },
}

/// Bytes in place of text.
#[derive(Clone, Debug)]
pub enum Text {
    /// Any bytes, valid as text or not.
    Bytes(Vec<u8>),
    /// Text in valid UTF-8.
    Valid(String),
    /// One letter, repeated this number of times.
    Long(u16),
    /// The given number of bytes of the memory from [`BASE`] on, which contain all other parts of the answer.
    Memory(u32),
}

/// Overwrites four bytes, or one, of the answer.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Offset from the start of the answer.
    pub at: u16,
    pub value: u32,
    /// Writes only the lowest byte of the value.
    pub is_byte: bool,
}

impl Answer {
    /// Bytes for a call with samples of these keys: instructions, then the content of the memory at [`BASE`].
    pub fn bytes(&self, keys: &[&str]) -> Vec<u8> {
        let mut outcomes: Vec<Outcome> = self.outcomes.iter().take(MAX_ELEMENTS).cloned().collect();
        if self.is_complete {
            outcomes.resize(keys.len(), Outcome::Drop);
        }
        let mut memory = Memory { bytes: Vec::new(), keys };
        let answered = memory.room(8, 4);
        let finished = memory.room(8, 4);
        memory.list(answered, &outcomes, OUTCOME_BYTES, Memory::outcome);
        memory.list(finished, &self.finish, ITEM_BYTES, Memory::item);
        for patch in &self.patches {
            let bytes = patch.value.to_le_bytes();
            memory.write(u32::from(patch.at), if patch.is_byte { &bytes[..1] } else { &bytes });
        }
        let orders = [
            self.address.unwrap_or(BASE + answered),
            BASE + finished,
            self.lie.unwrap_or_default(),
            u32::from(self.lie.is_some()),
            u32::from(self.traps_after),
        ];
        orders.iter().flat_map(|order| order.to_le_bytes()).chain(memory.bytes).collect()
    }

    /// Answer of a correct guest: every sample is kept unchanged.
    pub fn good(samples: u8) -> Self {
        let keep = |number| Outcome::Keep(Item { key: Key::Given(number), seed: 0, fields: Vec::new() });
        Self { outcomes: (0..samples).map(keep).collect(), ..Self::default() }
    }
}

impl Answer {
    /// Answer that the input describes.
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        Self {
            outcomes: input.list(Outcome::read),
            is_complete: input.flag(),
            finish: input.list(Item::read),
            patches: input.list(|input| Patch { at: input.u16(), value: input.u32(), is_byte: input.flag() }),
            address: input.option(Input::u32),
            lie: input.option(Input::u32),
            traps_after: input.flag(),
        }
    }
}

impl Outcome {
    fn read(input: &mut Input<'_>) -> Self {
        match input.u8() % 6 {
            0 | 1 => Self::Keep(Item::read(input)),
            2 => Self::Drop,
            3 => Self::Many(input.list(Item::read)),
            4 => Self::Held,
            _ => Self::Failed(Text::read(input)),
        }
    }
}

impl Item {
    fn read(input: &mut Input<'_>) -> Self {
        let key = match input.u8() {
            255 => Key::Made(Text::read(input)),
            number => Key::Given(number),
        };
        Self { key, seed: input.u64(), fields: input.list(Field::read) }
    }
}

impl Field {
    fn read(input: &mut Input<'_>) -> Self {
        Self { name: Text::read(input), value: Value::read(input) }
    }
}

impl Value {
    fn read(input: &mut Input<'_>) -> Self {
        match input.u8() % 5 {
            0 => Self::Blob(Text::read(input)),
            1 => Self::Text(Text::read(input)),
            2 => Self::Int(input.u64().cast_signed()),
            3 => Self::Real(f64::from_bits(input.u64())),
            _ => Self::Tensor {
                dtype: input.u8(),
                shape: input.list(Input::u32),
                fits: input.flag(),
                data: input.list(Input::u8),
            },
        }
    }
}

impl Text {
    fn read(input: &mut Input<'_>) -> Self {
        match input.u8() % 4 {
            0 => Self::Long(input.u16()),
            1 => Self::Bytes(input.list(Input::u8)),
            _ => Self::Valid(input.list(|input| char::from(input.u8())).into_iter().collect()),
        }
    }

    /// Bytes to write for the text; none if the text refers to existing memory.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Valid(text) => text.clone().into_bytes(),
            Self::Long(length) => vec![b'n'; usize::from(*length)],
            Self::Memory(_) => Vec::new(),
        };
        bytes.truncate(MAX_VALUE_BYTES);
        bytes
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::Valid(text.into())
    }
}

/// Memory from [`BASE`] on, which is being filled. Addresses are relative to [`BASE`].
struct Memory<'a> {
    bytes: Vec<u8>,
    keys: &'a [&'a str],
}

impl Memory<'_> {
    fn room(&mut self, size: u32, alignment: u32) -> u32 {
        let at = self.bytes.len().next_multiple_of(alignment as usize);
        // Bytes beyond the end are not written: the guest then claims memory that it does not have, which the host must also
        // handle.
        self.bytes.resize((at + size as usize).min(MAX_MEMORY.max(at)), 0);
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn write(&mut self, at: u32, bytes: &[u8]) {
        let place = self.bytes.get_mut(at as usize..).unwrap_or_default();
        for (place, byte) in place.iter_mut().zip(bytes) {
            *place = *byte;
        }
    }

    fn write_u32(&mut self, at: u32, value: u32) {
        self.write(at, &value.to_le_bytes());
    }

    /// Writes the address and the length of a list at `at`, and its elements elsewhere.
    fn list<T>(&mut self, at: u32, elements: &[T], size: u32, element: impl Fn(&mut Self, u32, &T)) {
        let elements = &elements[..elements.len().min(MAX_ELEMENTS)];
        let length = u32::try_from(elements.len()).unwrap_or(u32::MAX);
        let first = self.room(length * size, ALIGNMENT);
        self.write_u32(at, BASE + first);
        self.write_u32(at + 4, length);
        for (place, value) in (first..).step_by(size as usize).zip(elements) {
            element(self, place, value);
        }
    }

    fn text(&mut self, at: u32, text: &Text) {
        match text {
            Text::Memory(length) => {
                self.write_u32(at, BASE);
                self.write_u32(at + 4, *length);
            }
            text => self.raw(at, &text.bytes()),
        }
    }

    fn raw(&mut self, at: u32, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let first = self.room(length, 1);
        self.write_u32(at, BASE + first);
        self.write_u32(at + 4, length);
        self.write(first, bytes);
    }

    fn outcome(&mut self, at: u32, outcome: &Outcome) {
        let number = match outcome {
            Outcome::Keep(_) => 0,
            Outcome::Drop => 1,
            Outcome::Many(_) | Outcome::Copies(..) => 2,
            Outcome::Held => 3,
            Outcome::Failed(_) => 4,
        };
        self.write(at, &[number]);
        match outcome {
            Outcome::Keep(item) => self.item(at + 8, item),
            Outcome::Many(items) => self.list(at + 8, items, ITEM_BYTES, Self::item),
            Outcome::Copies(item, times) => {
                let first = self.room(times.saturating_mul(ITEM_BYTES), ALIGNMENT);
                self.write_u32(at + 8, BASE + first);
                self.write_u32(at + 12, *times);
                self.item(first, item);
                let (first, size) = (first as usize, ITEM_BYTES as usize);
                let record = self.bytes.get(first..first + size).unwrap_or_default().to_vec();
                let end = self.bytes.len().min(first + *times as usize * size);
                let copies = self.bytes.get_mut(first..end).unwrap_or_default();
                copies.chunks_exact_mut(size).for_each(|copy| copy.copy_from_slice(&record));
            }
            Outcome::Failed(reason) => self.text(at + 8, reason),
            Outcome::Drop | Outcome::Held => {}
        }
    }

    fn item(&mut self, at: u32, item: &Item) {
        let key = match &item.key {
            Key::Given(number) => {
                Text::from(*self.keys.get(usize::from(*number)).or(self.keys.last()).unwrap_or(&""))
            }
            Key::Made(text) => text.clone(),
        };
        self.text(at, &key);
        self.write(at + 8, &item.seed.to_le_bytes());
        self.list(at + 16, &item.fields, FIELD_BYTES, Self::field);
    }

    fn field(&mut self, at: u32, field: &Field) {
        self.text(at, &field.name);
        let number = match field.value {
            Value::Blob(_) => 0,
            Value::Text(_) => 1,
            Value::Int(_) => 2,
            Value::Real(_) => 3,
            Value::Tensor { .. } => 4,
        };
        self.write(at + 8, &[number]);
        let payload = at + 16;
        match &field.value {
            Value::Blob(text) | Value::Text(text) => self.text(payload, text),
            Value::Int(number) => self.write(payload, &number.to_le_bytes()),
            Value::Real(number) => self.write(payload, &number.to_bits().to_le_bytes()),
            Value::Tensor { dtype, shape, data, fits } => {
                self.write(payload, &[*dtype]);
                self.list(payload + 4, shape, 4, |memory, at, length| memory.write_u32(at, *length));
                let data = if *fits { vec![1; tensor_bytes(*dtype, shape)] } else { data.clone() };
                self.raw(payload + 12, &data[..data.len().min(MAX_VALUE_BYTES)]);
            }
        }
    }
}

/// Number of bytes of a tensor of this type and shape, at most [`MAX_VALUE_BYTES`].
pub(crate) fn tensor_bytes(dtype: u8, shape: &[u32]) -> usize {
    let element = match dtype {
        0..=2 => 1,
        3 | 4 | 7 | 8 => 2,
        5 | 9 => 4,
        _ => 8,
    };
    let lengths = shape.iter().map(|length| *length as usize);
    lengths.fold(element, usize::saturating_mul).min(MAX_VALUE_BYTES)
}
