//! Parses bytes to JSON and reports every repeated member.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::json_size::JsonSize;
use crate::fault::{MAX_FAULTS, Pointer, SpecFault};
use crate::text::shown;

/// Size of the largest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 4 << 20;

/// Maximum number of names and values in a document: room for several stages with the maximum number of params each.
const MAX_DOCUMENT_NODES: usize = 1 << 16;

/// Maximum nesting of objects and lists in a document.
pub const MAX_DEPTH: usize = 64;

/// Bounds of a JSON text.
#[derive(Clone, Copy, Debug)]
pub struct JsonBounds {
    /// Maximum size of the text, in bytes.
    pub bytes: usize,
    /// Maximum number of names and values: even a value of one character takes dozens of bytes in memory.
    pub nodes: usize,
}

impl JsonBounds {
    /// Creates bounds of `bytes` bytes, with the maximum number of names and values of a pipeline document.
    pub const fn of_bytes(bytes: usize) -> Self {
        Self { bytes, nodes: MAX_DOCUMENT_NODES }
    }
}

/// Reads JSON. Unlike serde_json alone, it rejects an object that has a member twice: one of the two values would be lost
/// silently.
pub fn parse(bytes: &[u8]) -> Result<Value, Vec<SpecFault>> {
    parse_within(bytes, JsonBounds::of_bytes(MAX_DOCUMENT_BYTES))
}

/// Reads JSON that is no pipeline document, within other bounds.
pub fn parse_within(bytes: &[u8], most: JsonBounds) -> Result<Value, Vec<SpecFault>> {
    let whole = |message: String| vec![SpecFault::new(Pointer::ROOT, message)];
    let too_much = |most: usize, what: &str| {
        Err(whole(format!("has more than {most} {what}, the maximum; move large data into `assets`")))
    };
    if bytes.len() > most.bytes {
        return too_much(most.bytes, "bytes");
    }
    if JsonSize::of(bytes).nodes() > most.nodes {
        return too_much(most.nodes, "names and values");
    }
    let faults = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { faults: &faults, place: Place::Root, depth: 0 }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| whole(not_json(bytes, &error)))?;
    let faults = faults.into_inner();
    if faults.is_empty() { Ok(value) } else { Err(faults) }
}

/// Names the actual format where the first bytes reveal it, and otherwise the place where JSON ends.
fn not_json(bytes: &[u8], error: &serde_json::Error) -> String {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => "starts with a byte order mark; save it as UTF-8 without one".to_owned(),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, b'{', ..] | [b'{', 0, ..] => {
            "is UTF-16; save it as UTF-8".to_owned()
        }
        [0x1f, 0x8b, ..] => "is compressed with gzip; decompress it first".to_owned(),
        [0, b'a', b's', b'm', ..] => {
            "is a WebAssembly module; pass a pipeline document (JSON) that names the module".to_owned()
        }
        _ => format!("is not JSON: {error}"),
    }
}

/// Position of the reader; becomes a pointer only when there is a fault to report.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    faults: &'a RefCell<Vec<SpecFault>>,
    place: Place<'a>,
    depth: usize,
}

impl Place<'_> {
    fn pointer(&self) -> Pointer {
        match self {
            Self::Root => Pointer::ROOT,
            Self::Key(parent, key) => parent.pointer().key(key),
            Self::Index(parent, index) => parent.pointer().index(*index),
        }
    }
}

impl<'a> Strict<'a> {
    fn within<E: Error>(&self, place: Place<'a>) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self { faults: self.faults, place, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Visitor methods for values that are JSON already.
macro_rules! plain {
    ($($visit:ident: $value:ty),+) => { $(
        fn $visit<E>(self, value: $value) -> Result<Value, E> {
            Ok(value.into())
        }
    )+ };
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    plain!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str, visit_string: String);

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) =
            access.next_element_seed(self.within(Place::Index(&self.place, elements.len()))?)?
        {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = access.next_value_seed(self.within(Place::Key(&self.place, &key))?)?;
            if members.contains_key(&key) {
                let mut faults = self.faults.borrow_mut();
                let name = shown(&key);
                let fault = SpecFault::new(
                    self.place.pointer().key(&key),
                    format!("`{name}` is written twice, keep one of them"),
                );
                // A fault is reported once, however often the member is repeated.
                if faults.len() < MAX_FAULTS && !faults.contains(&fault) {
                    faults.push(fault);
                }
            }
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        parse(text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_repeated_member_is_reported_with_its_place() {
        assert_eq!(
            faults(r#"{"a": [{"b": 1, "b": 2}], "c": 1, "c": {"d": 0, "d": 0}}"#),
            [
                "/a/0/b: `b` is written twice, keep one of them",
                "/c/d: `d` is written twice, keep one of them",
                "/c: `c` is written twice, keep one of them",
            ]
        );
        assert_eq!(faults(r#"{"a": 1, "a": 1, "a": 1}"#), ["/a: `a` is written twice, keep one of them"]);
    }

    #[test]
    fn text_that_is_not_json_is_reported_with_the_position_of_the_error() {
        assert_eq!(
            faults("{"),
            ["the document: is not JSON: EOF while parsing an object at line 1 column 1"]
        );
        assert_eq!(faults("{} {}"), ["the document: is not JSON: trailing characters at line 1 column 4"]);
    }

    #[test]
    fn other_file_formats_are_named_in_the_error() {
        let told = |bytes: &[u8]| parse(bytes).unwrap_err()[0].message();
        assert_eq!(told(b"\xef\xbb\xbf{}"), "starts with a byte order mark; save it as UTF-8 without one");
        assert_eq!(told(b"\xff\xfe{\0}\0"), "is UTF-16; save it as UTF-8");
        assert_eq!(told(b"\0{\0}"), "is UTF-16; save it as UTF-8");
        assert_eq!(told(b"\x1f\x8b\x08"), "is compressed with gzip; decompress it first");
    }

    #[test]
    fn depth_size_and_count_are_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(faults(&nested(MAX_DEPTH + 1))[0].contains("nested deeper than 64 levels"));
        assert!(faults(&" ".repeat(MAX_DOCUMENT_BYTES + 1))[0].contains("more than 4194304 bytes"));
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        assert!(parse(list(MAX_DOCUMENT_NODES).as_bytes()).is_ok());
        let told = faults(&list(MAX_DOCUMENT_NODES + 1));
        assert!(told[0].contains("more than 65536 names and values"), "{told:?}");
    }

    #[test]
    fn a_number_is_read_to_its_last_digit() {
        let value = parse(b"[1.9767727700013757e-28]").unwrap();
        assert_eq!(value[0].as_f64(), Some(1.9767727700013757e-28));
        assert_eq!(value.to_string(), "[1.9767727700013757e-28]");
    }

    #[test]
    fn a_value_reads_as_serde_json_reads_it() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 1.5, "x\n"], "b": {}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }
}
