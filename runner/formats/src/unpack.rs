//! Decompression into memory of a known size.
//!
//! A function returns the number of bytes that it has filled, or `None` if the content is longer; the error is a reason.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::Bytes;

use crate::reason::Reason;

/// The content of `size` bytes that `unpack` fills; `None` if it is longer or shorter. The caller has checked that this much memory may
/// be taken.
pub(crate) fn whole(
    size: u64,
    unpack: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Reason>,
) -> Result<Option<Bytes>, Reason> {
    let size = usize::try_from(size).map_err(|_| "does not fit into memory".to_owned())?;
    let mut content = vec![0; size];
    let filled = unpack(&mut content).map_err(|reason| format!("cannot be decompressed: {reason}"))?;
    Ok((filled == Some(size)).then(|| content.into()))
}

/// Decompresses Brotli, of which nothing else may follow. Its window takes up to 16 MiB beside the content: the extension for larger ones
/// is refused.
pub(crate) fn brotli(packed: &[u8], content: &mut [u8]) -> Result<Option<usize>, Reason> {
    let alloc = StandardAlloc::default;
    let mut state = BrotliState::new_strict(alloc(), alloc(), alloc());
    let (mut packed_left, mut packed_at, mut left, mut at) = (packed.len(), 0, content.len(), 0);
    // One call takes all input, and stops where the content is full.
    let result = BrotliDecompressStream(
        &mut packed_left,
        &mut packed_at,
        packed,
        &mut left,
        &mut at,
        content,
        &mut 0,
        &mut state,
    );
    match result {
        BrotliResult::ResultSuccess if packed_left == 0 => Ok(Some(at)),
        BrotliResult::ResultSuccess => Err(format!("{packed_left} bytes follow its end").into()),
        BrotliResult::NeedsMoreOutput => Ok(None),
        BrotliResult::NeedsMoreInput => Err("it is cut off".into()),
        BrotliResult::ResultFailure => Err(format!("it is no Brotli: {:?}", state.error_code).into()),
    }
}

/// Decompresses a block of Snappy, which states its length.
pub(crate) fn snappy(packed: &[u8], content: &mut [u8]) -> Result<Option<usize>, Reason> {
    let length = snap::raw::decompress_len(packed).map_err(|error| error.to_string())?;
    match length <= content.len() {
        true => {
            let filled = snap::raw::Decoder::new().decompress(packed, content);
            Ok(Some(filled.map_err(|error| error.to_string())?))
        }
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hello` by the tool `brotli`.
    const HELLO: &[u8] = &[0x0b, 0x02, 0x80, b'h', b'e', b'l', b'l', b'o', 0x03];

    #[test]
    fn content_is_filled_or_refused_with_a_reason() {
        let unpacked = |packed: &[u8], size: u64| whole(size, |content| brotli(packed, content));
        assert_eq!(unpacked(HELLO, 5), Ok(Some(Bytes::from_static(b"hello"))));
        assert_eq!((unpacked(HELLO, 4), unpacked(HELLO, 6)), (Ok(None), Ok(None)));
        for length in 0..HELLO.len() {
            let reason = unpacked(&HELLO[..length], 5).unwrap_err().to_string();
            assert_eq!(reason, "cannot be decompressed: it is cut off", "{length}");
        }
        let more = [HELLO, b"x"].concat();
        assert_eq!(
            unpacked(&more, 5).unwrap_err().to_string(),
            "cannot be decompressed: 1 bytes follow its end"
        );
    }

    #[test]
    fn a_window_beyond_the_standard_is_refused() {
        // A window of 2^30 bytes, and an empty block.
        let reason = brotli(&[0x11, 30, 0x03, 0, 0, 0], &mut [0; 8]).unwrap_err().to_string();
        assert!(reason.starts_with("it is no Brotli: "), "{reason}");
    }
}
