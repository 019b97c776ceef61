//! Files of a set: payloads one after another in one file, and a row for each in another.
//!
//! A pair of files has at most one writer, which holds a lock on the file of rows; a pair whose writer has ended gets another one. A
//! payload is written before its row, and a row with one call, so that a writer that dies leaves whole entries. Rows and payloads are
//! authenticated with the key of the folder.

use std::fs::{File, TryLockError};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use penstock_engine::memory::{buffer, bytes_of};
use penstock_engine::private::{PrivateFolder, Unusable};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev, retry_on_intr};

use super::EntryKey;

/// Length of a row: key of the entry, its group, place and length of the payload, time of the write, and the check of all of these.
pub(super) const ROW_BYTES: usize = 64;
const CHECK_AT: usize = 56;
/// Length of the check behind each payload.
pub(super) const MAC_BYTES: usize = 32;
/// Number of rows that are read at a time.
const ROWS: usize = 1024;

/// Keys that authenticate rows and payloads.
#[derive(Clone)]
pub(super) struct Keys {
    row: [u8; 32],
    payload: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: EntryKey,
    pub(super) group: u64,
    pub(super) start: u64,
    pub(super) bytes: u32,
    /// Time of the write, in seconds since 1970: of two entries with one key, the later one counts.
    pub(super) at_s: u32,
}

/// Payloads of a segment, for reading.
pub(super) struct Payloads(File);

/// Rows of a segment, each of which is read once.
pub(super) struct Rows {
    file: File,
    read: usize,
}

/// Segment into which this process writes.
pub(super) struct Writer {
    pub(super) number: u32,
    data: File,
    rows: File,
    /// End of the last payload.
    end: u64,
    /// End of the space that is reserved in the file.
    reserved: u64,
    /// End of the last row.
    rows_end: u64,
}

impl Keys {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let derive = |purpose: &[u8]| blake3::keyed_hash(key, purpose).into();
        Self { row: derive(b"penstock data 1: row"), payload: derive(b"penstock data 1: payload") }
    }

    fn check(&self, row: &[u8]) -> [u8; 8] {
        let mut check = [0; 8];
        blake3::Hasher::new_keyed(&self.row).update(row).finalize_xof().fill(&mut check);
        check
    }

    /// The key of the entry is authenticated with the payload, so that no payload stands for another.
    fn mac(&self, key: &EntryKey, payload: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.payload).update(&key.0).update(payload).finalize()
    }
}

impl Row {
    fn to_bytes(self, keys: &Keys) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        row[..32].copy_from_slice(&self.key.0);
        row[32..40].copy_from_slice(&self.group.to_le_bytes());
        row[40..48].copy_from_slice(&self.start.to_le_bytes());
        row[48..52].copy_from_slice(&self.bytes.to_le_bytes());
        row[52..56].copy_from_slice(&self.at_s.to_le_bytes());
        let check = keys.check(&row[..CHECK_AT]);
        row[CHECK_AT..].copy_from_slice(&check);
        row
    }

    /// The row of these bytes; `None` if it is damaged or was written with another key.
    fn from_bytes(row: &[u8; ROW_BYTES], keys: &Keys) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(*row[at..].first_chunk().expect("8 bytes follow"));
        let key = EntryKey(*row.first_chunk().expect("a row is longer than a key"));
        let is_whole = row[CHECK_AT..] == keys.check(&row[..CHECK_AT]);
        let lengths = number(48);
        let (bytes, at_s) = (lengths as u32, (lengths >> 32) as u32);
        is_whole.then(|| Self { key, group: number(32), start: number(40), bytes, at_s })
    }

    /// End of the payload and its check.
    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.bytes) + MAC_BYTES as u64)
    }
}

/// Opens a segment for reading; `None` if there is none with this number.
pub(super) fn open(folder: &PrivateFolder, number: u32) -> Result<Option<(Rows, Payloads)>, Unusable> {
    let Some((rows, _)) = folder.file(&rows_name(number), u64::MAX)? else { return Ok(None) };
    let data = folder.file(&data_name(number), u64::MAX)?;
    Ok(data.map(|(data, _)| (Rows { file: rows, read: 0 }, Payloads(data))))
}
impl Rows {
    /// Number of rows that were written since they were read.
    pub(super) fn unread(&self) -> io::Result<usize> {
        let all = usize::try_from(self.file.metadata()?.len()).map_err(io::Error::other)? / ROW_BYTES;
        Ok(all.saturating_sub(self.read))
    }

    /// Takes note that the row `index` is known. Returns false if rows before it are not read.
    pub(super) fn pass(&mut self, index: usize) -> bool {
        let is_next = self.read == index;
        self.read += usize::from(is_next);
        is_next
    }

    /// Calls `add` with each row that was written since the last call. Returns the number of damaged rows.
    pub(super) fn read(&mut self, keys: &Keys, mut add: impl FnMut(Row)) -> io::Result<u64> {
        let (mut damaged, all) = (0, self.read + self.unread()?);
        let mut buffer = vec![0; ROW_BYTES * (all - self.read).min(ROWS)];
        while self.read < all {
            let rows = (all - self.read).min(ROWS);
            let buffer = &mut buffer[..rows * ROW_BYTES];
            self.file.read_exact_at(buffer, (self.read * ROW_BYTES) as u64)?;
            for row in buffer.as_chunks().0 {
                match Row::from_bytes(row, keys) {
                    Some(row) => add(row),
                    None => damaged += 1,
                }
            }
            self.read += rows;
        }
        Ok(damaged)
    }
}

