//! Pages of a column chunk. All sizes and counts that they state are checked before memory is allocated by them.

use std::io::Read;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use penstock_engine::lock::locked;
use penstock_engine::memory::{Block, buffer, bytes_of};

use super::columns::Leaf;
use super::footer::Chunk;
use super::growing::Growing;
use super::prefixes::{self, Prefixed};
use super::thrift::{Compact, I32, STRUCT, TRUE};
use crate::reason::Reason;
use crate::unpack;

pub(super) struct Pages {
    /// Bytes that follow the last page.
    rest: Bytes,
    codec: u8,
    physical: Physical,
    /// Bytes of a value, if all values have the same length.
    length: usize,
    /// True if there are definition levels, and repetition levels.
    has_levels: [bool; 2],
    has_dictionary: bool,
    /// Memory that the values of pages in the encoding DELTA_BYTE_ARRAY take.
    memory: Arc<Mutex<Growing>>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

struct Header {
    kind: PageKind,
    /// Size of the page in bytes when it is decompressed.
    uncompressed: usize,
    compressed: usize,
    checksum: Option<u32>,
    values: u32,
    /// Encoding of the values; its number if it is not known.
    encoding: Result<Encoding, i64>,
    /// Encodings of definition and repetition levels.
    levels: [Result<Encoding, i64>; 2],
    nulls: u32,
    rows: u32,
    /// Length of definition and repetition levels, which are not compressed, in pages of the second version.
    level_bytes: [u32; 2],
    is_compressed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Data,
    Dictionary,
    DataV2,
    Other,
}

impl Pages {
    /// Checks the headers of all pages in the bytes of a chunk. The error is the end of a sentence about the column.
    pub(super) fn new(
        bytes: Bytes,
        chunk: &Chunk,
        leaf: &Leaf,
        memory: Arc<Mutex<Growing>>,
    ) -> Result<Self, Reason> {
        let (physical, length) = (leaf.descr.physical_type(), leaf.descr.type_length().max(0) as usize);
        let has_levels = [leaf.descr.max_def_level() > 0, leaf.descr.max_rep_level() > 0];
        let codec = chunk.codec;
        let (rest, has_dictionary, zstd) = (bytes, false, None);
        let pages = Self { rest, codec, physical, length, has_levels, has_dictionary, memory, zstd };
        let (mut rest, mut values, mut size) = (pages.rest.clone(), 0_u64, 0_u64);
        while !rest.is_empty() {
            let (header, content) = Header::read(&mut rest)?;
            values += if header.kind.is_data() { u64::from(header.values) } else { 0 };
            size += if codec == 0 { content.len() } else { header.uncompressed } as u64;
        }
        if values != chunk.values {
            return Err(
                format!("has {values} values in its pages, but {} by the footer", chunk.values).into()
            );
        }
        if size > chunk.uncompressed {
            let stated = chunk.uncompressed;
            return Err(format!(
                "has {size} bytes in its pages, but {stated} with the headers by the footer"
            )
            .into());
        }
        Ok(pages)
    }

