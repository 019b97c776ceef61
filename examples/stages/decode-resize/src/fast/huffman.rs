//! The codes of a JPEG's compressed data, and the bits they are made of.

/// Bits of a code that are looked up at once: nearly all codes are as long at most, and so are most codes together with
/// the number that follows.
const LOOKUP_BITS: u32 = 10;

/// A set of codes, in a form in which one look at the next bits tells most of what they say.
pub(super) struct Table {
    /// For every beginning of [`LOOKUP_BITS`] bits the entry that begins there; 0 for a longer code.
    lookup: Box<[Entry; 1 << LOOKUP_BITS]>,
    /// For every length the first code, as 16 bits from the left, that is longer.
    ends: [u32; 17],
    /// For every length what to add to a code to get the place of its symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

/// A code and perhaps the number that follows it.
///
/// From the top: 16 bits the number, 8 the symbol (zeros before, size of the number), 1 whether the number is known, 5
/// how many bits all that takes.
#[derive(Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    const KNOWN: u32 = 1 << 7;

    /// Whether the number is part of the entry; it follows in the data otherwise.
    pub(super) fn is_complete(self) -> bool {
        self.0 & Self::KNOWN != 0
    }

    /// The number of a complete entry.
    pub(super) fn number(self) -> i16 {
        (self.0 >> 16) as i16
    }

    /// How many zeros come before the number.
    pub(super) fn zeros(self) -> usize {
        (self.0 >> 12 & 15) as usize
    }

    /// Bits that the number takes.
    pub(super) fn size(self) -> u32 {
        self.0 >> 8 & 15
    }

    /// Bits that the entry takes.
    pub(super) fn bits(self) -> u32 {
        self.0 & 31
    }
}

impl Table {
    /// The codes of differences, whose symbols are sizes. `segment` has the number of codes of every length from 1 to 16,
    /// then the symbols.
    pub(super) fn for_differences(segment: &[u8]) -> Option<Self> {
        let table = Self::new(segment, true)?;
        table.symbols.iter().all(|&size| size <= 11).then_some(table)
    }

    /// The codes of runs: zeros, then a number.
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

    /// The entry that `bits` begin with. `None` when no code begins so.
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

/// The entry of a code of `length` bits at the start of `bits`, which are [`LOOKUP_BITS`].
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

/// The number that `size` bits, at least one, stand for: a leading 0 means that it is negative.
#[inline(always)]
fn signed(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    if bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
}

/// Compressed data, bit by bit; zeros follow its end.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// First byte that is not in the window as a whole.
    at: usize,
    /// The next bits, from the top.
    window: u64,
    /// Bits in the window that count.
    len: u32,
    /// How many of the last of them were put there for want of data.
    padding: u32,
}

impl<'a> Bits<'a> {
    /// Starts with the first bit of `data`.
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, window: 0, len: 0, padding: 0 }
    }

    /// Sees to it that the window has at least 32 bits: enough for one code and its number.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if self.len >= 32 {
            return;
        }
        if let Some(bytes) = self.data.get(self.at..self.at + 8).and_then(|bytes| bytes.first_chunk()) {
            let next = u64::from_be_bytes(*bytes);
            // No byte is ff: none becomes zero when all bits are turned round.
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

    /// Fills the window when an ff is near, which is followed by 00 in the data, or by the marker that ends it. By value: what lends its address to another
    /// function lies in memory, not in registers.
    #[inline(never)]
    fn refilled_bytewise(mut self) -> Self {
        // What lies below the bits that count is the start of the next byte, or zeros.
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

    /// Goes past `count` bits, fewer than 64, of the window.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.window <<= count;
        self.len = self.len.wrapping_sub(count);
    }

    /// Takes the number, of at least one bit, that follows a code.
    #[inline(always)]
    pub(super) fn number(&mut self, size: u32) -> i32 {
        let number = signed((self.window >> (64 - size)) as u32, size);
        self.skip(size);
        number
    }

    /// Ends at the marker behind the data, and returns it. `None` when the data ended before, or does not end here.
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
