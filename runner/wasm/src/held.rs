//! Samples that a stateful instance holds back, as they entered the stage. The host reports them if they fail, and matches them
//! by key when the instance returns them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use penstock_engine::item::Sample;

use crate::limits::MAX_HELD;

/// Held samples in order of arrival. Bounded, because an instance that packs samples into others never returns most of them: the
/// oldest samples are dropped and count as merged into others.
#[derive(Debug)]
pub(crate) struct HeldSamples {
    samples: BTreeMap<u64, Sample>,
    by_key: HashMap<Arc<str>, VecDeque<u64>>,
    next: u64,
    bytes: u64,
    limit_bytes: u64,
}

impl HeldSamples {
    /// Creates a store for samples of up to `limit_bytes` in total.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { samples: BTreeMap::new(), by_key: HashMap::new(), next: 0, bytes: 0, limit_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Memory that the held samples occupy, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a sample; returns the number of older samples that were dropped to make room.
    pub(crate) fn push(&mut self, sample: Sample) -> u64 {
        self.bytes += sample.memory_bytes();
        self.by_key.entry(sample.key.clone()).or_default().push_back(self.next);
        self.samples.insert(self.next, sample);
        self.next += 1;
        let mut dropped = 0;
        while self.samples.len() > 1 && (self.samples.len() > MAX_HELD || self.bytes > self.limit_bytes) {
            if let Some((_, oldest)) = self.samples.first_key_value() {
                let key = oldest.key.clone();
                self.take(&key);
            }
            dropped += 1;
        }
        dropped
    }

    /// Removes and returns the oldest sample with this key.
    pub(crate) fn take(&mut self, key: &str) -> Option<Sample> {
        let numbers = self.by_key.get_mut(key)?;
        let number = numbers.pop_front()?;
        if numbers.is_empty() {
            self.by_key.remove(key);
        }
        let sample = self.samples.remove(&number)?;
        self.bytes -= sample.memory_bytes();
        Some(sample)
    }

    pub(crate) fn drain(&mut self) -> Vec<Sample> {
        self.by_key.clear();
        self.bytes = 0;
        std::mem::take(&mut self.samples).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_engine::item::{Origin, Value};

    fn sample(key: &str, index: u64) -> Sample {
        let mut sample = Sample::new(key, Origin { index, ..Origin::default() });
        sample.set("text", Value::Text("12345678".into()));
        sample
    }

    #[test]
    fn samples_with_one_key_are_taken_in_order_of_arrival() {
        let mut held = HeldSamples::new(1000);
        for index in 0..3 {
            assert_eq!(held.push(sample("a", index)), 0);
        }
        assert_eq!(held.take("a").unwrap().origin.index, 0);
        assert_eq!(held.take("a").unwrap().origin.index, 1);
        assert_eq!(held.take("b"), None);
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn the_oldest_sample_beyond_the_limit_is_dropped() {
        let mut held = HeldSamples::new(2 * sample("a", 0).memory_bytes());
        assert_eq!(held.push(sample("a", 0)), 0);
        assert_eq!(held.push(sample("b", 1)), 0);
        assert_eq!(held.push(sample("c", 2)), 1);
        assert_eq!(held.take("a"), None);
        let rest: Vec<u64> = held.drain().iter().map(|sample| sample.origin.index).collect();
        assert_eq!(rest, [1, 2]);
        assert_eq!(held.push(sample("d", 3)), 0);
    }
}
