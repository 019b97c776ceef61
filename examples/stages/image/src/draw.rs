//! Drawing of the random numbers of one image, with the distributions of torchvision: turns ops into steps.

use penstock_guest::prelude::*;

use crate::ops::{ColorJitter, Op, RandAugment, RandomCrop, RandomErasing, RandomRotation, Resize};
use crate::params::{Dtype, Erased, Interpolation, Numbers, PaddingMode, Sides};
use crate::step::{Filling, Rect, Resizing, Size, Step, size_after};

/// Number of attempts to draw a part that fits into the image.
const ATTEMPTS: u32 = 10;

/// Steps of the ops for an image of this size. Fails if an op does not apply to an image of this size.
pub fn draw(ops: &[Op], size: Size, rng: &mut Rng) -> Result<Vec<Step>> {
    let mut steps = Steps { list: Vec::new(), size };
    for op in ops {
        steps.draw(op, rng).context(op.name())?;
    }
    Ok(steps.list)
}

/// Steps so far, and the size of the image after them.
struct Steps {
    list: Vec<Step>,
    size: Size,
}

impl Steps {
    fn add(&mut self, step: Step) {
        self.size = size_after(&step, self.size);
        self.list.push(step);
    }

    fn draw(&mut self, op: &Op, rng: &mut Rng) -> Result<()> {
        match op {
            Op::Resize(op) => {
                let size = resized(op, self.size)?;
                self.resize(size, op.interpolation, op.antialias);
            }
            Op::CenterCrop(op) => self.center_crop(sides(&op.size)?)?,
            Op::RandomCrop(op) => self.random_crop(op, rng)?,
            Op::RandomResizedCrop(op) => {
                let (scale, ratio) = (limits(&op.scale)?, limits(&op.ratio)?);
                let part = part_to_resize(self.size, scale, ratio, rng);
                self.crop(part);
                self.resize(sides(&op.size)?, op.interpolation, op.antialias);
            }
            Op::RandomHorizontalFlip(op) => {
                if rng.chance(op.p) {
                    self.add(Step::FlipHorizontal);
                }
            }
            Op::RandomVerticalFlip(op) => {
                if rng.chance(op.p) {
                    self.add(Step::FlipVertical);
                }
            }
            Op::Pad(op) => self.pad(padding(&op.padding)?, &op.fill.0, op.padding_mode)?,
            Op::RandomRotation(op) => self.random_rotation(op, rng)?,
            Op::ColorJitter(op) => self.color_jitter(op, rng)?,
            Op::Grayscale(op) => self.add(Step::Grayscale { channels: op.num_output_channels as u8 }),
            Op::GaussianBlur(op) => {
                let sigma = between(limits(&op.sigma)?, rng);
                let kernel = op.kernel_size.pair().context("`kernel_size` is not one number or two")?;
                let (width, height) = (self.size.width, self.size.height);
                ensure!(
                    kernel[0] / 2 < width && kernel[1] / 2 < height,
                    "the kernel of {} x {} pixels is too large for an image of {width} x {height}",
                    kernel[0],
                    kernel[1]
                );
                self.add(Step::GaussianBlur { kernel, sigma: [sigma; 2] });
            }
            Op::RandomErasing(op) => self.random_erasing(op, rng)?,
            Op::RandAugment(op) => self.rand_augment(op, rng)?,
            Op::ToDtype(op) => {
                // A second conversion changes nothing.
                if op.dtype == Dtype::Float32
                    && !self.list.iter().any(|step| matches!(step, Step::ToFloat { .. }))
                {
                    self.add(Step::ToFloat { scale: op.scale });
                }
            }
            Op::Normalize(op) => self.add(Step::Normalize { mean: op.mean.clone(), std: op.std.clone() }),
        }
        Ok(())
    }

    fn crop(&mut self, part: Rect) {
        if part != Rect::whole(self.size) {
            self.add(Step::Crop(part));
        }
    }

