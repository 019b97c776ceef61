//! Decoded columns of a row group, and the values of their rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use penstock_engine::item::{Field, Tensor, Value};

use super::columns::{Kind, Leaf};
use super::footer::Chunk;
use super::pages::Pages;
use crate::lists::offsets;
use crate::reason::Reason;

/// Number of rows that are decoded at a time.
const BATCH: usize = 4096;

/// Size of the smallest blobs that share the memory of their pages, in bytes: copying smaller ones takes less time.
const LEAST_SHARED: usize = 1024;

/// Maximum distance of a time of 96 bits from 1970-01-01, in seconds: its nanoseconds have 64 bits.
const MAX_SECONDS: i64 = i64::MAX / 1_000_000_000 - 1;

pub(super) struct Column {
    kind: Kind,
    values: Values,
    /// True for each row without a value; empty if all have one.
    nulls: Vec<bool>,
    lists: Option<Lists>,
}

enum Values {
    Ints(Vec<i64>),
    Reals(Vec<f64>),
    /// Texts and blobs, which share the memory of their pages.
    Bytes(Vec<ByteArray>),
    /// Elements of lists, little-endian.
    Elements(Vec<u8>),
}

/// Places of the lists in a column.
struct Lists {
    depth: usize,
    /// Position of the first element of each row, and the number of elements.
    starts: Vec<usize>,
    /// Lengths of the list of each row, the outermost first.
    shapes: Vec<u32>,
    /// True if NaN stands for nulls in the lists.
    has_nan: bool,
    /// Rows whose lists are no tensors, with the reasons.
    odd: BTreeMap<usize, &'static str>,
}

/// Reason why a row has no value of a column.
pub(super) enum RowFault {
    /// The value is damaged. The reason is the end of a sentence about the column.
    Damaged(Reason),
    /// The value is a list that cannot become a field. The reason is a noun phrase.
    Shape(&'static str),
}

/// Lengths of the list that is being read.
struct Shape<'a> {
    leaf: &'a Leaf,
    /// Number of elements so far of the open list of each depth.
    counts: Vec<u32>,
    /// Length of all lists of each depth, if one has ended.
    lengths: Vec<Option<u32>>,
    is_open: bool,
    odd: Option<&'static str>,
}

/// Decodes the pages of a column chunk of `rows` rows. The error is the end of a sentence about the column.
pub(super) fn decode(pages: Pages, chunk: &Chunk, leaf: &Leaf, rows: u64) -> Result<Column, Reason> {
    if leaf.lists.is_empty() && chunk.values != rows {
        return Err(format!("has {} values for {rows} rows by the footer", chunk.values).into());
    }
    let (kind, is_list) = (leaf.kind, !leaf.lists.is_empty());
    let values = match kind {
        Kind::Text | Kind::Blob | Kind::None(_) => Values::Bytes(Vec::new()),
        _ if is_list => Values::Elements(Vec::new()),
        Kind::Bool | Kind::Int { .. } | Kind::Int96 => Values::Ints(Vec::new()),
        Kind::Float16 | Kind::Float32 | Kind::Float64 | Kind::Decimal { .. } => Values::Reals(Vec::new()),
    };
    let lists = is_list.then(|| Lists {
        depth: leaf.lists.len(),
        starts: vec![0],
        shapes: Vec::new(),
        has_nan: leaf.has_nan && kind.is_float(),
        odd: BTreeMap::new(),
    });
    let mut column = Column { kind, values, nulls: Vec::new(), lists };
    match get_column_reader(leaf.descr.clone(), Box::new(pages)) {
        ColumnReader::BoolColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            values.add_ints(more.iter().map(|value| i64::from(*value)), |value| [value as u8]);
            Ok(())
        })?,
        ColumnReader::Int32ColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            match kind {
                Kind::Int { is_unsigned: true, .. } => {
                    values.add_numbers(kind, more.iter().map(|value| (*value as u32).into()));
                }
                _ => values.add_numbers(kind, more.iter().map(|value| (*value).into())),
            }
            Ok(())
        })?,
        ColumnReader::Int64ColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            if matches!(kind, Kind::Int { is_unsigned: true, .. }) && more.iter().any(|value| *value < 0) {
                return Err("has a number beyond 9223372036854775807, the largest one of a field".into());
            }
            values.add_numbers(kind, more.iter().copied());
            Ok(())
        })?,
        ColumnReader::Int96ColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            if more.iter().any(|time| time.to_seconds().abs() > MAX_SECONDS) {
                return Err(
                    "has a time before 1678 or after 2261, which is no number of nanoseconds in 64 bits"
                        .into(),
                );
            }
            values.add_ints(more.iter().map(|value| value.to_nanos()), i64::to_le_bytes);
            Ok(())
        })?,
        ColumnReader::FloatColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            match values {
                Values::Elements(elements) => add(elements, more.iter().map(|value| value.to_le_bytes())),
                values => values.add_reals(more.iter().map(|value| f64::from(*value))),
            }
            Ok(())
        })?,
        ColumnReader::DoubleColumnReader(reader) => column.read(leaf, reader, rows, |values, more| {
            values.add_reals(more.iter().copied());
            Ok(())
        })?,
        ColumnReader::ByteArrayColumnReader(reader) => {
            column.read(leaf, reader, rows, |values, more| values.add_bytes(kind, more.iter()))?;
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            column.read(leaf, reader, rows, |values, more| {
                values.add_bytes(kind, more.iter().map(|value| &**value))
            })?;
        }
    }
    Ok(column)
}