    fn next_page(&mut self) -> Result<Option<Page>, Reason> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let (header, content) = Header::read(&mut self.rest)?;
            if header.checksum.is_some_and(|checksum| checksum != crc32fast::hash(&content)) {
                return Err("has a page whose checksum is wrong".into());
            }
            if header.kind != PageKind::Other {
                let content = self.decompressed(&header, content)?;
                let encoding = self.check(&header, &content)?;
                let page = match encoding {
                    Encoding::DELTA_BYTE_ARRAY => {
                        header.page(self.expanded(&header, content)?, Encoding::PLAIN)
                    }
                    encoding => header.page(content, encoding),
                };
                return Ok(Some(page));
            }
        }
    }

    fn decompressed(&mut self, header: &Header, content: Bytes) -> Result<Bytes, Reason> {
        let plain = header.level_bytes.iter().map(|bytes| *bytes as usize).sum::<usize>();
        if plain > header.uncompressed || plain > content.len() {
            return Err("has a page whose levels are longer than the page".into());
        }
        if self.codec == 0 || !header.is_compressed {
            return Ok(content);
        }
        let (size, packed) = (header.uncompressed, &content[plain..]);
        // A page without values has no bytes.
        if size == plain {
            return Ok(content.slice(..plain));
        }
        let fault =
            |error: &dyn std::fmt::Display| format!("has a page that cannot be decompressed: {error}");
        let mut buffer: Box<dyn Block> = buffer(size).unwrap_or_else(|| Box::new(vec![0; size]));
        let (levels, values) = (*buffer).as_mut()[..size].split_at_mut(plain);
        levels.copy_from_slice(&content[..plain]);
        let unpacked = match self.codec {
            1 => {
                let length = unpack::snappy(packed, values).map_err(|reason| fault(&reason))?;
                length.ok_or_else(|| fault(&"it is longer than its header states"))?
            }
            2 => {
                let mut decoder = flate2::read::MultiGzDecoder::new(packed);
                let mut read = 0;
                while read < values.len()
                    && let more @ 1.. = decoder.read(&mut values[read..]).map_err(|error| fault(&error))?
                {
                    read += more;
                }
                // A byte more is one too many.
                read + decoder.read(&mut [0]).map_err(|error| fault(&error))?
            }
            6 => {
                let decoder = match &mut self.zstd {
                    Some(decoder) => decoder,
                    none => none.insert(zstd::bulk::Decompressor::new().map_err(|error| fault(&error))?),
                };
                decoder.decompress_to_buffer(packed, values).map_err(|error| fault(&error))?
            }
            4 => unpack::brotli(packed, values).map_err(|reason| fault(&reason))?.unwrap_or_default(),
            7 => lz4_flex::block::decompress_into(packed, values).map_err(|error| fault(&error))?,
            other => return Err(format!("is compressed by the unknown method {other}").into()),
        };
        if unpacked != values.len() {
            let stated = values.len();
            return Err(fault(&format!("it does not have the {stated} bytes that its header states")).into());
        }
        Ok(bytes_of(buffer).slice(..size))
    }

    /// Content of a page in the encoding DELTA_BYTE_ARRAY, with its values in the encoding PLAIN.
    fn expanded(&mut self, header: &Header, content: Bytes) -> Result<Bytes, Reason> {
        let values = self.behind_levels(header, &content)?;
        let levels = &content[..content.len() - values.len()];
        let prefixed = Prefixed::read(values, header.values, self.fixed_length())?;
        if !locked(&self.memory).take(prefixed.size()) {
            return Err("has values in the encoding DELTA_BYTE_ARRAY for which there is no memory".into());
        }
        Ok(prefixed.plain(levels)?.into())
    }

    fn fixed_length(&self) -> Option<usize> {
        (self.physical == Physical::FIXED_LEN_BYTE_ARRAY).then_some(self.length)
    }

    /// Bytes that the values of all pages in the encoding DELTA_BYTE_ARRAY take.
    pub(super) fn expanded_bytes(mut self) -> Result<u64, Reason> {
        let mut bytes = 0_u64;
        while !self.rest.is_empty() {
            let (header, content) = Header::read(&mut self.rest)?;
            if header.kind.is_data() && header.encoding == Ok(Encoding::DELTA_BYTE_ARRAY) {
                let content = self.decompressed(&header, content)?;
                let values = self.behind_levels(&header, &content)?;
                let prefixed = Prefixed::read(values, header.values, self.fixed_length())?;
                bytes = bytes.saturating_add(prefixed.size());
            }
        }
        Ok(bytes)
    }

    /// Checks what the decoders of the library rely on. Returns the encoding of the values.
    fn check(&mut self, header: &Header, content: &Bytes) -> Result<Encoding, Reason> {
        let is_dictionary = header.kind == PageKind::Dictionary;
        let encoding = header.encoding.map_err(|number| format!("has the unknown encoding {number}"))?;
        let is_known = match encoding {
            Encoding::PLAIN => true,
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => is_dictionary || self.has_dictionary,
            Encoding::RLE => self.physical == Physical::BOOLEAN && !is_dictionary,
            Encoding::DELTA_BINARY_PACKED => {
                matches!(self.physical, Physical::INT32 | Physical::INT64) && !is_dictionary
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => self.physical == Physical::BYTE_ARRAY && !is_dictionary,
            Encoding::DELTA_BYTE_ARRAY => {
                matches!(self.physical, Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY)
                    && !is_dictionary
            }
            Encoding::BYTE_STREAM_SPLIT => {
                !matches!(self.physical, Physical::BOOLEAN | Physical::INT96 | Physical::BYTE_ARRAY)
                    && !is_dictionary
            }
            _ => false,
        };
        if !is_known {
            return Err(format!(
                "has the encoding {encoding}, which is not supported there; write it with the default encoding"
            ).into());
        }
        if is_dictionary {
            let least = match self.physical {
                Physical::BOOLEAN => 1,
                Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
                Physical::INT64 | Physical::DOUBLE => 8,
                Physical::INT96 => 12,
                Physical::FIXED_LEN_BYTE_ARRAY => self.length,
            };
            if std::mem::replace(&mut self.has_dictionary, true)
                || header.values as usize > content.len() / least.max(1)
            {
                return Err("has a dictionary that is damaged, or two of them".into());
            }
        }
        #[expect(deprecated, reason = "old files have this encoding")]
        let is_level =
            |encoding: &Result<Encoding, _>| matches!(encoding, Ok(Encoding::RLE | Encoding::BIT_PACKED));
        if header.kind == PageKind::Data && !header.levels.iter().all(is_level) {
            return Err("has levels in an unknown encoding".into());
        }
        if encoding == Encoding::DELTA_LENGTH_BYTE_ARRAY {
            // The library allocates by the number of lengths, and takes values of these lengths.
            let lengths = prefixes::lengths(self.behind_levels(header, content)?, header.values);
            let fits = |(lengths, values): (Vec<u32>, &[u8])| {
                lengths.iter().map(|length| u64::from(*length)).sum::<u64>() <= values.len() as u64
            };
            if !lengths.is_some_and(fits) {
                return Err("has a page whose DELTA_LENGTH_BYTE_ARRAY is damaged".into());
            }
        }
        Ok(encoding)
    }

    /// Values of a page, which follow its levels.
    fn behind_levels<'a>(&self, header: &Header, content: &'a [u8]) -> Result<&'a [u8], Reason> {
        const LONGER: &str = "has levels that are longer than their page";
        if header.kind == PageKind::DataV2 {
            let levels = header.level_bytes.iter().map(|bytes| *bytes as usize).sum();
            return Ok(content.get(levels..).ok_or(LONGER)?);
        }
        let mut rest = content;
        for (encoding, _) in header.levels.iter().zip(self.has_levels).filter(|(_, has_levels)| *has_levels) {
            if *encoding != Ok(Encoding::RLE) {
                return Err(
                    "has levels in the encoding BIT_PACKED, which is not supported with these values".into(),
                );
            }
            let (length, levels) = rest.split_first_chunk::<4>().ok_or(LONGER)?;
            rest = levels.get(u32::from_le_bytes(*length) as usize..).ok_or(LONGER)?;
        }
        Ok(rest)
    }
}