    fn resize(&mut self, size: Size, interpolation: Interpolation, antialias: bool) {
        if size != self.size {
            self.add(Step::Resize(Resizing { size, interpolation, antialias }));
        }
    }

    fn pad(&mut self, padding: [u32; 4], fill: &[f32], mode: PaddingMode) -> Result<()> {
        let [left, top, right, bottom] = padding.map(u64::from);
        let (width, height) = (u64::from(self.size.width), u64::from(self.size.height));
        if mode != PaddingMode::Constant {
            let most = |length: u64| if mode == PaddingMode::Reflect { length - 1 } else { length };
            ensure!(
                mode == PaddingMode::Edge
                    || (left.max(right) <= most(width) && top.max(bottom) <= most(height)),
                "cannot pad an image of {width} x {height} pixels by {left}, {top}, {right} and {bottom} mirrored ones"
            );
        }
        if padding != [0; 4] {
            Size::checked(width + left + right, height + top + bottom, "the padded image")?;
            self.add(Step::Pad { padding, fill: fill.to_vec(), mode });
        }
        Ok(())
    }

    fn center_crop(&mut self, crop: Size) -> Result<()> {
        let over = |crop: u32, length: u32| crop.saturating_sub(length);
        let (across, down) = (over(crop.width, self.size.width), over(crop.height, self.size.height));
        self.pad(
            [across / 2, down / 2, across.div_ceil(2), down.div_ceil(2)],
            &[0.0],
            PaddingMode::Constant,
        )?;
        let margin = |length: u32, crop: u32| (f64::from(length - crop) / 2.0).round_ties_even() as u32;
        self.crop(Rect {
            left: margin(self.size.width, crop.width),
            top: margin(self.size.height, crop.height),
            width: crop.width,
            height: crop.height,
        });
        Ok(())
    }

    fn random_crop(&mut self, op: &RandomCrop, rng: &mut Rng) -> Result<()> {
        let crop = sides(&op.size)?;
        let mut sums = match &op.padding {
            Some(numbers) => padding(numbers)?,
            None => [0; 4],
        };
        if op.pad_if_needed {
            let lack = |crop: u32, length: u32, before: u32, after: u32| {
                crop.saturating_sub(length.saturating_add(before).saturating_add(after))
            };
            let down = lack(crop.height, self.size.height, sums[1], sums[3]);
            let across = lack(crop.width, self.size.width, sums[0], sums[2]);
            sums = [
                sums[0].saturating_add(across),
                sums[1].saturating_add(down),
                sums[2].saturating_add(across),
                sums[3].saturating_add(down),
            ];
        }
        self.pad(sums, &op.fill.0, op.padding_mode)?;
        let Size { width, height } = self.size;
        ensure!(
            crop.width <= width && crop.height <= height,
            "the image has {width} x {height} pixels, fewer than the crop of {} x {}; set `pad_if_needed` to pad it",
            crop.width,
            crop.height
        );
        self.crop(random_part(self.size, crop, rng));
        Ok(())
    }

    fn random_rotation(&mut self, op: &RandomRotation, rng: &mut Rng) -> Result<()> {
        let limits = match *op.degrees.0 {
            [most] => [-most, most],
            _ => limits(&op.degrees)?,
        };
        let center = match &op.center {
            Some(center) => Some(center.pair().context("`center` is not [x, y]")?),
            None => None,
        };
        self.rotate(between(limits, rng), op.interpolation, op.expand, center, Some(op.fill.0.clone()))
    }

