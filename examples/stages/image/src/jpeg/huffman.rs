//! Huffman codes of a JPEG's compressed data, and the bit reader.

use std::rc::Rc;

/// Number of bits looked up at once: nearly all codes fit, and most codes fit together with the number that follows.
const LOOKUP_BITS: u32 = 10;

/// Number of bits looked up at once in the tables of two codes.
const STEP_BITS: u32 = 11;

/// Number of bits looked up at once where codes are only skipped.
const SKIP_BITS: u32 = 13;

/// Number of tables of each kind that are kept for later images. Most images use the tables of the standard.
const KEPT: usize = 8;

/// Tables of earlier images, with the segments that describe them.
#[derive(Default)]
pub(super) struct Codes {
    differences: Vec<(Vec<u8>, Rc<Table>)>,
    runs: Vec<(Vec<u8>, Rc<Runs>)>,
}

impl Codes {
    /// Codes of the differences between blocks (DC). `segment` contains the number of codes of every length from 1 to 16, then
    /// the symbols.
    pub(super) fn differences(&mut self, segment: &[u8]) -> Option<Rc<Table>> {
        kept(&mut self.differences, segment, Table::for_differences)
    }

    /// Codes of the other coefficients (AC); the segment is like that of [`Self::differences`].
    pub(super) fn runs(&mut self, segment: &[u8]) -> Option<Rc<Runs>> {
        kept(&mut self.runs, segment, Runs::new)
    }
}

/// Table of this segment, made if it is not among the tables.
fn kept<T>(
    tables: &mut Vec<(Vec<u8>, Rc<T>)>,
    segment: &[u8],
    make: fn(&[u8]) -> Option<T>,
) -> Option<Rc<T>> {
    if let Some((_, table)) = tables.iter().find(|(own, _)| own == segment) {
        return Some(table.clone());
    }
    let table = Rc::new(make(segment)?);
    if tables.len() == KEPT {
        tables.remove(0);
    }
    tables.push((segment.to_vec(), table.clone()));
    Some(table)
}

/// Codes of runs of zeros with the number after them, and tables that decode or skip several codes at once.
pub(super) struct Runs {
    /// Lookup table that decodes one code at a time.
    pub(super) one: Table,
    /// Up to two numbers, and the end of the block if it follows them, for every combination of [`STEP_BITS`] bits.
    steps: Box<[Step; 1 << STEP_BITS]>,
    /// All complete codes of every combination of [`SKIP_BITS`] bits, up to the end of the block.
    skips: Box<[Skip; 1 << SKIP_BITS]>,
}

/// Up to two numbers with the zeros before them. A run of 16 zeros counts as the number 0 after 15 zeros.
///
/// Bits from the top: 16 for the first number, 16 for the second one or 0, 1 that is set if the block ends, 7 for the number of
/// places in total, 8 for the distance between the numbers, 8 for the zeros before the first, 8 for the size in bits. The places
/// and the distance of a single number are 1 more than its zeros and 1; those of an end of the block without numbers are 0.
#[derive(Clone, Copy)]
pub(super) struct Step(u64);

/// Several codes. Bits from the top: 1 that is set if the block ends, 7 for the number of places, 8 for the size in bits.
#[derive(Clone, Copy)]
pub(super) struct Skip(u16);

/// Places of a step or skip of which nothing is known: as many as a block has, which none can skip after its first number.
const UNKNOWN: usize = 64;

/// Added to the places of a step or skip that ends its block.
pub(super) const END: usize = 128;

impl Step {
    pub(super) fn numbers(self) -> [i16; 2] {
        [(self.0 >> 48) as i16, (self.0 >> 32) as i16]
    }

    /// Number of places from the start to the first place after the numbers, plus [`END`] if the block ends; 64 if the codes must
    /// be read one by one.
    pub(super) fn places(self) -> usize {
        (self.0 >> 24 & 255) as usize
    }

    /// Number of places from the first number to the second.
    pub(super) fn distance(self) -> usize {
        (self.0 >> 16 & 255) as usize
    }

