//! Routes of a pipeline: the nodes that belong to them, and the choice of a path.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_types::policy::Order;
use penstock_types::routes::RouteSpan;
use penstock_types::run::FailureClass;
use penstock_types::text::{MAX_SHOWN_KEY, printable};

use crate::item::{Sample, Value};
use crate::ops::Random;
use crate::ports::Fault;

#[derive(Clone, Debug)]
pub struct Route {
    pub span: RouteSpan,
    pub choice: Choice,
    /// Order in which samples leave the paths. With `Order::Input`, all stages in the paths must keep the order, too, and hold no samples.
    pub order: Order,
}

/// Rule that determines the path of a sample.
#[derive(Clone, Debug)]
pub enum Choice {
    Field(FieldChoice),
    /// Paths are drawn at random.
    Shares(PathShares),
}

/// Paths by the value of a field.
#[derive(Clone, Debug)]
pub struct FieldChoice {
    field: Arc<str>,
    texts: BTreeMap<String, usize>,
    numbers: BTreeMap<i64, usize>,
    otherwise: Option<usize>,
}

/// Paths with the probability of each.
#[derive(Clone, Debug)]
pub struct PathShares {
    /// Upper end of each path's part of the numbers from 0 to 1.
    ends: Vec<f64>,
    random: Random,
}

impl Choice {
    /// Position of the sample's path, from 0; an error if there is no path for the sample.
    pub(crate) fn of(&self, sample: &Sample) -> Result<usize, Fault> {
        match self {
            Self::Field(choice) => choice.of(sample),
            Self::Shares(shares) => shares.of(sample),
        }
    }
}

impl FieldChoice {
    /// Creates the choice by the value of `field`. `paths` are the values, in the order of the paths; `otherwise` is the position of the
    /// path for all other samples. A value that is a whole number in decimal also stands for this number.
    pub fn new<'a>(field: &str, paths: impl IntoIterator<Item = &'a str>, otherwise: Option<usize>) -> Self {
        let texts: BTreeMap<String, usize> =
            paths.into_iter().enumerate().map(|(path, value)| (value.to_owned(), path)).collect();
        let number = |(value, path): (&String, &usize)| {
            let number: i64 = value.parse().ok()?;
            (number.to_string() == *value).then_some((number, *path))
        };
        let numbers = texts.iter().filter_map(number).collect();
        Self { field: field.into(), texts, numbers, otherwise }
    }

    fn of(&self, sample: &Sample) -> Result<usize, Fault> {
        let value = sample.fields.iter().find(|field| field.name == self.field).map(|field| &field.value);
        let path = match value {
            Some(Value::Text(text)) => self.texts.get(text),
            Some(Value::Int(number)) => self.numbers.get(number),
            Some(Value::Blob(_) | Value::Real(_) | Value::Tensor(_)) | None => None,
        };
        path.copied().or(self.otherwise).ok_or_else(|| Fault::new(FailureClass::Data, self.no_path(value)))
    }

    fn no_path(&self, value: Option<&Value>) -> String {
        let field = printable(&self.field, MAX_SHOWN_KEY);
        let shown = match value {
            None => return format!("the sample has no field `{field}`, which names its path"),
            Some(Value::Text(text)) => format!("`{}`", printable(text, MAX_SHOWN_KEY)),
            Some(Value::Int(number)) => format!("`{number}`"),
            Some(Value::Blob(_)) => "bytes".to_owned(),
            Some(Value::Real(_)) => "a real number".to_owned(),
            Some(Value::Tensor(_)) => "a tensor".to_owned(),
        };
        let wanted = match value {
            Some(Value::Text(_) | Value::Int(_)) => "which no path has as its name",
            _ => "but only a text or a whole number names a path",
        };
        format!("the field `{field}` is {shown}, {wanted}")
    }
}

impl PathShares {
    /// Creates the choice that draws paths in proportion to `counts`, the last of which is the number of samples without a path. `None` if all counts
    /// are 0. Draws depend on `seed`, `name`, and the origin of a sample only.
    pub fn new(counts: &[u64], seed: u64, name: &str) -> Option<Self> {
        let all: u64 = counts.iter().sum();
        let mut sum = 0;
        let ends = counts.iter().map(|count| {
            sum += count;
            sum as f64 / all as f64
        });
        (all > 0).then(|| Self { ends: ends.collect(), random: Random::named(seed, name) })
    }

    fn of(&self, sample: &Sample) -> Result<usize, Fault> {
        let place = self.random.at(&sample.origin).next();
        let path = self.ends.partition_point(|end| *end <= place);
        let has_path = path + 1 < self.ends.len();
        has_path.then_some(path).ok_or_else(|| Fault::new(FailureClass::Data, "no path"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Origin;

    fn sample(value: Option<Value>) -> Sample {
        let mut sample = Sample::new("k", Origin::default());
        value.into_iter().for_each(|value| sample.set("kind", value));
        sample
    }

    #[test]
    fn a_path_takes_its_name_as_text_or_as_number() {
        let choice = FieldChoice::new("kind", ["image", "7", "08"], None);
        let path = |value| choice.of(&sample(Some(value))).ok();
        assert_eq!(path(Value::Text("image".into())), Some(0));
        assert_eq!(path(Value::Int(7)), Some(1));
        assert_eq!(path(Value::Text("7".into())), Some(1));
        assert_eq!(path(Value::Text("08".into())), Some(2));
        assert_eq!(
            [path(Value::Int(8)), path(Value::Real(7.0)), path(Value::Text("Image".into()))],
            [None; 3]
        );
        let open = FieldChoice::new("kind", ["image"], Some(1));
        assert_eq!(open.of(&sample(None)), Ok(1));
        assert_eq!(open.of(&sample(Some(Value::Real(0.5)))), Ok(1));
    }

    #[test]
    fn a_sample_without_a_path_is_told_with_its_value() {
        let choice = FieldChoice::new("kind", ["image"], None);
        let told = |value| choice.of(&sample(value)).unwrap_err().message.to_string();
        let values =
            [None, Some(Value::Text("a\u{1b}b".into())), Some(Value::Int(3)), Some(Value::Real(1.0))];
        assert_eq!(
            values.map(told),
            [
                "the sample has no field `kind`, which names its path",
                "the field `kind` is `a\\u{1b}b`, which no path has as its name",
                "the field `kind` is `3`, which no path has as its name",
                "the field `kind` is a real number, but only a text or a whole number names a path",
            ]
        );
    }

    #[test]
    fn drawn_paths_have_the_shares_of_the_counts() {
        let shares = PathShares::new(&[300, 0, 600, 100], 7, "route").unwrap();
        let mut drawn = [0_u32; 4];
        for index in 0..10_000 {
            let sample = Sample::new("k", Origin::at(0, index));
            drawn[shares.of(&sample).unwrap_or(3)] += 1;
        }
        let expected = [3_000, 0, 6_000, 1_000];
        assert!(
            drawn.iter().zip(expected).all(|(drawn, expected)| drawn.abs_diff(expected) < 150),
            "{drawn:?}"
        );
        assert!(PathShares::new(&[0, 0], 7, "route").is_none());
    }
}