/// Number of a decimal with `scale` digits behind its point, rounded once.
fn decimal(digits: i128, scale: i32) -> f64 {
    // float64 holds both exactly.
    if digits.unsigned_abs() <= 1 << 53 && (0..=22).contains(&scale) {
        return digits as f64 / 10_f64.powi(scale);
    }
    format!("{digits}e{}", -i64::from(scale)).parse().expect("a number with an exponent")
}

fn add<const SIZE: usize>(elements: &mut Vec<u8>, more: impl ExactSizeIterator<Item = [u8; SIZE]>) {
    elements.reserve(SIZE * more.len());
    more.for_each(|bytes| elements.extend_from_slice(&bytes));
}

impl Values {
    fn len(&self, kind: Kind) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Reals(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Elements(elements) => elements.len() / kind.element_bytes(),
        }
    }

    /// Adds whole numbers, or the digits of decimals.
    fn add_numbers(&mut self, kind: Kind, more: impl ExactSizeIterator<Item = i64>) {
        match (kind, kind.element_bytes()) {
            (Kind::Decimal { scale }, _) => {
                self.add_reals(more.map(|digits| decimal(digits.into(), scale)));
            }
            (_, 1) => self.add_ints(more, |value| [value as u8]),
            (_, 2) => self.add_ints(more, |value| (value as u16).to_le_bytes()),
            (_, 4) => self.add_ints(more, |value| (value as u32).to_le_bytes()),
            _ => self.add_ints(more, i64::to_le_bytes),
        }
    }

    fn add_ints<const SIZE: usize>(
        &mut self,
        more: impl ExactSizeIterator<Item = i64>,
        bytes: impl Fn(i64) -> [u8; SIZE],
    ) {
        match self {
            Self::Ints(values) => values.extend(more),
            Self::Elements(elements) => add(elements, more.map(bytes)),
            Self::Reals(_) | Self::Bytes(_) => {}
        }
    }

    fn add_reals(&mut self, more: impl ExactSizeIterator<Item = f64>) {
        match self {
            Self::Reals(values) => values.extend(more),
            Self::Elements(elements) => add(elements, more.map(f64::to_le_bytes)),
            Self::Ints(_) | Self::Bytes(_) => {}
        }
    }

    fn add_bytes<'a>(&mut self, kind: Kind, more: impl Iterator<Item = &'a ByteArray>) -> Result<(), Reason> {
        for value in more {
            match (&mut *self, kind) {
                (Self::Bytes(values), _) => values.push(value.clone()),
                (values, Kind::Decimal { scale }) => {
                    let bytes = value.data();
                    let Some(start) = 16_usize.checked_sub(bytes.len()) else {
                        return Err("has decimals of more than 16 bytes".into());
                    };
                    let is_negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
                    let mut digits = [if is_negative { 0xff } else { 0 }; 16];
                    digits[start..].copy_from_slice(bytes);
                    values.add_reals([decimal(i128::from_be_bytes(digits), scale)].into_iter());
                }
                (Self::Elements(elements), _) => elements.extend_from_slice(value.data()),
                (values, _) => {
                    let bits = value.data().first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
                    values.add_reals([half::f16::from_bits(bits).to_f64()].into_iter());
                }
            }
        }
        Ok(())
    }

    /// Adds an element in place of a null: NaN, if the elements have it, and otherwise 0.
    fn add_null_element(&mut self, kind: Kind) {
        let Self::Elements(elements) = self else { return self.add_null() };
        match kind {
            Kind::Float16 => elements.extend_from_slice(&half::f16::NAN.to_le_bytes()),
            Kind::Float32 => elements.extend_from_slice(&f32::NAN.to_le_bytes()),
            Kind::Float64 | Kind::Decimal { .. } => elements.extend_from_slice(&f64::NAN.to_le_bytes()),
            kind => elements.resize(elements.len() + kind.element_bytes(), 0),
        }
    }

    fn add_null(&mut self) {
        match self {
            Self::Ints(values) => values.push(0),
            Self::Reals(values) => values.push(0.0),
            // Without memory of its own, unlike `ByteArray::new`, whose methods panic.
            Self::Bytes(values) => values.push(ByteArray::from(Bytes::new())),
            Self::Elements(_) => {}
        }
    }
}

