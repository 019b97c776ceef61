//! Checks of the ops that need no image.

use penstock_guest::prelude::*;

use crate::draw::{factor_limits, limits, padding, sides};
use crate::ops::{GaussianBlur, Normalize, Op, RandAugment, RandomCrop, RandomRotation, Resize};
use crate::params::{Dtype, Erased, Interpolation, Numbers};

/// Maximum number of ops, since each may cost as much as decoding.
const MAX_OPS: usize = 100;
/// Maximum length of the kernel of a blur, in pixels.
const MAX_KERNEL: u32 = 255;

/// Fails if an op can never be applied: because of its params, or of the ops before it.
pub(crate) fn check(ops: &[Op]) -> Result<()> {
    ensure!(ops.len() <= MAX_OPS, "`ops` has {} ops, more than the limit of {MAX_OPS}", ops.len());
    let mut state = State { is_float: false, is_erased: false, channels: 3 };
    for (at, op) in ops.iter().enumerate() {
        state.check(op).context(format_args!("`ops[{at}]`: `{}`", op.name()))?;
    }
    Ok(())
}

/// The image between two ops.
struct State {
    is_float: bool,
    /// True if pixels were replaced after the conversion to floating-point numbers.
    is_erased: bool,
    channels: usize,
}

impl State {
    fn check(&mut self, op: &Op) -> Result<()> {
        if needs_bytes(op) {
            self.ensure_bytes()?;
        }
        match op {
            Op::Resize(op) => check_resize(op)?,
            Op::CenterCrop(op) => {
                self.ensure_not_erased()?;
                sides(&op.size)?;
            }
            Op::RandomCrop(op) => self.check_crop(op)?,
            Op::RandomResizedCrop(op) => {
                sides(&op.size)?;
                area_and_ratio(&op.scale, &op.ratio)?;
                interpolates(op.interpolation, op.antialias)?;
            }
            Op::RandomHorizontalFlip(_) | Op::RandomVerticalFlip(_) => {}
            Op::Pad(op) => {
                padding(&op.padding)?;
                self.fill(&op.fill.0)?;
            }
            Op::RandomRotation(op) => self.check_rotation(op)?,
            Op::ColorJitter(op) => {
                for factors in [&op.brightness, &op.contrast, &op.saturation] {
                    factor_limits(factors.as_ref(), 1.0)?;
                }
                factor_limits(op.hue.as_ref(), 0.0)?;
            }
            Op::Grayscale(op) => {
                ensure!(op.num_output_channels != 2, "`num_output_channels` is 2; use 1 or 3");
                self.channels = op.num_output_channels as usize;
            }
            Op::GaussianBlur(op) => check_blur(op)?,
            Op::RandomErasing(op) => {
                area_and_ratio(&op.scale, &op.ratio)?;
                match &op.value {
                    Erased::Values(values) => self.fill(values)?,
                    Erased::Random => ensure!(
                        self.is_float,
                        "the value `random` needs floating-point numbers: put `ToDtype` before it"
                    ),
                }
                self.is_erased = self.is_float;
            }
            Op::RandAugment(op) => self.check_augmentation(op)?,
            Op::ToDtype(op) => {
                ensure!(
                    !self.is_float || op.dtype == Dtype::Float32,
                    "cannot convert floating-point numbers to bytes"
                );
                self.is_float |= op.dtype == Dtype::Float32;
            }
            Op::Normalize(op) => self.normalize(op)?,
        }
        Ok(())
    }

    fn ensure_bytes(&self) -> Result<()> {
        ensure!(!self.is_float, "works on bytes: put it before `ToDtype`");
        Ok(())
    }

    fn ensure_not_erased(&self) -> Result<()> {
        ensure!(!self.is_erased, "must come before `RandomErasing` on floating-point numbers");
        Ok(())
    }

    fn check_crop(&self, op: &RandomCrop) -> Result<()> {
        self.ensure_not_erased()?;
        sides(&op.size)?;
        if let Some(numbers) = &op.padding {
            padding(numbers)?;
        }
        if op.padding.is_some() || op.pad_if_needed {
            self.ensure_bytes()?;
        }
        self.fill(&op.fill.0)
    }

