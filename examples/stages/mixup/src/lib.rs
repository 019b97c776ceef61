//! Mixes the images and labels of a batch in pairs.

mod beta;

use penstock_guest::IntoOutcome as _;
use penstock_guest::prelude::*;

use beta::beta;

/// Params that a pipeline may set.
#[derive(Clone, Debug, PartialEq, Params)]
pub struct Settings {
    /// Both parameters of the beta distribution from which weights are drawn: small values mix little, 1 mixes uniformly.
    #[param(default = 0.2, min = 0, max = 1000)]
    pub alpha: f64,
    /// Number of classes, required if `label` is a whole number: the label becomes a vector of this length.
    #[param(min = 1, max = 65536)]
    pub classes: Option<u32>,
    /// Probability that a sample is mixed.
    #[param(default = 1.0, min = 0, max = 1)]
    pub chance: f64,
}

/// Mixup: every image and label of a batch is mixed with those of another sample of the batch.
///
/// `image`: float32, any shape that all samples share; `label`: a whole number from 0 to `classes` - 1, or a float32 tensor
/// of weights, [classes]. The results `image` and `label` are float32 tensors, under the same key: weight x original + (1 -
/// weight) x partner, with the weight drawn as Beta(alpha, alpha) from the sample's seed.
#[derive(Debug)]
pub struct Mixup {
    settings: Settings,
}

#[stage(wants("image", "label"), makes("image", "label"), removes())]
impl BatchStage for Mixup {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Ok(Self { settings: settings.clone() })
    }

    fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
        let mut samples: Vec<Result<Sample<'_>>> =
            items.iter().map(|item| Sample::read(item, self.settings.classes)).collect();
        refuse_odd_shapes(&mut samples);
        let partners = partners(&items, &samples);
        let mix = |(own, (item, partner)): (&Result<Sample<'_>>, (&Item, usize))| match own {
            Ok(own) => Ok(own.mixed_with(samples[partner].as_ref().unwrap_or(own), self.weight(item))),
            Err(error) => Err(Error::new(error)),
        };
        let mixed: Vec<Result<Mixed>> = samples.iter().zip(items.iter().zip(partners)).map(mix).collect();
        let put =
            |(item, mixed): (Item, Result<Mixed>)| mixed.map(|mixed| mixed.put_into(item)).into_outcome();
        items.into_iter().zip(mixed).map(put).collect()
    }
}

impl Mixup {
    /// Weight of the sample itself in the mix.
    fn weight(&self, item: &Item) -> f32 {
        let mut rng = item.rng();
        match rng.chance(self.settings.chance) {
            true => beta(&mut rng, self.settings.alpha) as f32,
            false => 1.0,
        }
    }
}

/// Parts of a sample that are mixed.
struct Sample<'a> {
    image: TensorView<'a, f32>,
    label: Vec<f32>,
}

/// Result of mixing a sample.
struct Mixed {
    image: Tensor<f32>,
    label: Tensor<f32>,
}

impl<'a> Sample<'a> {
    fn read(item: &'a Item, classes: Option<u32>) -> Result<Self> {
        Ok(Self { image: item.tensor::<f32>("image")?, label: label(item, classes)? })
    }

    fn shapes(&self) -> (&[u32], usize) {
        (self.image.shape(), self.label.len())
    }

    fn mixed_with(&self, partner: &Self, weight: f32) -> Mixed {
        let mix = |own: &[f32], other: &[f32], out: &mut [f32]| {
            out.copy_from_slice(own);
            mix_into(out, other, weight);
        };
        let mut mixed = Mixed {
            image: Tensor::zeros(self.image.shape()),
            label: Tensor::zeros([self.label.len() as u32]),
        };
        mix(self.image.as_slice(), partner.image.as_slice(), mixed.image.as_mut_slice());
        mix(&self.label, &partner.label, mixed.label.as_mut_slice());
        mixed
    }
}

impl Mixed {
    fn put_into(self, mut item: Item) -> Item {
        item.set("image", self.image);
        item.set("label", self.label);
        item
    }
}

/// Converts the label to weights of the classes.
fn label(item: &Item, classes: Option<u32>) -> Result<Vec<f32>> {
    let Some(Value::Int(class)) = item.get("label") else {
        let weights = item.tensor::<f32>("label").context("`label` must be a whole number or weights")?;
        let [found] = weights.dimensions().context("`label` is not [classes]")?;
        if let Some(classes) = classes {
            ensure!(found == classes as usize, "`label` has {found} weights, but `classes` is {classes}");
        }
        return Ok(weights.as_slice().to_vec());
    };
    let classes =
        classes.context("`label` is a whole number; set the param `classes` to the number of classes")?;
    ensure!(
        (0..i64::from(classes)).contains(class),
        "`label` is {class}, but the classes are 0 to {}",
        classes - 1
    );
    let mut weights = vec![0.0; classes as usize];
    weights[*class as usize] = 1.0;
    Ok(weights)
}

/// Refuses samples whose shapes are not the most frequent ones of the batch; if several are equally
/// frequent, the shapes that occur first in the batch are accepted.
fn refuse_odd_shapes(samples: &mut [Result<Sample<'_>>]) {
    let shapes = || samples.iter().flatten().map(Sample::shapes);
    let votes = |wanted| shapes().filter(|found| *found == wanted).count();
    let most = shapes().rev().max_by_key(|shapes| votes(*shapes));
    let Some((image, label)) = most.map(|(image, label)| (image.to_vec(), label)) else { return };
    for sample in samples {
        if let Ok(Sample { image: found, label: weights }) = sample
            && (found.shape() != image || weights.len() != label)
        {
            *sample = Err(Error::new(format_args!(
                "`image` has shape {:?} and `label` {} classes, but most of the batch have {image:?} and {label}",
                found.shape(),
                weights.len()
            )));
        }
    }
}

/// Partner of every sample: the sample with the next larger seed; for the largest seed, the sample with the smallest. Pairs are
/// therefore random, different in every epoch, and independent of the order of the batch's samples.
fn partners(items: &[Item], samples: &[Result<Sample<'_>>]) -> Vec<usize> {
    let mut circle: Vec<usize> = (0..items.len()).filter(|&at| samples[at].is_ok()).collect();
    circle.sort_by_key(|&at| (items[at].seed(), items[at].key()));
    let mut partners: Vec<usize> = (0..items.len()).collect();
    for (&own, &next) in circle.iter().zip(circle.iter().cycle().skip(1)) {
        partners[own] = next;
    }
    partners
}

/// Scales `values` by `weight` and adds `other` with the remaining weight, in chunks; see the chunk functions of the SDK.
fn mix_into(values: &mut [f32], other: &[f32], weight: f32) {
    const CHUNK: usize = 32;
    let rest = 1.0 - weight;
    let (chunks, tail) = values.as_chunks_mut::<CHUNK>();
    let (other_chunks, other_tail) = other.as_chunks::<CHUNK>();
    for (values, other) in chunks.iter_mut().zip(other_chunks) {
        for at in 0..CHUNK {
            values[at] = values[at] * weight + other[at] * rest;
        }
    }
    for (value, other) in tail.iter_mut().zip(other_tail) {
        *value = *value * weight + other * rest;
    }
}

#[cfg(test)]
mod tests;
