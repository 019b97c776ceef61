//! The encoding DELTA_BYTE_ARRAY: of each value the length of what it shares with the value before, and the rest.
//!
//! Few bytes may state many long values. The size of the decoded values is therefore known, and compared with a limit, before memory is
//! taken for them.

use super::thrift::Compact;

use crate::reason::Reason;

/// Maximum number of lengths in a block. Writers have 128 or a few hundred.
const MAX_BLOCK: u64 = 1 << 16;

const DAMAGED: &str = "has a page whose DELTA_BYTE_ARRAY is damaged";

pub(super) struct Prefixed<'a> {
    prefixes: Vec<u32>,
    suffixes: Vec<u32>,
    rest: &'a [u8],
    /// Length of each value, if all have the same.
    length: Option<usize>,
}

impl<'a> Prefixed<'a> {
    /// Reads the lengths of the values of a page, of which there are `most` at most. `length` is that of each value if all have the same. The
    /// error is the end of a sentence about the column.
    pub(super) fn read(values: &'a [u8], most: u32, length: Option<usize>) -> Result<Self, Reason> {
        if values.is_empty() {
            return Ok(Self { prefixes: Vec::new(), suffixes: Vec::new(), rest: values, length });
        }
        let (prefixes, rest) = lengths(values, most).ok_or(DAMAGED)?;
        let (suffixes, rest) = lengths(rest, most).ok_or(DAMAGED)?;
        match prefixes.len() == suffixes.len() {
            true => Ok(Self { prefixes, suffixes, rest, length }),
            false => Err(DAMAGED.into()),
        }
    }

    /// Size of the values in the encoding PLAIN, in bytes.
    pub(super) fn size(&self) -> u64 {
        let shown_length = if self.length.is_none() { size_of::<u32>() } else { 0 };
        let all = self.prefixes.iter().chain(&self.suffixes).map(|length| u64::from(*length)).sum::<u64>();
        all + (shown_length * self.prefixes.len()) as u64
    }

    /// The values in the encoding PLAIN behind `levels`. The error is the end of a sentence about the column.
    pub(super) fn plain(self, levels: &[u8]) -> Result<Vec<u8>, Reason> {
        let size = self.size() as usize;
        let Self { prefixes, suffixes, mut rest, length } = self;
        let mut plain = Vec::with_capacity(levels.len() + size);
        plain.extend_from_slice(levels);
        // The value before.
        let mut last = plain.len()..plain.len();
        for (prefix, suffix) in prefixes.into_iter().zip(suffixes) {
            let (prefix, suffix) = (prefix as usize, suffix as usize);
            let (added, behind) = rest.split_at_checked(suffix).ok_or(DAMAGED)?;
            rest = behind;
            let whole = prefix + suffix;
            if prefix > last.len() || length.is_some_and(|length| length != whole) {
                return Err(DAMAGED.into());
            }
            if length.is_none() {
                plain.extend_from_slice(&u32::try_from(whole).map_err(|_| DAMAGED)?.to_le_bytes());
            }
            let start = plain.len();
            plain.extend_from_within(last.start..last.start + prefix);
            plain.extend_from_slice(added);
            last = start..plain.len();
        }
        Ok(plain)
    }
}

/// Lengths in the encoding DELTA_BINARY_PACKED, `most` of them at most, and the bytes behind them. `None` if they are damaged.
pub(super) fn lengths(bytes: &[u8], most: u32) -> Option<(Vec<u32>, &[u8])> {
    let mut input = Compact::new(bytes);
    let (block, parts, count) = (input.varint()?, input.varint()?, input.varint()?);
    let first = input.int()?;
    // Each part of a block has whole bytes.
    if block > MAX_BLOCK || parts == 0 || block % parts != 0 || block / parts % 8 != 0 || block == 0 {
        return None;
    }
    if count > u64::from(most) {
        return None;
    }
    let (parts, in_part) = (parts as usize, (block / parts) as usize);
    let mut lengths = Vec::with_capacity(count as usize);
    if count == 0 {
        return Some((lengths, input.rest()));
    }
    // Differences are of 32 bits, and may wrap.
    let mut last = first as u32;
    lengths.push(length(last)?);
    while lengths.len() < count as usize {
        let least = input.int()? as u32;
        let widths = input.take(parts)?;
        for width in widths {
            let wanted = in_part.min(count as usize - lengths.len());
            if wanted == 0 {
                break;
            }
            let width = u32::from(*width);
            if width > 32 {
                return None;
            }
            let packed = input.take(in_part / 8 * width as usize)?;
            let (mut packed, mut bits, mut held) = (packed.iter(), 0_u64, 0);
            for _ in 0..wanted {
                while held < width {
                    bits |= u64::from(*packed.next()?) << held;
                    held += 8;
                }
                let difference = bits & ((1 << width) - 1);
                (bits, held) = (bits >> width, held - width);
                last = last.wrapping_add(least).wrapping_add(difference as u32);
                lengths.push(length(last)?);
            }
        }
    }
    Some((lengths, input.rest()))
}