    /// Count of zeros before the first number.
    pub(super) fn zeros(self) -> usize {
        (self.0 >> 8 & 255) as usize
    }

    /// Number of bits that the codes and numbers of the step take together.
    pub(super) fn bits(self) -> u32 {
        (self.0 & 255) as u32
    }

    fn new(one: &Table, bits: u32) -> Self {
        let mut codes = ShortCodes { one, bits, count: STEP_BITS, used: 0 };
        let mut numbers = [(0, 0); 2];
        let (mut count, mut size, mut end) = (0, 0, 0);
        while count < 2 {
            match codes.next() {
                Some(Code::Number { zeros, number }) => numbers[count] = (zeros, number),
                Some(Code::End) => end = END,
                None => break,
            }
            size = codes.used;
            if end != 0 {
                break;
            }
            count += 1;
        }
        if count == 2 && matches!(codes.next(), Some(Code::End)) {
            (size, end) = (codes.used, END);
        }
        let [(zeros, first), (more_zeros, second)] = numbers;
        let (distance, places) = match count {
            0 if end == 0 => (0, UNKNOWN),
            0 => (0, 0),
            1 => (1, zeros + 1),
            _ => (more_zeros + 1, zeros + more_zeros + 2),
        };
        Self(
            u64::from(first as u16) << 48
                | u64::from(second as u16) << 32
                | ((end + places) as u64) << 24
                | (distance as u64) << 16
                | (zeros as u64) << 8
                | u64::from(size),
        )
    }
}

impl Skip {
    /// Number of places, plus [`END`] if the block ends; 64 if the codes must be read one by one.
    pub(super) fn places(self) -> usize {
        usize::from(self.0 >> 8)
    }

    /// Number of bits that the skipped codes and numbers take together.
    pub(super) fn bits(self) -> u32 {
        u32::from(self.0 & 255)
    }

    fn new(one: &Table, bits: u32) -> Self {
        let mut codes = ShortCodes { one, bits, count: SKIP_BITS, used: 0 };
        let (mut places, mut size, mut end) = (0, 0, 0);
        while end == 0 && places < 64 {
            match codes.next() {
                Some(Code::Number { zeros, .. }) => places += zeros + 1,
                Some(Code::End) => end = END,
                None => break,
            }
            size = codes.used;
        }
        // A step over more places than a block has is as good as none.
        let places = if size == 0 { UNKNOWN } else { places.min(UNKNOWN) };
        Self(((end + places) as u16) << 8 | size as u16)
    }
}

impl Runs {
    fn new(segment: &[u8]) -> Option<Self> {
        let one = Table::new(segment)?;
        let steps: Vec<Step> = (0..1 << STEP_BITS).map(|bits| Step::new(&one, bits)).collect();
        let skips: Vec<Skip> = (0..1 << SKIP_BITS).map(|bits| Skip::new(&one, bits)).collect();
        Some(Self { one, steps: steps.try_into().ok()?, skips: skips.try_into().ok()? })
    }

    /// Next numbers at the start of `bits`.
    #[inline(always)]
    pub(super) fn step(&self, bits: &Bits) -> Step {
        self.steps[(bits.window >> (64 - STEP_BITS)) as usize]
    }

    /// Next codes at the start of `bits`.
    #[inline(always)]
    pub(super) fn skip(&self, bits: &Bits) -> Skip {
        self.skips[(bits.window >> (64 - SKIP_BITS)) as usize]
    }
}

/// A code that is complete in the bits that are looked up.
enum Code {
    Number { zeros: usize, number: i16 },
    End,
}

/// Reader of the codes that are complete, with their numbers, in `count` bits.
struct ShortCodes<'a> {
    one: &'a Table,
    bits: u32,
    count: u32,
    used: u32,
}

