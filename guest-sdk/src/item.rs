//! Samples as stages receive them: a key, a seed, and named values.

use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::tensor::{Element, RawTensor, Tensor, TensorView};

/// One sample: its key, its random seed, and its fields.
///
/// A stage receives the fields it `wants` (all of them without a list). A wanted field that is missing from the returned item
/// is removed; other fields bypass the stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub(crate) key: String,
    pub(crate) seed: u64,
    pub(crate) fields: Vec<Field>,
}

/// A named value of an item.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Name of the field, unique within the item.
    pub name: String,
    /// Value of the field, of any type.
    pub value: Value,
}

/// Value of a field, with its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Bytes as read, e.g. a JPEG file.
    Blob(Vec<u8>),
    /// A string in UTF-8.
    Text(String),
    /// A signed whole number.
    Int(i64),
    /// A 64-bit floating-point number.
    Real(f64),
    /// An array whose element type is known at run time; [`Item::tensor`] returns it as a typed view.
    Tensor(RawTensor),
}

/// Result of a stage for one item.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The contained item replaces the item and continues to the next stage.
    Keep(Item),
    /// The item is left out on purpose.
    Drop,
    /// The contained items replace the item, in order. Each needs a distinct key; see [`Item::child`].
    Many(Vec<Item>),
    /// The stage holds the item back, and returns it later. For stateful stages only.
    Held,
    /// The item fails because of its data; contains the reason.
    Failed(String),
}

impl Item {
    /// Creates an item without fields and with seed 0.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), seed: 0, fields: Vec::new() }
    }

    /// Returns the item with another seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Returns the item with the field `name` set.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Creates an item without fields for the `index`-th part of this item, with the key `<key>#<index>` and a distinct seed.
    pub fn child(&self, index: usize) -> Self {
        let seed = Rng::from_seed(self.seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64();
        Self { key: format!("{}#{index}", self.key), seed, fields: Vec::new() }
    }

    /// Key of the item for messages, e.g. the key of its object or record.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Random seed of the item: independent of the order and of the number of threads and ranks, but different in every epoch.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Creates a generator that starts at the item's seed: all generators of one item produce the same sequence.
    pub fn rng(&self) -> Rng {
        Rng::from_seed(self.seed)
    }

    /// Fields in the order in which stages added them.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Value of the field `name`, if the item has it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// Returns the blob `name`. Fails if the field is missing or of another type, like the following methods.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        match self.find(name)? {
            Value::Blob(bytes) => Ok(bytes),
            other => Err(wrong_type(name, other, "a blob")),
        }
    }

    /// Returns the text `name`.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self.find(name)? {
            Value::Text(text) => Ok(text),
            other => Err(wrong_type(name, other, "text")),
        }
    }

    /// Returns the whole number `name`.
    pub fn int(&self, name: &str) -> Result<i64> {
        match self.find(name)? {
            Value::Int(number) => Ok(*number),
            other => Err(wrong_type(name, other, "an int")),
        }
    }

    /// Returns the number `name`; an int is converted to a real.
    pub fn real(&self, name: &str) -> Result<f64> {
        match self.find(name)? {
            Value::Real(number) => Ok(*number),
            Value::Int(number) => Ok(*number as f64),
            other => Err(wrong_type(name, other, "a real")),
        }
    }

    /// Returns a view of the tensor `name` with elements of type `T`, without a copy if possible.
    pub fn tensor<T: Element>(&self, name: &str) -> Result<TensorView<'_, T>> {
        match self.find(name)? {
            Value::Tensor(tensor) => {
                tensor.view().map_err(|error| Error::new(format_args!("field `{name}` {error}")))
            }
            other => Err(wrong_type(name, other, "a tensor")),
        }
    }

    /// Sets the field `name`: replaces its value, or appends the field.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.fields.iter_mut().find(|field| field.name == name) {
            Some(field) => field.value = value,
            None => self.fields.push(Field { name: name.to_owned(), value }),
        }
    }

    /// Removes the field `name` from the item and returns its value; `None` if there is no such field.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.fields.iter().position(|field| field.name == name)?;
        Some(self.fields.remove(at).value)
    }

    /// Removes the blob `name` from the item and returns it without a copy.
    pub fn take_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        self.bytes(name)?;
        match self.remove(name) {
            Some(Value::Blob(bytes)) => Ok(bytes),
            _ => Err(missing(name, &self.fields)),
        }
    }

    /// Removes the text `name` from the item and returns it without a copy.
    pub fn take_text(&mut self, name: &str) -> Result<String> {
        self.text(name)?;
        match self.remove(name) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(missing(name, &self.fields)),
        }
    }

    fn find(&self, name: &str) -> Result<&Value> {
        self.get(name).ok_or_else(|| missing(name, &self.fields))
    }
}

