//! Bytes as a source of decisions: after their end all values are zero, so that every input is valid and a byte more or less has
//! a small effect.

/// Maximum number of elements of a list.
const MAX_LENGTH: u8 = 40;

/// Unread bytes of an input.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.u8() % 2 == 1
    }

    /// Returns `None` in seven of eight cases.
    pub(crate) fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.u8() % 8 == 7).then(|| value(self))
    }

    /// Reads values until the input ends, up to a limit.
    pub(crate) fn list<T>(&mut self, value: impl Fn(&mut Self) -> T) -> Vec<T> {
        let length = self.u8() % MAX_LENGTH;
        let mut values = Vec::new();
        while values.len() < usize::from(length) && !self.0.is_empty() {
            values.push(value(self));
        }
        values
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (head, rest) = self.0.split_at(self.0.len().min(N));
        bytes[..head.len()].copy_from_slice(head);
        self.0 = rest;
        bytes
    }
}