    fn rotate(
        &mut self,
        angle: f64,
        interpolation: Interpolation,
        expand: bool,
        center: Option<[f64; 2]>,
        fill: Option<Vec<f32>>,
    ) -> Result<()> {
        let (angle, Size { width, height }) = (angle.rem_euclid(360.0), self.size);
        if center.is_none() {
            let is_kept = expand || width == height;
            let turns = match angle {
                0.0 => return Ok(()),
                180.0 => Some(2),
                90.0 if is_kept => Some(1),
                270.0 if is_kept => Some(3),
                _ => None,
            };
            if let Some(turns) = turns {
                self.add(Step::QuarterTurns(turns));
                return Ok(());
            }
        }
        let center = center.map(|[x, y]| [x - f64::from(width) / 2.0, y - f64::from(height) / 2.0]);
        let matrix = inverse_matrix(center.unwrap_or_default(), -angle, [0.0; 2], [0.0; 2]);
        let size = if expand { expanded(&matrix, self.size)? } else { self.size };
        self.add(Step::Affine { matrix, size, interpolation, fill });
        Ok(())
    }

    fn color_jitter(&mut self, op: &ColorJitter, rng: &mut Rng) -> Result<()> {
        let mut order = [0, 1, 2, 3];
        rng.shuffle(&mut order);
        let mut steps = [None, None, None, None];
        let factors = [&op.brightness, &op.contrast, &op.saturation];
        for ((numbers, step), make) in
            factors.into_iter().zip(&mut steps).zip([Step::Brightness, Step::Contrast, Step::Saturation])
        {
            if let Some(limits) = factor_limits(numbers.as_ref(), 1.0)? {
                *step = Some(make(between(limits, rng) as f32));
            }
        }
        if let Some(limits) = factor_limits(op.hue.as_ref(), 0.0)? {
            steps[3] = Some(Step::Hue(between(limits, rng) as f32));
        }
        for at in order {
            if let Some(step) = steps[at].take() {
                self.add(step);
            }
        }
        Ok(())
    }

    fn random_erasing(&mut self, op: &RandomErasing, rng: &mut Rng) -> Result<()> {
        if !rng.chance(op.p) {
            return Ok(());
        }
        let (scale, ratio) = (limits(&op.scale)?, limits(&op.ratio)?);
        for _ in 0..ATTEMPTS {
            let [height, width] = sides_of_part(self.size, scale, ratio, rng);
            if height >= f64::from(self.size.height) || width >= f64::from(self.size.width) {
                continue;
            }
            let filling = match &op.value {
                Erased::Values(values) => Filling::Values(values.clone()),
                Erased::Random => Filling::Noise(rng.u64()),
            };
            let size = Size { width: width as u32, height: height as u32 };
            self.add(Step::Erase { part: random_part(self.size, size, rng), filling });
            break;
        }
        Ok(())
    }

    fn rand_augment(&mut self, op: &RandAugment, rng: &mut Rng) -> Result<()> {
        let Size { width, height } = self.size;
        let (strength, bins) = (f64::from(op.magnitude), f64::from(op.num_magnitude_bins));
        // Value at the strength, of values evenly spaced from `first` to `last`.
        let at = |first: f64, last: f64| first + (last - first) * strength / (bins - 1.0);
        let fill = || op.fill.as_ref().map(|fill| fill.0.clone());
        for _ in 0..op.num_ops {
            let kind = rng.below(14);
            let sign = if (1..=9).contains(&kind) && rng.chance(0.5) { -1.0 } else { 1.0 };
            let middle = [f64::from(width) / -2.0, f64::from(height) / -2.0];
            let mut affine = |center, translate, shear| {
                let matrix = inverse_matrix(center, 0.0, translate, shear);
                let (size, interpolation) = (self.size, op.interpolation);
                self.add(Step::Affine { matrix, size, interpolation, fill: fill() });
            };
            match kind {
                0 => {}
                1 => affine(middle, [0.0; 2], [(sign * at(0.0, 0.3)).atan(), 0.0]),
                2 => affine(middle, [0.0; 2], [0.0, (sign * at(0.0, 0.3)).atan()]),
                3 => affine(
                    [0.0; 2],
                    [(sign * at(0.0, 150.0 / 331.0 * f64::from(width))).trunc(), 0.0],
                    [0.0; 2],
                ),
                4 => affine(
                    [0.0; 2],
                    [0.0, (sign * at(0.0, 150.0 / 331.0 * f64::from(height))).trunc()],
                    [0.0; 2],
                ),
                5 => self.rotate(sign * at(0.0, 30.0), op.interpolation, false, None, fill())?,
                6 => self.add(Step::Brightness((1.0 + sign * at(0.0, 0.9)) as f32)),
                7 => self.add(Step::Saturation((1.0 + sign * at(0.0, 0.9)) as f32)),
                8 => self.add(Step::Contrast((1.0 + sign * at(0.0, 0.9)) as f32)),
                9 => self.add(Step::Sharpness((1.0 + sign * at(0.0, 0.9)) as f32)),
                10 => {
                    self.add(Step::Posterize((8.0 - strength / ((bins - 1.0) / 4.0)).round_ties_even() as u8))
                }
                11 => self.add(Step::Solarize((255.0 * at(1.0, 0.0)) as f32)),
                12 => self.add(Step::AutoContrast),
                _ => self.add(Step::Equalize),
            }
        }
        Ok(())
    }
}

