//! Rows that a document selects by comparisons.

use std::cmp::Ordering;

use penstock_types::spec::{ComparedValue, Comparison, Operator};

use super::columns::{Kind, Leaf};
use super::decode::Column;
use super::fault::FileFault;
use super::footer::{Chunk, Statistics};

/// Number of words from one count to the next.
const GROUP: usize = 8;

/// Selected rows of a row group: a bit for each row, and a count for each 512 rows.
#[derive(Debug)]
pub(super) struct Selected {
    words: Box<[u64]>,
    /// Number of selected rows before each group of words.
    before: Box<[u32]>,
    pub(super) count: u64,
}

impl Selected {
    pub(super) fn new(rows: impl IntoIterator<Item = bool>) -> Self {
        let (mut words, mut before, mut count) = (Vec::new(), Vec::new(), 0_u64);
        for (row, is_selected) in rows.into_iter().enumerate() {
            if row % 64 == 0 {
                if words.len() % GROUP == 0 {
                    before.push(u32::try_from(count).unwrap_or(u32::MAX));
                }
                words.push(0);
            }
            if let (true, Some(word)) = (is_selected, words.last_mut()) {
                *word |= 1_u64 << (row % 64);
                count += 1;
            }
        }
        Self { words: words.into(), before: before.into(), count }
    }

    /// The selected row at `position`. Panics when `position` is not below the number of selected rows.
    pub(super) fn row(&self, position: u64) -> u64 {
        assert!(position < self.count, "position {position} of {} selected rows", self.count);
        let group = self.before.partition_point(|before| u64::from(*before) <= position) - 1;
        let mut left = (position - u64::from(self.before[group])) as u32;
        let mut at = group * GROUP;
        while self.words[at].count_ones() <= left {
            left -= self.words[at].count_ones();
            at += 1;
        }
        let mut word = self.words[at];
        for _ in 0..left {
            word &= word - 1;
        }
        at as u64 * 64 + u64::from(word.trailing_zeros())
    }

    pub(super) fn bytes(&self) -> u64 {
        (size_of_val(&self.words[..]) + size_of_val(&self.before[..])) as u64
    }
}

/// Checks that the values of a column can be compared with that of the document.
pub(super) fn check(comparison: &Comparison, leaf: &Leaf) -> Result<(), FileFault> {
    let is_text = matches!(comparison.value, ComparedValue::Text(_));
    let reason = match leaf.kind {
        _ if !leaf.lists.is_empty() => "has lists, which are not compared",
        Kind::Blob | Kind::None(_) => "has values that are not compared",
        Kind::Text if !is_text => "has texts, and `where` compares it with a number",
        Kind::Text => return Ok(()),
        _ if is_text => "has numbers, and `where` compares it with a text",
        _ => return Ok(()),
    };
    Err(FileFault::column(&leaf.name, reason))
}

/// True if a row meets a comparison. A null meets none.
pub(super) fn meets(comparison: &Comparison, column: &Column, row: usize) -> bool {
    let order = match &comparison.value {
        ComparedValue::Text(text) => column.content(row).map(|content| content.cmp(text.as_bytes())),
        number => match (column.int(row), column.real(row)) {
            (Some(int), _) => compare_int(int, number),
            (_, Some(real)) if real.is_nan() => return comparison.op == Operator::NotEqual,
            (_, Some(real)) => compare_real(real, number),
            (None, None) => None,
        },
    };
    order.is_some_and(|order| comparison.op.accepts(order))
}

/// False if the bounds of a row group exclude that a row meets the comparison.
pub(super) fn may_meet(comparison: &Comparison, leaf: &Leaf, chunk: &Chunk, statistics: &Statistics) -> bool {
    if statistics.nulls.is_some_and(|nulls| nulls == chunk.values) {
        return false;
    }
    let bound = |bytes: &Option<bytes::Bytes>| {
        bytes.as_ref().and_then(|bytes| compare_bound(bytes, leaf.kind, &comparison.value))
    };
    let (least, most) = (bound(&statistics.least), bound(&statistics.most));
    match comparison.op {
        Operator::Equal => least != Some(Ordering::Greater) && most != Some(Ordering::Less),
        Operator::NotEqual => true,
        Operator::Less => !matches!(least, Some(Ordering::Greater | Ordering::Equal)),
        Operator::AtMost => least != Some(Ordering::Greater),
        Operator::Greater => !matches!(most, Some(Ordering::Less | Ordering::Equal)),
        Operator::AtLeast => most != Some(Ordering::Less),
    }
}

/// Order of an encoded bound and a value; `None` if it is not known.
fn compare_bound(bound: &[u8], kind: Kind, value: &ComparedValue) -> Option<Ordering> {
    match (kind, value) {
        (Kind::Text, ComparedValue::Text(text)) => Some(bound.cmp(text.as_bytes())),
        (Kind::Int { is_unsigned: false, .. }, number) => match bound.len() {
            4 => compare_int(i32::from_le_bytes(bound.try_into().ok()?).into(), number),
            8 => compare_int(i64::from_le_bytes(bound.try_into().ok()?), number),
            _ => None,
        },
        (Kind::Float32, number) => compare_real(f32::from_le_bytes(bound.try_into().ok()?).into(), number),
        (Kind::Float64, number) => compare_real(f64::from_le_bytes(bound.try_into().ok()?), number),
        _ => None,
    }
}

fn compare_int(int: i64, value: &ComparedValue) -> Option<Ordering> {
    match value {
        ComparedValue::Bool(is_true) => Some(int.cmp(&i64::from(*is_true))),
        ComparedValue::Int(other) => Some(int.cmp(other)),
        ComparedValue::Real(_) | ComparedValue::Text(_) => match compare_real(int as f64, value)? {
            // Numbers beyond 2^53 may be equal only because they were rounded.
            Ordering::Equal => match value {
                ComparedValue::Real(real) => Some(i128::from(int).cmp(&(*real as i128))),
                _ => None,
            },
            order => Some(order),
        },
    }
}

fn compare_real(real: f64, value: &ComparedValue) -> Option<Ordering> {
    match value {
        ComparedValue::Bool(is_true) => real.partial_cmp(&f64::from(u8::from(*is_true))),
        ComparedValue::Int(other) => real.partial_cmp(&(*other as f64)),
        ComparedValue::Real(other) => real.partial_cmp(other),
        ComparedValue::Text(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_of_selected_rows_are_their_order(rows in proptest::collection::vec(proptest::bool::weighted(0.2), 0..3000)) {
            let expected: Vec<u64> = (0..).zip(&rows).filter(|(_, is_selected)| **is_selected).map(|(row, _)| row).collect();
            let selected = Selected::new(rows);
            prop_assert_eq!(selected.count, expected.len() as u64);
            let found: Vec<u64> = (0..selected.count).map(|position| selected.row(position)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn large_numbers_are_compared_exactly() {
        let large = (1_i64 << 53) + 1;
        assert_eq!(compare_int(large, &ComparedValue::Real((1_i64 << 53) as f64)), Some(Ordering::Greater));
        assert_eq!(compare_int(i64::MAX, &ComparedValue::Real(2_f64.powi(63))), Some(Ordering::Less));
        assert_eq!(compare_int(3, &ComparedValue::Real(2.5)), Some(Ordering::Greater));
        assert_eq!(compare_int(1, &ComparedValue::Bool(true)), Some(Ordering::Equal));
        assert_eq!(compare_real(f64::NAN, &ComparedValue::Int(1)), None);
    }
}
