//! BMP files, with palettes or colours, uncompressed or run-length encoded.

use penstock_guest::prelude::*;
use zune_bmp::{BmpDecoder, zune_core::bytestream::ZCursor, zune_core::options::DecoderOptions};

use crate::image::Image;
use crate::step::Size;

type Bmp<'a> = BmpDecoder<ZCursor<&'a [u8]>>;

/// Decoder, size, and number of channels.
fn open(bmp: &[u8]) -> Result<(Bmp<'_>, Size, usize)> {
    // The decoder adds to this position, and must not pass the end of the address space.
    let pixels_at =
        bmp.get(10..14).and_then(|at| at.first_chunk()).map(|at| u32::from_le_bytes(*at) as usize);
    ensure!(
        pixels_at.is_some_and(|at| at <= bmp.len()),
        "the BMP is damaged: its pixels would begin after its end"
    );
    let options = DecoderOptions::default().set_max_width(1 << 20).set_max_height(1 << 20);
    let mut decoder = BmpDecoder::new_with_options(ZCursor::new(bmp), options);
    decoder.decode_headers().map_err(fault)?;
    let (width, height) = decoder.dimensions().context("the BMP has no size")?;
    let colours = decoder.colorspace().context("the BMP has no colours")?;
    let size = super::check(bmp, width as u64, height as u64, 4)?;
    Ok((decoder, size, colours.num_components()))
}

pub(super) fn header(bmp: &[u8]) -> Result<Size> {
    match Packed::read(bmp)? {
        Some(packed) => Ok(packed.size),
        None => open(bmp).map(|(_, size, _)| size),
    }
}

pub(super) fn decode(bmp: &[u8]) -> Result<Image> {
    if let Some(packed) = Packed::read(bmp)? {
        return packed.decode();
    }
    let (mut decoder, size, channels) = open(bmp)?;
    let pixels = decoder.decode().map_err(fault)?;
    ensure!(pixels.len() == size.pixels() * channels, "the BMP is damaged: its pixels do not fit its size");
    Ok(super::to_colours(size, channels, pixels))
}

/// An uncompressed BMP with several pixels in a byte, or with three bytes a pixel. The crate decodes only some widths of the former
/// correctly, and refuses the latter where it has less than three pixels.
struct Packed<'a> {
    size: Size,
    bits: usize,
    /// True if the first stored row is the uppermost.
    is_top_down: bool,
    /// Blue, green, red and an unused byte of each colour.
    colours: &'a [[u8; 4]],
    rows: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Reads the header; `None` if the crate decodes the file correctly.
    fn read(bmp: &'a [u8]) -> Result<Option<Self>> {
        let number = |at: usize| bmp.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let [Some(start), Some(header), Some(width), Some(height), Some(bits), Some(compression), Some(used)] =
            [10, 14, 18, 22, 28, 30, 46].map(number)
        else {
            return Ok(None);
        };
        // A header of 12 bytes has other fields, and colours of three bytes.
        let is_old = header < 40;
        let bits = if is_old { number(24).unwrap_or(0) } else { bits };
        let bits = (bits & 0xffff) as usize;
        let is_packed = matches!(bits, 1 | 2 | 4);
        ensure!(
            !(is_old && is_packed),
            "BMP files with a header of {header} bytes and {bits} bits a pixel are not supported"
        );
        if is_old || compression != 0 || !(is_packed || bits == 24) {
            return Ok(None);
        }
        let count = if used == 0 { 1 << bits } else { (used as usize).min(1 << bits) };
        let colours = bmp.get(14..).and_then(|after| after.get(header as usize..));
        let colours = colours.unwrap_or_default().as_chunks().0;
        let rows = bmp.get(start as usize..).unwrap_or_default();
        let colours = &colours[..count.min(colours.len())];
        let height = height.cast_signed();
        let size = super::check(bmp, width.into(), height.unsigned_abs().into(), 4)?;
        Ok(Some(Self { size, bits, is_top_down: height < 0, colours, rows }))
    }

    fn decode(&self) -> Result<Image> {
        let size = self.size;
        let (width, height) = (size.width as usize, size.height as usize);
        let stride = (width * self.bits).div_ceil(32) * 4;
        ensure!(self.rows.len() >= stride * height, "the BMP is damaged: it is truncated");
        let mut pixels = Vec::with_capacity(3 * size.pixels());
        for row in 0..height {
            let stored = if self.is_top_down { row } else { height - 1 - row };
            let bytes = &self.rows[stored * stride..(stored + 1) * stride];
            if self.bits == 24 {
                let colours = bytes.as_chunks().0.iter().take(width);
                pixels.extend(colours.flat_map(|&[blue, green, red]| [red, green, blue]));
                continue;
            }
            for column in 0..width {
                let at = column * self.bits;
                let index = bytes[at / 8] >> (8 - self.bits - at % 8) & ((1 << self.bits) - 1);
                // Pillow, too, takes black for colours that the palette lacks.
                let [blue, green, red, _] = self.colours.get(usize::from(index)).copied().unwrap_or_default();
                pixels.extend([red, green, blue]);
            }
        }
        Ok(Image { size, channels: 3, pixels })
    }
}

fn fault(error: impl std::fmt::Debug) -> Error {
    Error::new(format_args!("the BMP is damaged: {error:?}"))
}
