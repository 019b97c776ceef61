//! Segments before a JPEG's compressed data.

use std::rc::Rc;

use super::huffman::{Codes, Runs, Table};

/// One component of a JPEG: luma (Y) or chroma (Cb, Cr).
pub(super) struct Component {
    /// Number of horizontally adjacent blocks in one unit of the scan, 1 or 2.
    pub(super) across: usize,
    /// Number of vertically adjacent blocks in one unit of the scan, 1 or 2.
    pub(super) down: usize,
    /// Quantisation steps of the coefficients, in the order of the scan.
    pub(super) steps: [i16; 64],
}

/// Codes of one component.
pub(super) struct Tables {
    /// Codes of the differences between blocks (DC).
    pub(super) dc: Rc<Table>,
    /// Codes of all other coefficients (AC).
    pub(super) ac: Rc<Runs>,
}

/// Properties of a JPEG that precede its compressed data.
pub(super) struct Header<'a> {
    pub(super) width: usize,
    pub(super) height: usize,
    /// One component for grey, or three: Y, Cb, Cr. The first never has fewer samples than the others.
    pub(super) components: Vec<Component>,
    pub(super) coding: Coding<'a>,
}

/// Compressed data of a JPEG.
pub(super) enum Coding<'a> {
    /// One scan with all components and all of their coefficients.
    One {
        /// Codes of every component.
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
    width: usize,
    height: usize,
    /// Id of a component, blocks across and down, number of its quantisation table.
    pub(super) components: Vec<(u8, usize, usize, usize)>,
}

/// Reader of the segments, with the tables so far.
#[derive(Clone)]
pub(super) struct Segments<'a> {
    /// Data that follows the last segment.
    pub(super) rest: &'a [u8],
    steps: [Option<[i16; 64]>; 4],
    /// Codes by their kind, DC or AC, and number.
    codes: [[Option<&'a [u8]>; 4]; 2],
    pub(super) frame: Option<Frame>,
    pub(super) restart_interval: usize,
    is_jfif: bool,
}

impl<'a> Segments<'a> {
    fn new(jpeg: &'a [u8]) -> Option<Self> {
        Some(Self {
            rest: jpeg.strip_prefix(&[0xff, 0xd8])?,
            steps: [None; 4],
            codes: [[None; 4]; 2],
            frame: None,
            restart_interval: 0,
            is_jfif: false,
        })
    }

    /// Reads the segments up to the next scan, and returns the segment that starts it; `Some(None)` at the end of the image.
    /// `None` if the image needs the plain path, which the module `fast` describes.
    pub(super) fn next_scan(&mut self) -> Option<Option<&'a [u8]>> {
        loop {
            let marker = match *self.rest.first_chunk()? {
                [0xff, 0xff] => {
                    self.rest = &self.rest[1..];
                    continue;
                }
                [0xff, 0xd9] => return Some(None),
                [0xff, marker] => marker,
                _ => return None,
            };
            let length = usize::from(u16::from_be_bytes(*self.rest[2..].first_chunk()?));
            let segment = self.rest.get(4..2 + length)?;
            self.rest = &self.rest[2 + length..];
            match marker {
                0xc0..=0xc2 if self.frame.is_none() => {
                    self.frame = Some(read_frame(segment, marker == 0xc2, self.is_jfif)?);
                }
                0xc4 => read_codes(segment, &mut self.codes)?,
                0xdb => read_steps(segment, &mut self.steps)?,
                0xdd => self.restart_interval = u16::from_be_bytes(segment.try_into().ok()?).into(),
                0xda => return Some(Some(segment)),
                0xe0 => self.is_jfif |= segment.starts_with(b"JFIF\0"),
                // Application segments and comments are skipped.
                0xe1..=0xef | 0xfe => {}
                _ => return None,
            }
        }
    }

    /// Segment with the codes of this kind, 0 for DC and 1 for AC, and number.
    pub(super) fn code(&self, kind: usize, number: u8) -> Option<&'a [u8]> {
        *self.codes[kind].get(usize::from(number))?
    }
}

