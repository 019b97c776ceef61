//! Fast path for ordinary photos: JPEGs with baseline coding, in colour or grey. Most photos of a data set are of this kind. All
//! others, including damaged files, take the plain path of the other modules, which is short, complete, and reports the reason
//! for a refusal.
//!
//! A stage does not need a fast path; this one exists because decoding takes most of the time of a vision pipeline. A decoder
//! and a resizer designed together save work that neither can save alone:
//!
//! - Pixels outside the crop are never computed: only their codes are read.
//! - The chroma components, which photos store at half the resolution, are resized from that resolution. They are
//!   not scaled to full size first, and colours are converted only at the size of the result.
//! - Pixels are stored in the form that the resizer reads: minus 128, in rows whose length suits its loops.
//!
//! Loops over pixels process 16 bytes of several rows per iteration, without inner loops: the runtime checks the deadline at
//! the end of every loop's body, which costs as much as a few SIMD instructions.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::decode::MAX_PIXELS;
use crate::{Mode, Pixels, Settings};
use axis::{Axes, Axis};
use header::Header;
use huffman::Codes;
use resample::{Layer, Strips, resample};
use scan::{Plane, Window};

mod axis;
mod header;
mod huffman;
mod idct;
mod resample;
mod scan;

/// Buffers that are reused from one image to the next; results do not depend on their old content.
#[derive(Default)]
struct Room {
    codes: Codes,
    axes: Axes,
    planes: [Plane; 3],
    strips: Strips,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes and resizes a JPEG in one step. `None` if the image needs the plain path; `result` is then partly written.
pub(crate) fn decode_resize(jpeg: &[u8], settings: &Settings, result: &mut Pixels) -> Option<()> {
    ROOM.with_borrow_mut(|room| {
        let header = Header::read(jpeg, &mut room.codes)?;
        // The plain path refuses images that are too large.
        if header.width * header.height > MAX_PIXELS as usize {
            return None;
        }
        let size = settings.size as usize;
        let shrink = shrink(header.width.min(header.height), settings);
        let (width, height) = (header.width.div_ceil(shrink), header.height.div_ceil(shrink));
        let shorter = width.min(height);
        let part = |length: usize| match settings.mode {
            Mode::Crop => {
                let margin = (length - shorter) as f64 / 2.0;
                margin..margin + shorter as f64
            }
            Mode::Stretch => 0.0..length as f64,
        };
        let (columns, rows) = (part(width), part(height));
        let windows: Vec<(Window, Rc<Axis>, Rc<Axis>)> = header
            .components
            .iter()
            .map(|component| {
                // A component with half the resolution in both directions is shrunk by half as much, as in libjpeg.
                let (across, down) =
                    (header.most_across() / component.across, header.most_down() / component.down);
                let halves = if shrink > 1 && across == 2 && down == 2 { 2 } else { 1 };
                // Axis that resizes `part` of the image's `length` pixels, for a component with a pixel per `sampling` pixels.
                let mut axis = |length: usize, part: &Range<f64>, sampling: usize| {
                    let part = part.start / sampling as f64..part.end / sampling as f64;
                    room.axes.of(length.div_ceil(sampling), part, size)
                };
                let (across, down) =
                    (axis(width, &columns, across / halves), axis(height, &rows, down / halves));
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
        resample(&layers, size, &mut room.strips, result);
        Some(())
    })
}

/// Divisor of the size at which an image is decoded, by the length of its shorter side: 1, 2, 4 or 8.
fn shrink(shorter: usize, settings: &Settings) -> usize {
    let is_enough = |shrink: &usize| settings.draft && shorter.div_ceil(*shrink) >= settings.size as usize;
    [8, 4, 2].into_iter().find(is_enough).unwrap_or(1)
}

/// Results of `of` for 0 to 7. Compilers for WebAssembly leave a loop over large bodies as it is, with the check of the deadline
/// and with constants in memory.
#[inline(always)]
fn eight<T>(of: impl Fn(usize) -> T) -> [T; 8] {
    [of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)]
}

#[cfg(test)]
mod tests;
