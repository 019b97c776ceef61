//! Memory of a row group that is decoded.

use crate::cache::Reserved;

/// Reserved bytes of a row group that is decoded. They grow if values in the encoding DELTA_BYTE_ARRAY take more than was assumed.
pub(super) struct Growing {
    pub(super) reserved: Reserved,
    /// Reserved bytes that are left to these values of the current column.
    left: u64,
    /// Bytes that they have taken.
    pub(super) taken: u64,
    /// True if the current column has such values.
    may_grow: bool,
    /// Set once more bytes were needed and not free.
    pub(super) is_short: bool,
}

impl Growing {
    pub(super) fn new(reserved: Reserved) -> Self {
        Self { reserved, left: 0, taken: 0, may_grow: false, is_short: false }
    }

    /// Begins a column whose values may take `expanded` of the reserved bytes. They may grow unless this is 0.
    pub(super) fn begin(&mut self, expanded: u64) {
        (self.left, self.taken, self.may_grow) = (expanded, 0, expanded > 0);
    }

    /// Takes memory for values. Returns false if there is none.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        if let Some(more @ 1..) = bytes.checked_sub(self.left) {
            if !self.may_grow || !self.reserved.grow_by(more) {
                self.is_short = self.may_grow;
                return false;
            }
            self.left += more;
        }
        self.left -= bytes;
        self.taken += bytes;
        true
    }
}
