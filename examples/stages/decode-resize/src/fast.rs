//! Fast path for ordinary photos: JPEGs with baseline coding, in colour or grey, that are not decoded at a fraction of their
//! size. Most photos of a data set are of this kind. All others, including damaged files, take the plain path of the other
//! modules, which is short, complete, and reports the reason for a refusal.
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

use crate::decode::MAX_PIXELS;
use crate::{Mode, Settings};
use axis::Axis;
use header::{Component, Header};
use resample::{Layer, Strips, resample};
use scan::Plane;

mod axis;
mod header;
mod huffman;
mod idct;
mod resample;
mod scan;

/// Buffers that are reused from one image to the next; results do not depend on their old content.
#[derive(Default)]
struct Room {
    planes: [Plane; 3],
    strips: Strips,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes and resizes a JPEG in one step: u8, [size, size, 3], rows first. `None` if the image needs the plain path.
pub(crate) fn decode_resize(jpeg: &[u8], settings: &Settings) -> Option<Vec<u8>> {
    let header = Header::read(jpeg)?;
    let size = settings.size as usize;
    let (width, height) = (header.width, header.height);
    let shorter = width.min(height);
    // The plain path refuses images that are too large, and decodes much larger ones at a fraction of their size.
    if width * height > MAX_PIXELS as usize || shorter.div_ceil(2) >= size {
        return None;
    }
    let part = |length: usize| match settings.mode {
        Mode::Crop => {
            let margin = (length - shorter) as f64 / 2.0;
            margin..margin + shorter as f64
        }
        Mode::Stretch => 0.0..length as f64,
    };
    let (columns, rows) = (part(width), part(height));
    let axes = |component: &Component| {
        let across = header.most_across() / component.across;
        let down = header.most_down() / component.down;
        (axis(width, &columns, across, size), axis(height, &rows, down, size))
    };
    // The third component, if any, is sampled like the second one.
    let axes: Vec<(Axis, Axis)> = header.components.iter().take(2).map(axes).collect();
    let of_components = || (0..header.components.len()).map(|index| &axes[index.min(1)]);
    let windows: Vec<_> = of_components().map(|(across, down)| (across.window(), down.window())).collect();

    ROOM.with_borrow_mut(|room| {
        scan::decode(&header, &windows, &mut room.planes)?;
        let layers: Vec<Layer> = of_components()
            .zip(&room.planes)
            .map(|((across, down), plane)| Layer { plane, down, across })
            .collect();
        Some(resample(&layers, size, &mut room.strips))
    })
}

/// Weights that resize `part` of the image's `length` pixels to `size` pixels, for a component with one pixel per `sampling`
/// pixels of the image.
fn axis(length: usize, part: &Range<f64>, sampling: usize, size: usize) -> Axis {
    let part = part.start / sampling as f64..part.end / sampling as f64;
    Axis::new(length.div_ceil(sampling), part, size)
}

#[cfg(test)]
mod tests;
