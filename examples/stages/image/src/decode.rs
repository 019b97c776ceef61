//! Decoding of files to pixels: red, green and blue, without transparency and colour profiles.

use std::hint::black_box;

use penstock_guest::DEFAULT_MEMORY_BYTES;
use penstock_guest::prelude::*;

use crate::image::Image;
use crate::jpeg::{self, Pixels};
use crate::step::{MAX_PIXELS, Size};
use crate::view::View;
use orientation::Orientation;

mod bmp;
mod bmp_runs;
mod gif;
mod named;
pub(crate) mod orientation;
mod png;
mod png_metadata;
mod webp;

/// Limits of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of decoded pixels.
    pub pixels: u64,
    /// Memory that an image may take, in bytes, with its file.
    bytes: u64,
}

impl Limits {
    /// Limits for the param `max_pixels`, and for the memory of the stage, of which a part is left to the result and to free space between
    /// allocations.
    pub(crate) fn of(max_pixels: Option<u32>) -> Self {
        const MOST: u64 = 400_000_000;
        let memory = memory_limit();
        let of_memory = (MAX_PIXELS * memory / DEFAULT_MEMORY_BYTES).clamp(MAX_PIXELS, MOST);
        Self { pixels: max_pixels.map_or(of_memory, u64::from), bytes: memory / 32 * 25 }
    }

    /// Size of an image whose pixels are all decoded, with this many bytes of memory for each. Fails if it takes too much.
    fn check(self, file: &[u8], width: u64, height: u64, bytes_per_pixel: u64) -> Result<Size> {
        let size = Size::of(width, height)?;
        // Addresses of WebAssembly have 32 bits, and the product may have more.
        let pixels = width.saturating_mul(height);
        self.check_pixels(size, pixels)?;
        self.ensure_fits(file, pixels * bytes_per_pixel)?;
        Ok(size)
    }

    /// Fails if of an image of this size too many pixels are decoded.
    pub(crate) fn check_pixels(self, Size { width, height }: Size, decoded: u64) -> Result<()> {
        let limit = self.pixels;
        let all = u64::from(width) * u64::from(height);
        ensure!(
            decoded <= limit,
            "the image is too large: {}{width} x {height} pixels, more than `max_pixels`, {limit}",
            if decoded < all { format!("{decoded} of its ") } else { String::new() }
        );
        Ok(())
    }

    /// Fails if a file and this number of bytes take too much memory.
    pub(crate) fn ensure_fits(self, file: &[u8], bytes: u64) -> Result<()> {
        let bytes = bytes + file.len() as u64;
        ensure!(
            bytes <= self.bytes,
            "the image is too large: it takes {} MiB of memory, more than {} for one image; raise `memory_mib`",
            bytes >> 20,
            self.bytes >> 20
        );
        Ok(())
    }

    /// Memory that a decoder may take by itself, in bytes.
    fn own_bytes(self) -> usize {
        usize::try_from(self.bytes / 3).unwrap_or(usize::MAX)
    }
}

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
    pub stored: Size,
    /// Change from the stored image to the shown one.
    pub orientation: Orientation,
    pub limits: Limits,
}

impl<'a> File<'a> {
    /// Reads the header. The orientation is read from the metadata only with `orient`.
    pub(crate) fn open(bytes: &'a [u8], orient: bool, limits: Limits) -> Result<Self> {
        let format = Format::of(bytes)?;
        let (stored, orientation) = match format {
            Format::Jpeg => jpeg::header(bytes)?,
            Format::Png if orient => (png::header(bytes, limits)?, png_metadata::orientation(bytes)?),
            Format::Png => (png::header(bytes, limits)?, Orientation::default()),
            Format::WebP => webp::header(bytes, limits)?,
            Format::Gif => (gif::header(bytes, limits)?, Orientation::default()),
            Format::Bmp => (bmp::header(bytes, limits)?, Orientation::default()),
        };
        Ok(Self {
            bytes,
            format,
            stored,
            orientation: if orient { orientation } else { Orientation::default() },
            limits,
        })
    }

    /// Size of the image as it is shown.
    pub(crate) fn shown(&self) -> Size {
        if self.orientation.transpose { self.stored.turned() } else { self.stored }
    }

    /// Fails if too many pixels are decoded for a view of a JPEG at its size divided by `shrink`.
    pub(crate) fn check_view(&self, view: &View, shrink: u32) -> Result<()> {
        let pixels = view.crop.size().pixels() as u64 / u64::from(shrink).pow(2);
        self.limits.check_pixels(self.stored, pixels)
    }

    /// Decodes the stored image.
    pub(crate) fn decode(&self) -> Result<Image> {
        match self.format {
            Format::Jpeg => self.view_of_jpeg(&View::whole(self.stored), 1, false),
            Format::Png => png::decode(self.bytes, self.limits),
            Format::WebP => webp::decode(self.bytes, self.limits),
            Format::Gif => gif::decode(self.bytes, self.limits),
            Format::Bmp => bmp::decode(self.bytes, self.limits),
        }
    }

    /// Decodes a view of the stored image of a JPEG; `shrink` and `draft` are those of [`jpeg::decode`].
    pub(crate) fn view_of_jpeg(&self, view: &View, shrink: u32, draft: bool) -> Result<Image> {
        let mut pixels = vec![0; 3 * view.size().pixels()];
        jpeg::decode(self.bytes, view, shrink, draft, self.limits, &mut Pixels::Bytes(&mut pixels))?;
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
                let known = named::format(bytes).map(|name| format!(" ({name})")).unwrap_or_default();
                bail!(
                    "the file is not a JPEG, PNG, WebP, GIF or BMP: it starts with {}{known}",
                    start.join(" ")
                )
            }
        })
    }
}

/// Checks a file's need of memory as [`Limits::ensure_fits`] does, before any of it is taken, and lets the allocator take it in small steps. A single
/// large request grows the memory by its whole length, whatever is free at its end, so that images of growing size would exceed the limit.
pub(crate) fn make_room(file: &File, bytes: u64) -> Result<()> {
    const STEP: usize = 1 << 20;
    const FEW: usize = 32;
    file.limits.ensure_fits(file.bytes, bytes)?;
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
