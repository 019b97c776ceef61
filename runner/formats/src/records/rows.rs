//! Rows of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csv_core::ReadRecordResult;
use penstock_engine::item::{Field, Value};
use penstock_types::data_set::DataField;
use penstock_types::spec::{ColumnType, TableForm};

use super::RecordFault;
use super::charset::Charset;
use super::delimiter;
use super::kinds::field_type;
use super::layout::{KeyAndFields, MAX_COLUMNS, SAMPLE_KEY, restart};
use super::written::{MAX_EXACT, is_inexact};
use crate::value::{listed, shortened};

#[derive(Debug, Default, PartialEq)]
pub(super) struct Columns(Vec<Column>);

#[derive(Debug, PartialEq)]
struct Column {
    name: Arc<str>,
    becomes: Becomes,
}

/// Use of a column's values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Becomes {
    Key,
    Field(ColumnType),
    /// Column without a name, as pandas writes for the index of a table.
    Nothing,
}

pub(super) struct RowParser {
    form: TableForm,
    pub(super) reader: csv_core::Reader,
    /// Values of the current row without quotes, one behind the other, and their ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Columns {
    /// Fields of the rows, in order. Of a column of texts, each row has a value.
    pub(super) fn fields(&self) -> impl Iterator<Item = DataField> {
        self.0.iter().filter_map(|Column { name, becomes }| {
            let Becomes::Field(kind) = becomes else { return None };
            let optional = (*kind == ColumnType::Text).then_some(false);
            Some(DataField { name: name.clone(), kind: field_type(*kind), optional })
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|column| &*column.name)
    }

    /// Bytes that the columns take in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|column| (size_of::<Column>() + column.name.len()) as u64).sum()
    }
}

