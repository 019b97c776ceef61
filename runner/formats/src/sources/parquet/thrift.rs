//! Reader of Thrift's compact protocol, in which footers and page headers are written.
//!
//! Each method returns `None` if the bytes are damaged. Nothing is allocated, and no count is trusted: the time is linear in the bytes.

use penstock_types::varint;

pub(super) const TRUE: u8 = 1;
const FALSE: u8 = 2;
pub(super) const BYTE: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
pub(super) const STRUCT: u8 = 12;

/// Maximum number of structs and lists in each other.
const MAX_DEPTH: u32 = 24;

/// Values that follow each other in bytes.
pub(super) struct Compact<'a> {
    rest: &'a [u8],
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that follow the last value.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Number and type of the next field of a struct, or `Some(None)` at its end. The value follows, except that of a boolean, which is
    /// its type. `last` is the number of the field before, 0 at first.
    pub(super) fn field(&mut self, last: &mut i16) -> Option<Option<(i16, u8)>> {
        let head = self.byte()?;
        if head & 0x0f == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => i16::try_from(self.int()?).ok()?,
            delta => last.checked_add(i16::from(delta))?,
        };
        Some(Some((*last, head & 0x0f)))
    }

    /// Type and number of the elements of a list, which follow.
    pub(super) fn list(&mut self) -> Option<(u8, usize)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            count => usize::from(count),
        };
        // Each element takes a byte at least.
        (count <= self.rest.len()).then_some((head & 0x0f, count))
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn int(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A number that is not negative.
    pub(super) fn count(&mut self) -> Option<u64> {
        u64::try_from(self.int()?).ok()
    }

    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    /// Leaves out a value of this type.
    pub(super) fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_at(kind, MAX_DEPTH)
    }

    fn skip_at(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.take(1).map(drop),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let ((kind, count), depth) = (self.list()?, depth.checked_sub(1)?);
                // A boolean takes a byte in a list.
                let kind = if matches!(kind, TRUE | FALSE) { BYTE } else { kind };
                (0..count).try_for_each(|_| self.skip_at(kind, depth))
            }
            STRUCT => {
                let (depth, mut last) = (depth.checked_sub(1)?, 0);
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_at(kind, depth)?;
                }
                Some(())
            }
            // The format has no maps.
            _ => None,
        }
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        varint::take(&mut self.rest)
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_numbered_by_steps_or_by_themselves() {
        // Field 1: int 5; field 3: true; field 40: "ab"; the end.
        let bytes = [0x15, 10, 0x21, 0x08, 80, 2, b'a', b'b', 0, 0xff];
        let (mut input, mut last) = (Compact::new(&bytes), 0);
        assert_eq!(input.field(&mut last), Some(Some((1, I32))));
        assert_eq!(input.int(), Some(5));
        assert_eq!(input.field(&mut last), Some(Some((3, TRUE))));
        assert_eq!(input.field(&mut last), Some(Some((40, BINARY))));
        assert_eq!(input.binary(), Some(&b"ab"[..]));
        assert_eq!(input.field(&mut last), Some(None));
        assert_eq!(input.rest(), [0xff]);
    }

    #[test]
    fn structs_in_each_other_have_a_limit() {
        let nested = |depth: usize| [vec![0x1c; depth], vec![0; depth + 1]].concat();
        assert!(Compact::new(&nested(MAX_DEPTH as usize - 1)).skip(STRUCT).is_some());
        assert!(Compact::new(&nested(MAX_DEPTH as usize)).skip(STRUCT).is_none());
    }

    proptest! {
        #[test]
        fn damaged_bytes_end_soon(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..16) {
            let mut input = Compact::new(&bytes);
            input.skip(kind);
            prop_assert!(input.rest().len() <= bytes.len());
        }
    }
}
