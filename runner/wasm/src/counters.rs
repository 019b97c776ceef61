//! Counters that a module declares, summed over all of its instances in one stage.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_types::text::printable;

use crate::limits::Kill;

const SHOWN_NAME: usize = 64;

/// Sums by declared name, all finite.
#[derive(Debug)]
pub(crate) struct Counters(Vec<(String, AtomicU64)>);

impl Counters {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| (name.clone(), AtomicU64::new(0_f64.to_bits()))).collect())
    }

    pub(crate) fn add(&self, name: &str, delta: f64) -> Result<(), Kill> {
        let Some((_, sum)) = self.0.iter().find(|(declared, _)| declared == name) else {
            return Err(Kill::UndeclaredCounter { name: printable(name, SHOWN_NAME) });
        };
        if !delta.is_finite() {
            return Err(Kill::CounterValue { name: name.into(), delta });
        }
        // Clamped to finite numbers, because an infinite sum cannot be written as JSON.
        let added = |bits| (f64::from_bits(bits) + delta).clamp(f64::MIN, f64::MAX).to_bits();
        sum.update(Ordering::Relaxed, Ordering::Relaxed, added);
        Ok(())
    }

    pub(crate) fn snapshot(&self) -> BTreeMap<String, f64> {
        self.0.iter().map(|(name, sum)| (name.clone(), f64::from_bits(sum.load(Ordering::Relaxed)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_across_threads() {
        let counters = Counters::new(&["seen".into()]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add("seen", 0.5).unwrap()));
            }
        });
        assert_eq!(counters.snapshot()["seen"], 2000.0);
    }

    #[test]
    fn a_sum_stops_at_the_largest_number_instead_of_infinity() {
        let counters = Counters::new(&["up".into(), "down".into()]);
        for _ in 0..3 {
            counters.add("up", f64::MAX).unwrap();
            counters.add("down", f64::MIN).unwrap();
        }
        assert_eq!(counters.snapshot()["up"], f64::MAX);
        assert_eq!(counters.snapshot()["down"], f64::MIN);
        counters.add("up", f64::MIN).unwrap();
        assert_eq!(counters.snapshot()["up"], 0.0);
    }

    #[test]
    fn an_undeclared_name_and_a_nan_are_refused() {
        let counters = Counters::new(&["seen".into()]);
        assert!(matches!(counters.add("other", 1.0), Err(Kill::UndeclaredCounter { .. })));
        assert!(matches!(counters.add("seen", f64::NAN), Err(Kill::CounterValue { .. })));
        assert_eq!(counters.snapshot()["seen"], 0.0);
    }
}
