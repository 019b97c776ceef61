//! Run lengths of BMP files, RLE8 and RLE4, as Pillow reads them.

use penstock_guest::prelude::*;

use crate::step::Size;

/// Bytes of a file that are read one after the other.
struct Bytes<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.file.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(taken)
    }

    fn pair(&mut self) -> Option<[u8; 2]> {
        self.take(2)?.first_chunk().copied()
    }
}

/// Indices of an image of this size, in the order of the file; the runs begin at `start`. Pixels after the end of the bitmap have the
/// index 0. Fails if the file ends before it.
pub(super) fn decode(file: &[u8], start: usize, size: Size, nibbles: bool) -> Result<Vec<u8>> {
    let mut indices = Vec::with_capacity(size.pixels());
    if add(&mut Bytes { file, at: start }, size, nibbles, &mut indices).is_none() {
        ensure!(indices.len() >= size.pixels(), "the BMP is damaged: it is truncated");
    }
    indices.resize(size.pixels(), 0);
    Ok(indices)
}

/// Adds indices up to the end of the bitmap; `None` if the file ends before it.
fn add(bytes: &mut Bytes, size: Size, nibbles: bool, indices: &mut Vec<u8>) -> Option<()> {
    let (width, all) = (size.width as usize, size.pixels());
    // Column within the row, which pixels beyond the row's end do not leave.
    let mut column = 0;
    while indices.len() < all {
        match bytes.pair()? {
            // End of the row.
            [0, 0] => {
                indices.resize(indices.len().next_multiple_of(width), 0);
                column = 0;
            }
            // End of the bitmap.
            [0, 1] => break,
            // A step to the right and up.
            [0, 2] => {
                let [right, up] = bytes.pair()?.map(usize::from);
                let place = indices.len().saturating_add(right).saturating_add(up.saturating_mul(width));
                indices.resize(all.min(place), 0);
                column = indices.len() % width;
            }
            // Indices, padded to whole words.
            [0, stated] => {
                let count = usize::from(stated).min(all - indices.len());
                match nibbles {
                    true => {
                        let pairs =
                            bytes.take(count.div_ceil(2))?.iter().flat_map(|pair| [pair >> 4, pair & 15]);
                        indices.extend(pairs.take(count));
                    }
                    false => indices.extend(bytes.take(count)?),
                }
                column += usize::from(stated);
                bytes.at += bytes.at % 2;
            }
            // One index, or two in turns.
            [count, value] => {
                let count = usize::from(count).min(width.saturating_sub(column));
                let pair = if nibbles { [value >> 4, value & 15] } else { [value; 2] };
                indices.extend(pair.iter().cycle().take(count));
                column += count;
            }
        }
    }
    Some(())
}