/// Refuses the methods of compression that are known and not supported. The error is the end of a sentence about the column.
pub(super) fn check_codec(codec: u8) -> Result<(), Reason> {
    let name = match codec {
        3 => "LZO",
        5 => "the older form of LZ4",
        _ => return Ok(()),
    };
    Err(format!(
        "is compressed by {name}, which is not supported; write it with zstd, snappy, gzip, Brotli or LZ4_RAW"
    )
    .into())
}

impl PageKind {
    fn is_data(self) -> bool {
        matches!(self, Self::Data | Self::DataV2)
    }
}

impl Header {
    /// Reads a header; returns the content of its page.
    fn read(bytes: &mut Bytes) -> Result<(Self, Bytes), Reason> {
        let mut input = Compact::new(bytes);
        let header = Self::parse(&mut input).ok_or("has a page whose header is damaged")?;
        let start = bytes.len() - input.rest().len();
        if header.compressed > bytes.len() - start {
            return Err(format!("ends within a page of {} bytes", header.compressed).into());
        }
        drop(bytes.split_to(start));
        let content = bytes.split_to(header.compressed);
        Ok((header, content))
    }

    fn parse(input: &mut Compact<'_>) -> Option<Self> {
        let mut header = Self {
            kind: PageKind::Other,
            uncompressed: 0,
            compressed: 0,
            checksum: None,
            values: 0,
            encoding: Ok(Encoding::PLAIN),
            levels: [Ok(Encoding::RLE); 2],
            nulls: 0,
            rows: 0,
            level_bytes: [0; 2],
            is_compressed: true,
        };
        let (mut last, mut parts) = (0, 0);
        while let Some((number, kind)) = input.field(&mut last)? {
            match (number, kind) {
                (1, I32) => {
                    header.kind = match input.int()? {
                        0 => PageKind::Data,
                        2 => PageKind::Dictionary,
                        3 => PageKind::DataV2,
                        _ => PageKind::Other,
                    }
                }
                (2, I32) => header.uncompressed = usize::try_from(input.int()?).ok()?,
                (3, I32) => header.compressed = usize::try_from(input.int()?).ok()?,
                (4, I32) => header.checksum = Some(input.int()? as i32 as u32),
                (5 | 7 | 8, STRUCT) => {
                    header.part(number, input)?;
                    parts |= 1 << number;
                }
                _ => input.skip(kind)?,
            }
        }
        let part = match header.kind {
            PageKind::Data => 1 << 5,
            PageKind::Dictionary => 1 << 7,
            PageKind::DataV2 => 1 << 8,
            PageKind::Other => 0,
        };
        // A page has the part of its kind only, so that no part changes the values of another.
        (parts == part).then_some(header)
    }