/// Number between the limits, which may be equal.
fn between([low, high]: [f64; 2], rng: &mut Rng) -> f64 {
    rng.between(low..high)
}

/// Lower and upper limit of a random number.
pub(crate) fn limits(numbers: &Numbers<f64>) -> Result<[f64; 2]> {
    let limits = numbers.pair().context("the limits are not one number or two")?;
    ensure!(
        limits[0] <= limits[1] && limits.iter().all(|limit| limit.is_finite()),
        "the limits {} and {} are not in increasing order",
        limits[0],
        limits[1]
    );
    Ok(limits)
}

/// Limits of a factor of `ColorJitter`, if it changes the image. The factor `center` changes nothing.
pub(crate) fn factor_limits(numbers: Option<&Numbers<f64>>, center: f64) -> Result<Option<[f64; 2]>> {
    let (least, most) = if center == 0.0 { (-0.5, 0.5) } else { (0.0, f64::INFINITY) };
    let limits = match numbers.map(|numbers| &*numbers.0) {
        None => return Ok(None),
        Some(&[reach]) => {
            ensure!(
                reach >= 0.0,
                "{reach} is negative: a single number is the largest distance from {center}"
            );
            let low = center - reach;
            [if center == 0.0 { low } else { low.max(0.0) }, center + reach]
        }
        Some(&[low, high]) => [low, high],
        Some(other) => bail!("{} numbers were given; use one or two", other.len()),
    };
    ensure!(
        least <= limits[0] && limits[0] <= limits[1] && limits[1] <= most,
        "the limits {} and {} are not between {least} and {most}, in increasing order",
        limits[0],
        limits[1]
    );
    Ok(Some(limits).filter(|limits| *limits != [center; 2]))
}

/// Height and width, or the side of a square.
pub(crate) fn sides(sides: &Sides) -> Result<Size> {
    let [height, width] = sides.0.pair().context("`size` is not one number or [height, width]")?;
    Size::checked(width.into(), height.into(), "the result")
}

/// Left, top, right and bottom.
pub(crate) fn padding(numbers: &Numbers<u32>) -> Result<[u32; 4]> {
    match *numbers.0 {
        [all] => Ok([all; 4]),
        [across, down] => Ok([across, down, across, down]),
        [left, top, right, bottom] => Ok([left, top, right, bottom]),
        _ => bail!("`padding` has 3 numbers; use 1, 2 or 4"),
    }
}

