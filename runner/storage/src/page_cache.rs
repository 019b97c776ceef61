//! What this machine keeps of a file in memory.
#![expect(unsafe_code, reason = "what is in memory is asked of a mapping; nothing is read from it")]

use std::io;

use cap_std::fs::File;
use memmap2::{Mmap, MmapOptions};
use rustix::fs::{Advice, fadvise, fdatasync, fstatfs};
use rustix::param::page_size;

/// Most pages of a file that are probed.
const MOST_PAGES: usize = 8;

/// Distance behind the end of a file at which nothing of it can be in memory, however large the system's pages.
const FAR: usize = 1 << 30;

/// Magic number of a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// Drops the file's pages. Returns false if its file system cannot be asked, or has the file nowhere else.
pub(crate) fn forget(file: &File) -> bool {
    // Such files are nowhere but in memory.
    if fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS) {
        return false;
    }
    // A page that was not written yet is not dropped. Where writing fails, or is not allowed, such pages just stay.
    fdatasync(file).unwrap_or_default();
    fadvise(file, 0, None, Advice::DontNeed).is_ok()
}

/// Share of probed pages, spread over `size`, that are in memory; `None` if unknown. Probing loads nothing.
pub(crate) fn cached_share(file: &File, size: u64) -> io::Result<Option<f64>> {
    let pages = usize::try_from(size.div_ceil(page_size() as u64)).map_err(io::Error::other)?;
    let looks = pages.min(MOST_PAGES);
    if looks == 0 {
        return Ok(None);
    }
    let nothing = pages + FAR / page_size();
    // SAFETY: nobody reads from the mapping, whatever becomes of the file.
    let mapping = unsafe { MmapOptions::new().len((nothing + 1) * page_size()).map(file) };
    let mapping = match mapping {
        Ok(mapping) => mapping,
        Err(error)
            if error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(libc::ENODEV) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // To those who may not write the file, the system says that all of it is in memory, and more.
    if is_in_memory(&mapping, nothing)? {
        return Ok(None);
    }
    let mut cached = 0;
    for look in 0..looks {
        // The first page, the last one, and evenly between.
        let page = (pages - 1) * look / (looks - 1).max(1);
        cached += usize::from(is_in_memory(&mapping, page)?);
    }
    Ok(Some(cached as f64 / looks as f64))
}

fn is_in_memory(mapping: &Mmap, page: usize) -> io::Result<bool> {
    let mut told = 0;
    let at = mapping.as_ptr().wrapping_add(page * page_size());
    // SAFETY: the page is mapped, for the callers name pages of the mapping, and one byte is told for one page.
    match unsafe { libc::mincore(at.cast_mut().cast(), page_size(), &mut told) } {
        0 => Ok(told & 1 == 1),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A probe must not load the page, or its answer would be true only afterwards.
    #[test]
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn looking_loads_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, vec![7; 20 * page_size()]).unwrap();
        let file = File::from_std(fs::File::open(&path).unwrap());
        let share = || cached_share(&file, 20 * page_size() as u64).unwrap();
        if share().is_none() || !forget(&file) {
            eprintln!("skipped: what the temporary folder has in memory is not told, or is nowhere else");
            return;
        }
        fs::read(&path).unwrap();
        assert_eq!(share(), Some(1.0));
        // A page that the system is using at that moment stays.
        let is_gone = (0..50).any(|_| forget(&file) && share() == Some(0.0));
        assert!(is_gone);
        assert!((0..50).all(|_| share() == Some(0.0)));
    }
}
