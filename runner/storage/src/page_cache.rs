//! Determines which pages of a file are in this machine's page cache, and drops them.
#![expect(unsafe_code, reason = "probing the page cache needs a mapping; the mapping is never read")]

use std::io;

use cap_std::fs::File;
use memmap2::{Mmap, MmapOptions};
use rustix::fs::{Advice, fadvise, fdatasync, fstatfs};
use rustix::param::page_size;

/// Maximum number of pages of a file that are checked.
const MOST_PAGES: usize = 8;

/// Distance in bytes after the end of a file at which no page of the file can be in memory, for any page size.
const FAR: usize = 1 << 30;

/// Magic number of tmpfs, a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// Drops the file's pages. Returns false if the file system does not support dropping pages, or keeps the file only in memory.
pub(crate) fn forget(file: &File) -> bool {
    // Files on tmpfs exist only in memory.
    if fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS) {
        return false;
    }
    // Pages with unwritten changes cannot be dropped, so they are written first. If writing fails or is not permitted, they stay
    // in the cache.
    fdatasync(file).unwrap_or_default();
    fadvise(file, 0, None, Advice::DontNeed).is_ok()
}

/// Fraction of the file's pages that are cached, from a sample of pages spread over `size`; `None` if unknown. The check itself
/// loads no page.
pub(crate) fn cached_share(file: &File, size: u64) -> io::Result<Option<f64>> {
    let pages = usize::try_from(size.div_ceil(page_size() as u64)).map_err(io::Error::other)?;
    let looks = pages.min(MOST_PAGES);
    if looks == 0 {
        return Ok(None);
    }
    let nothing = pages + FAR / page_size();
    // SAFETY: the mapping is never read, so changes of the file do not matter.
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
    // For a process that may not write the file, the system reports all pages as cached, even pages after the file's end.
    if is_in_memory(&mapping, nothing)? {
        return Ok(None);
    }
    let mut cached = 0;
    for look in 0..looks {
        // The checked pages are the first, the last, and evenly spaced pages in between.
        let page = (pages - 1) * look / (looks - 1).max(1);
        cached += usize::from(is_in_memory(&mapping, page)?);
    }
    Ok(Some(cached as f64 / looks as f64))
}

fn is_in_memory(mapping: &Mmap, page: usize) -> io::Result<bool> {
    let mut flags = 0;
    let at = mapping.as_ptr().wrapping_add(page * page_size());
    // SAFETY: callers pass pages of the mapping, and `mincore` writes one byte for one page.
    match unsafe { libc::mincore(at.cast_mut().cast(), page_size(), &mut flags) } {
        0 => Ok(flags & 1 == 1),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A check must not load pages: otherwise it would report a state that it had caused itself.
    #[test]
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn probing_loads_no_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, vec![7; 20 * page_size()]).unwrap();
        let file = File::from_std(fs::File::open(&path).unwrap());
        let share = || cached_share(&file, 20 * page_size() as u64).unwrap();
        if share().is_none() || !forget(&file) {
            eprintln!(
                "skipped: the file system of the temporary folder does not report cached pages, or keeps files only in memory"
            );
            return;
        }
        fs::read(&path).unwrap();
        assert_eq!(share(), Some(1.0));
        // A page that is in use at the time of the call stays cached, so the call may have to be repeated.
        let is_gone = (0..50).any(|_| forget(&file) && share() == Some(0.0));
        assert!(is_gone);
        assert!((0..50).all(|_| share() == Some(0.0)));
    }
}
