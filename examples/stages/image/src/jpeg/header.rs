//! Segments before a JPEG's compressed data.

use std::rc::Rc;

use penstock_guest::prelude::*;

use super::huffman::{Codes, Runs, Table};
use super::segment::{segment, truncated};
use super::standard::STANDARD;

/// One component of a JPEG, such as luma (Y) or chroma (Cb, Cr).
#[derive(Clone)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Number of horizontally adjacent blocks in one unit of a scan with several components, 1 to 4.
    pub(super) across: usize,
    /// Number of vertically adjacent blocks in one unit of a scan with several components, 1 to 4.
    pub(super) down: usize,
    /// Number of the quantisation table.
    pub(super) table: u8,
}

pub(super) struct Tables {
    /// Quantisation steps of the coefficients, in the order of the scan.
    pub(super) steps: [i16; 64],
    /// Codes of the differences between blocks (DC).
    pub(super) dc: Rc<Table>,
    /// Codes of all other coefficients (AC).
    pub(super) ac: Rc<Runs>,
}

/// Colours that the components stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Grey,
    Rgb,
    Ycc,
    /// Cyan, magenta, yellow and black, inverted.
    Cmyk,
    /// As [`Self::Cmyk`], with the first three components as Y, Cb and Cr.
    Ycck,
}

/// Properties of a JPEG that precede its compressed data.
pub(super) struct Header<'a> {
    pub(super) frame: Frame,
    pub(super) colours: Colours,
    pub(super) coding: Coding<'a>,
    file: &'a [u8],
}

/// Compressed data of a JPEG.
pub(super) enum Coding<'a> {
    /// One scan with all components and all of their coefficients.
    One {
        /// Tables of every component.
        tables: Vec<Tables>,
        /// Number of units of the scan between two restart markers; 0 without such markers.
        restart_interval: usize,
        /// Data from the first compressed byte to the end of the file.
        data: &'a [u8],
    },
    /// Several scans, as in progressive JPEGs. `first` is the segment that starts the first one.
    Several { segments: Box<Segments<'a>>, first: &'a [u8] },
}

/// The frame: size, and the components that the scans refer to.
#[derive(Clone)]
pub(super) struct Frame {
    pub(super) is_progressive: bool,
    pub(super) width: usize,
    pub(super) height: usize,
    /// One, three or four components.
    pub(super) components: Vec<Component>,
}