impl Column {
    fn read<T: DataType>(
        &mut self,
        leaf: &Leaf,
        mut reader: ColumnReaderImpl<T>,
        rows: u64,
        mut add: impl FnMut(&mut Values, &[T::T]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let highest = leaf.descr.max_def_level();
        let (mut levels, mut repeats, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let mut shape = Shape {
            leaf,
            counts: vec![0; leaf.lists.len()],
            lengths: vec![None; leaf.lists.len()],
            is_open: false,
            odd: None,
        };
        let mut read = 0_u64;
        while read < rows {
            levels.clear();
            repeats.clear();
            values.clear();
            let most = BATCH.min(usize::try_from(rows - read).unwrap_or(BATCH));
            let (records, _, _) = reader
                .read_records(most, Some(&mut levels), Some(&mut repeats), &mut values)
                .map_err(|error| reason(&error))?;
            if records == 0 {
                return Err(format!("ends after {read} of {rows} rows").into());
            }
            read += records as u64;
            if self.lists.is_some() {
                self.add_lists(&mut shape, &levels, &repeats, &values, &mut add)?;
            } else if values.len() != records {
                self.add_with_nulls(highest, &levels, &values, &mut add)?;
            } else {
                add(&mut self.values, &values)?;
                if !self.nulls.is_empty() {
                    self.nulls.resize(self.nulls.len() + records, false);
                }
            }
        }
        let found = self.lists.as_ref().map_or(self.values.len(self.kind), |lists| lists.starts.len() - 1);
        if found as u64 == rows { Ok(()) } else { Err(format!("has {found} values for {rows} rows").into()) }
    }

    /// Adds the elements of rows that are lists.
    fn add_lists<T>(
        &mut self,
        shape: &mut Shape<'_>,
        levels: &[i16],
        repeats: &[i16],
        values: &[T],
        add: &mut impl FnMut(&mut Values, &[T]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let Some(lists) = &mut self.lists else { return Ok(()) };
        if levels.len() != repeats.len() || values.len() > levels.len() {
            return Err("has a different number of levels of both kinds".into());
        }
        let first = self.values.len(self.kind);
        let highest = shape.leaf.descr.max_def_level();
        let innermost = shape.leaf.lists.last().copied().unwrap_or(highest);
        let is_null = |level: &i16| (innermost..highest).contains(level);
        if levels.iter().any(is_null) {
            let elements = levels.iter().filter(|level| **level >= innermost);
            let mut rest = values;
            for is_null in elements.map(is_null) {
                if is_null {
                    self.values.add_null_element(self.kind);
                    continue;
                }
                let (one, behind) = rest.split_at_checked(1).ok_or("has fewer values than levels")?;
                add(&mut self.values, one)?;
                rest = behind;
            }
        } else {
            add(&mut self.values, values)?;
        }
        let end = shape.read(lists, levels, repeats, first)?;
        if end != self.values.len(self.kind) {
            return Err("has a different number of values than its levels".into());
        }
        shape.end(lists, end);
        Ok(())
    }

    /// Adds the values of rows of which some are nulls.
    fn add_with_nulls<T>(
        &mut self,
        highest: i16,
        levels: &[i16],
        values: &[T],
        add: &mut impl FnMut(&mut Values, &[T]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.nulls.resize(self.values.len(self.kind), false);
        let mut rest = values;
        for run in levels.chunk_by(|one, other| (*one == highest) == (*other == highest)) {
            let has_values = run.first() == Some(&highest);
            if has_values {
                let (more, behind) =
                    rest.split_at_checked(run.len()).ok_or("has fewer values than levels")?;
                add(&mut self.values, more)?;
                rest = behind;
            } else {
                run.iter().for_each(|_| self.values.add_null());
            }
            self.nulls.resize(self.nulls.len() + run.len(), !has_values);
        }
        Ok(())
    }

    /// Bytes that the values take, without the pages of texts and blobs.
    pub(super) fn bytes(&self) -> u64 {
        let values = match &self.values {
            Values::Ints(values) => size_of_val(&values[..]),
            Values::Reals(values) => size_of_val(&values[..]),
            Values::Bytes(values) => size_of_val(&values[..]),
            Values::Elements(elements) => elements.len(),
        };
        let lists = self
            .lists
            .as_ref()
            .map_or(0, |lists| size_of_val(&lists.starts[..]) + size_of_val(&lists.shapes[..]));
        (values + self.nulls.len() + lists) as u64
    }

    pub(super) fn keeps_pages(&self) -> bool {
        matches!(self.values, Values::Bytes(_))
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.get(row).is_some_and(|is_null| *is_null)
    }

    /// Whole number or truth value of a row.
    pub(super) fn int(&self, row: usize) -> Option<i64> {
        match &self.values {
            Values::Ints(values) if !self.is_null(row) => values.get(row).copied(),
            _ => None,
        }
    }

    pub(super) fn real(&self, row: usize) -> Option<f64> {
        match &self.values {
            Values::Reals(values) if !self.is_null(row) => values.get(row).copied(),
            _ => None,
        }
    }

    /// Bytes of the text or blob of a row.
    pub(super) fn content(&self, row: usize) -> Option<&[u8]> {
        match &self.values {
            Values::Bytes(values) if !self.is_null(row) => values.get(row).map(ByteArray::data),
            _ => None,
        }
    }

    /// Bytes of a blob that is large enough to share the memory of its page.
    pub(super) fn large_blob(&self, row: usize) -> Option<&[u8]> {
        let is_blob = self.kind == Kind::Blob && self.lists.is_none();
        self.content(row).filter(|content| is_blob && content.len() >= LEAST_SHARED)
    }

    /// Memory that the value of a row takes, in bytes. A dictionary may make few bytes of a file many.
    pub(super) fn value_bytes(&self, row: usize) -> u64 {
        let bytes = match (&self.lists, &self.values) {
            (None, Values::Bytes(_)) => self.content(row).map_or(0, <[u8]>::len),
            (None, _) => 0,
            (Some(lists), Values::Elements(_)) => {
                (lists.starts[row + 1] - lists.starts[row]) * self.kind.element_bytes()
            }
            (Some(_), _) if self.kind == Kind::Text => json_bytes(self.parts(row)),
            (Some(_), _) => {
                let sizes = self.parts(row).iter().map(|part| part.len().saturating_add(size_of::<u64>()));
                sizes.fold(0, usize::saturating_add)
            }
        };
        (bytes + size_of::<Field>()) as u64
    }

    /// Value of a row; `None` for a null. The memory of the value is its own.
    pub(super) fn value(&self, row: usize) -> Result<Option<Value>, RowFault> {
        if let Some(lists) = &self.lists {
            return self.list(lists, row);
        }
        Ok(match &self.values {
            Values::Ints(_) => self.int(row).map(Value::Int),
            Values::Reals(_) => self.real(row).map(Value::Real),
            Values::Bytes(_) | Values::Elements(_) => match self.content(row) {
                Some(content) if self.kind == Kind::Text => {
                    Some(Value::Text(text(content).map_err(RowFault::Damaged)?.to_owned()))
                }
                Some(content) => Some(Value::Blob(Bytes::copy_from_slice(content))),
                None => None,
            },
        })
    }

    /// Places of the blobs in the list of a row that has a value.
    pub(super) fn offsets(&self, row: usize) -> Result<Value, RowFault> {
        offsets(self.parts(row).iter().map(ByteArray::len)).map_err(RowFault::Damaged)
    }

    /// True if a row of this column, which has paths, names a file that `bytes` does not contain.
    pub(super) fn names_file_beside(&self, bytes: &Self, row: usize) -> bool {
        match self.lists {
            Some(_) => {
                let mut pairs = self.parts(row).iter().zip(bytes.parts(row));
                pairs.any(|(path, bytes)| !path.is_empty() && bytes.is_empty())
            }
            None => self.content(row).is_some() && bytes.content(row).is_none(),
        }
    }

    /// Texts or blobs in the list of a row.
    fn parts(&self, row: usize) -> &[ByteArray] {
        match (&self.values, &self.lists) {
            (Values::Bytes(values), Some(lists)) => &values[lists.starts[row]..lists.starts[row + 1]],
            _ => &[],
        }
    }

    fn list(&self, lists: &Lists, row: usize) -> Result<Option<Value>, RowFault> {
        match lists.odd.get(&row) {
            Some(reason) if *reason == NULL_ELEMENT && self.keeps_pages() => {
                return Err(RowFault::Shape(NULL_PART));
            }
            Some(reason) if *reason != NULL_ELEMENT || !lists.has_nan => return Err(RowFault::Shape(reason)),
            _ => {}
        }
        let shape = &lists.shapes[row * lists.depth..(row + 1) * lists.depth];
        if shape.first() == Some(&NULL) {
            return Ok(None);
        }
        let (start, end) = (lists.starts[row], lists.starts[row + 1]);
        Ok(Some(match (&self.values, self.kind.dtype()) {
            (Values::Elements(elements), Some(dtype)) => {
                let data = Bytes::copy_from_slice(&elements[start * dtype.size()..end * dtype.size()]);
                Value::Tensor(Tensor { dtype, shape: shape.to_vec(), data })
            }
            (Values::Bytes(_), _) => {
                let parts = self.parts(row);
                if self.kind == Kind::Blob {
                    let mut all = Vec::with_capacity(parts.iter().map(ByteArray::len).sum());
                    parts.iter().for_each(|part| all.extend_from_slice(part.data()));
                    return Ok(Some(Value::Blob(all.into())));
                }
                let texts = parts
                    .iter()
                    .map(|value| text(value.data()))
                    .collect::<Result<Vec<&str>, _>>()
                    .map_err(RowFault::Damaged)?;
                Value::Text(json(&texts, json_bytes(parts)))
            }
            _ => return Ok(None),
        }))
    }
}

/// Texts as a list in JSON, of which `bytes` is the largest size.
fn json(texts: &[&str], bytes: usize) -> String {
    let mut list = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut list, texts).expect("texts can be written to memory");
    String::from_utf8(list).expect("JSON is UTF-8")
}

/// Largest size of a list of these texts in JSON, in bytes.
fn json_bytes(texts: &[ByteArray]) -> usize {
    let escaped = |byte: &u8| match byte {
        ..b' ' => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    let quoted = |text: &ByteArray| 3 + text.data().iter().map(escaped).sum::<usize>();
    texts.iter().map(quoted).fold(2, usize::saturating_add)
}

const NULL_ELEMENT: &str = "a null in a list, which cannot become a tensor (`\"missing\": {\"NAME\": \"nan\"}` makes it NaN in a list of float numbers)";

const NULL_PART: &str = "a null in a list, in which it would be an empty text or blob";

/// Length of a list that is null.
const NULL: u32 = u32::MAX;

impl Shape<'_> {
    /// Reads the levels of rows whose values begin at the element `first`; returns the position behind the last element.
    fn read(
        &mut self,
        lists: &mut Lists,
        levels: &[i16],
        repeats: &[i16],
        first: usize,
    ) -> Result<usize, Reason> {
        let highest = self.leaf.descr.max_def_level();
        let mut element = first;
        for (level, repeat) in levels.iter().zip(repeats) {
            let repeat = usize::try_from(*repeat).unwrap_or(usize::MAX);
            if repeat > lists.depth || (repeat > 0 && !self.is_open) || *level > highest {
                return Err("has levels that contradict each other".into());
            }
            if repeat == 0 {
                self.end(lists, element);
                self.is_open = true;
                self.lengths.fill(None);
            } else {
                self.close(repeat);
                self.counts[repeat - 1] = self.counts[repeat - 1].saturating_add(1);
            }
            // Lists that begin here: those that have an element, and an empty one or a null.
            let filled = self.leaf.lists.iter().take_while(|list| *level >= **list).count();
            if filled < repeat {
                return Err("has levels that contradict each other".into());
            }
            self.counts[repeat..filled].fill(1);
            self.counts[filled..].fill(0);
            if filled == lists.depth {
                if *level < highest {
                    self.odd.get_or_insert(NULL_ELEMENT);
                }
                element += 1;
            } else if *level + 1 < self.leaf.lists[filled] {
                if filled > 0 {
                    self.odd = Some("a null in a list of lists");
                } else {
                    self.counts[0] = NULL;
                }
            }
        }
        Ok(element)
    }

    /// Ends the lists that are deeper than `depth`.
    fn close(&mut self, depth: usize) {
        for (count, length) in self.counts.iter().zip(&mut self.lengths).skip(depth) {
            if *length.get_or_insert(*count) != *count {
                self.odd = Some("lists of different lengths in one list, which make no tensor");
            }
        }
    }

    /// Ends the row that is open, whose values end before `element`.
    fn end(&mut self, lists: &mut Lists, element: usize) {
        if std::mem::take(&mut self.is_open) {
            self.close(0);
            if let Some(reason) = self.odd.take() {
                lists.odd.insert(lists.starts.len() - 1, reason);
            }
            lists.shapes.extend(self.lengths.iter().map(|length| length.unwrap_or(0)));
            lists.starts.push(element);
        }
    }
}

fn text(content: &[u8]) -> Result<&str, Reason> {
    Ok(str::from_utf8(content).map_err(|error| format!("has a text that is not UTF-8: {error}"))?)
}

/// Reason of an error: of our own pages, or of the library.
fn reason(error: &ParquetError) -> String {
    match error {
        ParquetError::External(reason) => reason.to_string(),
        ParquetError::General(reason) => format!("is damaged: {reason}"),
        error => format!("is damaged: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_rounded_once() {
        for (digits, scale, number) in [
            (92_803_113_672_226_432_739, 18, 92.803_113_672_226_43),
            (-28_745_203_199_329_668_372, 12, -28_745_203.199_329_667),
            (20_391_423_592_273_241_939, 21, 0.020_391_423_592_273_243),
            (12_345, 2, 123.45),
            (-5, 0, -5.0),
            (7, -2, 700.0),
            (1, 30, 1e-30),
        ] {
            assert_eq!(decimal(digits, scale), number, "{digits} {scale}");
        }
    }
}