    fn part(&mut self, part: i16, input: &mut Compact<'_>) -> Option<()> {
        let mut last = 0;
        while let Some((number, kind)) = input.field(&mut last)? {
            match (part, number, kind) {
                (_, 1, I32) => self.values = number_of(input)?,
                (5 | 7, 2, I32) | (8, 4, I32) => self.encoding = encoding_of(input.int()?),
                (5, 3, I32) => self.levels[0] = encoding_of(input.int()?),
                (5, 4, I32) => self.levels[1] = encoding_of(input.int()?),
                (8, 2, I32) => self.nulls = number_of(input)?,
                (8, 3, I32) => self.rows = number_of(input)?,
                (8, 5, I32) => self.level_bytes[0] = number_of(input)?,
                (8, 6, I32) => self.level_bytes[1] = number_of(input)?,
                (8, 7, _) => self.is_compressed = kind == TRUE,
                _ => input.skip(kind)?,
            }
        }
        Some(())
    }

    fn page(&self, buf: Bytes, encoding: Encoding) -> Page {
        let num_values = self.values;
        // Pages of the second version have no other encodings of levels.
        let [def_level_encoding, rep_level_encoding] =
            self.levels.map(|encoding| encoding.unwrap_or(Encoding::RLE));
        let [def_levels_byte_len, rep_levels_byte_len] = self.level_bytes;
        match self.kind {
            PageKind::Dictionary => Page::DictionaryPage { buf, num_values, encoding, is_sorted: false },
            PageKind::DataV2 => Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls: self.nulls.min(num_values),
                num_rows: self.rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed: false,
                statistics: None,
            },
            PageKind::Data | PageKind::Other => Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                statistics: None,
            },
        }
    }
}

fn number_of(input: &mut Compact<'_>) -> Option<u32> {
    u32::try_from(input.int()?).ok()
}

/// The encoding with this number, or the number if it is not known.
fn encoding_of(number: i64) -> Result<Encoding, i64> {
    #[expect(deprecated, reason = "old files have this encoding")]
    let encoding = match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => return Err(other),
    };
    Ok(encoding)
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        self.next_page().map_err(|reason| ParquetError::External(reason.into()))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        let mut rest = self.rest.clone();
        while !rest.is_empty() {
            let (header, _) =
                Header::read(&mut rest).map_err(|reason| ParquetError::External(reason.into()))?;
            if header.kind != PageKind::Other {
                let is_second = header.kind == PageKind::DataV2;
                return Ok(Some(PageMetadata {
                    num_rows: is_second.then_some(header.rows as usize),
                    num_levels: header.kind.is_data().then_some(header.values as usize),
                    is_dict: header.kind == PageKind::Dictionary,
                }));
            }
        }
        Ok(None)
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.get_next_page().map(drop)
    }
}
