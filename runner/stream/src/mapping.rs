//! Files of shared memory, and their mappings: the one place of this crate that the compiler cannot check.
#![expect(
    unsafe_code,
    reason = "others could change or cut off a file that is mapped; the seals of these do not let them"
)]

use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use rustix::io::retry_on_intr;

/// Seals of a file: its size is fixed, and only mappings that exist already write to it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// Makes a file of `len` bytes that is nowhere but in memory, and its only mapping that can be written to.
pub(crate) fn make(len: usize) -> io::Result<(OwnedFd, MmapMut)> {
    let file = memfd_create("penstock-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // With its memory, so that there is an error here where there is none, and nothing that kills who writes to it.
    retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len as u64))?;
    // SAFETY: nobody else has this file yet. Before anybody gets it, it is sealed: it becomes no shorter, and nobody writes to it
    // but through this mapping.
    let mapping = unsafe { MmapOptions::new().len(len).map_mut(&file)? };
    fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
    Ok((file, mapping))
}

/// Maps the first `len` bytes of a file that another process has made as [`make`] does. What is written to the mapping is seen by
/// this process alone. Fails for a file that has fewer bytes, or that is not sealed so.
pub(crate) fn borrow(file: &OwnedFd, len: usize) -> io::Result<MmapMut> {
    let is_sealed = fcntl_get_seals(file)?.contains(SEALS);
    if !is_sealed || u64::try_from(fstat(file)?.st_size).unwrap_or(0) < len as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is too short, or its size is not sealed",
        ));
    }
    // SAFETY: the file becomes no shorter. Only the process that made it can write to it, and by the protocol of streams it does
    // not before this one has said that it does not read it any more, which it says when the mapping is gone.
    unsafe { MmapOptions::new().len(len).map_copy(file) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::ftruncate;

    use super::*;

    #[test]
    fn only_the_maker_changes_what_is_there_and_nobody_its_size() {
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
    fn a_file_that_could_be_cut_off_is_not_mapped() {
        let (file, _made) = make(4096).unwrap();
        assert!(borrow(&file, 4097).is_err());
        let open = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(borrow(&open, 4096).is_err());
    }
}