impl RowParser {
    pub(super) fn new(form: TableForm, reader: csv_core::Reader) -> Self {
        Self { form, reader, text: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn columns(
        &mut self,
        header: &[u8],
        charset: Charset,
        key: Option<&str>,
        types: &BTreeMap<String, ColumnType>,
    ) -> Result<Columns, RecordFault> {
        let form = self.form;
        if header.contains(&0) && !matches!(charset, Charset::Utf16 { .. }) {
            return Err(RecordFault::ZeroByte);
        }
        let Some(names) = self
            .row(header, MAX_COLUMNS)
            .map_err(|invalid| invalid.fault(charset, |column| format!("column {}", column + 1)))?
        else {
            return Err(RecordFault::TooManyColumns);
        };
        delimiter::check(header, &names, form)?;
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !name.is_empty() && !seen.insert(**name)) {
            return Err(RecordFault::ColumnTwice { name: (*twice).to_owned() });
        }
        if let Some(missing) = key.filter(|name| !seen.contains(name)) {
            return Err(RecordFault::NoColumn {
                name: missing.to_owned(),
                columns: listed_names(names.iter().copied()),
            });
        }
        let becomes = |name: &str| match name {
            "" => Becomes::Nothing,
            _ if name == key.unwrap_or(SAMPLE_KEY) => Becomes::Key,
            _ => Becomes::Field(types.get(name).copied().unwrap_or_default()),
        };
        Ok(Columns(
            names.into_iter().map(|name| Column { name: name.into(), becomes: becomes(name) }).collect(),
        ))
    }

    /// Key and fields of the row `text`.
    pub(super) fn values(
        &mut self,
        text: &[u8],
        charset: Charset,
        columns: &Columns,
    ) -> Result<KeyAndFields, RecordFault> {
        let Columns(columns) = columns;
        let values = self.row(text, columns.len()).map_err(|invalid| {
            let name = |column: usize| columns.get(column).map_or("", |column| &*column.name);
            invalid.fault(charset, |column| format!("the column `{}`", name(column).escape_debug()))
        })?;
        let values = values.ok_or(RecordFault::MoreValues { columns: columns.len() })?;
        if values.len() < columns.len() {
            return Err(RecordFault::Values { found: values.len(), columns: columns.len() });
        }
        let (mut key, mut fields) = (None, Vec::with_capacity(columns.len()));
        for (Column { name, becomes }, text) in columns.iter().zip(values) {
            match becomes {
                Becomes::Nothing => {}
                Becomes::Key => key = (!text.is_empty()).then(|| Arc::from(text)),
                Becomes::Field(kind) => {
                    let value = value(*kind, text).map_err(|is_inexact| match is_inexact {
                        true => {
                            RecordFault::Inexact { name: name.to_string(), number: text.trim().to_owned() }
                        }
                        false => RecordFault::Value {
                            column: name.to_string(),
                            kind: kind.name(),
                            found: shortened(text),
                        },
                    })?;
                    fields.extend(value.map(|value| Field { name: name.clone(), value }));
                }
            }
        }
        Ok((key, fields))
    }

    /// Values of the row that `text` begins with; `None` if there are more than `most`.
    pub(super) fn row(&mut self, text: &[u8], most: usize) -> Result<Option<Vec<&str>>, InvalidRow<'_>> {
        self.text.resize(text.len() + 1, 0);
        self.ends.resize(most + 1, 0);
        let (mut result, _, written, mut count) =
            self.reader.read_record(text, &mut self.text, &mut self.ends);
        if result == ReadRecordResult::InputEmpty {
            // The last row may lack its line end. Within quotes, a line end is part of a value.
            let more;
            (result, _, _, more) =
                self.reader.read_record(b"\n", &mut self.text[written..], &mut self.ends[count..]);
            count += more;
        }
        self.ends.truncate(count);
        if result != ReadRecordResult::Record {
            // The next row is another one, not the rest of this one.
            restart(&mut self.reader);
        }
        match result {
            ReadRecordResult::Record if count <= most => {}
            ReadRecordResult::InputEmpty => return Err(InvalidRow::Quote),
            _ => return Ok(None),
        }
        let invalid = InvalidRow::NotText { text: &self.text, ends: &self.ends };
        let Ok(values) = str::from_utf8(&self.text[..self.ends.last().copied().unwrap_or(0)]) else {
            return Err(invalid);
        };
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        // The bytes of a character may lie in two values: then neither is UTF-8.
        let values = starts.zip(&self.ends).map(|(start, end)| values.get(start..*end));
        values.collect::<Option<_>>().ok_or(invalid).map(Some)
    }
}

/// Reason why a row has no values.
pub(super) enum InvalidRow<'a> {
    Quote,
    /// A value cannot be decoded.
    NotText {
        text: &'a [u8],
        ends: &'a [usize],
    },
}

impl InvalidRow<'_> {
    /// Fault of the row, whose columns have these names.
    fn fault(self, charset: Charset, name_of: impl Fn(usize) -> String) -> RecordFault {
        let Self::NotText { text, ends } = self else { return RecordFault::Quote };
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let values = starts.zip(ends).map(|(start, end)| &text[start..*end]);
        let invalid = values.enumerate().find_map(|(column, value)| {
            let valid = str::from_utf8(value).err()?.valid_up_to();
            Some((column, &value[valid..]))
        });
        let (column, at) = invalid.unwrap_or_default();
        let (what, remedy) = (charset.describe(at), charset.remedy());
        RecordFault::NotText { what, place: name_of(column), remedy }
    }
}

/// Names of columns in a message.
pub(super) fn listed_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    listed(names.filter(|name| !name.is_empty()).map(str::escape_debug), "")
}

