//! Metadata of PNG files in which Pillow finds an orientation: the chunk `eXIf`, and texts before and after the pixels.

use std::borrow::Cow;

use fdeflate::BoundedDecompressionError::OutputTooLarge;
use penstock_guest::prelude::*;

use super::orientation::{Orientation, PREFIX};

/// Maximum length of a compressed text, in bytes, as in Pillow.
const MAX_TEXT: usize = 1 << 20;
/// Name of a text with EXIF metadata in hexadecimal digits, as ImageMagick writes them.
const PROFILE: &[u8] = b"Raw profile type exif";
/// Name of a text with XMP metadata.
const XMP: &[u8] = b"XML:com.adobe.xmp";

/// Metadata so far: of several with one name, the last ones.
#[derive(Default)]
struct Metadata<'a> {
    exif: Option<&'a [u8]>,
    profile: Option<Cow<'a, [u8]>>,
    xmp: Option<Cow<'a, [u8]>>,
    /// XMP metadata that are not UTF-8, which count if there are no others.
    odd_xmp: Option<Cow<'a, [u8]>>,
}

/// Orientation that a file states.
pub(super) fn orientation(png: &[u8]) -> Result<Orientation> {
    let mut metadata = Metadata::default();
    let mut rest = png.get(8..).unwrap_or_default();
    let (mut frames, mut after_pixels) = (0_u64, false);
    while let Some((&[l0, l1, l2, l3, a, b, c, d], after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let Some(content) = after.get(..length) else { break };
        match &[a, b, c, d] {
            b"eXIf" => metadata.exif = Some(content),
            b"tEXt" | b"zTXt" | b"iTXt" => metadata.add_text(a, content)?,
            b"IDAT" => after_pixels = true,
            // Pillow stops at the second frame of an animation. An image before the first frame counts as one.
            b"acTL" => {
                let count = content.first_chunk().map_or(0, |count| u32::from_be_bytes(*count));
                frames = u64::from(count) + 1;
            }
            b"fcTL" if after_pixels && frames > 1 => break,
            b"fcTL" => frames = frames.saturating_sub(1),
            b"IEND" => break,
            _ => {}
        }
        rest = after.get(length + 4..).unwrap_or_default();
    }
    let unpacked;
    let exif = match (metadata.exif, &metadata.profile) {
        (Some(exif), _) => Some(exif),
        (None, Some(profile)) => {
            unpacked = digits(profile);
            Some(unpacked.strip_prefix(PREFIX).unwrap_or(&unpacked))
        }
        (None, None) => None,
    };
    let xmp = metadata.xmp.as_deref().filter(|xmp| !xmp.is_empty());
    Ok(Orientation::of(exif, xmp.or(metadata.odd_xmp.as_deref())))
}

impl<'a> Metadata<'a> {
    /// Adds a text: its name, then its value, compressed in chunks of the kind `zTXt` and some of `iTXt`.
    fn add_text(&mut self, kind: u8, chunk: &'a [u8]) -> Result<()> {
        let Some((name, value)) = split(chunk) else { return Ok(()) };
        match name {
            PROFILE | XMP => {}
            b"exif" if kind == b't' => {
                self.exif = Some(value.strip_prefix(PREFIX).unwrap_or(value));
                return Ok(());
            }
            _ => return Ok(()),
        }
        let text = match (kind, value) {
            (b't', text) => Some(Cow::Borrowed(text)),
            (b'z', [0, packed @ ..]) => Some(Cow::Owned(unpacked(name, packed)?.unwrap_or_default())),
            (b'i', [flag, method, international @ ..]) => {
                // Language and translated name.
                let text = split(international).and_then(|(_, rest)| split(rest)).map(|(_, text)| text);
                match (flag, method, text) {
                    (0, _, Some(text)) => Some(Cow::Borrowed(text)),
                    (_, 0, Some(packed)) => unpacked(name, packed)?.map(Cow::Owned),
                    _ => None,
                }
            }
            _ => None,
        };
        let Some(text) = text else { return Ok(()) };
        let is_odd = kind == b'i' && std::str::from_utf8(&text).is_err();
        match (name == PROFILE, is_odd) {
            (true, false) => self.profile = Some(text),
            (true, true) => {}
            (false, false) => self.xmp = Some(text),
            (false, true) => self.odd_xmp = Some(text),
        }
        Ok(())
    }
}

/// Parts of a text before and after the first NUL.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| byte == 0)?;
    Some((&text[..end], &text[end + 1..]))
}

/// A compressed text; `None` if it is damaged.
fn unpacked(name: &[u8], packed: &[u8]) -> Result<Option<Vec<u8>>> {
    match fdeflate::decompress_to_vec_bounded(packed, MAX_TEXT) {
        Ok(text) => Ok(Some(text)),
        Err(OutputTooLarge { .. }) => bail!(
            "the PNG has more than {} KiB of text named `{}`, in which its orientation would be; \
             remove it, or set `apply_exif_orientation` to false",
            MAX_TEXT >> 10,
            String::from_utf8_lossy(name)
        ),
        Err(_) => Ok(None),
    }
}

/// Bytes of hexadecimal digits after the third line, which states their number; none if there are other characters.
fn digits(profile: &[u8]) -> Vec<u8> {
    let lines = profile.split(|&byte| byte == b'\n').skip(3).flatten();
    let digit = |&byte: &u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let digits: Option<Vec<u8>> = lines.filter(|byte| !byte.is_ascii_whitespace()).map(digit).collect();
    digits.unwrap_or_default().as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect()
}
