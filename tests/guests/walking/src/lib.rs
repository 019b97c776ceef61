//! A guest that reads memory at places that depend on one another, so that its speed is that of the caches and of the memory.

use penstock_guest::prelude::*;

/// Table that is read, and number of reads for each sample.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Size of the table in MiB, a power of two.
    pub mib: u32,
    /// Number of reads for a sample.
    pub steps: u32,
}

struct Walking {
    /// Place of the next entry to read, for each entry.
    table: Vec<u32>,
    steps: u32,
}

#[stage(wants(), makes("end"))]
impl SampleStage for Walking {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        let last = (settings.mib << 18) - 1;
        // A linear congruential generator that comes to each place once.
        let next = |place: u32| place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & last;
        Ok(Self { table: (0..=last).map(next).collect(), steps: settings.steps })
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        let end = (0..self.steps).fold(0, |place, _| self.table[place as usize]);
        Ok(Outcome::Keep(item.with("end", i64::from(end))))
    }
}
