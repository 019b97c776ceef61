//! Schemas: the tree of columns in a footer.

use parquet::basic::{Repetition, Type as Physical};

use super::fault::FileFault;
use super::thrift::{BINARY, BYTE, Compact, I32, LIST, STRUCT, TRUE};

/// Maximum number of groups in each other.
const MAX_DEPTH: usize = 32;

const MAX_NODES: usize = 200_000;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) repetition: Repetition,
    pub(super) annotation: Annotation,
    pub(super) form: Form,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Column {
        physical: Physical,
        /// Bytes of a value, if all values have the same length.
        length: i32,
        /// Number of digits behind the point of decimals.
        scale: i32,
    },
    Group(Vec<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    /// The values are what their type says.
    Plain,
    Text,
    List,
    Map,
    Decimal,
    /// Whole numbers with this number of bits.
    Signed(u8),
    Unsigned(u8),
    Float16,
    Interval,
    /// Days since 1970-01-01.
    Date,
    /// Time of day in this unit.
    Time(Unit),
    /// Time since 1970-01-01 in this unit, either of UTC or of no time zone.
    Timestamp {
        unit: Unit,
        is_utc: bool,
    },
    /// All values are null.
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    /// Name of the unit, in the plural.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Millis => "milliseconds",
            Self::Micros => "microseconds",
            Self::Nanos => "nanoseconds",
        }
    }
}

/// Reads the columns and groups at the root of the schema in a footer.
pub(super) fn read(footer: &[u8]) -> Result<Vec<Node>, FileFault> {
    match root(footer).map(|root| root.form) {
        Some(Form::Group(nodes)) => Ok(nodes),
        _ => Err(FileFault::damaged("its footer has no valid schema")),
    }
}

fn root(footer: &[u8]) -> Option<Node> {
    let (mut input, mut last) = (Compact::new(footer), 0);
    while let Some((number, kind)) = input.field(&mut last)? {
        if (number, kind) != (2, LIST) {
            input.skip(kind)?;
            continue;
        }
        let (kind, mut count) = input.list()?;
        if kind != STRUCT || count > MAX_NODES {
            return None;
        }
        let mut root = node(&mut input, &mut count, MAX_DEPTH)?;
        if matches!(root.form, Form::Column { .. }) {
            // A file without columns.
            root.form = Form::Group(Vec::new());
        }
        return (count == 0).then_some(root);
    }
    None
}

/// The next node with all nodes in it. `count` is the number of elements that follow.
fn node(input: &mut Compact<'_>, count: &mut usize, depth: usize) -> Option<Node> {
    let depth = depth.checked_sub(1)?;
    *count = count.checked_sub(1)?;
    let (mut node, children) = element(input)?;
    if children > 0 {
        // Each child has an element, so that a count beyond them ends with the elements.
        let children = (0..children).map(|_| self::node(input, count, depth)).collect::<Option<_>>()?;
        node.form = Form::Group(children);
    }
    Some(node)
}

/// An element of the list that stands for the tree, in depth-first order, and the number of its children.
fn element(input: &mut Compact<'_>) -> Option<(Node, usize)> {
    let (mut last, mut name, mut children) = (0, String::new(), 0);
    let (mut physical, mut length, mut repetition, mut scale) = (None, 0, Repetition::REQUIRED, 0);
    let (mut converted, mut logical) = (Annotation::Plain, Annotation::Plain);
    while let Some((number, kind)) = input.field(&mut last)? {
        match (number, kind) {
            (1, I32) => physical = Some(physical_of(input.int()?)?),
            (2, I32) => length = i32::try_from(input.int()?).ok()?,
            (3, I32) => {
                repetition = match input.int()? {
                    0 => Repetition::REQUIRED,
                    1 => Repetition::OPTIONAL,
                    2 => Repetition::REPEATED,
                    _ => return None,
                }
            }
            (4, BINARY) => name = str::from_utf8(input.binary()?).ok()?.to_owned(),
            (5, I32) => children = usize::try_from(input.int()?).ok()?,
            (6, I32) => converted = converted_of(input.int()?),
            (7, I32) => scale = i32::try_from(input.int()?).ok()?,
            (10, STRUCT) => logical = logical_of(input)?,
            _ => input.skip(kind)?,
        }
    }
    let form = match physical {
        Some(physical) if children == 0 => Form::Column { physical, length, scale },
        _ => Form::Group(Vec::new()),
    };
    let annotation = if logical == Annotation::Plain { converted } else { logical };
    Some((Node { name, repetition, annotation, form }, children))
}

