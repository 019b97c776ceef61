//! The samples that a stateful instance holds back, as they came in: to name them when they fail, and to know them again
//! by their key when they come out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use penstock_engine::item::Sample;

use crate::limits::MAX_HELD;

/// HeldOutput samples in order of arrival. Bounded: an instance that packs samples into others never returns most of them, so
/// the oldest are dropped and count as taken into others.
#[derive(Debug)]
pub(crate) struct HeldOutput {
    samples: BTreeMap<u64, Sample>,
    by_key: HashMap<Arc<str>, VecDeque<u64>>,
    next: u64,
    bytes: u64,
    limit_bytes: u64,
}

impl HeldOutput {
    /// Remembers samples of up to `limit_bytes` in all.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { samples: BTreeMap::new(), by_key: HashMap::new(), next: 0, bytes: 0, limit_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Bytes that they take in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a sample; returns how many older ones were dropped for it.
    pub(crate) fn push(&mut self, sample: Sample) -> u64 {
        self.bytes += sample.memory_bytes();
        self.by_key.entry(sample.key.clone()).or_default().push_back(self.next);
        self.samples.insert(self.next, sample);
        self.next += 1;
        let mut let_go = 0;
        while self.samples.len() > 1 && (self.samples.len() > MAX_HELD || self.bytes > self.limit_bytes) {
            self.take_oldest();
            let_go += 1;
        }
        let_go
    }

    /// Removes the oldest sample of that key.
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

    fn take_oldest(&mut self) {
        let oldest = self.samples.first_key_value().map(|(_, sample)| sample.key.clone());
        if let Some(key) = oldest {
            self.take(&key);
        }
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
    fn samples_of_one_key_come_out_in_the_order_they_came() {
        let mut held = HeldOutput::new(1000);
        for index in 0..3 {
            assert_eq!(held.push(sample("a", index)), 0);
        }
        assert_eq!(held.take("a").unwrap().origin.index, 0);
        assert_eq!(held.take("a").unwrap().origin.index, 1);
        assert_eq!(held.take("b"), None);
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn beyond_the_limit_the_oldest_is_let_go() {
        let mut held = HeldOutput::new(2 * sample("a", 0).memory_bytes());
        assert_eq!(held.push(sample("a", 0)), 0);
        assert_eq!(held.push(sample("b", 1)), 0);
        assert_eq!(held.push(sample("c", 2)), 1);
        assert_eq!(held.take("a"), None);
        let rest: Vec<u64> = held.drain().iter().map(|sample| sample.origin.index).collect();
        assert_eq!(rest, [1, 2]);
        assert_eq!(held.push(sample("d", 3)), 0);
    }
}
