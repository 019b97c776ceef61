//! Decodes an image and transforms it by a list of ops, as `torchvision.transforms.v2` does.

mod affine;
mod apply;
mod blur;
mod check;
mod colour;
mod decode;
mod draw;
mod filter;
mod image;
mod jpeg;
mod ops;
mod output;
mod params;
mod resize;
mod step;
mod view;

use penstock_guest::prelude::*;

use decode::{File, Format, Limits, make_room};
use image::Image;
use jpeg::Pixels;
use output::{Floats, scales, shape, to_floats, to_layout};
use step::size_after;
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
    /// Turns photos upright by the orientation in their EXIF or XMP metadata, as `ImageOps.exif_transpose` in Pillow.
    #[param(default = true)]
    pub apply_exif_orientation: bool,
    /// Maximum number of decoded pixels of an image; larger ones fail. Of a JPEG, the part that a crop keeps counts, at the size at which
    /// `draft` decodes it. The default is 50 million, and more in proportion where `memory_mib` of the stage is more than 256.
    #[param(min = 1, max = 400000000)]
    pub max_pixels: Option<u32>,
}

/// The stage, with checked settings.
#[derive(Debug)]
pub struct Transform(Settings);

/// Decodes the file in `bytes` (JPEG, PNG, WebP, GIF or BMP) to red, green and blue, and applies the `ops` of
/// `torchvision.transforms.v2`. The result is the tensor `image`: uint8, or float32 after `ToDtype`. Removes `bytes`, so that queues
/// hold the small result only. The counter `drafted` counts JPEGs whose colours were resized as with `draft` because they were too large for
/// more exact ones.
#[stage(
    wants("bytes"),
    makes("image"),
    removes("bytes"),
    counters("drafted"),
    reads(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
)]
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
    let file =
        File::open(item.bytes("bytes")?, settings.apply_exif_orientation, Limits::of(settings.max_pixels))?;
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
    let (view, rest) = match View::of(file.shown(), on_bytes) {
        fused if fused.0.may_precede(file.orientation) => fused,
        _ => (View::whole(file.shown()), on_bytes),
    };
    let is_float = !on_floats.is_empty();
    let (scales, on_floats) = scales(on_floats)?;
    let layout = settings.layout;
    if file.format == Format::Jpeg {
        file.check_view(&view, shrink(&view, settings))?;
    }
    make_room(file, memory(&view, rest, is_float))?;

    // One pass from the file to the result, if only conversions follow the view.
    if rest.is_empty() && file.format == Format::Jpeg && !file.orientation.transpose && jpeg::supports(&view)
    {
        let shape = shape(view.size(), 3, layout);
        let decode = |pixels: &mut Pixels| {
            let view = view.stored(file.orientation, file.stored);
            jpeg::decode(file.bytes, &view, shrink(&view, settings), settings.draft, file.limits, pixels)
        };
        match (is_float, layout) {
            (true, Layout::Chw) => {
                let mut floats = Tensor::<f32>::zeros(shape);
                decode(&mut Pixels::Planes(floats.as_mut_slice(), scales))?;
                let numbers = floats.as_mut_slice();
                finish(&mut Floats { size: view.size(), channels: 3, layout, numbers }, on_floats)?;
                return Ok(floats.into());
            }
            (false, Layout::Hwc) => {
                let mut bytes = Tensor::<u8>::zeros(shape);
                decode(&mut Pixels::Bytes(bytes.as_mut_slice()))?;
                return Ok(bytes.into());
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
        let before = size;
        size = size_after(step, before);
        most = most.max(match *step {
            Step::Resize(resizing) => resize::memory(before, 3, &resize::whole(before, resizing)),
            _ => 3 * (before.pixels() + size.pixels()) as u64,
        });
    }
    let of_result = if is_float { 15 } else { 9 };
    most.max(of_result * size.pixels() as u64)
}

/// The part of the file's image that the view names.
fn seen(file: &File, view: &View, settings: &Settings) -> Result<Image> {
    let view = view.stored(file.orientation, file.stored);
    let mut image = match file.format {
        Format::Jpeg if jpeg::supports(&view) => {
            file.view_of_jpeg(&view, shrink(&view, settings), settings.draft)?
        }
        Format::Jpeg => {
            let shrink = shrink(&view, settings);
            let (part, view) = view.decoded(shrink, file.stored);
            make_room(file, resize::memory(part.size(), 3, &view))?;
            resize::view(&file.view_of_jpeg(&part, shrink, settings.draft)?, &view, shrink)
        }
        _ => {
            // With transparency, which is removed only after decoding.
            make_room(file, resize::memory(file.stored, 4, &view))?;
            resize::view(&file.decode()?, &view, 1)
        }
    };
    if file.orientation.transpose {
        image = image.transposed();
    }
    Ok(image)
}

/// Divisor of the size at which a view of a JPEG is decoded.
fn shrink(view: &View, settings: &Settings) -> u32 {
    if settings.draft { view.reduction() } else { 1 }
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
