//! Usage of a run's process and of its machine: stages compete with all other processes of the machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Usage of process and machine over an interval. Shares are of time, 0.0 to 1.0; rates are means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFigures {
    /// Number of cores that this process may use: of the machine, or fewer where its affinity or a quota says so.
    pub cores: u32,
    /// Cores that this process used, on average.
    pub process_cores: f64,
    /// Cores that all processes used, as far as this one may use them, on average; `null` where the system does not report it.
    pub busy_cores: Option<f64>,
    /// Memory that this process held at the end of the interval, in bytes.
    pub process_rss_bytes: u64,
    /// Memory available to all processes at the end of the interval, in bytes.
    pub available_bytes: Option<u64>,
    /// Bytes per second that this process read from storage; reads from the page cache do not count.
    pub process_read_bytes_per_s: Option<f64>,
    /// Bytes per second that this process wrote to storage.
    pub process_write_bytes_per_s: Option<f64>,
    /// Bytes per second that the machine read from its disks.
    pub disk_read_bytes_per_s: Option<f64>,
    /// Bytes per second that the machine wrote to its disks.
    pub disk_write_bytes_per_s: Option<f64>,
    /// Bytes per second received over the network; loopback does not count.
    pub received_bytes_per_s: Option<f64>,
    /// Bytes per second sent over the network.
    pub sent_bytes_per_s: Option<f64>,
    /// Share of time in which tasks waited for resources (Linux pressure stall information); `null` where the system does not
    /// report it.
    pub pressure: Option<Pressure>,
}

/// Share of time in which at least one task of the machine waited for a resource, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// Share of time waiting for a core.
    pub cpu: f64,
    /// Share of time waiting for memory.
    pub memory: f64,
    /// Share of time waiting for storage.
    pub io: f64,
}

impl MachineFigures {
    /// Cores that other processes used, on average.
    pub fn others_cores(&self) -> Option<f64> {
        self.busy_cores.map(|busy| (busy - self.process_cores).max(0.0))
    }

    /// Describes the cause for ops having a core for only `core_share` of their time; `None` if that share is normal or the cause
    /// is not known.
    pub fn disturbance(&self, core_share: f64) -> Option<String> {
        /// Share of time with a core from which ops count as undisturbed. Even without other processes, ops lose a little time to
        /// each other and to the system.
        const UNDISTURBED: f64 = 0.85;
        /// Share of all cores that other processes must use to count as the cause.
        const NEIGHBOUR: f64 = 0.15;
        if core_share >= UNDISTURBED {
            return None;
        }
        let cores = f64::from(self.cores);
        let others = self.others_cores()?;
        let had = format!("Computing ops had a core for {:.0} % of their time", core_share * 100.0);
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
        MachineFigures { cores: 4, process_cores, busy_cores: Some(busy_cores), ..MachineFigures::default() }
    }

    #[test]
    fn a_noisy_neighbour_is_distinguished_from_too_many_threads() {
        assert_eq!(figures(1.5, 4.0).disturbance(0.95), None);
        let neighbour = figures(1.5, 4.0).disturbance(0.42).unwrap();
        assert_eq!(
            neighbour,
            "Computing ops had a core for 42 % of their time: other processes used 2.5 of the 4 cores, and this one 1.5."
        );
        let own = figures(3.9, 4.0).disturbance(0.5).unwrap();
        assert!(own.ends_with("this process alone used 3.9 of the 4 cores."), "{own}");
        // Few cores are in use, so the ops waited for something other than a core.
        assert_eq!(figures(0.5, 0.6).disturbance(0.1), None);
    }
}