/// Reader of the segments, with the tables so far.
#[derive(Clone)]
pub(super) struct Segments<'a> {
    /// Data that follows the last segment.
    pub(super) rest: &'a [u8],
    pub(super) restart_interval: usize,
    file: &'a [u8],
    steps: [Option<[i16; 64]>; 4],
    /// Codes by their kind, DC or AC, and number.
    codes: [[Option<&'a [u8]>; 4]; 2],
    frame: Option<Frame>,
    is_jfif: bool,
    /// Transform of the colours that Adobe's segment names.
    adobe: Option<u8>,
}

impl<'a> Segments<'a> {
    fn new(file: &'a [u8]) -> Self {
        Self {
            rest: file.get(2..).unwrap_or_default(),
            restart_interval: 0,
            file,
            steps: [None; 4],
            // Frames of Motion JPEG leave out these codes.
            codes: STANDARD.map(|[luma, chroma]| [Some(luma), Some(chroma), None, None]),
            frame: None,
            is_jfif: false,
            adobe: None,
        }
    }

    /// Reads the segments up to the next scan, and returns the segment that starts it; `None` at the end of the image.
    pub(super) fn next_scan(&mut self) -> Result<Option<&'a [u8]>> {
        loop {
            let Some((kind, content, rest)) = segment(self.rest) else {
                return Err(truncated(self.file.len()));
            };
            self.rest = rest;
            match kind {
                0xc0..=0xc2 => {
                    ensure!(self.frame.is_none(), "the JPEG is corrupt: it has two frames");
                    self.frame = Some(Frame::read(content, kind == 0xc2)?);
                }
                0xc3 => bail!("the kind of the JPEG is not supported: lossless"),
                0xc4 => {
                    read_codes(content, &mut self.codes)
                        .context("the JPEG is corrupt: its codes are incomplete")?;
                }
                0xc5..=0xc7 | 0xcd..=0xcf => bail!("the kind of the JPEG is not supported: hierarchical"),
                0xc9..=0xcb => bail!("the kind of the JPEG is not supported: arithmetic coding"),
                0xd9 => return Ok(None),
                0xda => return Ok(Some(content)),
                0xdb => read_steps(content, &mut self.steps)
                    .context("the JPEG is corrupt: its quantisation tables are incomplete")?,
                0xdd => {
                    let interval = content
                        .first_chunk()
                        .context("the JPEG is corrupt: its restart interval is missing")?;
                    self.restart_interval = u16::from_be_bytes(*interval).into();
                }
                0xe0 => self.is_jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0"),
                0xee if content.len() >= 12 && content.starts_with(b"Adobe") => {
                    self.adobe = Some(content[11])
                }
                // Other application segments and comments are skipped.
                _ => {}
            }
        }
    }

    /// Quantisation steps of a component in the tables so far.
    pub(super) fn steps(&self, component: &Component) -> Result<[i16; 64]> {
        let steps = self.steps.get(usize::from(component.table)).copied().flatten();
        steps.context("the JPEG is corrupt: a quantisation table is missing")
    }

    /// Segment with the codes of this kind, 0 for DC and 1 for AC, and number.
    pub(super) fn code(&self, kind: usize, number: u8) -> Result<&'a [u8]> {
        let code = self.codes[kind].get(usize::from(number)).copied().flatten();
        code.context("the JPEG is corrupt: the codes of a scan are missing")
    }

    /// Colours of the components, by the rules of libjpeg.
    fn colours(&self, components: &[Component]) -> Colours {
        match (components, self.adobe) {
            ([_], _) => Colours::Grey,
            ([first, second, third], adobe) => {
                let is_rgb =
                    adobe.map_or([first.id, second.id, third.id] == *b"RGB", |transform| transform == 0);
                if is_rgb && !self.is_jfif { Colours::Rgb } else { Colours::Ycc }
            }
            (_, None | Some(0)) => Colours::Cmyk,
            _ => Colours::Ycck,
        }
    }
}

impl<'a> Header<'a> {
    /// Reads the segments up to the first scan.
    pub(super) fn read(file: &'a [u8], codes: &mut Codes) -> Result<Self> {
        let mut segments = Segments::new(file);
        let first = segments.next_scan()?.context("the JPEG is corrupt: it has no scan")?;
        let frame =
            segments.frame.clone().context("the JPEG is corrupt: its first scan precedes its size")?;
        let colours = segments.colours(&frame.components);
        let coding = match is_whole(&frame, first) {
            true => Coding::One {
                tables: tables_of_scan(first, &frame, &segments, codes)?,
                restart_interval: segments.restart_interval,
                data: segments.rest,
            },
            false => Coding::Several { segments: Box::new(segments), first },
        };
        Ok(Self { frame, colours, coding, file })
    }

    /// Error for compressed data that cannot be decoded.
    pub(super) fn damage(&self) -> Error {
        let data = match &self.coding {
            Coding::One { data, .. } => data,
            Coding::Several { segments, .. } => segments.rest,
        };
        match data.windows(2).any(|pair| pair == [0xff, 0xd9]) {
            true => Error::new("the JPEG is corrupt: its compressed data is damaged"),
            false => truncated(self.file.len()),
        }
    }
}

