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
    /// Number of units of the scan between two restart markers; 0 without such markers.
    pub(super) restart_interval: usize,
    /// Data from the first compressed byte to the end of the file.
    pub(super) scan: &'a [u8],
}

/// A component of the frame: id, blocks across and down, number of its quantisation table.
type FrameComponent = (u8, usize, usize, usize);

impl<'a> Header<'a> {
    /// Reads the segments up to the first scan. `None` if the image needs the plain path, which the module `fast` describes.
    pub(super) fn read(jpeg: &'a [u8], tables: &mut Codes) -> Option<Self> {
        let mut rest = jpeg.strip_prefix(&[0xff, 0xd8])?;
        let mut steps: [Option<[i16; 64]>; 4] = [None; 4];
        let mut codes: [[Option<&[u8]>; 4]; 2] = [[None; 4]; 2];
        let mut frame: Option<(usize, usize, Vec<FrameComponent>)> = None;
        let mut restart_interval = 0;
        let mut is_jfif = false;
        loop {
            let marker = match *rest.first_chunk()? {
                [0xff, 0xff] => {
                    rest = &rest[1..];
                    continue;
                }
                [0xff, marker] => marker,
                _ => return None,
            };
            let length = usize::from(u16::from_be_bytes(*rest[2..].first_chunk()?));
            let segment = rest.get(4..2 + length)?;
            rest = &rest[2 + length..];
            match marker {
                0xc0 if frame.is_none() => frame = Some(read_frame(segment, is_jfif)?),
                0xc4 => read_codes(segment, &mut codes)?,
                0xdb => read_steps(segment, &mut steps)?,
                0xdd => restart_interval = u16::from_be_bytes(segment.try_into().ok()?).into(),
                0xda => {
                    let (width, height, components) = frame?;
                    let components = components_of_scan(segment, &components, &steps, &codes, tables)?;
                    return Some(Self { width, height, components, restart_interval, scan: rest });
                }
                0xe0 => is_jfif |= segment.starts_with(b"JFIF\0"),
                // Application segments and comments are skipped.
                0xe1..=0xef | 0xfe => {}
                _ => return None,
            }
        }
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

fn read_frame(segment: &[u8], is_jfif: bool) -> Option<(usize, usize, Vec<FrameComponent>)> {
    let (&[8, h1, h0, w1, w0, count], components) = segment.split_first_chunk()? else { return None };
    let (width, height) = (u16::from_be_bytes([w1, w0]).into(), u16::from_be_bytes([h1, h0]).into());
    let (components, []) = components.as_chunks::<3>() else { return None };
    let components: Vec<FrameComponent> = components
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
    (supported && usize::from(count) == components.len() && width > 0 && height > 0)
        .then_some((width, height, components))
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

/// Components of the frame with their tables, if the scan contains all of them, in order and complete.
fn components_of_scan(
    segment: &[u8],
    frame: &[FrameComponent],
    steps: &[Option<[i16; 64]>; 4],
    codes: &[[Option<&[u8]>; 4]; 2],
    tables: &mut Codes,
) -> Option<Vec<Component>> {
    let (&count, rest) = segment.split_first()?;
    let (choices, end) = rest.split_at_checked(2 * frame.len())?;
    if usize::from(count) != frame.len() || end != [0, 63, 0] {
        return None;
    }
    let of_component = |(&(id, across, down, table), choice): (&FrameComponent, &[u8; 2])| {
        let code = |kind: usize, number: u8| *codes[kind].get(usize::from(number))?;
        Some(Component {
            across,
            down,
            steps: (*steps.get(table)?)?,
            dc: tables.differences(code(0, choice[1] >> 4)?)?,
            ac: tables.runs(code(1, choice[1] & 15)?)?,
        })
        .filter(|_| choice[0] == id)
    };
    frame.iter().zip(choices.as_chunks::<2>().0).map(of_component).collect()
}
