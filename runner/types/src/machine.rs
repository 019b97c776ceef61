//! What a run's process and its machine did meanwhile: stages compete with everything else on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What process and machine did over a stretch of time. Shares are of time, 0.0 to 1.0; rates are means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFigures {
    /// Cores that the machine has.
    pub cores: u32,
    /// Cores that this process used, on average.
    pub process_cores: f64,
    /// Cores that were used by anybody, on average; `null` where the system does not tell.
    pub busy_cores: Option<f64>,
    /// Memory that this process held at the end, in bytes.
    pub process_rss_bytes: u64,
    /// Memory that was free for anybody at the end, in bytes.
    pub available_bytes: Option<u64>,
    /// Bytes that this process read from storage in a second; what the page cache had is not among them.
    pub process_read_bytes_per_s: Option<f64>,
    /// Bytes that this process wrote to storage in a second.
    pub process_write_bytes_per_s: Option<f64>,
    /// Bytes that the machine read from its disks in a second.
    pub disk_read_bytes_per_s: Option<f64>,
    /// Bytes that the machine wrote to its disks in a second.
    pub disk_write_bytes_per_s: Option<f64>,
    /// Bytes that came over the network in a second, without those from the machine itself.
    pub received_bytes_per_s: Option<f64>,
    /// Bytes that went over the network in a second.
    pub sent_bytes_per_s: Option<f64>,
    /// Share of time in which something waited (Linux' pressure stall information); `null` where the system does not tell.
    pub pressure: Option<Pressure>,
}

/// Share of time in which at least one task of the machine waited for something, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// For a core.
    pub cpu: f64,
    /// For memory.
    pub memory: f64,
    /// For storage.
    pub io: f64,
}

impl MachineFigures {
    /// Cores that others than this process used, on average.
    pub fn others_cores(&self) -> Option<f64> {
        self.busy_cores.map(|busy| (busy - self.process_cores).max(0.0))
    }

    /// Who disturbs ops that had a core for only `core_share` of their time: `None` if nobody does, or they were not disturbed.
    pub fn disturbance(&self, core_share: f64) -> Option<String> {
        /// Ops of this process alone lose a little to each other and to the system.
        const UNDISTURBED: f64 = 0.85;
        /// As a share of all cores.
        const NEIGHBOUR: f64 = 0.15;
        if core_share >= UNDISTURBED {
            return None;
        }
        let cores = f64::from(self.cores);
        let others = self.others_cores()?;
        let had = format!("What computes had a core for {:.0} % of its time", core_share * 100.0);
        if others >= cores * NEIGHBOUR {
            return Some(format!(
                "{had}: other processes used {others:.1} of the {cores} cores, and this one {:.1}.",
                self.process_cores
            ));
        }
        (self.process_cores >= cores * UNDISTURBED).then(|| {
            format!("{had}: this process alone used {:.1} of the {cores} cores.", self.process_cores)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(process_cores: f64, busy_cores: f64) -> MachineFigures {
        MachineFigures {
            cores: 4,
            process_cores,
            busy_cores: Some(busy_cores),
            process_rss_bytes: 0,
            available_bytes: None,
            process_read_bytes_per_s: None,
            process_write_bytes_per_s: None,
            disk_read_bytes_per_s: None,
            disk_write_bytes_per_s: None,
            received_bytes_per_s: None,
            sent_bytes_per_s: None,
            pressure: None,
        }
    }

    #[test]
    fn a_noisy_neighbour_is_told_from_too_many_threads() {
        assert_eq!(figures(1.5, 4.0).disturbance(0.95), None);
        let neighbour = figures(1.5, 4.0).disturbance(0.42).unwrap();
        assert_eq!(
            neighbour,
            "What computes had a core for 42 % of its time: other processes used 2.5 of the 4 cores, and this one 1.5."
        );
        let own = figures(3.9, 4.0).disturbance(0.5).unwrap();
        assert!(own.ends_with("this process alone used 3.9 of the 4 cores."), "{own}");
        // They waited for something else.
        assert_eq!(figures(0.5, 0.6).disturbance(0.1), None);
    }
}