impl Value {
    /// Name of the type with its article: `a blob`, `text`, `a tensor`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Blob(_) => "a blob",
            Self::Text(_) => "text",
            Self::Int(_) => "an int",
            Self::Real(_) => "a real",
            Self::Tensor(_) => "a tensor",
        }
    }
}

fn missing(name: &str, fields: &[Field]) -> Error {
    if fields.is_empty() {
        return Error::new(format_args!("no field `{name}`: the item has no fields that this stage reads"));
    }
    let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
    Error::new(format_args!("no field `{name}`: the item has {}", names.join(", ")))
}

fn wrong_type(name: &str, found: &Value, wanted: &str) -> Error {
    Error::new(format_args!("field `{name}` is {}, not {wanted}", found.type_name()))
}

macro_rules! values {
    ($($rust:ty => $variant:ident),+) => {
        $(impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

values!(Vec<u8> => Blob, &[u8] => Blob, String => Text, &str => Text, i64 => Int, f64 => Real, RawTensor => Tensor);

impl<T: Element> From<Tensor<T>> for Value {
    fn from(tensor: Tensor<T>) -> Self {
        Self::Tensor(tensor.into_raw())
    }
}

/// Return type of a stage's function: an [`Item`] is kept, an [`Option`] is kept or dropped, the items of a [`Vec`] replace the
/// item (an empty `Vec` drops it), an [`Outcome`] is used unchanged. Each of them may be wrapped in a [`Result`], whose error is
/// a fault of the data.
pub trait IntoOutcome {
    /// Converts the value to an outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for Item {
    fn into_outcome(self) -> Outcome {
        Outcome::Keep(self)
    }
}

impl IntoOutcome for Option<Item> {
    fn into_outcome(self) -> Outcome {
        self.map_or(Outcome::Drop, Outcome::Keep)
    }
}

impl IntoOutcome for Vec<Item> {
    fn into_outcome(self) -> Outcome {
        match self.is_empty() {
            true => Outcome::Drop,
            false => Outcome::Many(self),
        }
    }
}

impl<T: IntoOutcome> IntoOutcome for Result<T> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(given) => given.into_outcome(),
            Err(error) => Outcome::Failed(error.message().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Item {
        Item::new("a.jpg").with_seed(7).with("bytes", &b"xy"[..]).with("label", 3)
    }

    #[test]
    fn the_error_for_a_missing_field_lists_the_fields() {
        let error = item().bytes("image").unwrap_err();
        assert_eq!(error.message(), "no field `image`: the item has `bytes`, `label`");
        let error = Item::new("a").text("text").unwrap_err();
        assert_eq!(error.message(), "no field `text`: the item has no fields that this stage reads");
    }

    #[test]
    fn the_error_for_a_wrong_type_names_both_types() {
        assert_eq!(item().text("bytes").unwrap_err().message(), "field `bytes` is a blob, not text");
        assert_eq!(
            item().tensor::<u8>("label").unwrap_err().message(),
            "field `label` is an int, not a tensor"
        );
    }

    #[test]
    fn an_int_reads_as_a_real_but_not_the_reverse() {
        let item = item().with("score", 0.5);
        assert_eq!(item.real("label").unwrap(), 3.0);
        assert_eq!(item.int("score").unwrap_err().message(), "field `score` is a real, not an int");
    }

    #[test]
    fn setting_a_field_keeps_its_place() {
        let mut item = item();
        item.set("bytes", "now text");
        item.set("new", 1.5);
        let names: Vec<&str> = item.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["bytes", "label", "new"]);
    }

    #[test]
    fn a_field_of_the_wrong_type_is_not_removed() {
        let mut item = item();
        assert!(item.take_text("bytes").is_err());
        assert_eq!(item.take_bytes("bytes").unwrap(), b"xy");
        assert!(item.get("bytes").is_none());
    }

    #[test]
    fn children_have_distinct_keys_and_seeds() {
        let parent = item();
        let (first, second) = (parent.child(0), parent.child(1));
        assert_eq!((first.key(), second.key()), ("a.jpg#0", "a.jpg#1"));
        assert!(first.seed() != second.seed() && first.seed() != parent.seed());
        assert_eq!(first.seed(), parent.child(0).seed());
    }

    #[test]
    fn the_return_type_decides_the_outcome() {
        assert_eq!(Ok(item()).into_outcome(), Outcome::Keep(item()));
        assert_eq!(Ok(None::<Item>).into_outcome(), Outcome::Drop);
        assert_eq!(Ok(vec![item()]).into_outcome(), Outcome::Many(vec![item()]));
        assert_eq!(Ok(Vec::<Item>::new()).into_outcome(), Outcome::Drop);
        let refused: Result<Item> = Err(Error::new("too small"));
        assert_eq!(refused.into_outcome(), Outcome::Failed("too small".to_owned()));
    }
}