impl ShortCodes<'_> {
    fn next(&mut self) -> Option<Code> {
        let left = self.count - self.used;
        if left == 0 {
            return None;
        }
        // The bits that are left, from the top; zeros follow.
        let window = self.bits << (32 - left);
        let entry = self.one.lookup[(window >> (32 - LOOKUP_BITS)) as usize];
        if entry.0 == 0 || entry.all_bits() > left {
            return None;
        }
        let number = entry.number(u64::from(window) << 32);
        let code = match (entry.size(), entry.zeros()) {
            (0, ..15) => Code::End,
            (_, zeros) => Code::Number { zeros, number },
        };
        self.used += entry.all_bits();
        Some(code)
    }
}

/// A set of codes, arranged so that one table lookup decodes most of them.
pub(super) struct Table {
    /// Entry for every combination of [`LOOKUP_BITS`] bits; 0 for the beginning of a longer code.
    lookup: Box<[Entry; 1 << LOOKUP_BITS]>,
    /// For every length, the smallest longer code, left-aligned to 16 bits.
    ends: [u32; 17],
    /// For every length, the offset from a code to the position of its symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

/// A code. Bits from the top: 8 for the symbol (preceding zeros, size of the number that follows the code), 8 for the length of the
/// code.
#[derive(Clone, Copy)]
pub(super) struct Entry(u16);

impl Entry {
    /// Count of zeros before the number.
    pub(super) fn zeros(self) -> usize {
        usize::from(self.0 >> 12)
    }

    /// Size of the number, in bits.
    pub(super) fn size(self) -> u32 {
        u32::from(self.0 >> 8 & 15)
    }

    /// Size of the code with its number, in bits.
    pub(super) fn all_bits(self) -> u32 {
        u32::from(self.0 & 31) + self.size()
    }

    /// Number that follows the code at the start of `window`: 0 if it has no bits. A leading 0 means that it is negative.
    #[inline(always)]
    pub(super) fn number(self, window: u64) -> i16 {
        let size = self.size();
        let from_number = window << (self.0 & 31);
        // In two shifts, because a shift by 64 would be one by 0.
        let number = (from_number >> 1 >> (63 - size)) as i32;
        let below = if (from_number as i64) < 0 { 0 } else { (1 << size) - 1 };
        (number - below) as i16
    }
}

impl Table {
    /// Creates the table for differences (DC), whose symbols are sizes. `segment` contains the number of codes of every
    /// length from 1 to 16, then the symbols.
    pub(super) fn for_differences(segment: &[u8]) -> Option<Self> {
        let table = Self::new(segment)?;
        table.symbols.iter().all(|&size| size <= 15).then_some(table)
    }

