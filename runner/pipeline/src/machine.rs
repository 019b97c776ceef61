//! Reads the usage counters of process and machine, and computes their difference over an interval.

use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use penstock_types::machine::{MachineFigures, Pressure};
use procfs::process::Process;
use procfs::{
    CpuPressure, Current, IoPressure, Meminfo, MemoryPressure, diskstats, net, page_size, ticks_per_second,
};
use rustix::thread::{CpuSet, sched_getaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Size of a sector in the kernel's disk statistics, in bytes; independent of the disk.
const SECTOR: u64 = 512;

/// Counters at one moment; `None` where the system does not report them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineReading {
    at: Duration,
    process_cpu: Duration,
    /// Busy time of the cores that this process may use, in seconds, and their number.
    busy: Option<(f64, f64)>,
    process_io: Option<[u64; 2]>,
    disks: Option<[u64; 2]>,
    network: Option<[u64; 2]>,
    /// Microseconds of stalls for CPU, memory, and storage.
    stalled: Option<[u64; 3]>,
}

impl MachineReading {
    pub(crate) fn now() -> Self {
        let process_io = Process::myself().and_then(|own| own.io()).ok();
        Self {
            at: clock(ClockId::Monotonic),
            process_cpu: clock(ClockId::ProcessCPUTime),
            busy: busy(),
            process_io: process_io.map(|io| [io.read_bytes, io.write_bytes]),
            disks: disks(),
            network: network(),
            stalled: stalled(),
        }
    }

    /// Figures of the interval between an earlier reading and this one.
    pub(crate) fn since(&self, earlier: &Self) -> Option<MachineFigures> {
        let seconds = self.at.saturating_sub(earlier.at).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rates = |now: Option<[u64; 2]>, then: Option<[u64; 2]>| -> [Option<f64>; 2] {
            std::array::from_fn(|one| Some(now?[one].saturating_sub(then?[one]) as f64 / seconds))
        };
        let [process_read_bytes_per_s, process_write_bytes_per_s] =
            rates(self.process_io, earlier.process_io);
        let [disk_read_bytes_per_s, disk_write_bytes_per_s] = rates(self.disks, earlier.disks);
        let [received_bytes_per_s, sent_bytes_per_s] = rates(self.network, earlier.network);
        let cpu = self.process_cpu.saturating_sub(earlier.process_cpu).as_secs_f64();
        let process_cores = cpu / seconds;
        let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
        let busy_cores = self.busy.zip(earlier.busy).map(|((now, usable), (then, _))| {
            cores_in_use(process_cores, (now - then).max(0.0) / seconds, usable, f64::from(cores))
        });
        let pressure = self.stalled.zip(earlier.stalled).map(|(now, then)| {
            let [cpu, memory, io] = std::array::from_fn(|one| {
                (now[one].saturating_sub(then[one]) as f64 / 1e6 / seconds).min(1.0)
            });
            Pressure { cpu, memory, io }
        });
        Some(MachineFigures {
            cores,
            process_cores,
            busy_cores,
            process_rss_bytes: rss_bytes().unwrap_or(0),
            available_bytes: Meminfo::current().ok().and_then(|memory| memory.mem_available),
            process_read_bytes_per_s,
            process_write_bytes_per_s,
            disk_read_bytes_per_s,
            disk_write_bytes_per_s,
            received_bytes_per_s,
            sent_bytes_per_s,
            pressure,
        })
    }
}

