//! Decoder of JPEGs, which computes only the pixels of a view: a part of the image at another size.
//!
//! Decoding takes most of the time of a vision pipeline. A decoder and a resizer designed together save work that neither can
//! save alone:
//!
//! - Pixels outside the crop are never computed: only their codes are read.
//! - Drafts resize the chroma components, which photos store at half the resolution, from that resolution, with weights that
//!   include libjpeg's interpolation. Colours are then converted only at the size of the result. Without `draft`, the colours
//!   of all pixels are computed first: cutting them to their range before or after resizing differs at saturated edges.
//! - Pixels are stored in the form that the resizer reads: minus 128, in rows whose length suits its loops.
//!
//! Loops over pixels process 16 bytes of several rows per iteration, without inner loops: the runtime checks the deadline at
//! the end of every loop's body, which costs as much as a few SIMD instructions.

use std::cell::RefCell;
use std::rc::Rc;

use penstock_guest::prelude::*;

use crate::decode::Limits;
use crate::filter::Line;
use crate::output::Scale;
use crate::params::Interpolation;
use crate::step::Size;
use crate::view::View;
use axis::{Axes, Axis};
use colour::{Samples, Sampling};
use header::{Coding, Colours, Header};
use huffman::Codes;
use resample::{Layer, Strips, resample};
use scan::{Plane, Window};
pub(crate) use segment::header;

mod axis;
mod colour;
mod header;
mod huffman;
mod idct;
mod resample;
mod scan;
mod scans;
mod segment;
mod smooth;
mod standard;

/// Result in the form that the stage returns.
pub(crate) enum Pixels<'a> {
    /// u8, [height, width, 3].
    Bytes(&'a mut [u8]),
    /// f32, [3, height, width], and the scale of each channel.
    Planes(&'a mut [f32], [Scale; 3]),
}

impl Pixels<'_> {
    /// Memory that the result takes, in bytes.
    fn memory(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Planes(floats, _) => size_of_val(*floats),
        }
    }
}

/// Size of the largest plane that is kept for later images, in bytes.
const KEPT_BYTES: usize = 16 << 20;