fn resized(op: &Resize, size: Size) -> Result<Size> {
    let (width, height) = (u64::from(size.width), u64::from(size.height));
    let (short, long) = (width.min(height), width.max(height));
    let (new_short, new_long) = match op.size.as_ref().map(|sides| &*sides.0.0) {
        Some(&[height, width]) => return Size::checked(width.into(), height.into(), "the result"),
        Some(&[shorter]) => {
            let (shorter, longer) = (u64::from(shorter), u64::from(shorter) * long / short);
            match op.max_size.map(u64::from) {
                Some(most) if longer > most => (most * shorter / longer, most),
                _ => (shorter, longer),
            }
        }
        None => {
            let most = u64::from(op.max_size.context("neither `size` nor `max_size` is set")?);
            (most * short / long, most)
        }
        Some(other) => bail!("`size` has {} numbers; use one or [height, width]", other.len()),
    };
    let (width, height) = if width <= height { (new_short, new_long) } else { (new_long, new_short) };
    Size::checked(width, height, "the result")
}

/// First and second side of a part of random area and ratio of the first to the second.
fn sides_of_part(size: Size, scale: [f64; 2], ratio: [f64; 2], rng: &mut Rng) -> [f64; 2] {
    let area = size.pixels() as f64 * between(scale, rng);
    let ratio = between(ratio.map(f64::ln), rng).exp();
    [(area * ratio).sqrt().round_ties_even(), (area / ratio).sqrt().round_ties_even()]
}

/// Part of this size at a random place of the image.
fn random_part(image: Size, Size { width, height }: Size, rng: &mut Rng) -> Rect {
    let top = rng.below(u64::from(image.height - height) + 1) as u32;
    let left = rng.below(u64::from(image.width - width) + 1) as u32;
    Rect { left, top, width, height }
}

/// Part for `RandomResizedCrop`; a part of the middle if no part fits in a few attempts.
fn part_to_resize(size: Size, scale: [f64; 2], ratio: [f64; 2], rng: &mut Rng) -> Rect {
    for _ in 0..ATTEMPTS {
        let [width, height] = sides_of_part(size, scale, ratio, rng);
        let fits = |side: f64, length: u32| 0.0 < side && side <= f64::from(length);
        if fits(width, size.width) && fits(height, size.height) {
            return random_part(size, Size { width: width as u32, height: height as u32 }, rng);
        }
    }
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let (width, height) = match width / height {
        found if found < ratio[0] => (width, (width / ratio[0]).round_ties_even()),
        found if found > ratio[1] => ((height * ratio[1]).round_ties_even(), height),
        _ => (width, height),
    };
    // Rounding may give 0 pixels of a line of pixels.
    let (width, height) = ((width as u32).max(1), (height as u32).max(1));
    Rect { left: (size.width - width) / 2, top: (size.height - height) / 2, width, height }
}

/// Matrix that finds, for a place of the result, the place of the image. Angles: `angle` in degrees, clockwise; `shear` in radians.
fn inverse_matrix(center: [f64; 2], angle: f64, translate: [f64; 2], shear: [f64; 2]) -> [f64; 6] {
    let (turn, [shear_x, shear_y], [x, y]) = (angle.to_radians(), shear, center);
    let a = (turn - shear_y).cos() / shear_y.cos();
    let b = -(a * shear_x.tan() + turn.sin());
    let c = (turn - shear_y).sin() / shear_y.cos();
    let d = turn.cos() - c * shear_x.tan();
    let (moved_x, moved_y) = (x + translate[0], y + translate[1]);
    [d, -b, x - d * moved_x + b * moved_y, -c, a, y + c * moved_x - a * moved_y]
}

/// Size of the smallest image that contains the whole transformed image.
fn expanded(matrix: &[f64; 6], size: Size) -> Result<Size> {
    let (half_width, half_height) = (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
    let length = |row: &[f64], half: f64| {
        let corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0)];
        let places = corners.map(|(x, y)| row[0] * x * half_width + row[1] * y * half_height + row[2] + half);
        let (least, most) = places
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), &place| (place.min(least), place.max(most)));
        // Cut to 4 digits, so that rounding errors do not add a pixel.
        let cut = |place: f64| (place * 1e4).trunc() * 1e-4;
        (cut(most).ceil() - cut(least).floor()) as u64
    };
    Size::checked(length(&matrix[..3], half_width), length(&matrix[3..], half_height), "the rotated image")
}
