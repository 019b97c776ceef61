//! Reads the usage counters of process and machine, and computes their difference over an interval.

use std::thread::available_parallelism;
use std::time::Duration;

use penstock_types::machine::{MachineFigures, Pressure};
use procfs::process::Process;
use procfs::{
    CpuPressure, Current, CurrentSI, IoPressure, KernelStats, Meminfo, MemoryPressure, diskstats, net,
    page_size, ticks_per_second,
};
use rustix::time::{ClockId, clock_gettime};

/// Size of a sector in the kernel's disk statistics, in bytes; independent of the disk.
const SECTOR: u64 = 512;

/// Counters at one moment; `None` where the system does not report them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineReading {
    at: Duration,
    process_cpu: Duration,
    busy_s: Option<f64>,
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
            busy_s: busy_s(),
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
        let busy_cores = self.busy_s.zip(earlier.busy_s).map(|(now, then)| ((now - then) / seconds).max(0.0));
        let pressure = self.stalled.zip(earlier.stalled).map(|(now, then)| {
            let [cpu, memory, io] = std::array::from_fn(|one| {
                (now[one].saturating_sub(then[one]) as f64 / 1e6 / seconds).min(1.0)
            });
            Pressure { cpu, memory, io }
        });
        Some(MachineFigures {
            cores: available_parallelism().map_or(1, |cores| cores.get() as u32),
            process_cores: cpu / seconds,
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

/// Busy time of all cores together, in seconds.
fn busy_s() -> Option<f64> {
    let total = KernelStats::current().ok()?.total;
    let interrupts = [total.irq, total.softirq, total.steal].into_iter().flatten();
    let busy = total.user + total.nice + total.system + interrupts.sum::<u64>();
    Some(busy as f64 / ticks_per_second() as f64)
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

fn stalled() -> Option<[u64; 3]> {
    Some([
        CpuPressure::current().ok()?.some.total,
        MemoryPressure::current().ok()?.some.total,
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
}