/// Buffers that are reused from one image to the next; results do not depend on their old content.
#[derive(Default)]
struct Room {
    codes: Codes,
    axes: Axes,
    planes: [Plane; 4],
    rows: [colour::Rows; 4],
    colours: [Plane; 3],
    strips: Strips,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// True if the interpolation has no negative weights, which would exceed the range of the numbers.
pub(crate) fn supports(view: &View) -> bool {
    view.resize.is_none_or(|resize| {
        resize.antialias
            && matches!(
                resize.interpolation,
                Interpolation::Bilinear | Interpolation::Box | Interpolation::Hamming
            )
    })
}

/// Decodes the view of a JPEG at its size divided by `shrink`: 1, 2, 4 or 8. With `draft`, colours are resized at the resolution
/// of the file; a `shrink` of more than 1 needs it. Images whose colours or samplings are unusual ignore both. Images that are too
/// large for planes of all colours are decoded as drafts, and counted.
pub(crate) fn decode(
    jpeg: &[u8],
    view: &View,
    shrink: u32,
    draft: bool,
    limits: Limits,
    result: &mut Pixels,
) -> Result<()> {
    ROOM.with_borrow_mut(|room| {
        let decoded = decode_in(room, jpeg, view, shrink, draft, limits, result);
        if room.planes.iter().chain(&room.colours).any(|plane| plane.pixels.capacity() > KEPT_BYTES) {
            *room = Room::default();
        }
        decoded
    })
}

fn decode_in(
    room: &mut Room,
    jpeg: &[u8],
    view: &View,
    shrink: u32,
    draft: bool,
    limits: Limits,
    result: &mut Pixels,
) -> Result<()> {
    let header = Header::read(jpeg, &mut room.codes)?;
    let frame = &header.frame;
    let samplings: Vec<Sampling> =
        frame.components.iter().map(|component| Sampling::new(frame, component)).collect();
    let has_drafts = match (header.colours, &samplings[..]) {
        (Colours::Grey, _) => true,
        (Colours::Ycc, [luma, chroma @ ..]) => {
            (luma.across, luma.down) == (1, 1) && chroma.iter().all(|own| own.across <= 2 && own.down <= 2)
        }
        _ => false,
    };
    let shrink = if has_drafts { shrink as usize } else { 1 };

    let coefficients = match header.coding {
        Coding::One { .. } => 0,
        Coding::Several { .. } => scans::memory(frame),
    };
    // Sizes in bytes may exceed the addresses of WebAssembly.
    let part = (view.crop.size().pixels() / (shrink * shrink)) as u64;
    let size = Size { width: frame.width as u32, height: frame.height as u32 };
    limits.check_pixels(size, part)?;
    let planes: u64 = samplings.iter().map(|own| part / (own.across * own.down) as u64).sum();
    let memory = result.memory() as u64 + coefficients + planes;
    let all_colours = limits.ensure_fits(jpeg, memory + 3 * part);
    let is_draft = has_drafts && (draft || header.colours == Colours::Grey || all_colours.is_err());
    if is_draft { limits.ensure_fits(jpeg, memory) } else { all_colours }?;
    if is_draft && !draft && header.colours != Colours::Grey {
        count("drafted", 1.0);
    }

    let lines = Line::of(view, frame.width.div_ceil(shrink), frame.height.div_ceil(shrink), shrink);
    match is_draft {
        true => decode_draft(room, &header, &samplings, lines, shrink, result),
        false => decode_colours(room, &header, &samplings, lines, result),
    }
}

/// Decodes the components and converts all of their pixels to colours, which are then resized.
fn decode_colours(
    room: &mut Room,
    header: &Header,
    samplings: &[Sampling],
    [across, down]: [Line; 2],
    result: &mut Pixels,
) -> Result<()> {
    let (across, down) = (room.axes.of(across, 1), room.axes.of(down, 1));
    let (columns, rows) = (across.window(), down.window());
    let windows: Vec<Window> = samplings
        .iter()
        .map(|sampling| Window { edge: 8, columns: sampling.columns(&columns), rows: sampling.rows(&rows) })
        .collect();
    scan::decode(header, windows.iter(), &mut room.planes)?;
    let window = Window { edge: 8, columns, rows };
    for plane in &mut room.colours {
        plane.reserve(&window);
    }
    let components: Vec<Samples> = room
        .planes
        .iter()
        .zip(samplings)
        .map(|(plane, sampling)| Samples { plane, sampling: *sampling })
        .collect();
    colour::convert(&components, header.colours, window.rows, &mut room.rows, &mut room.colours);
    let layers = room.colours.each_ref().map(|plane| Layer { plane, down: &down, across: &across });
    resample(&layers, false, &mut room.strips, result);
    Ok(())
}

/// Decodes the components and resizes them at their own resolution. The pixels of the result are then converted to colours.
fn decode_draft(
    room: &mut Room,
    header: &Header,
    samplings: &[Sampling],
    [across, down]: [Line; 2],
    shrink: usize,
    result: &mut Pixels,
) -> Result<()> {
    let windows: Vec<(Window, Rc<Axis>, Rc<Axis>)> = samplings
        .iter()
        .map(|sampling| {
            // A component with half the resolution in both directions is shrunk by half as much, as in libjpeg.
            let halves = if shrink > 1 && sampling.across == 2 && sampling.down == 2 { 2 } else { 1 };
            let across = room.axes.of(across, sampling.across / halves);
            let down = room.axes.of(down, sampling.down / halves);
            (
                Window { edge: 8 * halves / shrink, columns: across.window(), rows: down.window() },
                across,
                down,
            )
        })
        .collect();
    scan::decode(header, windows.iter().map(|(window, ..)| window), &mut room.planes)?;
    let layers: Vec<Layer> = windows
        .iter()
        .zip(&room.planes)
        .map(|((_, across, down), plane)| Layer { plane, down, across })
        .collect();
    resample(&layers, true, &mut room.strips, result);
    Ok(())
}

/// Results of `of` for 0 to 7. Compilers for WebAssembly leave a loop over large bodies as it is, with the check of the deadline
/// and with constants in memory.
#[inline(always)]
fn eight<T>(of: impl Fn(usize) -> T) -> [T; 8] {
    [of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)]
}
