//! Huffman codes of a JPEG's compressed data, and the bit reader.

/// Number of bits looked up at once: nearly all codes fit, and most codes fit together with the number that follows.
const LOOKUP_BITS: u32 = 10;

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

/// A code, possibly with the number that follows it.
///
/// Bits from the top: 16 for the number, 8 for the symbol (preceding zeros, size of the number), 1 that is set if the number
/// is included, 5 for the total number of bits.
#[derive(Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    const KNOWN: u32 = 1 << 7;

    /// True if the entry includes the number; otherwise the number follows in the data.
    pub(super) fn is_complete(self) -> bool {
        self.0 & Self::KNOWN != 0
    }

    /// Number that a complete entry includes.
    pub(super) fn number(self) -> i16 {
        (self.0 >> 16) as i16
    }

    /// Count of zeros before the number.
    pub(super) fn zeros(self) -> usize {
        (self.0 >> 12 & 15) as usize
    }

    /// Size of the number, in bits.
    pub(super) fn size(self) -> u32 {
        self.0 >> 8 & 15
    }

    /// Size of the entry, in bits.
    pub(super) fn bits(self) -> u32 {
        self.0 & 31
    }
}

impl Table {
    /// Creates the table for differences (DC), whose symbols are sizes. `segment` contains the number of codes of every
    /// length from 1 to 16, then the symbols.
    pub(super) fn for_differences(segment: &[u8]) -> Option<Self> {
        let table = Self::new(segment, true)?;
        table.symbols.iter().all(|&size| size <= 11).then_some(table)
    }

    /// Creates the table for runs (AC), whose symbols are a count of zeros and the size of the number after them.
    pub(super) fn for_runs(segment: &[u8]) -> Option<Self> {
        Self::new(segment, false)
    }

    fn new(segment: &[u8], zero_is_number: bool) -> Option<Self> {
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
                    let all = &mut lookup[first..first + (1 << (LOOKUP_BITS - length))];
                    for (bits, place) in (first as u32..).zip(all) {
                        *place = entry(symbol, length, bits, zero_is_number);
                    }
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
        Some(Entry(u32::from(symbol) << 8 | length))
    }
}

/// Entry of a code of `length` bits at the start of `bits`, which has [`LOOKUP_BITS`] bits.
fn entry(symbol: u8, length: u32, bits: u32, zero_is_number: bool) -> Entry {
    let size = u32::from(symbol & 15);
    let incomplete = Entry(u32::from(symbol) << 8 | length);
    if length + size > LOOKUP_BITS || (size == 0 && !zero_is_number) {
        return incomplete;
    }
    let number = match size {
        0 => 0,
        _ => signed(bits >> (LOOKUP_BITS - length - size) & ((1 << size) - 1), size),
    };
    Entry((number as u32) << 16 | u32::from(symbol) << 8 | Entry::KNOWN | (length + size))
}

/// Number that `size` bits, at least one, represent: a leading 0 means that it is negative.
#[inline(always)]
fn signed(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    if bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
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
        if self.len >= 32 {
            return;
        }
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
        while self.len <= 56 {
            let byte = match self.data.get(self.at..) {
                Some([0xff, 0x00, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([0xff, ..] | []) | None => {
                    self.padding += 8;
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

    /// Reads the number, of at least one bit, that follows a code.
    #[inline(always)]
    pub(super) fn number(&mut self, size: u32) -> i32 {
        let number = signed((self.window >> (64 - size)) as u32, size);
        self.skip(size);
        number
    }

    /// Skips to the marker after the data, and returns it. `None` if more bits were read than the data has, or if unread data precedes the marker.
    pub(super) fn marker(&mut self) -> Option<u8> {
        *self = self.refilled_bytewise();
        let unread = self.len.checked_sub(self.padding)?;
        let rest = self.data.get(self.at..)?;
        let fill = rest.iter().take_while(|&&byte| byte == 0xff).count();
        if unread >= 8 || fill == 0 {
            return None;
        }
        let marker = *rest.get(fill)?;
        *self = Self { at: self.at + fill + 1, ..Self::new(self.data) };
        Some(marker)
    }
}