/// A length, unless it is negative.
fn length(bits: u32) -> Option<u32> {
    i32::try_from(bits).is_ok().then_some(bits)
}

#[cfg(test)]
mod tests {
    use penstock_types::varint;
    use proptest::prelude::*;

    use super::*;

    /// Lengths in DELTA_BINARY_PACKED, in blocks of 128 with 4 parts.
    fn packed(lengths: &[u32]) -> Vec<u8> {
        let zigzag = |number: i64| ((number << 1) ^ (number >> 63)) as u64;
        let first = lengths.first().copied().unwrap_or(0);
        let mut bytes = Vec::new();
        [128, 4, lengths.len() as u64, zigzag(first.into())]
            .into_iter()
            .for_each(|number| varint::push(&mut bytes, number));
        let steps: Vec<i64> =
            lengths.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect();
        for block in steps.chunks(128) {
            let least = *block.iter().min().unwrap();
            varint::push(&mut bytes, zigzag(least));
            let width = |part: &[i64]| {
                64 - part.iter().map(|step| (step - least) as u64).max().unwrap_or(0).leading_zeros()
            };
            let parts: Vec<&[i64]> = block.chunks(32).collect();
            bytes.extend((0..4).map(|part| parts.get(part).map_or(0, |part| width(part) as u8)));
            for part in parts {
                let (mut bits, mut held, width) = (0_u128, 0, width(part));
                for place in 0..32 {
                    bits |= (part.get(place).map_or(0, |step| step - least) as u128) << held;
                    held += width;
                    while held >= 8 {
                        bytes.push(bits as u8);
                        (bits, held) = (bits >> 8, held - 8);
                    }
                }
            }
        }
        bytes
    }

    #[test]
    fn the_size_of_many_long_values_in_few_bytes_is_known_before_memory_is_taken() {
        // A value of a mebibyte, and 2^17 values that repeat it: 128 GiB.
        let (count, length) = (1 << 17, 1 << 20);
        let prefixes = [&[0][..], &vec![length; count]].concat();
        let suffixes = [&[length][..], &vec![0; count]].concat();
        let bytes = [packed(&prefixes), packed(&suffixes), vec![b'x'; length as usize]].concat();
        let all = (count as u64 + 1) << 20;
        for (length, stated) in [(None, 4 * (count as u64 + 1)), (Some(length as usize), 0)] {
            assert_eq!(Prefixed::read(&bytes, u32::MAX, length).unwrap().size(), all + stated);
        }
    }

    #[test]
    fn counts_and_lengths_that_contradict_each_other_are_damage() {
        let text = |prefixes: &[u32], suffixes: &[u32], rest: &[u8], length: Option<usize>| {
            let bytes = [packed(prefixes), packed(suffixes), rest.to_vec()].concat();
            Prefixed::read(&bytes, 3, length)?.plain(b"")
        };
        assert_eq!(text(&[0, 1], &[2, 1], b"abc", None).unwrap(), b"\x02\0\0\0ab\x02\0\0\0ac");
        assert_eq!(text(&[0, 1], &[2, 1], b"abc", Some(2)).unwrap(), b"abac");
        for (prefixes, suffixes, length) in [
            (&[0][..], &[2, 1][..], None),
            (&[1], &[1], None),
            (&[0, 3], &[2, 1], None),
            (&[0, 1], &[2, 2], None),
            (&[0, 1], &[2, 1], Some(3)),
            (&[0, 0, 0, 0], &[0, 0, 0, 0], None),
        ] {
            assert!(
                text(prefixes, suffixes, b"abc", length).unwrap_err().to_string().contains("damaged"),
                "{prefixes:?}"
            );
        }
        // 2^60 lengths, blocks of none, and parts that are no whole bytes.
        for header in [[128, 4, 1 << 60], [0, 4, 2], [128, 0, 2], [128, 3, 2], [4, 1, 2], [1 << 40, 1, 2]] {
            let mut bytes = Vec::new();
            header.into_iter().for_each(|number| varint::push(&mut bytes, number));
            bytes.extend([0; 64]);
            assert!(lengths(&bytes, 1000).is_none(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn lengths_come_out_as_they_went_in(numbers in proptest::collection::vec(0_u32..1 << 31, 0..300), shift in 0_u32..31) {
            let numbers: Vec<u32> = numbers.into_iter().map(|number| number >> shift).collect();
            let bytes = [packed(&numbers), b"rest".to_vec()].concat();
            prop_assert_eq!(lengths(&bytes, 300), Some((numbers, &b"rest"[..])));
        }

        #[test]
        fn damaged_pages_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), length in proptest::option::of(0_usize..9)) {
            if let Ok(values) = Prefixed::read(&bytes, 1000, length)
                && let size @ ..10_000 = values.size()
                && let Ok(plain) = values.plain(b"ab")
            {
                prop_assert!(plain.starts_with(b"ab") && plain.len() as u64 <= 2 + size);
            }
        }
    }
}
