//! Decodes an image and transforms it by a list of ops, as `torchvision.transforms.v2` does.

mod affine;
mod apply;
mod blur;
mod check;
mod colour;
mod decode;
mod draw;
mod fast;
mod filter;
mod image;
mod ops;
mod output;
mod params;
mod resize;
mod step;
mod view;

use penstock_guest::prelude::*;

use decode::{File, Format, ensure_fits};
use fast::Pixels;
use image::Image;
use output::{Floats, scales, shape, to_floats, to_layout};
use step::{Rect, size_after};
use view::View;

pub use draw::draw;
pub use ops::Op;
pub use params::Layout;
pub use step::{Size, Step};

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Ops in the order in which they are applied, as in `torchvision.transforms.v2.Compose`.
    #[param(default = [])]
    pub ops: Vec<Op>,
    /// Order of the dimensions of the result: `chw` is [channels, height, width], as in torchvision, `hwc` is [height, width, channels].
    #[param(default = "chw")]
    pub layout: Layout,
    /// Decodes JPEGs faster and less exactly: colours are resized at the resolution at which the file stores them, and a large image
    /// is decoded at 1/2, 1/4 or 1/8 of its size if the part that is resized is then still as large as the result, as `draft` in Pillow.
    /// By default, every image is decoded at its full size, as in torchvision.
    #[param(default = false)]
    pub draft: bool,
    /// Turns photos upright by the orientation in their EXIF metadata, as `ImageOps.exif_transpose` in Pillow.
    #[param(default = true)]
    pub apply_exif_orientation: bool,
}

/// The stage, with checked settings.
#[derive(Debug)]
pub struct Transform(Settings);

/// Decodes the file in `bytes` (JPEG, PNG, WebP, GIF or BMP) to red, green and blue, and applies the `ops` of
/// `torchvision.transforms.v2`. The result is the tensor `image`: uint8, or float32 after `ToDtype`. Removes `bytes`, so that queues
/// hold the small result only.
#[stage(wants("bytes"), makes("image"), removes("bytes"))]
impl SampleStage for Transform {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        check::check(&settings.ops)?;
        Ok(Self(settings.clone()))
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        transform(item, &self.0).map(Outcome::Keep)
    }
}

/// Decodes and transforms the image of one item.
pub fn transform(mut item: Item, settings: &Settings) -> Result<Item> {
    let file = File::open(item.bytes("bytes")?, settings.apply_exif_orientation)?;
    let steps = draw(&settings.ops, file.shown(), &mut item.rng())?;
    let image = run(&file, &steps, settings)?;
    item.set("image", image);
    item.remove("bytes");
    Ok(item)
}

/// Decodes a file and applies the steps.
fn run(file: &File, steps: &[Step], settings: &Settings) -> Result<Value> {
    let steps = in_order(steps);
    let (on_bytes, on_floats) = steps.split_at(first_float(&steps));
    let (view, rest) = View::of(file.shown(), on_bytes);
    let is_float = !on_floats.is_empty();
    let (scales, on_floats) = scales(on_floats)?;
    let layout = settings.layout;
    ensure_fits(file.bytes, memory(&view, rest, is_float))?;

    // One pass from the file to the result, if only conversions follow the view.
    if rest.is_empty() && file.format == Format::Jpeg && !file.orientation.transpose {
        let (size, shape) = (view.size(), shape(view.size(), 3, layout));
        match (is_float, layout) {
            (true, Layout::Chw) => {
                let mut floats = Tensor::<f32>::zeros(shape);
                let mut pixels = Pixels::Planes(floats.as_mut_slice(), scales);
                if decode_fast(file, &view, settings, &mut pixels).is_some() {
                    finish(
                        &mut Floats { size, channels: 3, layout, numbers: floats.as_mut_slice() },
                        on_floats,
                    )?;
                    return Ok(floats.into());
                }
            }
            (false, Layout::Hwc) => {
                let mut bytes = Tensor::<u8>::zeros(shape);
                if decode_fast(file, &view, settings, &mut Pixels::Bytes(bytes.as_mut_slice())).is_some() {
                    return Ok(bytes.into());
                }
            }
            _ => {}
        }
    }

    let mut image = seen(file, &view, settings)?;
    for step in rest {
        image = apply::after(image, step)?;
    }
    let (size, channels) = (image.size, image.channels);
    if is_float {
        let mut floats = Tensor::<f32>::zeros(shape(size, channels, layout));
        to_floats(&image, &scales, layout, floats.as_mut_slice());
        finish(&mut Floats { size, channels, layout, numbers: floats.as_mut_slice() }, on_floats)?;
        Ok(floats.into())
    } else {
        Ok(Tensor::<u8>::new(shape(size, channels, layout), to_layout(image, layout))?.into())
    }
}

