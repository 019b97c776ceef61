//! Header of FLAC files: what a decoder needs of it, and what a stream that was written without a look back leaves out.

use penstock_guest::prelude::*;

/// Length of the description of the sound, in bytes, and of what is before it: the mark of the format, and the header of its block.
const DESCRIPTION: usize = 34;
const BEFORE: usize = 8;
/// Smallest size of blocks that a header may state, in samples; only the last block may be smaller.
const SMALLEST_BLOCK: u16 = 16;

/// The file with only the first of its metadata blocks, which describes the sound. Tags and pictures state lengths for which a decoder
/// would allocate memory. Sizes of blocks that the description leaves out are those of the first frame.
pub(crate) fn for_decoder(file: &[u8]) -> Result<Vec<u8>> {
    let ends_early = "the FLAC file ends in its metadata";
    let Some((start, mut rest)) = file.split_at_checked(BEFORE + DESCRIPTION) else { bail!("{ends_early}") };
    ensure!(
        start[4] & 0x7f == 0 && start[5..8] == [0, 0, DESCRIPTION as u8],
        "the FLAC file does not begin with the description of its sound"
    );
    let mut is_last = start[4] & 0x80 != 0;
    while !is_last {
        let [kind, a, b, c, ref blocks @ ..] = *rest else { bail!("{ends_early}") };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        rest = blocks.get(length..).context(ends_early)?;
        is_last = kind & 0x80 != 0;
    }
    let rest = without_tag(rest);
    let mut sound = [start, rest].concat();
    sound[4] |= 0x80;
    let stated = [8, 10].map(|at| u16::from_be_bytes([sound[at], sound[at + 1]]));
    if let Some(first) = FirstFrame::read(rest) {
        let [least, most] = first.sizes(stated);
        sound[8..10].copy_from_slice(&least.to_be_bytes());
        sound[10..12].copy_from_slice(&most.to_be_bytes());
    }
    // The smallest and the largest frame, in bytes: no decoder needs them, and wrong ones only hide frames.
    sound[12..18].fill(0);
    Ok(sound)
}

/// Length of the metadata in the file for the decoder, in bytes.
pub(crate) const METADATA: usize = BEFORE + DESCRIPTION;

/// The frames without a tag of ID3v1 behind them.
fn without_tag(frames: &[u8]) -> &[u8] {
    const TAG: usize = 128;
    match frames.split_at_checked(frames.len().saturating_sub(TAG)) {
        Some((frames, [b'T', b'A', b'G', ..])) => frames,
        _ => frames,
    }
}

/// Facts about the blocks, from the header of the first frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FirstFrame {
    /// True if blocks differ in size.
    is_variable: bool,
    /// Number of samples of the block.
    size: u16,
}

impl FirstFrame {
    fn read(frame: &[u8]) -> Option<Self> {
        let &[0xff, second @ (0xf8 | 0xf9), kinds, _, number, ..] = frame else { return None };
        // The number of the frame has one byte, or as many as the ones before its first zero.
        let length = match number.leading_ones() {
            0 => 1,
            ones @ 2..=7 => ones as usize,
            _ => return None,
        };
        let mut after = frame.get(4 + length..)?.iter().copied().map(u16::from);
        let size = match u16::from(kinds >> 4) {
            1 => 192,
            short @ 2..=5 => 576 << (short - 2),
            6 => after.next()? + 1,
            7 => (after.next()? << 8 | after.next()?).checked_add(1)?,
            long @ 8.. => 256 << (long - 8),
            _ => return None,
        };
        Some(Self { is_variable: second & 1 == 1, size })
    }

    /// Smallest and largest size of blocks, in samples: the stated ones, unless they are unknown or contradict the frame.
    fn sizes(self, [least, most]: [u16; 2]) -> [u16; 2] {
        if self.is_variable {
            let most = if most < self.size.max(SMALLEST_BLOCK) { u16::MAX } else { most };
            // Equal sizes would say that all blocks have them.
            let least = if least < SMALLEST_BLOCK || least >= most { SMALLEST_BLOCK } else { least };
            [least, if most == least { u16::MAX } else { most }]
        } else {
            [most.max(self.size).max(SMALLEST_BLOCK); 2]
        }
    }
}
