//! Bounded numbers and checked texts of the document: one definition for reading and for the JSON Schema.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A number type that can have bounds.
pub(crate) trait Number: Copy + PartialOrd + Display {
    const WORDS: &'static str;
    const SCHEMA_TYPE: &'static str;
    fn from_u64(value: u64) -> Option<Self>;
    fn from_f64(value: f64) -> Option<Self>;
}

impl Number for u32 {
    const WORDS: &'static str = "a whole number";
    const SCHEMA_TYPE: &'static str = "integer";
    fn from_u64(value: u64) -> Option<Self> {
        Self::try_from(value).ok()
    }
    fn from_f64(_: f64) -> Option<Self> {
        None
    }
}

impl Number for f64 {
    const WORDS: &'static str = "a number";
    const SCHEMA_TYPE: &'static str = "number";
    fn from_u64(value: u64) -> Option<Self> {
        Some(value as Self)
    }
    fn from_f64(value: f64) -> Option<Self> {
        value.is_finite().then_some(value)
    }
}

/// Reads a number from `least` to `most`, inclusive.
pub(crate) fn read_number<'de, N: Number, D: Deserializer<'de>>(
    deserializer: D,
    least: N,
    most: N,
) -> Result<N, D::Error> {
    struct Within<N>(N, N);

    impl<N: Number> Within<N> {
        fn check<E: Error>(self, value: Option<N>, found: Unexpected<'_>) -> Result<N, E> {
            value
                .filter(|value| *value >= self.0 && *value <= self.1)
                .ok_or_else(|| E::invalid_value(found, &self))
        }
    }

    impl<N: Number> Visitor<'_> for Within<N> {
        type Value = N;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} from {} to {}", N::WORDS, self.0, self.1)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<N, E> {
            self.check(N::from_u64(value), Unexpected::Unsigned(value))
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<N, E> {
            let number =
                if value < 0 { N::from_f64(value as f64) } else { N::from_u64(value.unsigned_abs()) };
            self.check(number, Unexpected::Signed(value))
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<N, E> {
            self.check(N::from_f64(value), Unexpected::Float(value))
        }
    }

    deserializer.deserialize_any(Within(least, most))
}

/// Gives a type a schema that stands in place wherever the type is used.
macro_rules! inline_schema {
    ($name:ident, $schema:tt) => {
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// Declares number types with their bounds, reading, schema, and default for a missing value.
macro_rules! bounded {
    ($($(#[$doc:meta])* $name:ident($number:ty): $least:literal to $most:literal $(, else $default:literal)?;)+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name($number);

        impl $name {
            /// Lower bound of the value, inclusive.
            pub const LEAST: $number = $least;
            /// Upper bound of the value, inclusive.
            pub const MOST: $number = $most;

            /// Wraps a value; `None` outside the bounds.
            pub fn new(value: $number) -> Option<Self> {
                (Self::LEAST..=Self::MOST).contains(&value).then_some(Self(value))
            }

            /// Returns the plain number.
            pub fn get(self) -> $number {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                read_number(deserializer, Self::LEAST, Self::MOST).map(Self)
            }
        }

        $(impl Default for $name {
            fn default() -> Self {
                Self($default)
            }
        })?

        inline_schema!($name, { "type": <$number>::SCHEMA_TYPE, "minimum": $least, "maximum": $most });
    )+ };
}

bounded! {
    /// Number of worker threads of a run.
    Threads(u32): 1 to 1024;
    /// Length of a measuring window, in seconds.
    IntervalS(f64): 0.01 to 3600.0, else 1.0;
    /// Memory that a run holds between ops, in MiB.
    BufferMib(u32): 1 to 16_777_216, else 1024;
    /// Maximum number of items in a queue.
    Capacity(u32): 1 to 1_000_000, else 2;
    /// Maximum number of tasks of one stage that run at a time.
    Concurrency(u32): 1 to 4096, else 1;
    /// Number of samples in a batch.
    BatchSize(u32): 1 to 1_000_000;
    /// Memory one instance of a module may use, in MiB.
    MemoryMib(u32): 1 to 4096, else 256;
    /// Data a module may produce from one sample, in MiB. One call returns at most 1,024 MiB, for any number of samples.
    OutputMib(u32): 1 to 1024, else 128;
    /// CPU time a module may use for one sample, in milliseconds.
    DeadlineMs(u32): 1 to 3_600_000, else 5000;
    /// Maximum number of reads of a store in flight at a time.
    Reads(u32): 1 to 4096;
    /// Maximum number of batches delivered and not acknowledged yet.
    Ahead(u32): 1 to 64, else 4;
    /// Longest wait for a client or a reader, in seconds.
    WaitS(f64): 1.0 to 604_800.0, else 300.0;
    /// A duration in milliseconds.
    Millis(f64): 0.0 to 3_600_000.0;
    /// A share of a whole, 0.0 to 1.0.
    Share(f64): 0.0 to 1.0, else 0.0;
    /// Space on a disk, in GiB.
    Gib(f64): 0.001 to 1_000_000.0;
    /// Space on a disk that stays free, in GiB.
    FreeGib(f64): 0.0 to 1_000_000.0, else 10.0;
    /// A share of a whole, in per cent.
    Percent(u32): 1 to 100, else 75;
}

const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;

impl Gib {
    /// The space in bytes.
    pub fn bytes(self) -> u64 {
        (self.get() * BYTES_PER_GIB) as u64
    }
}

impl FreeGib {
    /// The space in bytes.
    pub fn bytes(self) -> u64 {
        (self.get() * BYTES_PER_GIB) as u64
    }
}

impl Millis {
    /// Same time with a precision of nanoseconds.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.get() / 1e3)
    }
}

/// Start of the names of modules that the program contains: `std/image`. No other module has such a name.
pub const STD_PREFIX: &str = "std/";

/// Declares texts with their check, their pattern in the schema, and the form that the fault of an invalid text states.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $is_valid:ident, $pattern:literal, $wanted:expr;)+) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps a text; `None` if its format is invalid.
            pub fn new(text: impl Into<String>) -> Option<Self> {
                let text = text.into();
                $is_valid(&text).then_some(Self(text))
            }

            /// Returns the text as written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                if $is_valid(&text) {
                    return Ok(Self(text));
                }
                let wanted: fn(&str) -> &'static str = $wanted;
                Err(D::Error::invalid_value(Unexpected::Str(&text), &wanted(&text)))
            }
        }

        inline_schema!($name, { "type": "string", "pattern": $pattern });
    )+ };
}

