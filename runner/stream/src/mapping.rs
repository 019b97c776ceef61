//! Files of shared memory, and their mappings: the only unsafe code of this crate.
#![expect(
    unsafe_code,
    reason = "other processes could change or truncate a mapped file; the seals of these files prevent it"
)]

use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use rustix::io::retry_on_intr;

/// Seals of a file of shared memory: its size is fixed, and only existing mappings can write to it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// Creates a file of `len` bytes that exists only in memory. Returns the file and its only writable mapping.
pub(crate) fn make(len: usize) -> io::Result<(OwnedFd, MmapMut)> {
    let file = memfd_create("penstock-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // Also allocates the memory: a lack of memory is reported as an error here, instead of by a signal that kills a process at
    // its first write.
    retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len as u64))?;
    // SAFETY: no other process has this file yet. Before any other gets it, it is sealed: it cannot be truncated, and it can only
    // be written to through this mapping.
    let mapping = unsafe { MmapOptions::new().len(len).map_mut(&file)? };
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
    Ok((file, mapping))
}

/// Maps the first `len` bytes of a file that another process created with [`make`]. Writes to the mapping are private to this
/// process. Fails if the file has fewer bytes, or lacks the seals.
pub(crate) fn borrow(file: &OwnedFd, len: usize) -> io::Result<MmapMut> {
    let is_sealed = fcntl_get_seals(file)?.contains(SEALS);
    if !is_sealed || u64::try_from(fstat(file)?.st_size).unwrap_or(0) < len as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is too short, or its size is not sealed",
        ));
    }
    // SAFETY: the file cannot be truncated. Only the process that created it can write to it, and by the protocol of streams it
    // does so only after this process has released the region, which happens after the mapping is dropped.
    unsafe { MmapOptions::new().len(len).map_copy(file) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::ftruncate;

    use super::*;

    #[test]
    fn only_the_creator_can_write_and_no_process_can_resize() {
        let (file, mut made) = make(10_000).unwrap();
        made[..3].copy_from_slice(b"abc");
        let mut borrowed = borrow(&file, 10_000).unwrap();
        assert_eq!(&borrowed[..3], b"abc");
        borrowed[0] = b'x';
        assert_eq!(&made[..3], b"abc", "the other process writes to a copy");
        drop(borrowed);
        assert_eq!(&borrow(&file, 10_000).unwrap()[..3], b"abc");
        assert!(ftruncate(&file, 5_000).is_err() && ftruncate(&file, 20_000).is_err());
        assert!(File::from(file).write_all(b"x").is_err());
    }

    #[test]
    fn a_file_that_could_be_truncated_is_not_mapped() {
        let (file, _made) = make(4096).unwrap();
        assert!(borrow(&file, 4097).is_err());
        let open = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(borrow(&open, 4096).is_err());
    }
}
