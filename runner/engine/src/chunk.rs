//! Samples that a source has made together, with those of them that go no further.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::item::Sample;
use crate::ports::Fault;

/// Samples of consecutive positions of one epoch, in order.
#[derive(Debug, Default)]
pub struct Chunk {
    samples: Vec<Sample>,
    /// Samples that are not passed on, by their place, in order.
    ended: Vec<(usize, Outcome)>,
}

/// Outcome of a sample that its source does not pass on.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Left out on purpose.
    Dropped,
    Failed(Fault),
}

impl Chunk {
    /// No samples, with room for some.
    pub fn with_capacity(samples: usize) -> Self {
        Self { samples: Vec::with_capacity(samples), ended: Vec::new() }
    }

    /// These samples, with the outcomes of those that are not passed on, by their places.
    pub fn with_ended(samples: Vec<Sample>, ended: BTreeMap<usize, Outcome>) -> Self {
        let ended = ended.into_iter().take_while(|(place, _)| *place < samples.len()).collect();
        Self { samples, ended }
    }

    pub fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// Adds a sample, with its outcome if it is not passed on.
    pub fn add(&mut self, sample: Sample, outcome: Option<Outcome>) {
        if let Some(outcome) = outcome {
            self.ended.push((self.samples.len(), outcome));
        }
        self.samples.push(sample);
    }

    /// Samples in order, each with its outcome if it is not passed on.
    pub fn into_outcomes(self) -> impl Iterator<Item = (Sample, Option<Outcome>)> {
        let mut ended = self.ended.into_iter().peekable();
        self.samples.into_iter().enumerate().map(move |(place, sample)| {
            let outcome = ended.next_if(|(at, _)| *at == place).map(|(_, outcome)| outcome);
            (sample, outcome)
        })
    }

    pub fn into_kept(self) -> Vec<Sample> {
        if self.ended.is_empty() {
            return self.samples;
        }
        self.into_outcomes().filter_map(|(sample, outcome)| outcome.is_none().then_some(sample)).collect()
    }

    /// Changes each sample that is passed on. One for which `change` returns an outcome is not passed on. After an error, the samples
    /// before remain.
    pub fn try_change<E>(
        &mut self,
        mut change: impl FnMut(&mut Sample) -> Result<Option<Outcome>, E>,
    ) -> Result<(), E> {
        let mut ended = std::mem::take(&mut self.ended).into_iter().peekable();
        for (place, sample) in self.samples.iter_mut().enumerate() {
            if let Some(before) = ended.next_if(|(at, _)| *at == place) {
                self.ended.push(before);
                continue;
            }
            match change(sample) {
                Ok(None) => {}
                Ok(Some(outcome)) => self.ended.push((place, outcome)),
                Err(error) => {
                    self.samples.truncate(place);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// All samples, those that are not passed on included.
impl Deref for Chunk {
    type Target = [Sample];

    fn deref(&self) -> &[Sample] {
        &self.samples
    }
}

impl From<Vec<Sample>> for Chunk {
    fn from(samples: Vec<Sample>) -> Self {
        Self { samples, ended: Vec::new() }
    }
}

impl FromIterator<Sample> for Chunk {
    fn from_iter<I: IntoIterator<Item = Sample>>(samples: I) -> Self {
        Vec::from_iter(samples).into()
    }
}

impl FromIterator<(Sample, Option<Outcome>)> for Chunk {
    fn from_iter<I: IntoIterator<Item = (Sample, Option<Outcome>)>>(outcomes: I) -> Self {
        let outcomes = outcomes.into_iter();
        let mut chunk = Self::with_capacity(outcomes.size_hint().0);
        outcomes.for_each(|(sample, outcome)| chunk.add(sample, outcome));
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Origin;

    #[test]
    fn outcomes_stay_at_their_samples() {
        let sample = |index: u64| Sample::new(index.to_string(), Origin::at(0, index));
        let mut chunk = Chunk::from(vec![sample(0), sample(1)]);
        chunk.add(sample(2), Some(Outcome::Dropped));
        chunk.push(sample(3));
        let drop_odd =
            |sample: &mut Sample| Ok::<_, ()>((sample.origin.index % 2 == 1).then_some(Outcome::Dropped));
        chunk.try_change(drop_odd).unwrap();
        let keys: Vec<String> = chunk
            .into_outcomes()
            .filter(|(_, outcome)| outcome.is_none())
            .map(|(sample, _)| sample.key.to_string())
            .collect();
        assert_eq!(keys, ["0"]);
        let mut chunk = Chunk::from(vec![sample(0), sample(1), sample(2)]);
        let fail = chunk.try_change(|sample| if sample.origin.index == 1 { Err(7) } else { Ok(None) });
        assert_eq!((fail, chunk.len()), (Err(7), 1));
    }
}
