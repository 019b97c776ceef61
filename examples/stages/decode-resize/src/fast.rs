//! The fast path for ordinary photos: JPEGs with baseline coding, in colour or grey, that are not decoded at a fraction of
//! their size. They are most of what a data set holds. Whatever else comes, damaged files included, is left to the plain
//! path of the other modules, which is short, complete, and gives the reasons for what it refuses.
//!
//! A stage does not need this; it is here because decoding images is where most of a vision pipeline's time goes. A
//! decoder and a resizer that know of each other save work that neither can save alone:
//!
//! - Pixels outside the crop are never made: only their codes are read.
//! - Blueness and redness, which photos have at half the resolution, are resized as they are. They are not brought to
//!   full size first, nor are colours converted at full size, but at the size of the result.
//! - Pixels are kept as the resizer wants them: minus 128, in rows whose length suits its loops.
//!
//! Loops that run over pixels do so in steps of 16 bytes, and of several rows, without inner loops: a stage may be
//! interrupted at the end of every loop's body, and the check costs as much as a few SIMD instructions.

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

/// Room that is kept from one image to the next; no result depends on what it held.
#[derive(Default)]
struct Room {
    planes: [Plane; 3],
    strips: Strips,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes and resizes a JPEG at once: u8, [size, size, 3], rows first. `None` when it is not for the fast path.
pub(crate) fn decode_resize(jpeg: &[u8], settings: &Settings) -> Option<Vec<u8>> {
    let header = Header::read(jpeg)?;
    let size = settings.size as usize;
    let (width, height) = (header.width, header.height);
    let shorter = width.min(height);
    // The plain path refuses the one, and decodes the other at a fraction of its size.
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
    // The third component, if any, is sampled as the second.
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

/// The axis of a component that has one pixel where the image has `sampling`; a part of the image, of `length` pixels, is
/// to have `size`.
fn axis(length: usize, part: &Range<f64>, sampling: usize, size: usize) -> Axis {
    let part = part.start / sampling as f64..part.end / sampling as f64;
    Axis::new(length.div_ceil(sampling), part, size)
}

#[cfg(test)]
mod tests;
