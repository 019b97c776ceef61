//! Guest text made fit for people, and numbers for messages.

pub(crate) use penstock_types::text::printable;

/// A number of bytes in MiB, rounded up, for messages.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Lower-case hexadecimal digits of a digest.
pub(crate) fn hex(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::with_capacity(2 * digest.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}
