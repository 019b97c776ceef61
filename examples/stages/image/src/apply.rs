//! Steps applied to images of bytes.

use penstock_guest::prelude::*;

use crate::image::Image;
use crate::step::{Filling, Step};
use crate::{affine, blur, colour, resize};

/// The image after a step. The steps `ToFloat` and `Normalize` do not apply to bytes.
pub(crate) fn after(mut image: Image, step: &Step) -> Result<Image> {
    match step {
        Step::Crop(part) => return Ok(image.crop(*part)),
        Step::Resize(resizing) => return Ok(resize::resize(&image, *resizing)),
        Step::FlipHorizontal => image.flip_across(),
        Step::FlipVertical => image.flip_down(),
        Step::Pad { padding, fill, mode } => return image.pad(*padding, fill, *mode),
        Step::Affine { matrix, size, interpolation, fill } => {
            let fill = match fill {
                Some(values) => Some(image.value_per_channel(values)?),
                None => None,
            };
            return Ok(affine::transform(&image, matrix, *size, *interpolation, fill));
        }
        Step::QuarterTurns(turns) => {
            if turns % 2 == 1 {
                image = image.transposed();
                image.flip_down();
            }
            if *turns >= 2 {
                image.flip_across();
                image.flip_down();
            }
        }
        Step::GaussianBlur { kernel, sigma } => blur::blur(&mut image, *kernel, *sigma),
        Step::Erase { part, filling } => {
            let Filling::Values(values) = filling else { bail!("noise needs floating-point numbers") };
            let value = image.value_per_channel(values)?.map(|value| value as u8);
            let (stride, channels) = (image.stride(), image.channels);
            let columns = part.left as usize * channels..(part.left + part.width) as usize * channels;
            for row in
                image.pixels.chunks_exact_mut(stride).skip(part.top as usize).take(part.height as usize)
            {
                for pixel in row[columns.clone()].chunks_exact_mut(channels) {
                    pixel.copy_from_slice(&value[..channels]);
                }
            }
        }
        Step::ToFloat { .. } | Step::Normalize { .. } => bail!("bytes cannot be normalised"),
        _ => colour::apply(&mut image, step),
    }
    Ok(image)
}
