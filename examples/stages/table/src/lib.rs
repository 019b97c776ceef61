//! Transforms the fields of a sample as the columns of a row: picks, renames, casts, scales and encodes them.

mod npy;
mod numbers;
mod ops;

use penstock_guest::RawTensor;
use penstock_guest::prelude::*;

use numbers::{Numeric, convert};
use ops::{Cast, OneHot, Pick, Remove, Rename, Stack, Unknown};

pub use ops::Op;

/// Maximum number of ops.
const MAX_OPS: usize = 1000;

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Ops in the order in which they are applied.
    #[param(default = [])]
    pub ops: Vec<Op>,
}

/// The stage, with checked settings.
#[derive(Debug)]
pub struct Table(Settings);

/// Applies a list of ops to the fields of each sample: `Npy` decodes a `.npy` file, `Pick`, `Remove` and `Rename` choose fields, `Cast`,
/// `Scale` and `OneHot` convert numbers, and `Stack` joins them to one vector.
#[stage]
impl SampleStage for Table {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        let count = settings.ops.len();
        ensure!(count <= MAX_OPS, "`ops` has {count} ops, more than the limit of {MAX_OPS}");
        for (at, op) in settings.ops.iter().enumerate() {
            check(op).context(format_args!("`ops[{at}]`: `{}`", op.name()))?;
        }
        Ok(Self(settings.clone()))
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        transform(item, &self.0).map(Outcome::Keep)
    }
}

/// Applies the ops to one item.
pub fn transform(mut item: Item, settings: &Settings) -> Result<Item> {
    for (at, op) in settings.ops.iter().enumerate() {
        apply(&mut item, op).context(format_args!("`ops[{at}]`: `{}`", op.name()))?;
    }
    Ok(item)
}

/// Fails if an op can never be applied.
fn check(op: &Op) -> Result<()> {
    match op {
        Op::OneHot(op) => match (&op.classes, op.num_classes) {
            (Some(classes), None) => {
                ensure!(!classes.is_empty(), "`classes` is empty");
                let twice = (1..classes.len()).find(|&at| classes[..at].contains(&classes[at]));
                ensure!(twice.is_none(), "`classes` has `{}` twice", classes[twice.unwrap_or_default()]);
            }
            (None, Some(_)) => {}
            (Some(_), Some(_)) => bail!("`classes` and `num_classes` exclude each other"),
            (None, None) => bail!("needs `classes`, for texts, or `num_classes`, for numbers from 0"),
        },
        Op::Scale(op) => {
            let divisor = op.divisor();
            ensure!(
                divisor.is_normal(),
                "divides by {divisor}; use another `std`, or another `min` and `max`"
            );
            ensure!(
                op.min.is_some() == op.max.is_some(),
                "`min` and `max` belong together: (value - min) / (max - min)"
            );
            ensure!(
                op.min.is_none() || (op.mean, op.std) == (0.0, 1.0),
                "`min` and `max` exclude `mean` and `std`"
            );
        }
        Op::Stack(op) => ensure!(!op.fields.is_empty(), "`fields` is empty"),
        Op::Pick(op) => ensure!(!op.fields.is_empty(), "`fields` is empty, so that nothing would be left"),
        Op::Npy(_) | Op::Remove(_) | Op::Rename(_) | Op::Cast(_) => {}
    }
    Ok(())
}

fn apply(item: &mut Item, op: &Op) -> Result<()> {
    match op {
        Op::Npy(op) => {
            let array = npy::decode(item.bytes(&op.field)?).context(format_args!("`{}`", op.field))?;
            item.remove(&op.field);
            item.set(op.to.as_deref().unwrap_or(&op.field), array);
        }
        Op::Pick(Pick { fields }) => {
            for field in fields {
                existing(item, field)?;
            }
            let others = item.fields().iter().map(|field| field.name.clone());
            for other in others.filter(|name| !fields.contains(name)).collect::<Vec<_>>() {
                item.remove(&other);
            }
        }
        Op::Remove(Remove { fields }) => {
            for field in fields {
                existing(item, field)?;
                item.remove(field);
            }
        }
        Op::Rename(Rename { from, to }) => {
            ensure!(from == to || item.get(to).is_none(), "there is a field `{to}` already");
            existing(item, from)?;
            if let Some(value) = item.remove(from) {
                item.set(to, value);
            }
        }
        Op::Cast(Cast { field, dtype }) => {
            let value = convert(Numeric::of(item, field)?, *dtype).context(format_args!("`{field}`"))?;
            item.set(field, value);
        }
        Op::Scale(op) => {
            let Numeric { numbers, shape } = Numeric::of(item, &op.field)?;
            let (shift, divisor) = (op.shift(), op.divisor());
            let mut scaled = numbers.reals().into_iter().map(|number| (number - shift) / divisor);
            let value: Value = match shape {
                None => scaled.next().unwrap_or_default().into(),
                Some(shape) => Tensor::new(shape, scaled.map(|number| number as f32).collect())?.into(),
            };
            item.set(&op.field, value);
        }
        Op::OneHot(op) => {
            let vector = one_hot(item, op)?;
            item.set(&op.field, vector);
        }
        Op::Stack(Stack { fields, to }) => {
            let mut vector = Vec::new();
            for field in fields {
                let numbers = Numeric::of(item, field)?.numbers;
                vector.extend(numbers.reals().into_iter().map(|number| number as f32));
            }
            fields.iter().for_each(|field| drop(item.remove(field)));
            item.set(to, Tensor::new([vector.len() as u32], vector)?);
        }
    }
    Ok(())
}

fn existing(item: &Item, field: &str) -> Result<()> {
    if item.get(field).is_some() {
        return Ok(());
    }
    let names: Vec<String> = item.fields().iter().map(|field| format!("`{}`", field.name)).collect();
    bail!("no field `{field}`: the item has {}", names.join(", "))
}

fn one_hot(item: &Item, op: &OneHot) -> Result<RawTensor> {
    let OneHot { field, classes, num_classes, unknown } = op;
    let (class, found, count) = match classes {
        Some(classes) => {
            let text = item.text(field)?;
            (classes.iter().position(|class| class == text), text.to_owned(), classes.len())
        }
        None => {
            let count = num_classes.unwrap_or_default() as usize;
            let number = item.int(field)?;
            (usize::try_from(number).ok().filter(|&class| class < count), number.to_string(), count)
        }
    };
    let mut vector = vec![0_f32; count];
    match (class, unknown) {
        (Some(class), _) => vector[class] = 1.0,
        (None, Unknown::Zeros) => {}
        (None, Unknown::Fail) => {
            let known = match classes {
                Some(classes) => format!("the classes are `{}`", classes.join("`, `")),
                None => format!("classes are 0 to {}", count - 1),
            };
            bail!("`{field}` is `{found}`, but {known}; `\"unknown\": \"zeros\"` gives zeros")
        }
    }
    Ok(Tensor::new([count as u32], vector)?.into_raw())
}

#[cfg(test)]
mod tests;