impl Frame {
    fn read(segment: &[u8], is_progressive: bool) -> Result<Self> {
        let (&[bits, h1, h0, w1, w0, count], components) =
            segment.split_first_chunk().context("the JPEG is corrupt: its frame is incomplete")?;
        let components = components.as_chunks::<3>().0;
        ensure!(bits == 8, "the kind of the JPEG is not supported: {bits} bits");
        ensure!(matches!(count, 1 | 3 | 4), "the kind of the JPEG is not supported: {count} components");
        ensure!(components.len() == usize::from(count), "the JPEG is corrupt: its frame is incomplete");
        let components: Vec<Component> = components
            .iter()
            .map(|&[id, factors, table]| {
                // In scans of a single component, a unit is a block.
                let factors = if count == 1 { 0x11 } else { factors };
                Component { id, across: (factors >> 4).into(), down: (factors & 15).into(), table }
            })
            .collect();
        let frame = Self {
            is_progressive,
            width: u16::from_be_bytes([w1, w0]).into(),
            height: u16::from_be_bytes([h1, h0]).into(),
            components,
        };
        for Component { across, down, .. } in &frame.components {
            ensure!(
                (1..=4).contains(across) && (1..=4).contains(down),
                "the JPEG is corrupt: {across} x {down} blocks of a component"
            );
            ensure!(
                frame.most_across().is_multiple_of(*across) && frame.most_down().is_multiple_of(*down),
                "the kind of the JPEG is not supported: {across} x {down} blocks of a component beside {} x {}",
                frame.most_across(),
                frame.most_down()
            );
        }
        Ok(frame)
    }

    /// Number of units of a scan with several components, across and down.
    pub(super) fn units(&self) -> [usize; 2] {
        [self.width.div_ceil(8 * self.most_across()), self.height.div_ceil(8 * self.most_down())]
    }

    /// Largest number of horizontally adjacent blocks of a component in one unit of the scan.
    pub(super) fn most_across(&self) -> usize {
        self.components.iter().map(|component| component.across).max().unwrap_or(1)
    }

    /// Largest number of vertically adjacent blocks of a component in one unit of the scan.
    pub(super) fn most_down(&self) -> usize {
        self.components.iter().map(|component| component.down).max().unwrap_or(1)
    }
}

fn read_codes<'a>(mut segment: &'a [u8], codes: &mut [[Option<&'a [u8]>; 4]; 2]) -> Option<()> {
    while let Some((&place, table)) = segment.split_first() {
        let symbols: usize = table.get(..16)?.iter().map(|&count| usize::from(count)).sum();
        let (table, rest) = table.split_at_checked(16 + symbols)?;
        *codes.get_mut(usize::from(place >> 4))?.get_mut(usize::from(place & 15))? = Some(table);
        segment = rest;
    }
    Some(())
}

fn read_steps(mut segment: &[u8], steps: &mut [Option<[i16; 64]>; 4]) -> Option<()> {
    while let Some((&place, rest)) = segment.split_first() {
        // Values of 16 and above denote tables of 16-bit steps.
        let (size, number) = (1 + usize::from(place >= 16), usize::from(place & 15));
        let (table, rest) = rest.split_at_checked(64 * size)?;
        let step =
            |at: usize| table[size * at..][..size].iter().fold(0, |step, &byte| step << 8 | i16::from(byte));
        *steps.get_mut(number)? = Some(std::array::from_fn(step));
        segment = rest;
    }
    Some(())
}

/// True if a scan contains all components, in order and complete.
fn is_whole(frame: &Frame, scan: &[u8]) -> bool {
    let count = frame.components.len();
    let ids = scan.get(1..).unwrap_or_default().as_chunks::<2>().0.iter().map(|choice| choice[0]);
    !frame.is_progressive
        && scan.len() == 2 * count + 4
        && usize::from(scan[0]) == count
        && ids.take(count).eq(frame.components.iter().map(|component| component.id))
}

/// Tables of all components, for a scan that [`is_whole`].
fn tables_of_scan(scan: &[u8], frame: &Frame, segments: &Segments, codes: &mut Codes) -> Result<Vec<Tables>> {
    let of_component = |(component, choice): (&Component, &[u8; 2])| {
        Ok(Tables {
            steps: segments.steps(component)?,
            dc: codes.differences(segments.code(0, choice[1] >> 4)?).context(BAD_CODES)?,
            ac: codes.runs(segments.code(1, choice[1] & 15)?).context(BAD_CODES)?,
        })
    };
    frame.components.iter().zip(scan[1..].as_chunks::<2>().0).map(of_component).collect()
}

/// Message for codes that contradict each other.
pub(super) const BAD_CODES: &str = "the JPEG is corrupt: the codes of a scan are no prefix code";