    /// Creates the table for the other coefficients (AC); the segment is like that of [`Self::for_differences`].
    pub(super) fn new(segment: &[u8]) -> Option<Self> {
        let (counts, symbols) = segment.split_at_checked(16)?;
        let mut lookup = vec![Entry(0); 1 << LOOKUP_BITS];
        let (mut ends, mut offsets) = ([0; 17], [0; 17]);
        let (mut code, mut place) = (0_u32, 0_usize);
        for (length, &count) in (1_u32..).zip(counts) {
            offsets[length as usize] = place as i32 - code as i32;
            for &symbol in symbols.get(place..place + usize::from(count))? {
                if code >> length != 0 {
                    return None;
                }
                if length <= LOOKUP_BITS {
                    let first = (code << (LOOKUP_BITS - length)) as usize;
                    lookup[first..first + (1 << (LOOKUP_BITS - length))]
                        .fill(Entry(u16::from(symbol) << 8 | length as u16));
                }
                code += 1;
            }
            place += usize::from(count);
            ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(Self { lookup: lookup.try_into().ok()?, ends, offsets, symbols: symbols.to_vec() })
    }

    /// Entry for the code at the start of `bits`. `None` if `bits` does not start with a code.
    #[inline(always)]
    pub(super) fn entry(&self, bits: &Bits) -> Option<Entry> {
        let entry = self.lookup[(bits.window >> (64 - LOOKUP_BITS)) as usize];
        if entry.0 != 0 { Some(entry) } else { self.long_entry((bits.window >> 48) as u32) }
    }

    #[cold]
    fn long_entry(&self, bits: u32) -> Option<Entry> {
        let length = (LOOKUP_BITS + 1..=16).find(|&length| bits < self.ends[length as usize])?;
        let place = (bits >> (16 - length)) as i32 + self.offsets[length as usize];
        let symbol = *self.symbols.get(usize::try_from(place).ok()?)?;
        Some(Entry(u16::from(symbol) << 8 | length as u16))
    }
}

/// Bit reader of compressed data; zeros follow the end of the data.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// Position of the first byte that is not completely in the window.
    at: usize,
    /// Next bits, from the top.
    window: u64,
    /// Number of valid bits in the window.
    len: u32,
    /// Number of valid bits at the end that are padding after the end of the data.
    padding: u32,
}

impl<'a> Bits<'a> {
    /// Starts at the first bit of `data`.
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, window: 0, len: 0, padding: 0 }
    }

    /// Refills the window to at least 32 bits: enough for one code and its number.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if self.len < 32 {
            self.fill();
        }
    }

    /// Refills the window to at least 56 bits, without a branch that depends on the number of bits in it.
    #[inline(always)]
    pub(super) fn fill(&mut self) {
        if let Some(bytes) = self.data.get(self.at..self.at + 8).and_then(|bytes| bytes.first_chunk()) {
            let next = u64::from_be_bytes(*bytes);
            // True if no byte of `next` is ff: inverting the bits makes such a byte zero.
            if (!next).wrapping_sub(0x0101_0101_0101_0101) & next & 0x8080_8080_8080_8080 == 0 {
                self.window |= next >> self.len;
                let bytes = (63 - self.len) / 8;
                self.at += bytes as usize;
                self.len += 8 * bytes;
                return;
            }
        }
        *self = self.refilled_bytewise();
    }

    /// Fills the window when an ff is near: in the data, 00 follows it; otherwise it starts the marker that ends the data.
    /// Takes `self` by value: passing a reference to another function would force the reader from registers into memory.
    #[inline(never)]
    fn refilled_bytewise(mut self) -> Self {
        // Bits below the valid ones are the start of the next byte, or zeros.
        while self.len < 56 {
            let byte = match self.data.get(self.at..) {
                Some([0xff, 0x00, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([0xff, ..] | []) | None => {
                    self.padding = self.padding.saturating_add(8);
                    0
                }
                Some([byte, ..]) => {
                    self.at += 1;
                    *byte
                }
            };
            self.window |= u64::from(byte) << (56 - self.len);
            self.len += 8;
        }
        self
    }

    /// Skips `count` bits, fewer than 64, of the window.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.window <<= count;
        self.len = self.len.wrapping_sub(count);
    }

    /// Reads the number after the code of `entry`, which is next.
    #[inline(always)]
    pub(super) fn number(&mut self, entry: Entry) -> i16 {
        let number = entry.number(self.window);
        self.skip(entry.all_bits());
        number
    }

    /// Reads a number of this many bits, at most 32.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        // In two shifts, because a shift by 64 would be one by 0.
        let number = (self.window >> 1 >> (63 - count)) as u32;
        self.skip(count);
        number
    }

    /// Skips to the next marker, and returns it. `None` if more bits were read than the data has.
    pub(super) fn marker(&mut self) -> Option<u8> {
        let rest = self.end()?;
        let start = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
        *self = Self { at: self.at + start + 2, ..Self::new(self.data) };
        Some(rest[start + 1])
    }

    /// Data after the compressed data, from its end or its last bytes on. `None` if more bits were read than the data has.
    pub(super) fn end(self) -> Option<&'a [u8]> {
        self.len.checked_sub(self.padding)?;
        self.data.get(self.at..)
    }

    /// Reads the marker before `unit` if the interval, in units, has one there: then codes start anew. `None` if it is another one.
    pub(super) fn restarts(&mut self, unit: usize, interval: usize) -> Option<bool> {
        if interval == 0 || unit == 0 || !unit.is_multiple_of(interval) {
            return Some(false);
        }
        (usize::from(self.marker()?) == 0xd0 + (unit / interval - 1) % 8).then_some(true)
    }
}
