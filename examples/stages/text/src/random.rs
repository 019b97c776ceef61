//! Numbers in place of those of the system, which guests do not have: `tokenizers` seeds its hash maps with them.

/// Fills `len` bytes at `dest` with a constant. Tokens depend on no hash map's order, and tokenizers that draw random numbers are refused.
#[expect(unsafe_code, reason = "the crate `getrandom` calls this function by its name")]
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(dest: *mut u8, len: usize) -> Result<(), getrandom::Error> {
    // SAFETY: `getrandom` passes a buffer of `len` bytes that may be written.
    unsafe { dest.write_bytes(0x5e, len) };
    Ok(())
}
