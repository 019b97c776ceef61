//! Check of the codebooks of Vorbis, for which a decoder allocates as much memory as their headers say.
//!
//! The layout is that of the Vorbis I specification, section 3.2.1.

use penstock_guest::prelude::*;

/// Length of the identification header, in bytes.
const IDENTIFICATION: usize = 30;

/// Maximum number of values in all codebooks together; encoders write some ten thousand.
const MAX_VALUES: u64 = 1 << 22;

/// Largest length of a code, in bits.
const LONGEST: u64 = 32;

/// Bits of a packet, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: u64,
}

/// Fails if the codebooks in the headers, which are the identification and the setup, would take too much memory. Headers that end early
/// pass: the decoder refuses them.
pub(crate) fn check(headers: &[u8]) -> Result<()> {
    let setup = headers.get(IDENTIFICATION..).and_then(|setup| setup.strip_prefix(b"\x05vorbis"));
    let mut bits = Bits { bytes: setup.unwrap_or_default(), at: 0 };
    let mut values = 0;
    for _ in 0..=bits.take(8).unwrap_or(0) {
        let Some((dimensions, entries)) = bits.sizes() else { break };
        values += entries * (dimensions + 1);
        ensure!(
            values <= MAX_VALUES,
            "the Ogg file is damaged: its codebooks have more than {MAX_VALUES} values"
        );
        let Some(is_known) = bits.skip_codebook(dimensions, entries) else { break };
        ensure!(
            is_known,
            "the Ogg file is damaged: a codebook has {dimensions} dimensions and {entries} entries"
        );
    }
    Ok(())
}

impl Bits<'_> {
    /// The next `count` bits, at most 32; `None` at the end.
    fn take(&mut self, count: u64) -> Option<u64> {
        let taken = (self.at..self.at + count).rev().try_fold(0, |number, at| {
            let byte = self.bytes.get(usize::try_from(at / 8).ok()?)?;
            Some(number << 1 | u64::from(byte >> (at % 8) & 1))
        });
        self.at += count;
        taken
    }

    /// Numbers of dimensions and entries of the next codebook.
    fn sizes(&mut self) -> Option<(u64, u64)> {
        (self.take(24)? == 0x0056_4342).then_some(())?;
        Some((self.take(16)?, self.take(24)?))
    }

    /// Skips the rest of a codebook; false if the decoder would panic at its table.
    fn skip_codebook(&mut self, dimensions: u64, entries: u64) -> Option<bool> {
        let is_ordered = self.take(1)? == 1;
        if is_ordered {
            let (mut known, mut length) = (0, self.take(5)? + 1);
            while known < entries {
                let count = self.take(u64::from(u64::BITS - (entries - known).leading_zeros()))?;
                if length > LONGEST && count > 0 {
                    return Some(false);
                }
                known += count;
                length += 1;
            }
        } else {
            let is_sparse = self.take(1)? == 1;
            for _ in 0..entries {
                if !is_sparse || self.take(1)? == 1 {
                    self.at += 5;
                }
            }
        }
        let count = match self.take(4)? {
            1 => {
                // The largest number of values in each dimension, as the decoder computes and asserts it, in 32 bits.
                let side = (entries as f32).powf(1.0 / dimensions as f32).floor() as u32;
                let power = |side: u32| side.checked_pow(dimensions as u32).map(u64::from);
                if power(side).is_none_or(|power| power > entries) {
                    return Some(false);
                }
                u64::from(side)
            }
            2 => entries * dimensions,
            _ => return Some(true),
        };
        self.at += 64;
        let length = self.take(4)? + 1;
        self.at += 1 + count * length;
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers with these fields: values, and their lengths in bits.
    fn headers(fields: &[(u64, u32)]) -> Vec<u8> {
        let bits: Vec<bool> = fields
            .iter()
            .flat_map(|&(value, length)| (0..length).map(move |at| value >> at & 1 == 1))
            .collect();
        let bytes =
            bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit)));
        [&[0; IDENTIFICATION][..], b"\x05vorbis"].concat().into_iter().chain(bytes).collect()
    }

    #[test]
    fn the_values_of_all_codebooks_are_bounded() {
        let sync = (0x0056_4342, 24);
        // Dense lengths of two entries, and a table of two values of three bits.
        let small = [
            sync,
            (1, 16),
            (2, 24),
            (0, 1),
            (0, 1),
            (7, 5),
            (7, 5),
            (1, 4),
            (0, 32),
            (0, 32),
            (2, 4),
            (0, 1),
            (5, 3),
            (5, 3),
        ];
        let large = [sync, (8, 16), (1 << 20, 24)];
        for before in [0, 1, 3] {
            let mut fields = vec![(before, 8)];
            (0..before).for_each(|_| fields.extend(small));
            assert!(check(&headers(&fields)).is_ok());
            fields.extend(large);
            let error = check(&headers(&fields)).unwrap_err();
            assert_eq!(
                error.message(),
                "the Ogg file is damaged: its codebooks have more than 4194304 values"
            );
        }
        assert!(check(&[]).is_ok());
    }
}