/// Memory that the steps after the decoding take at most, in bytes: two images at a time, and the result.
fn memory(view: &View, rest: &[Step], is_float: bool) -> u64 {
    let mut size = view.size();
    let mut most = 0;
    for step in rest {
        let before = size.pixels();
        size = size_after(step, size);
        most = most.max(3 * (before + size.pixels()));
    }
    let of_result = if is_float { 15 } else { 9 };
    most.max(of_result * size.pixels()) as u64
}

/// The part of the file's image that the view names.
fn seen(file: &File, view: &View, settings: &Settings) -> Result<Image> {
    let mut image = match file.format {
        Format::Jpeg => seen_of_jpeg(file, view, settings)?,
        _ => resize::view(&decode(file, view, 1)?, &view.stored(file.orientation, file.stored), 1),
    };
    if file.orientation.transpose {
        image = image.transposed();
    }
    Ok(image)
}

/// Decodes the whole image, for a view of it.
fn decode(file: &File, view: &View, reduction: u32) -> Result<Image> {
    let stored = file.stored.pixels() / (reduction * reduction) as usize;
    ensure_fits(file.bytes, 3 * (stored + 2 * view.size().pixels()) as u64)?;
    file.decode(reduction)
}

fn seen_of_jpeg(file: &File, view: &View, settings: &Settings) -> Result<Image> {
    let stored = view.stored(file.orientation, file.stored);
    let bytes = |view: &View, shrink| {
        let mut image = Image { size: view.size(), channels: 3, pixels: vec![0; view.size().pixels() * 3] };
        decode_part(file, view, shrink, settings, &mut Pixels::Bytes(&mut image.pixels)).map(|()| image)
    };
    let reduction = if settings.draft { stored.reduction() } else { 1 };
    if fast::supports(&stored) {
        if let Some(image) = bytes(&stored, reduction) {
            return Ok(image);
        }
    } else if reduction == 1
        && let Some(crop) = bytes(&View { crop: stored.crop, ..View::whole(stored.crop.size()) }, 1)
    {
        let whole = Rect::whole(crop.size);
        return Ok(resize::view(&crop, &View { crop: whole, ..stored }, 1));
    }
    Ok(resize::view(&decode(file, &stored, reduction)?, &stored, reduction))
}

/// Decodes the view of the stored image; `None` if the image or the view needs the plain path.
fn decode_fast(file: &File, view: &View, settings: &Settings, pixels: &mut Pixels) -> Option<()> {
    let view = view.stored(file.orientation, file.stored);
    let shrink = if settings.draft { view.reduction() } else { 1 };
    if !fast::supports(&view) {
        return None;
    }
    decode_part(file, &view, shrink, settings, pixels)
}

/// Decodes a view of the stored image. Images that are too large for planes of all colours are decoded as drafts.
fn decode_part(
    file: &File,
    view: &View,
    shrink: u32,
    settings: &Settings,
    pixels: &mut Pixels,
) -> Option<()> {
    let takes = |bytes_per_pixel: usize| {
        let part = view.crop.size().pixels() / (shrink * shrink) as usize;
        ensure_fits(file.bytes, (bytes_per_pixel * part + 12 * view.size().pixels()) as u64).is_ok()
    };
    let draft = settings.draft || !takes(6);
    takes(3).then_some(())?;
    fast::decode(file.bytes, view, shrink, draft, pixels)
}

/// Applies the remaining steps.
fn finish(floats: &mut Floats, steps: &[Step]) -> Result<()> {
    steps.iter().try_for_each(|step| floats.apply(step))
}

/// Position of the first step on floating-point numbers.
fn first_float(steps: &[Step]) -> usize {
    steps.iter().position(|step| matches!(step, Step::ToFloat { .. })).unwrap_or(steps.len())
}

/// Moves crops and flips before the steps that treat each number separately: the result is the same, and bytes are
/// quicker to move.
fn in_order(steps: &[Step]) -> Vec<Step> {
    let (bytes, floats) = steps.split_at(first_float(steps));
    let mut ordered = bytes.to_vec();
    let erasing = floats.iter().position(|step| matches!(step, Step::Erase { .. })).unwrap_or(floats.len());
    let is_move = |step: &&Step| matches!(step, Step::Crop(_) | Step::FlipHorizontal | Step::FlipVertical);
    let (before, after) = floats.split_at(erasing);
    ordered.extend(before.iter().filter(is_move).cloned());
    ordered.extend(before.iter().filter(|step| !is_move(step)).cloned());
    ordered.extend_from_slice(after);
    ordered
}

#[cfg(test)]
mod tests;
