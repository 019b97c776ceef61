//! Bytes as they lie in the database: compressed, and checked when they are read.

/// Higher ones cost more time and save next to nothing on differences.
const COMPRESSION: i32 = 3;

pub(super) fn compressed(bytes: &[u8]) -> Vec<u8> {
    let compress = || {
        let mut compressor = zstd::bulk::Compressor::new(COMPRESSION)?;
        // Without it, a bit that a disk turns over would be another number.
        compressor.include_checksum(true)?;
        compressor.compress(bytes)
    };
    compress().expect("compressing into memory does not fail")
}

/// The bytes again, `most` of them at most; or why they cannot be had.
pub(super) fn decompressed(packed: &[u8], most: usize) -> Result<Vec<u8>, &'static str> {
    // The bytes are our own, but a damaged length must not take all memory.
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().unwrap_or(0);
    let size = usize::try_from(size).ok().filter(|size| *size <= most).ok_or("it is too large")?;
    zstd::bulk::decompress(packed, size).map_err(|_| "it does not decompress")
}
