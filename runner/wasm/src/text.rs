//! Guest text made fit for people, and numbers for messages.

pub(crate) use penstock_types::text::printable;

/// A number of bytes in MiB, rounded up, for messages.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