texts! {
    /// Name of a pipeline, stage, store or asset. ASCII letters, digits, `.`, `_` and `-`, starting with a letter or a digit, at most
    /// 128 characters.
    Name: is_name, "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        |_| "1 to 128 letters, digits, `.`, `_` or `-`, starting with a letter or a digit";
    /// Reference to a module: `name`, `name@version-or-alias` or `sha256:` and 64 hex digits. A name may start with `std/`.
    ModuleRef: is_module_ref,
        "^((std/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9][A-Za-z0-9._+-]{0,127})?|sha256:[0-9a-f]{64})$",
        wanted_module;
    /// Key of an object in a store, 1 to 1024 bytes.
    ObjectKey: is_object_key, "^[^\\u0000-\\u001f\\u007f-\\u009f]{1,1024}$",
        |_| "an object's key, 1 to 1024 bytes without control characters";
    /// Device that `transfer` copies batches to, as written.
    DeviceName: is_device, "^(auto|host|cuda:[0-9]{1,3})$", |_| "`auto`, `host` or `cuda:N`";
    /// Character of one byte that separates or encloses the values of a table.
    TableCharacter: is_table_character, "^[\\u0001-\\u0009\\u000b\\u000c\\u000e-\\u007f]$",
        |_| "one ASCII character that is no line end, such as `;`, or `\\t` for a tab";
}

fn is_name(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_module_ref(text: &str) -> bool {
    if let Some(digest) = text.strip_prefix("sha256:") {
        return digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    }
    let text = text.strip_prefix(STD_PREFIX).unwrap_or(text);
    let (name, version) = text.split_once('@').unzip();
    // A version may contain the characters of a name, and the `+` of build metadata.
    let is_version = |version: &str| !version.starts_with('+') && is_name(&version.replace('+', "-"));
    is_name(name.unwrap_or(text)) && version.is_none_or(is_version)
}

fn wanted_module(text: &str) -> &'static str {
    if text.starts_with("oci://") {
        "`name` or `sha256:` and 64 hex digits: a run reads no registry, so that none can delay or fail it; pull the \
         module first, and name it here"
    } else {
        "`name`, `name@version-or-alias`, `std/name` or `sha256:` and 64 hex digits"
    }
}

fn is_object_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 1024 && !text.chars().any(char::is_control)
}

fn is_device(text: &str) -> bool {
    matches!(text, "auto" | "host")
        || text.strip_prefix("cuda:").is_some_and(|index| {
            (1..=3).contains(&index.len()) && index.bytes().all(|byte| byte.is_ascii_digit())
        })
}

fn is_table_character(text: &str) -> bool {
    matches!(text.as_bytes(), [byte] if byte.is_ascii() && !matches!(byte, 0 | b'\n' | b'\r'))
}