fn clock(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

/// Cores in use by this process, and by others as far as they take from its own: of `usable` ones that it may run on, of which
/// `busy` are in use, a quota may grant it only `cores`, and others can have the rest.
fn cores_in_use(process: f64, busy: f64, usable: f64, cores: f64) -> f64 {
    process + (busy - process - (usable - cores).max(0.0)).max(0.0)
}

/// Busy time of the cores that this process may use, in seconds, and their number.
fn busy() -> Option<(f64, f64)> {
    let set = sched_getaffinity(None).ok();
    let usable: Vec<usize> =
        set.into_iter().flat_map(|set| (0..CpuSet::MAX_CPU).filter(move |core| set.is_set(*core))).collect();
    let ticks = busy_of(&fs::read_to_string("/proc/stat").ok()?, &usable);
    Some((ticks.iter().sum::<u64>() as f64 / ticks_per_second() as f64, ticks.len() as f64))
}

/// Busy time of each of the `usable` cores in a text of `/proc/stat`, in ticks; of all cores in it if it lacks one of these, as in a container
/// that numbers its cores anew, or if none is known to be usable.
fn busy_of(stat: &str, usable: &[usize]) -> Vec<u64> {
    let core = |line: &str| {
        let (core, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        let times: Vec<u64> = times.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect();
        // User, nice, system, then idle and waiting for storage, then interrupts and time taken by the hypervisor; the rest is
        // contained in the first two.
        let busy = times.iter().take(3).chain(times.iter().skip(5).take(3)).sum();
        Some((core.parse().ok()?, busy))
    };
    let mut cores: Vec<(usize, u64)> = stat.lines().filter_map(core).collect();
    let is_usable = |(core, _): &(usize, u64)| usable.binary_search(core).is_ok();
    if !usable.is_empty() && cores.iter().filter(|core| is_usable(core)).count() == usable.len() {
        cores.retain(is_usable);
    }
    cores.into_iter().map(|(_, busy)| busy).collect()
}

fn rss_bytes() -> Option<u64> {
    Some(Process::myself().ok()?.statm().ok()?.resident * page_size())
}

/// Bytes read from and written to physical disks. Partitions and virtual disks are left out, since their bytes would count
/// twice.
fn disks() -> Option<[u64; 2]> {
    let is_whole = |name: &str| {
        let is_made = ["loop", "ram", "dm-", "md", "zram"].iter().any(|made| name.starts_with(made));
        !is_made && std::path::Path::new("/sys/block").join(name).exists()
    };
    let all = diskstats().ok()?;
    Some(all.iter().filter(|disk| is_whole(&disk.name)).fold([0, 0], |[read, written], disk| {
        [read + disk.sectors_read * SECTOR, written + disk.sectors_written * SECTOR]
    }))
}

/// Bytes received and sent by the network devices other than loopback.
fn network() -> Option<[u64; 2]> {
    let devices = net::dev_status().ok()?;
    let others = devices.values().filter(|device| device.name != "lo");
    Some(
        others.fold([0, 0], |[received, sent], device| {
            [received + device.recv_bytes, sent + device.sent_bytes]
        }),
    )
}

/// Time in which tasks of the machine have waited for memory since it started, in microseconds; `None` where the system does not report it.
pub(crate) fn waited_for_memory() -> Option<u64> {
    MemoryPressure::current().ok().map(|pressure| pressure.some.total)
}

fn stalled() -> Option<[u64; 3]> {
    Some([
        CpuPressure::current().ok()?.some.total,
        waited_for_memory()?,
        IoPressure::current().ok()?.some.total,
    ])
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_computing_process_uses_cores_and_memory() {
        let before = MachineReading::now();
        assert_eq!(before.since(&before), None);
        let cpu = clock(ClockId::ThreadCPUTime);
        while clock(ClockId::ThreadCPUTime) < cpu + Duration::from_millis(100) {
            black_box(0);
        }
        let figures = MachineReading::now().since(&before).unwrap();
        assert!(figures.process_cores > 0.0 && figures.process_rss_bytes > 1 << 20, "{figures:?}");
        let busy = figures.busy_cores.expect("Linux reports it");
        assert!(busy > 0.0 && busy <= f64::from(figures.cores) * 1.5, "{figures:?}");
        assert!(figures.available_bytes.is_some_and(|bytes| bytes > 1 << 20), "{figures:?}");
    }

    #[test]
    fn work_of_others_counts_on_cores_that_this_process_may_use() {
        let stat = "cpu  99 99 99 99 99 99 99 99 9 9\ncpu0 10 1 100 5000 7 2 3 4 8 1\ncpu2 20 0 0 1 0 0 0 0 0 0\nintr 5 cpu\n";
        assert_eq!(busy_of(stat, &[0, 2]), [120, 20]);
        assert_eq!(busy_of(stat, &[2]), [20]);
        assert_eq!(busy_of(stat, &[]), [120, 20]);
        assert_eq!(busy_of(stat, &[2, 3]), [120, 20], "the numbers are others");
    }

    #[test]
    fn others_count_as_far_as_they_leave_less_than_a_quota() {
        // No quota; a quota of 2 of 64 cores of which others use 40, 63 and 64.
        assert_eq!(cores_in_use(1.0, 2.5, 4.0, 4.0), 2.5);
        assert_eq!([41.0, 64.0, 65.0].map(|busy| cores_in_use(1.0, busy, 64.0, 2.0)), [1.0, 2.0, 3.0]);
    }
}