impl Payloads {
    /// Reads a payload and its check. Returns `None` if it is damaged, or not there.
    pub(super) fn read(&self, keys: &Keys, key: &EntryKey, start: u64, bytes: u32) -> Option<Bytes> {
        self.read_by(keys, key, bytes, |buffer| self.0.read_exact_at(buffer, start).is_ok())
    }

    /// Reads a payload that is in this machine's memory. Returns `None` for any other, and also if it is damaged.
    pub(super) fn read_in_memory(
        &self,
        keys: &Keys,
        key: &EntryKey,
        start: u64,
        bytes: u32,
    ) -> Option<Bytes> {
        self.read_by(keys, key, bytes, |buffer| {
            let all = buffer.len();
            preadv2(&self.0, &mut [IoSliceMut::new(buffer)], start, ReadWriteFlags::NOWAIT) == Ok(all)
        })
    }

    fn read_by(
        &self,
        keys: &Keys,
        key: &EntryKey,
        bytes: u32,
        read: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Bytes> {
        let length = bytes as usize + MAC_BYTES;
        let read: Bytes = if let Some(mut buffer) = buffer(length) {
            read(&mut (*buffer).as_mut()[..length]).then(|| bytes_of(buffer))?
        } else {
            let mut buffer = vec![0; length];
            read(&mut buffer).then(|| buffer.into())?
        };
        let payload = read.slice(..bytes as usize);
        let mac = blake3::Hash::from_slice(&read[bytes as usize..length]).ok()?;
        // The comparison of hashes takes constant time.
        (mac == keys.mac(key, &payload)).then_some(payload)
    }
}

impl Writer {
    /// Takes the first segment of at most `most` that has no writer. Returns `None` if all have one.
    pub(super) fn take(folder: &PrivateFolder, keys: &Keys, most: u32) -> Result<Option<Self>, Unusable> {
        for number in 0..most {
            let rows = folder.shared_file(&rows_name(number))?;
            match rows.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(Unusable::Unreadable(error)),
            }
            let data = folder.shared_file(&data_name(number))?;
            return Self::continued(number, data, rows, keys).map(Some).map_err(Unusable::Unreadable);
        }
        Ok(None)
    }

    /// Continues behind the last entry, and frees what an earlier writer had reserved.
    fn continued(number: u32, data: File, rows: File, keys: &Keys) -> io::Result<Self> {
        let mut rows = Rows { file: rows, read: 0 };
        let there = data.metadata()?.len();
        let mut end = 0;
        // A row may be in the file, after a failure of the machine, whose payload is not.
        rows.read(keys, |row| end = end.max(row.end().min(there)))?;
        let Rows { file: rows, read } = rows;
        let rows_end = (read * ROW_BYTES) as u64;
        ftruncate(&rows, rows_end)?;
        ftruncate(&data, end)?;
        Ok(Self { number, data, rows, end, reserved: end, rows_end })
    }

    /// Bytes that have to be reserved before a payload of this length is written; 0 if there is room.
    pub(super) fn lacks(&self, bytes: usize) -> u64 {
        (self.end + (bytes + MAC_BYTES) as u64).saturating_sub(self.reserved)
    }

    /// Reserves space on the disk.
    pub(super) fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let reserve = || fallocate(&self.data, FallocateFlags::empty(), self.reserved, bytes);
        match retry_on_intr(reserve) {
            Ok(()) => {}
            // The file system cannot reserve space: a write fails when the disk is full.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                ftruncate(&self.data, self.reserved + bytes)?
            }
            Err(error) => return Err(error.into()),
        }
        self.reserved += bytes;
        Ok(())
    }

    /// Writes a payload, for which space is reserved, and its row. Returns the row and its index.
    pub(super) fn write(
        &mut self,
        keys: &Keys,
        key: EntryKey,
        group: u64,
        payload: &[u8],
    ) -> io::Result<(Row, usize)> {
        let bytes = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        let row = Row { key, group, start: self.end, bytes, at_s };
        let mac = keys.mac(&key, payload);
        let both = [IoSlice::new(payload), IoSlice::new(mac.as_bytes())];
        if retry_on_intr(|| pwritev(&self.data, &both, row.start))? < payload.len() + MAC_BYTES {
            // A part was written, as to a disk that is almost full.
            self.data.write_all_at(payload, row.start)?;
            self.data.write_all_at(mac.as_bytes(), row.start + u64::from(bytes))?;
        }
        self.rows.write_all_at(&row.to_bytes(keys), self.rows_end)?;
        let index = self.rows_end as usize / ROW_BYTES;
        self.rows_end += ROW_BYTES as u64;
        self.end = row.end();
        Ok((row, index))
    }
}

impl Drop for Writer {
    /// Frees what was reserved and not used. A failure leaves it to the next writer.
    fn drop(&mut self) {
        ftruncate(&self.data, self.end).unwrap_or_default();
    }
}

fn rows_name(number: u32) -> String {
    format!("{number}.rows")
}

fn data_name(number: u32) -> String {
    format!("{number}.data")
}