impl<'a> Header<'a> {
    /// Reads the segments up to the first scan. `None` if the image needs the plain path, which the module `fast` describes.
    pub(super) fn read(jpeg: &'a [u8], codes: &mut Codes) -> Option<Self> {
        let mut segments = Segments::new(jpeg)?;
        let first = segments.next_scan()??;
        let frame = segments.frame.as_ref()?;
        let of_component = |&(_, across, down, table): &(u8, usize, usize, usize)| {
            Some(Component { across, down, steps: (*segments.steps.get(table)?)? })
        };
        let (width, height) = (frame.width, frame.height);
        let components = frame.components.iter().map(of_component).collect::<Option<_>>()?;
        let coding = match is_whole(frame, first) {
            true => Coding::One {
                tables: tables_of_scan(first, &segments, codes)?,
                restart_interval: segments.restart_interval,
                data: segments.rest,
            },
            false => Coding::Several { segments: Box::new(segments), first },
        };
        Some(Self { width, height, components, coding })
    }

    /// Number of units of a scan with all components, across and down.
    pub(super) fn units(&self) -> [usize; 2] {
        [self.width.div_ceil(8 * self.most_across()), self.height.div_ceil(8 * self.most_down())]
    }

    /// Number of horizontally adjacent blocks in one unit of the scan, for the first component, which has the most.
    pub(super) fn most_across(&self) -> usize {
        self.components[0].across
    }

    /// Number of vertically adjacent blocks in one unit of the scan, for the first component, which has the most.
    pub(super) fn most_down(&self) -> usize {
        self.components[0].down
    }
}

fn read_frame(segment: &[u8], is_progressive: bool, is_jfif: bool) -> Option<Frame> {
    let (&[8, h1, h0, w1, w0, count], components) = segment.split_first_chunk()? else { return None };
    let (width, height) = (u16::from_be_bytes([w1, w0]).into(), u16::from_be_bytes([h1, h0]).into());
    let (components, []) = components.as_chunks::<3>() else { return None };
    let components: Vec<_> = components
        .iter()
        .map(|&[id, factors, table]| (id, (factors >> 4).into(), (factors & 15).into(), table.into()))
        .collect();
    let supported = match *components {
        [(_, 1, 1, _)] => true,
        // With other ids, the components may be red, green and blue, which only the plain path decodes.
        [(first, 1 | 2, 1 | 2, _), (second, 1, 1, _), (third, 1, 1, _)] => match [first, second, third] {
            [1, 2, 3] => true,
            [0, 1, 2] => is_jfif,
            _ => false,
        },
        _ => false,
    };
    (supported && usize::from(count) == components.len() && width > 0 && height > 0).then_some(Frame {
        is_progressive,
        width,
        height,
        components,
    })
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
        // Values of 16 and above denote tables of 16-bit steps, which only 12-bit images use.
        let (table, rest) = rest.split_first_chunk::<64>()?;
        *steps.get_mut(usize::from(place))? = Some(table.map(i16::from));
        segment = rest;
    }
    Some(())
}

/// True if a scan contains all components, in order and complete.
fn is_whole(frame: &Frame, scan: &[u8]) -> bool {
    let Some((&count, rest)) = scan.split_first() else { return false };
    let Some((choices, end)) = rest.split_at_checked(2 * frame.components.len()) else { return false };
    let ids = choices.as_chunks::<2>().0.iter().map(|choice| choice[0]);
    !frame.is_progressive
        && usize::from(count) == frame.components.len()
        && end == [0, 63, 0]
        && ids.eq(frame.components.iter().map(|component| component.0))
}

/// Codes of all components, for a scan that [`is_whole`].
fn tables_of_scan(scan: &[u8], segments: &Segments, codes: &mut Codes) -> Option<Vec<Tables>> {
    let of_component = |choice: &[u8; 2]| {
        Some(Tables {
            dc: codes.differences(segments.code(0, choice[1] >> 4)?)?,
            ac: codes.runs(segments.code(1, choice[1] & 15)?)?,
        })
    };
    scan[1..scan.len() - 3].as_chunks::<2>().0.iter().map(of_component).collect()
}