/// Value of a column of this type; `None` if it is missing. The error is true for a whole number that would be rounded.
pub(super) fn value(kind: ColumnType, text: &str) -> Result<Option<Value>, bool> {
    let trimmed = text.trim();
    Ok(Some(match kind {
        ColumnType::Text => Value::Text(text.to_owned()),
        _ if trimmed.is_empty() => return Ok(None),
        ColumnType::Int => Value::Int(trimmed.parse().ok().or_else(|| whole_number(trimmed)).ok_or(false)?),
        ColumnType::Float => match trimmed.parse::<f64>() {
            Ok(real) if real.abs() >= MAX_EXACT && is_inexact(trimmed) => return Err(true),
            real => Value::Real(real.map_err(|_| false)?),
        },
        ColumnType::Bool => match trimmed.to_ascii_lowercase().as_str() {
            "true" | "1" => Value::Int(1),
            "false" | "0" => Value::Int(0),
            _ => return Err(false),
        },
    }))
}

/// Whole number that a decimal number such as `3.0` or `1e3` stands for, as libraries write whole numbers beside missing ones; `None` for any
/// other text.
pub(super) fn whole_number(text: &str) -> Option<i64> {
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (decimal, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((decimal, exponent)) => (decimal, exponent.parse::<i32>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, broken) = decimal.split_once('.').unwrap_or((decimal, ""));
    let digits = || whole.bytes().chain(broken.bytes());
    if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // The number is `significant` times ten to the power of `power`.
    let zeros = digits().rev().take_while(|digit| *digit == b'0').count();
    let mut significant = 0_i128;
    for digit in digits().take(whole.len() + broken.len() - zeros) {
        significant = significant.checked_mul(10)?.checked_add((digit - b'0').into())?;
    }
    if significant == 0 {
        return Some(0);
    }
    let power = i64::from(exponent) + i64::try_from(zeros).ok()? - i64::try_from(broken.len()).ok()?;
    let number = significant.checked_mul(10_i128.checked_pow(u32::try_from(power).ok()?)?)?;
    i64::try_from(if is_negative { -number } else { number }).ok()
}

#[cfg(test)]
mod tests {
    use super::super::layout::reader;
    use super::*;

    fn parser() -> RowParser {
        RowParser::new(b','.into(), reader(b','.into()))
    }

    fn columns(header: &str, key: Option<&str>, types: &[(&str, ColumnType)]) -> Result<Columns, String> {
        let types = types.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect();
        parser().columns(header.as_bytes(), Charset::Utf8, key, &types).map_err(|fault| fault.to_string())
    }

    fn values(header: &str, types: &[(&str, ColumnType)], row: &[u8]) -> Result<Vec<Value>, String> {
        let columns = columns(header, None, types)?;
        let (_, fields) = parser().values(row, Charset::Utf8, &columns).map_err(|fault| fault.to_string())?;
        Ok(fields.into_iter().map(|field| field.value).collect())
    }

    #[test]
    fn a_row_without_an_end_does_not_change_the_next_one() {
        let columns = columns("a,b", None, &[]).unwrap();
        let mut parser = parser();
        for broken in ["1,\"x", "1,2,3,4,5\n"] {
            assert!(parser.values(broken.as_bytes(), Charset::Utf8, &columns).is_err());
            // A byte order mark within a table is text.
            let (_, fields) = parser.values("\u{feff}3,y\n".as_bytes(), Charset::Utf8, &columns).unwrap();
            let fields: Vec<Value> = fields.into_iter().map(|field| field.value).collect();
            assert_eq!(fields, [Value::Text("\u{feff}3".to_owned()), Value::Text("y".to_owned())]);
        }
    }

    #[test]
    fn values_have_the_types_of_their_columns() {
        use ColumnType::{Bool, Float, Int};
        let types = [("a", Int), ("b", Float), ("c", Bool)];
        let read = |row: &str| values("a,b,c,d", &types, row.as_bytes());
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(
            read("-7,1e-3,True,007\n").unwrap(),
            [Value::Int(-7), Value::Real(1e-3), Value::Int(1), text("007")]
        );
        assert_eq!(read(" 9223372036854775807 ,inf,0,\" x\"").unwrap()[3], text(" x"));
        assert_eq!(read(",,,").unwrap(), [text("")]);
        for (whole, number) in [
            ("3.0", 3),
            ("-3.000", -3),
            ("+7.", 7),
            ("1e3", 1_000),
            ("1.25E+2", 125),
            ("1200e-2", 12),
            ("0.0", 0),
            ("-0.0e99", 0),
            ("9223372036854775807.0", i64::MAX),
            ("-9223372036854775808.0", i64::MIN),
        ] {
            assert_eq!(values("a", &types[..1], whole.as_bytes()).unwrap(), [Value::Int(number)], "{whole}");
        }
        for other in [
            "7.5",
            "3.0000001",
            "1e-1",
            "1.25e1",
            "9223372036854775808.0",
            "1e19",
            "1e99999999999",
            ".",
            "e3",
            "3.0.0",
            "0x3",
            "inf",
            "nan",
            "3,0",
            "--3.0",
            "3.-0",
        ] {
            let fault = values("a", &types[..1], format!("\"{other}\"").as_bytes()).unwrap_err();
            assert_eq!(fault, format!("has `{other}` in the column `a`, which is no `int`"));
        }
        for (row, fault) in [
            ("x,,,", "has `x` in the column `a`, which is no `int`"),
            ("9223372036854775808,,,", "has `9223372036854775808` in the column `a`, which is no `int`"),
            ("7.5,,,", "has `7.5` in the column `a`, which is no `int`"),
            (",1.2.3,,", "has `1.2.3` in the column `b`, which is no `float`"),
            (
                ",9007199254740993 ,,",
                "has the whole number 9007199254740993 as `b`, a `float`, which does not hold it exactly; set the type `int` or `text` \
                 in `types`",
            ),
            (",,yes,", "has `yes` in the column `c`, which is no `bool`"),
            ("1,2,1", "has 3 values, and the header names 4 columns"),
            ("1,2,1,4,5,6,7", "has more values than the 4 columns that the header names"),
            ("1,2,1,\"open\n", "has a quote without its end"),
        ] {
            assert_eq!(read(row).unwrap_err(), fault, "{row}");
        }
    }

    #[test]
    fn texts_that_are_not_utf8_are_refused_even_if_their_neighbours_complete_them() {
        assert_eq!(
            values("a,b", &[], b"\xc3,\xa9\n").unwrap_err(),
            "is not UTF-8: it has the byte 0xc3 in the column `a`; set `encoding`, for example `\"encoding\": \"windows-1252\"`"
        );
        assert_eq!(
            values("a,b", &[], b"a,\xff\n").unwrap_err(),
            "is not UTF-8: it has the byte 0xff in the column `b`; set `encoding`, for example `\"encoding\": \"windows-1252\"`"
        );
    }

    #[test]
    fn tables_with_the_same_header_share_its_columns() {
        let format =
            super::super::RecordFormat::rows(b',', BTreeMap::from([("b".to_owned(), ColumnType::Int)]));
        let [first, same, other, again] = ["a,b", "a,\"b\"", "b,a", "a,b"].map(|header| {
            let columns = format.columns(header.as_bytes(), Charset::Utf8, true).unwrap().unwrap();
            assert_eq!(columns.names().collect::<String>(), header.replace(['"', ','], ""));
            columns
        });
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        assert_eq!(first, again);
    }

    #[test]
    fn headers_name_each_column_once() {
        assert_eq!(columns(",a,,b", None, &[]).unwrap().0.len(), 4);
        assert_eq!(columns("a,\"a\"", None, &[]).unwrap_err(), "names the column `a` twice");
        let missing = "names no column `id`; its columns are `a`, `b\\n`";
        assert_eq!(columns("a,\"b\n\"", Some("id"), &[]).unwrap_err(), missing);
        let many = ",".repeat(MAX_COLUMNS);
        assert_eq!(
            columns(&many, None, &[]).unwrap_err(),
            "names more than 16384 columns, which is the limit"
        );
    }
}
