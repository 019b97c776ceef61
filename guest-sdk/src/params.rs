//! Parameters of a stage: the value under `params` in the pipeline document, checked and typed.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::json::Json;

/// Parameters of a stage. Derived for a struct; `()` accepts no parameters.
pub trait Params: Sized + 'static {
    /// JSON Schema of the parameters; `null` if there are none.
    const SCHEMA: Json;

    /// Reads the parameters from the members of `params`. The error names every invalid member.
    fn from_members(members: Map<String, Value>) -> Result<Self, String>;

    /// Reads the parameters from the text of `params`; an empty text is an empty object.
    fn from_json(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Self::from_members(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(members)) => Self::from_members(members),
            Ok(Value::Null) => Self::from_members(Map::new()),
            Ok(other) => Err(format!("params are {other}, not an object")),
            Err(error) => Err(format!("params are not JSON: {error}")),
        }
    }
}

/// Type of one parameter, with its JSON Schema. Implemented for `bool`, whole and real numbers, `String`, `Option` and `Vec`,
/// and derived for enums without fields, which are written as strings.
pub trait Param: DeserializeOwned {
    /// Members of the type's JSON Schema as text, without braces and without a range.
    const MEMBERS: Json;
    /// Lower bound of the type as JSON text, `,"minimum":...`; empty without a bound.
    const MINIMUM: Json = Json::Text("");
    /// Upper bound of the type as JSON text, `,"maximum":...`; empty without a bound.
    const MAXIMUM: Json = Json::Text("");
}

impl Params for () {
    const SCHEMA: Json = Json::Text("null");

    fn from_members(members: Map<String, Value>) -> Result<Self, String> {
        MemberReader::new(members).finish(&[])
    }
}

/// Reads the members of `params` one by one and collects their faults. Used by derived code.
#[derive(Debug)]
pub struct MemberReader {
    members: Map<String, Value>,
    faults: Vec<String>,
}

/// Properties of one member, set by derived code.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name of the member.
    pub name: &'static str,
    /// Default value as JSON text; `None` if the member is required.
    pub default: Option<&'static str>,
    /// Smallest valid number, if limited.
    pub min: Option<f64>,
    /// Largest valid number, if limited.
    pub max: Option<f64>,
}

impl MemberReader {
    /// Creates a reader of these members.
    pub fn new(members: Map<String, Value>) -> Self {
        Self { members, faults: Vec::new() }
    }

    /// Reads one member; `None` if it is invalid, which [`MemberReader::finish`] reports.
    pub fn take<T: Param>(&mut self, rule: Rule) -> Option<T> {
        let name = rule.name;
        let value = match (self.members.remove(name), rule.default) {
            (Some(value), _) => value,
            (None, Some(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
            (None, None) => {
                self.faults.push(format!("`{name}` is missing"));
                return None;
            }
        };
        converted(value, rule).inspect_err(|fault| self.faults.push(format!("`{name}`: {fault}"))).ok()
    }

    /// Ends the reading. Fails if a member was invalid, or if `params` has a member that is not in `known`.
    pub fn finish(mut self, known: &[&str]) -> Result<(), String> {
        for name in self.members.keys() {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            self.faults.push(match known.is_empty() {
                true => format!("`{name}` is unknown: this stage takes no params"),
                false => format!("`{name}` is unknown: the params are {}", known.join(", ")),
            });
        }
        if self.faults.is_empty() { Ok(()) } else { Err(self.faults.join("; ")) }
    }
}

/// Reads a value, which must be in the range of its member.
fn converted<T: Param>(value: Value, rule: Rule) -> Result<T, String> {
    let number = value.as_f64();
    match (rule.min, rule.max) {
        (Some(min), _) if number.is_some_and(|number| number < min) => {
            Err(format!("{value} is less than {min}"))
        }
        (_, Some(max)) if number.is_some_and(|number| number > max) => {
            Err(format!("{value} is more than {max}"))
        }
        _ => T::deserialize(value).map_err(|error| error.to_string()),
    }
}

macro_rules! plain {
    ($($rust:ty => $members:literal),+ $(,)?) => {
        $(impl Param for $rust {
            const MEMBERS: Json = Json::Text($members);
        })+
    };
}

macro_rules! whole {
    ($($rust:ty => $min:literal, $max:literal);+ $(;)?) => {
        $(impl Param for $rust {
            const MEMBERS: Json = Json::Text(r#""type":"integer""#);
            const MINIMUM: Json = Json::Text(concat!(r#","minimum":"#, $min));
            const MAXIMUM: Json = Json::Text(concat!(r#","maximum":"#, $max));
        })+
    };
}

plain!(
    bool => r#""type":"boolean""#,
    f32 => r#""type":"number""#,
    f64 => r#""type":"number""#,
    String => r#""type":"string""#,
);
whole!(
    u8 => "0", "255";
    u16 => "0", "65535";
    u32 => "0", "4294967295";
    u64 => "0", "18446744073709551615";
    i8 => "-128", "127";
    i16 => "-32768", "32767";
    i32 => "-2147483648", "2147483647";
    i64 => "-9223372036854775808", "9223372036854775807";
);
// The range is 32 bits in native builds too, as in a module, which has 32-bit pointers.
impl Param for usize {
    const MEMBERS: Json = u32::MEMBERS;
    const MINIMUM: Json = u32::MINIMUM;
    const MAXIMUM: Json = u32::MAXIMUM;
}

impl<T: Param> Param for Vec<T> {
    const MEMBERS: Json = Json::Parts(&[
        Json::Text(r#""type":"array","items":{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text("}"),
    ]);
}

impl<T: Param> Param for Option<T> {
    const MEMBERS: Json = Json::Parts(&[
        Json::Text(r#""anyOf":[{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text(r#"},{"type":"null"}]"#),
    ]);
}