    fn check_rotation(&self, op: &RandomRotation) -> Result<()> {
        match *op.degrees.0 {
            [most] => ensure!(most >= 0.0, "a single number of `degrees` must not be negative"),
            _ => drop(limits(&op.degrees)?),
        }
        if let Some(center) = &op.center {
            ensure!(center.0.len() == 2, "`center` is not [x, y]");
        }
        rotates(op.interpolation)?;
        self.fill(&op.fill.0)
    }

    fn check_augmentation(&self, op: &RandAugment) -> Result<()> {
        ensure!(
            op.magnitude < op.num_magnitude_bins,
            "`magnitude` is {}, which is not less than `num_magnitude_bins`, {}",
            op.magnitude,
            op.num_magnitude_bins
        );
        rotates(op.interpolation)?;
        op.fill.as_ref().map_or(Ok(()), |fill| self.fill(&fill.0))
    }

    fn fill(&self, values: &[f32]) -> Result<()> {
        ensure!(
            values.len() == 1 || values.len() == self.channels,
            "{} values were given for {} channels; use one, or one per channel",
            values.len(),
            self.channels
        );
        Ok(())
    }

    fn normalize(&self, op: &Normalize) -> Result<()> {
        ensure!(self.is_float, "needs floating-point numbers: put `ToDtype` with `float32` before it");
        for (name, numbers) in [("mean", &op.mean), ("std", &op.std)] {
            ensure!(
                numbers.len() == 1 || numbers.len() == self.channels,
                "`{name}` has {} numbers; use one, or one per channel: {}",
                numbers.len(),
                self.channels
            );
        }
        for (channel, std) in op.std.iter().enumerate() {
            ensure!(std.is_normal(), "`std` of channel {channel} is {std}, which cannot be a divisor");
        }
        Ok(())
    }
}

/// True for an op that never works on floating-point numbers.
fn needs_bytes(op: &Op) -> bool {
    matches!(
        op,
        Op::Resize(_)
            | Op::RandomResizedCrop(_)
            | Op::Pad(_)
            | Op::RandomRotation(_)
            | Op::ColorJitter(_)
            | Op::Grayscale(_)
            | Op::GaussianBlur(_)
            | Op::RandAugment(_)
    )
}

fn check_resize(op: &Resize) -> Result<()> {
    match op.size.as_ref().map(|sides| &*sides.0.0) {
        None => ensure!(op.max_size.is_some(), "needs `size` or `max_size`"),
        Some(&[shorter]) => ensure!(
            op.max_size.is_none_or(|most| most > shorter),
            "`max_size` must be more than `size`, {shorter}"
        ),
        Some(&[_, _]) => ensure!(op.max_size.is_none(), "`max_size` needs `size` as one number"),
        Some(other) => bail!("`size` has {} numbers; use one or [height, width]", other.len()),
    }
    if let Some(size) = &op.size {
        sides(size)?;
    }
    interpolates(op.interpolation, op.antialias)
}

fn check_blur(op: &GaussianBlur) -> Result<()> {
    let kernel = op.kernel_size.pair().context("`kernel_size` is not one number or two")?;
    for length in kernel {
        ensure!(
            length % 2 == 1 && length <= MAX_KERNEL,
            "`kernel_size` is {length}; use odd numbers up to {MAX_KERNEL}"
        );
    }
    ensure!(limits(&op.sigma)?[0] > 0.0, "`sigma` must be more than 0");
    Ok(())
}

fn area_and_ratio(scale: &Numbers<f64>, ratio: &Numbers<f64>) -> Result<()> {
    let (scale, ratio) = (limits(scale).context("`scale`")?, limits(ratio).context("`ratio`")?);
    ensure!(0.0 <= scale[0] && scale[1] <= 1.0, "`scale` must be between 0 and 1");
    ensure!(ratio[0] > 0.0, "`ratio` must be more than 0");
    Ok(())
}

fn interpolates(interpolation: Interpolation, antialias: bool) -> Result<()> {
    ensure!(
        antialias || interpolation != Interpolation::Lanczos,
        "the interpolation `lanczos` needs `antialias`"
    );
    Ok(())
}

fn rotates(interpolation: Interpolation) -> Result<()> {
    ensure!(
        interpolation.is_nearest() || interpolation == Interpolation::Bilinear,
        "the interpolation `{}` cannot rotate; use `nearest` or `bilinear`",
        // Each of the others has a name of one word.
        format!("{interpolation:?}").to_lowercase()
    );
    Ok(())
}
