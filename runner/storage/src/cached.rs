//! Reads files, and parts of files, from this machine's memory, without waiting for storage.

use std::io::IoSliceMut;
use std::ops::Range;

use bytes::Bytes;
use cap_std::fs::Dir;
use penstock_engine::memory::{buffer, bytes_of};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::folder::version;
use crate::observe::{is_observed, note, now};
use crate::store::Version;

/// Maximum number of bytes that are read on the thread of an asynchronous task: at 64 KiB, copying costs as much as the switch of threads.
pub(crate) const MOST_BYTES: u64 = 16 << 10;

/// Magic numbers of file systems on local disks or in memory: ext4, XFS, Btrfs, F2FS and tmpfs. On other file systems (NFS, FUSE,
/// overlays of these), opening a file may wait for a server even if its name and bytes are in memory.
const LOCAL: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// Returns true if [`read`] never waits for long in this folder.
pub(crate) fn is_local(root: &Dir) -> bool {
    fstatfs(root).is_ok_and(|system| LOCAL.contains(&(system.f_type as u64)))
}

/// Reads the file named by `key`, which is a valid key, or a part of it, if the kernel has all of that in memory: the names of the path
/// (`RESOLVE_CACHED`) and the bytes (`RWF_NOWAIT`). Returns `None` for all other files, also for those that cannot be read, of which more
/// than `most_bytes` are asked for, that are of another version than `of`, or on another file system than `root`. A path that leads out of `root` is not
/// followed.
pub(crate) fn read(
    root: &Dir,
    key: &str,
    part: Option<&Range<u64>>,
    of: Option<&Version>,
    most_bytes: u64,
) -> Option<Bytes> {
    let start = is_observed().then(now);
    // `NONBLOCK`, `NOCTTY`: as for all files of a folder's store.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV | ResolveFlags::CACHED;
    let file = openat2(root, key, flags, Mode::empty(), resolve).ok()?;
    let stat = fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let size = u64::try_from(stat.st_size).ok()?;
    let range = part.cloned().unwrap_or(0..size);
    let length = range.end.checked_sub(range.start).filter(|length| *length <= most_bytes)?;
    if range.end > size || of.is_some_and(|of| *of != version(&stat)) {
        return None;
    }
    let opened = start.map(|start| start.elapsed());
    let length = usize::try_from(length).ok()?;
    // Fewer bytes are read if only some are in memory, or if the file has become shorter.
    let fill = |bytes: &mut [u8]| {
        let read = preadv2(&file, &mut [IoSliceMut::new(bytes)], range.start, ReadWriteFlags::NOWAIT).ok()?;
        (read == length).then_some(())
    };
    let bytes = if let Some(mut buffer) = buffer(length) {
        fill(&mut (*buffer).as_mut()[..length])?;
        bytes_of(buffer).slice(..length)
    } else {
        let mut bytes = vec![0; length];
        if length > 0 {
            fill(&mut bytes)?;
        }
        Bytes::from(bytes)
    };
    note(|parts| parts.attempts += 1);
    if let Some((start, opened)) = start.zip(opened) {
        note(|parts| (parts.first_byte, parts.body) = (opened, start.elapsed() - opened));
    }
    Some(bytes)
}