fn physical_of(number: i64) -> Option<Physical> {
    Some(match number {
        0 => Physical::BOOLEAN,
        1 => Physical::INT32,
        2 => Physical::INT64,
        3 => Physical::INT96,
        4 => Physical::FLOAT,
        5 => Physical::DOUBLE,
        6 => Physical::BYTE_ARRAY,
        7 => Physical::FIXED_LEN_BYTE_ARRAY,
        _ => return None,
    })
}

/// Annotation in the older form. Its timestamps have no time zone, as in pyarrow.
fn converted_of(number: i64) -> Annotation {
    match number {
        0 | 4 | 19 => Annotation::Text,
        1 | 2 => Annotation::Map,
        3 => Annotation::List,
        5 => Annotation::Decimal,
        6 => Annotation::Date,
        7 => Annotation::Time(Unit::Millis),
        8 => Annotation::Time(Unit::Micros),
        9 => Annotation::Timestamp { unit: Unit::Millis, is_utc: false },
        10 => Annotation::Timestamp { unit: Unit::Micros, is_utc: false },
        11..=14 => Annotation::Unsigned(8 << (number - 11)),
        15..=18 => Annotation::Signed(8 << (number - 15)),
        21 => Annotation::Interval,
        _ => Annotation::Plain,
    }
}

/// Annotation in the newer form: one of several structs.
fn logical_of(input: &mut Compact<'_>) -> Option<Annotation> {
    let (mut last, mut annotation) = (0, Annotation::Plain);
    while let Some((number, kind)) = input.field(&mut last)? {
        annotation = match (number, kind) {
            (7 | 8, STRUCT) => {
                let (unit, is_utc) = time_of(input)?;
                match (number, unit) {
                    (_, None) => Annotation::Plain,
                    (7, Some(unit)) => Annotation::Time(unit),
                    (_, Some(unit)) => Annotation::Timestamp { unit, is_utc },
                }
            }
            (10, STRUCT) => {
                let (mut last, mut bits, mut is_signed) = (0, 0, false);
                while let Some((number, kind)) = input.field(&mut last)? {
                    match (number, kind) {
                        (1, BYTE) => bits = input.byte()?,
                        (2, _) => is_signed = kind == TRUE,
                        _ => input.skip(kind)?,
                    }
                }
                if is_signed { Annotation::Signed(bits) } else { Annotation::Unsigned(bits) }
            }
            _ => {
                input.skip(kind)?;
                match number {
                    1 | 4 | 12 => Annotation::Text,
                    2 => Annotation::Map,
                    3 => Annotation::List,
                    5 => Annotation::Decimal,
                    6 => Annotation::Date,
                    11 => Annotation::Null,
                    15 => Annotation::Float16,
                    _ => Annotation::Plain,
                }
            }
        };
    }
    Some(annotation)
}

/// Unit of a time, unless it is unknown, and true for times of UTC.
fn time_of(input: &mut Compact<'_>) -> Option<(Option<Unit>, bool)> {
    let (mut last, mut unit, mut is_utc) = (0, None, false);
    while let Some((number, kind)) = input.field(&mut last)? {
        match (number, kind) {
            (1, _) => is_utc = kind == TRUE,
            (2, STRUCT) => {
                let mut last = 0;
                while let Some((number, kind)) = input.field(&mut last)? {
                    input.skip(kind)?;
                    unit = match number {
                        1 => Some(Unit::Millis),
                        2 => Some(Unit::Micros),
                        3 => Some(Unit::Nanos),
                        _ => None,
                    };
                }
            }
            _ => input.skip(kind)?,
        }
    }
    Some((unit, is_utc))
}
