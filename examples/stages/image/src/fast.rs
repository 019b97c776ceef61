//! Fast path for ordinary photos: JPEGs with baseline or progressive coding, in colour or grey. Most photos of a data set are of this kind. All
//! others, including damaged files, take the plain path of the other modules, which is short, complete, and reports the reason
//! for a refusal.
//!
//! A stage does not need a fast path; this one exists because decoding takes most of the time of a vision pipeline. A decoder
//! and a resizer designed together save work that neither can save alone:
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
use std::ops::Range;
use std::rc::Rc;

use crate::decode::ensure_fits;
use crate::filter::Line;
use crate::output::Scale;
use crate::params::Interpolation;
use crate::step::MAX_PIXELS;
use crate::view::View;
use axis::{Axes, Axis};
use colour::Chroma;
use header::{Coding, Header};
use huffman::Codes;
use resample::{Layer, Strips, resample};
use scan::{Plane, Window};

mod axis;
mod colour;
mod header;
mod huffman;
mod idct;
mod resample;
mod scan;
mod scans;

/// Result in the form that the stage returns.
pub(crate) enum Pixels<'a> {
    /// u8, [height, width, 3].
    Bytes(&'a mut [u8]),
    /// f32, [3, height, width], and the scale of each channel.
    Planes(&'a mut [f32], [Scale; 3]),
}

/// Size of the largest plane that is kept for later images, in bytes.
const KEPT_BYTES: usize = 16 << 20;

/// Buffers that are reused from one image to the next; results do not depend on their old content.
#[derive(Default)]
struct Room {
    codes: Codes,
    axes: Axes,
    planes: [Plane; 3],
    rows: [colour::Rows; 2],
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
/// of the file; a `shrink` of more than 1 needs it. `None` if the image needs the plain path; `result` is then partly written.
pub(crate) fn decode(jpeg: &[u8], view: &View, shrink: u32, draft: bool, result: &mut Pixels) -> Option<()> {
    ROOM.with_borrow_mut(|room| {
        let decoded = decode_in(room, jpeg, view, shrink, draft, result);
        if room.planes.iter().any(|plane| plane.pixels.capacity() > KEPT_BYTES) {
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
    result: &mut Pixels,
) -> Option<()> {
    let header = Header::read(jpeg, &mut room.codes)?;
    // The plain path refuses images that are too large.
    let pixels = header.width as u64 * header.height as u64;
    if pixels > MAX_PIXELS {
        return None;
    }
    if let Coding::Several { .. } = header.coding {
        // Two bytes for each coefficient of three components, then one for each pixel, before and after the colours are converted.
        ensure_fits(jpeg, 12 * pixels).ok()?;
    }
    let shrink = shrink as usize;
    let (width, height) = (header.width.div_ceil(shrink), header.height.div_ceil(shrink));
    let [across, down] = Line::of(view, width, height, shrink);
    let samplings: Vec<[usize; 2]> = header
        .components
        .iter()
        .map(|component| [header.most_across() / component.across, header.most_down() / component.down])
        .collect();
    let size = view.size();
    let (result_width, result_height) = (size.width as usize, size.height as usize);
    if !draft && header.components.len() == 3 {
        let (across, down) = (room.axes.of(across, 1), room.axes.of(down, 1));
        let (columns, rows) = (across.window(), down.window());
        let part = |range: &Range<usize>, sampling: usize, length: usize| match sampling {
            1 => range.clone(),
            _ => colour::half(range, length.div_ceil(2)),
        };
        let windows: Vec<Window> = samplings
            .iter()
            .map(|&[sampling_across, sampling_down]| Window {
                edge: 8,
                columns: part(&columns, sampling_across, width),
                rows: part(&rows, sampling_down, height),
            })
            .collect();
        scan::decode(&header, windows.iter(), &mut room.planes)?;
        let [luma, blueness, redness] = &room.planes;
        let chroma =
            [(blueness, samplings[1]), (redness, samplings[2])].map(|(plane, [across, down])| Chroma {
                plane,
                width: width.div_ceil(across),
                height: height.div_ceil(down),
                half_across: across == 2,
                half_down: down == 2,
            });
        colour::convert(luma, &chroma, rows, &mut room.rows, &mut room.colours);
        let layers = room.colours.each_ref().map(|plane| Layer { plane, down: &down, across: &across });
        resample(&layers, false, result_width, result_height, &mut room.strips, result);
        return Some(());
    }
    let windows: Vec<(Window, Rc<Axis>, Rc<Axis>)> = samplings
        .iter()
        .map(|&[sampling_across, sampling_down]| {
            // A component with half the resolution in both directions is shrunk by half as much, as in libjpeg.
            let halves = if shrink > 1 && sampling_across == 2 && sampling_down == 2 { 2 } else { 1 };
            let across = room.axes.of(across, sampling_across / halves);
            let down = room.axes.of(down, sampling_down / halves);
            (
                Window { edge: 8 * halves / shrink, columns: across.window(), rows: down.window() },
                across,
                down,
            )
        })
        .collect();
    scan::decode(&header, windows.iter().map(|(window, ..)| window), &mut room.planes)?;
    let layers: Vec<Layer> = windows
        .iter()
        .zip(&room.planes)
        .map(|((_, across, down), plane)| Layer { plane, down, across })
        .collect();
    resample(&layers, true, result_width, result_height, &mut room.strips, result);
    Some(())
}

/// Results of `of` for 0 to 7. Compilers for WebAssembly leave a loop over large bodies as it is, with the check of the deadline
/// and with constants in memory.
#[inline(always)]
fn eight<T>(of: impl Fn(usize) -> T) -> [T; 8] {
    [of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)]
}
