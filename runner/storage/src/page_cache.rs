//! What this machine keeps of a file in memory.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::AsFd;

use cap_std::fs::File;
use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Most pages of a file that are looked at: looking may load them.
const MOST_PAGES: u64 = 8;

/// Bytes of a page; of the larger ones that some machines have, several are looked at in one.
const PAGE_BYTES: u64 = 4096;

/// Asks for the file's pages to be dropped. Says whether its file system can be asked.
pub(crate) fn forget(file: &File) -> bool {
    // A page that was not written yet is not dropped. Where writing fails, or is not allowed, such pages just stay.
    fdatasync(file.as_fd()).unwrap_or_default();
    fadvise(file.as_fd(), 0, None, Advice::DontNeed).is_ok()
}

/// The share of some pages of the file, spread over its `size`, that is in memory; `None` if that cannot be told.
pub(crate) fn cached_share(file: &File, size: u64) -> io::Result<Option<f64>> {
    // Linux answers that a page is not there, and reads it all the same: let it read no more than that.
    fadvise(file.as_fd(), 0, None, Advice::Random).unwrap_or_default();
    let pages = size.div_ceil(PAGE_BYTES);
    let looks = pages.min(MOST_PAGES);
    let mut cached = 0.0;
    for look in 0..looks {
        // The first page, the last one, and evenly between.
        let page = (pages - 1) * look / (looks - 1).max(1);
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        match preadv2(file.as_fd(), into, page * PAGE_BYTES, ReadWriteFlags::NOWAIT) {
            Ok(_) => cached += 1.0,
            Err(Errno::AGAIN) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((looks > 0).then(|| cached / looks as f64))
}
