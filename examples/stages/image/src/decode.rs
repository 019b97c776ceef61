//! Decoding of files to pixels: red, green and blue, without transparency and colour profiles.

use std::hint::black_box;
use std::io::Cursor;

use penstock_guest::prelude::*;

use crate::image::Image;
use crate::jpeg::{self, Pixels};
use crate::step::Size;
use crate::view::View;
use orientation::Orientation;

mod bmp;
mod bmp_runs;
mod gif;
pub(crate) mod orientation;
mod png;
mod png_metadata;
mod webp;

/// Memory that an image may take, in bytes, with its file: less than the memory of a stage by default.
const MAX_BYTES: u64 = 200 << 20;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
}

/// A file whose header has been read.
pub(crate) struct File<'a> {
    pub bytes: &'a [u8],
    pub format: Format,
    /// Size of the stored image.
    pub stored: Size,
    /// Change from the stored image to the shown one.
    pub orientation: Orientation,
}

impl<'a> File<'a> {
    /// Reads the header. The orientation is read from the metadata only with `orient`.
    pub(crate) fn open(bytes: &'a [u8], orient: bool) -> Result<Self> {
        let format = Format::of(bytes)?;
        let (stored, orientation) = match format {
            Format::Jpeg => jpeg::header(bytes)?,
            Format::Png if orient => (png::header(bytes)?, png_metadata::orientation(bytes)?),
            Format::Png => (png::header(bytes)?, Orientation::default()),
            Format::WebP => webp::header(bytes)?,
            Format::Gif => (gif::header(bytes)?, Orientation::default()),
            Format::Bmp => (bmp::header(bytes)?, Orientation::default()),
        };
        Ok(Self {
            bytes,
            format,
            stored,
            orientation: if orient { orientation } else { Orientation::default() },
        })
    }

    /// Size of the image as it is shown.
    pub(crate) fn shown(&self) -> Size {
        if self.orientation.transpose { self.stored.turned() } else { self.stored }
    }

    /// Decodes the stored image.
    pub(crate) fn decode(&self) -> Result<Image> {
        match self.format {
            Format::Jpeg => self.view_of_jpeg(&View::whole(self.stored), 1, false),
            Format::Png => png::decode(self.bytes),
            Format::WebP => webp::decode(self.bytes),
            Format::Gif => gif::decode(self.bytes),
            Format::Bmp => bmp::decode(self.bytes),
        }
    }

    /// Decodes a view of the stored image of a JPEG; `shrink` and `draft` are those of [`jpeg::decode`].
    pub(crate) fn view_of_jpeg(&self, view: &View, shrink: u32, draft: bool) -> Result<Image> {
        let mut pixels = vec![0; 3 * view.size().pixels()];
        jpeg::decode(self.bytes, view, shrink, draft, &mut Pixels::Bytes(&mut pixels))?;
        Ok(Image { size: view.size(), channels: 3, pixels })
    }
}

impl Format {
    fn of(bytes: &[u8]) -> Result<Self> {
        Ok(match bytes {
            [] => bail!("the file is empty"),
            [0xff, 0xd8, ..] => Self::Jpeg,
            [0x89, b'P', b'N', b'G', ..] => Self::Png,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::WebP,
            [b'G', b'I', b'F', b'8', ..] => Self::Gif,
            [b'B', b'M', ..] => Self::Bmp,
            _ => {
                let start: Vec<String> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                let known = match bytes {
                    [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => " (TIFF)",
                    [_, _, _, _, b'f', b't', b'y', b'p', ..] => " (HEIF or AVIF)",
                    [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => " (JPEG XL)",
                    [0, 0, 0, 12, b'j', b'P', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => " (JPEG 2000)",
                    _ => "",
                };
                bail!(
                    "the file is not a JPEG, PNG, WebP, GIF or BMP: it starts with {}{known}",
                    start.join(" ")
                )
            }
        })
    }
}

/// Fails if an image of this size, which takes this many bytes per pixel while it is decoded from `file`, takes too much memory.
fn check(file: &[u8], width: u64, height: u64, bytes_per_pixel: u64) -> Result<Size> {
    let size = Size::checked(width, height, "the image")?;
    ensure_fits(file, size.pixels() as u64 * bytes_per_pixel)?;
    Ok(size)
}

/// Fails if a file and this number of bytes take too much memory.
pub(crate) fn ensure_fits(file: &[u8], bytes: u64) -> Result<()> {
    let bytes = bytes + file.len() as u64;
    ensure!(
        bytes <= MAX_BYTES,
        "the image is too large: it takes {} MiB of memory, more than the limit of {}",
        bytes >> 20,
        MAX_BYTES >> 20
    );
    Ok(())
}

/// Checks a file's need of memory as [`ensure_fits`] does, before any of it is taken, and lets the allocator take it in small steps. A single
/// large request grows the memory by its whole length, whatever is free at its end, so that images of growing size would exceed the limit.
pub(crate) fn make_room(file: &[u8], bytes: u64) -> Result<()> {
    const STEP: usize = 1 << 20;
    const FEW: usize = 32;
    ensure_fits(file, bytes)?;
    let steps = bytes as usize / STEP;
    if steps > FEW {
        drop(black_box((0..=steps).map(|_| Vec::with_capacity(STEP)).collect::<Vec<Vec<u8>>>()));
    }
    Ok(())
}

/// Keeps red, green and blue of pixels with `channels`: grey, grey and alpha, colours, or colours and alpha.
fn to_colours(size: Size, channels: usize, mut pixels: Vec<u8>) -> Image {
    match channels {
        3 => {}
        // In place: a second buffer would take as much memory again.
        4 => {
            for at in 1..size.pixels() {
                pixels.copy_within(4 * at..4 * at + 3, 3 * at);
            }
            pixels.truncate(size.pixels() * 3);
        }
        _ => pixels = pixels.chunks_exact(channels).flat_map(|pixel| [pixel[0]; 3]).collect(),
    }
    Image { size, channels: 3, pixels }
}

fn reader(bytes: &[u8]) -> Cursor<&[u8]> {
    Cursor::new(bytes)
}
