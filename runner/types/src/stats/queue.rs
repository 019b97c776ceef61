use super::figures::{QueueFigures, mean_s, per_second, share};
use super::histogram::Histogram;
use super::sums::sums;
use super::tick::{Tick, nanos_to_seconds};

/// Measures one queue. The caller reports every put and take, and the start of every wait; the meter never reads a clock.
#[derive(Clone, Debug)]
pub struct QueueMeter {
    row: QueueRow,
    /// Waits since the last reading, except those of 0, which `row` counts.
    put_times: Histogram,
    get_times: Histogram,
    read_at: Tick,
    empty: bool,
    puts_waiting: u32,
    get_waits_since: Option<Tick>,
    closed: bool,
    off: bool,
}

/// Sums of one queue over an interval, with the lengths of the waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSums {
    /// Sums without the distributions of waits.
    pub row: QueueRow,
    /// Waits of accepted puts, including those that did not wait.
    pub put_times: Histogram,
    /// Waits of finished gets, including those that did not wait.
    pub get_times: Histogram,
}

sums! {
    /// Sums of one queue over an interval. All times in nanoseconds.
    QueueRow {
        /// Duration of the measurement.
        elapsed,
        /// Number of accepted puts.
        puts,
        /// Number of items taken.
        gets,
        /// Time that puts waited for a free slot; the waits of several producers overlap and are added.
        put_wait,
        /// Time that the reader waited for an item. There is one reader, so this is also the time with a get waiting. An open
        /// wait counts; if the data ends before the next item, the wait is subtracted, so that a later reading is lower. The wait
        /// for a first item that never came stays.
        get_wait,
        /// Time without an item in the queue.
        empty,
    }
}

impl QueueMeter {
    /// Creates the meter of an empty queue.
    pub fn starting_at(now: Tick) -> Self {
        Self {
            row: QueueRow::default(),
            put_times: Histogram::default(),
            get_times: Histogram::default(),
            read_at: now,
            empty: true,
            puts_waiting: 0,
            get_waits_since: None,
            closed: false,
            off: false,
        }
    }

    /// Creates a meter that measures nothing, for benchmarks of the cost of measuring.
    pub fn off() -> Self {
        Self { off: true, ..Self::starting_at(Tick::ZERO) }
    }

    /// Records that a put found the queue full and waits.
    #[inline]
    pub fn on_put_waits(&mut self, now: Tick) {
        if !self.advance(now) {
            return;
        }
        self.puts_waiting += 1;
    }

    /// Records an accepted put; `since` is the start of the put's wait, if it waited.
    #[inline]
    pub fn on_put(&mut self, now: Tick, since: Option<Tick>) {
        if !self.advance(now) {
            return;
        }
        self.row.puts += 1;
        if let Some(since) = since {
            self.puts_waiting -= 1;
            self.put_times.record(now - since);
        }
        self.empty = false;
    }

    /// Records that the reader found the queue empty and waits.
    #[inline]
    pub fn on_get_waits(&mut self, now: Tick) {
        if self.off {
            return;
        }
        self.get_waits_since = Some(now);
    }

    /// Records that an item was taken and `left` items remain.
    #[inline]
    pub fn on_take(&mut self, now: Tick, left: usize) {
        if !self.advance(now) {
            return;
        }
        self.row.gets += 1;
        if let Some(since) = self.get_waits_since.take() {
            self.row.get_wait += now - since;
            self.get_times.record(now - since);
        }
        self.empty = left == 0;
    }

    /// Records that a waiting get gave up because the data ended. Such a wait does not count, unless no item came before it: then
    /// the reader has waited for one all along.
    pub fn on_get_given_up(&mut self, now: Tick) {
        let since = self.get_waits_since.take();
        if self.row.gets == 0 {
            self.row.get_wait += since.map_or(0, |since| now - since);
        }
    }

    /// Records that a waiting reader turns to another queue. The wait so far counts.
    pub fn on_get_paused(&mut self, now: Tick) {
        if let Some(since) = self.get_waits_since.take() {
            self.row.get_wait += now - since;
        }
    }

    /// Stops the measurement: the writer has closed and the queue is empty.
    pub fn on_drained(&mut self, now: Tick) {
        if !self.advance(now) {
            return;
        }
        self.closed = true;
    }

    /// Copies the sums up to `now`, including open intervals, into `recent`, and swaps the waits recorded since the last reading
    /// with the empty histograms in `recent`. [`QueueSums::add`] completes the reading. An open wait counts as a wait for an item.
    pub fn read(&mut self, now: Tick, recent: &mut QueueSums) {
        self.advance(now);
        recent.row = self.row;
        recent.row.get_wait += self.get_waits_since.map_or(0, |since| now - since);
        std::mem::swap(&mut self.put_times, &mut recent.put_times);
        std::mem::swap(&mut self.get_times, &mut recent.get_times);
    }

    /// Adds the time up to `now`; false for a meter that measures nothing.
    #[inline]
    fn advance(&mut self, now: Tick) -> bool {
        if self.off {
            return false;
        }
        let passed = now - self.read_at;
        self.read_at = self.read_at.max(now);
        if !self.closed && passed > 0 {
            self.row.elapsed += passed;
            self.row.put_wait += passed * u64::from(self.puts_waiting);
            self.row.empty += if self.empty { passed } else { 0 };
        }
        true
    }
}

impl QueueSums {
    /// Adds the sums of another interval.
    pub fn merge(&mut self, other: &Self) {
        self.row.merge(&other.row);
        self.put_times.merge(&other.put_times);
        self.get_times.merge(&other.get_times);
    }

    /// Adds the next reading of the same meter. Afterwards, `recent` has empty histograms for the reading after it.
    pub fn add(&mut self, recent: &mut Self) {
        self.row = recent.row;
        self.put_times.take_from(&mut recent.put_times);
        self.get_times.take_from(&mut recent.get_times);
        // Calls that did not wait are only counted, to spare the meter two histograms.
        self.put_times.record_zeros(self.row.puts - self.put_times.count());
        self.get_times.record_zeros(self.row.gets - self.get_times.count());
    }

    /// Difference to `earlier`, an earlier reading of the same queue.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            row: self.row.since(&earlier.row),
            put_times: self.put_times.since(&earlier.put_times),
            get_times: self.get_times.since(&earlier.get_times),
        }
    }

    /// Computes the figures for users.
    pub fn figures(&self, capacity: usize) -> QueueFigures {
        QueueFigures {
            p90_put_time_s: self.put_times.quantile_s(0.90),
            p99_put_time_s: self.put_times.quantile_s(0.99),
            p90_get_time_s: self.get_times.quantile_s(0.90),
            p99_get_time_s: self.get_times.quantile_s(0.99),
            ..self.row.figures(capacity)
        }
    }
}

impl QueueRow {
    /// Computes the figures for users, without percentiles, which need histograms.
    pub fn figures(&self, capacity: usize) -> QueueFigures {
        let elapsed_s = nanos_to_seconds(self.elapsed);
        QueueFigures {
            capacity,
            num_items: self.gets,
            elapsed_s,
            qps: per_second(self.gets, elapsed_s),
            ave_put_time_s: mean_s(self.put_wait, self.puts),
            ave_get_time_s: mean_s(self.get_wait, self.gets),
            readiness: share(self.elapsed.saturating_sub(self.empty), self.elapsed),
            starved: share(self.get_wait.min(self.elapsed), self.elapsed),
            ..QueueFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time in eighths of a second, which a floating-point number represents exactly.
    fn at(eighths: u64) -> Tick {
        Tick::from_nanos(eighths * 125_000_000)
    }

    /// Sums of a meter from its start; the meter stays as it was.
    fn sums(meter: &QueueMeter, now: Tick) -> QueueSums {
        let (mut sums, mut recent) = (QueueSums::default(), QueueSums::default());
        meter.clone().read(now, &mut recent);
        sums.add(&mut recent);
        sums
    }

    fn figures(meter: &QueueMeter, now: Tick) -> QueueFigures {
        sums(meter, now).figures(2)
    }

    #[test]
    fn readiness_is_the_share_of_time_the_queue_held_something() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_put(at(2), None);
        meter.on_take(at(4), 0);
        assert_eq!(figures(&meter, at(8)).readiness, Some(0.25));
    }

    #[test]
    fn a_reader_that_turns_to_another_queue_has_waited_until_then() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_get_waits(at(0));
        meter.on_get_paused(at(2));
        assert_eq!(figures(&meter, at(8)).starved, Some(0.25));
        meter.on_get_waits(at(8));
        meter.on_put(at(9), None);
        meter.on_take(at(9), 0);
        let figures = figures(&meter, at(12));
        assert_eq!((figures.starved, figures.ave_get_time_s), (Some(0.25), Some(0.375)));
    }

    #[test]
    fn figures_without_a_measurement_are_none_and_not_zero() {
        let figures = figures(&QueueMeter::starting_at(at(1)), at(1));
        assert_eq!(
            (figures.readiness, figures.qps, figures.ave_put_time_s, figures.starved),
            (None, None, None, None)
        );
        assert_eq!(figures.p90_get_time_s, None);
    }

    #[test]
    fn a_window_without_a_put_in_an_empty_queue_is_not_ready() {
        let meter = QueueMeter::starting_at(Tick::ZERO);
        let before = sums(&meter, at(8));
        let window = sums(&meter, at(16)).since(&before);
        assert_eq!(window.figures(2).readiness, Some(0.0));
        assert_eq!(window.figures(2).starved, Some(0.0), "no get waited");
    }

    #[test]
    fn a_wait_across_a_window_boundary_is_split_between_both_windows() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_get_waits(at(4));
        let first = sums(&meter, at(8));
        meter.on_put(at(12), None);
        meter.on_take(at(12), 0);
        let second = sums(&meter, at(16)).since(&first);
        assert_eq!(first.figures(2).starved, Some(0.5));
        assert_eq!(first.figures(2).ave_get_time_s, None, "no get ended in it");
        assert_eq!(second.figures(2).starved, Some(0.5));
        assert_eq!(second.figures(2).ave_get_time_s, Some(0.5), "only its own part of the wait");
        assert_eq!(sums(&meter, at(16)).figures(2).ave_get_time_s, Some(1.0), "the whole wait");
        assert_eq!(sums(&meter, at(16)).get_times.longest_s(), Some(1.0));
    }

    #[test]
    fn waits_of_several_producers_are_averaged_per_call() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_put(at(0), None);
        meter.on_put_waits(at(0));
        meter.on_put_waits(at(2));
        meter.on_take(at(4), 0);
        meter.on_put(at(4), Some(at(0)));
        meter.on_take(at(8), 0);
        meter.on_put(at(8), Some(at(2)));
        let figures = figures(&meter, at(8));
        // The three puts waited 0 s, 4/8 s and 6/8 s.
        assert_eq!(sums(&meter, at(8)).row.put_wait, 1_250_000_000);
        assert_eq!(figures.ave_put_time_s, Some(1.25 / 3.0));
    }

    #[test]
    fn the_clock_stops_when_the_queue_is_drained() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_put(at(0), None);
        meter.on_take(at(8), 0);
        meter.on_drained(at(8));
        let figures = figures(&meter, at(80));
        assert_eq!((figures.elapsed_s, figures.readiness, figures.qps), (1.0, Some(1.0), Some(1.0)));
    }

    #[test]
    fn waiting_for_the_end_does_not_count_even_after_an_earlier_reading() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_put(at(1), None);
        meter.on_take(at(1), 0);
        meter.on_get_waits(at(2));
        let first = sums(&meter, at(4));
        meter.on_get_given_up(at(7));
        meter.on_drained(at(7));
        let whole = sums(&meter, at(9));
        assert_eq!((first.row.get_wait, whole.row.get_wait), (250_000_000, 0));
        assert_eq!(whole.since(&first).row.get_wait, 0);
    }

    #[test]
    fn a_reader_to_whom_no_item_came_has_waited_until_the_end() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        meter.on_get_waits(at(2));
        meter.on_get_given_up(at(8));
        meter.on_drained(at(8));
        let figures = figures(&meter, at(9));
        assert_eq!((figures.starved, figures.readiness, figures.num_items), (Some(0.75), Some(0.0), 0));
    }

    #[test]
    fn successive_readings_of_a_meter_add_up_to_one_reading_of_the_whole() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        let (mut added, mut recent) = (QueueSums::default(), QueueSums::default());
        let mut unread = meter.clone();
        for step in 0..20 {
            for meter in [&mut meter, &mut unread] {
                meter.on_put(at(step * 4), None);
                meter.on_put_waits(at(step * 4));
                meter.on_take(at(step * 4), 1);
                meter.on_put(at(step * 4 + step % 3), Some(at(step * 4)));
                meter.on_take(at(step * 4 + 2), 0);
                meter.on_get_waits(at(step * 4 + 3));
            }
            meter.read(at(step * 4 + 3), &mut recent);
            added.add(&mut recent);
        }
        assert_eq!(added, sums(&unread, at(79)));
        assert_eq!((added.put_times.count(), added.get_times.count()), (40, 40));
        assert_eq!(added.put_times.quantile_s(0.5), Some(0.0), "puts without a wait count as 0");
    }

    #[test]
    fn intervals_add_up_to_the_whole() {
        let mut meter = QueueMeter::starting_at(Tick::ZERO);
        let mut added = QueueSums::default();
        let mut last = QueueSums::default();
        for step in 0..20 {
            let waits = step % 3 == 0;
            if waits {
                meter.on_get_waits(at(step * 4));
            }
            meter.on_put(at(step * 4 + 1), None);
            meter.on_take(at(step * 4 + 2), 0);
            let now = sums(&meter, at(step * 4 + 3));
            let interval = now.since(&last);
            added.row.merge(&interval.row);
            added.put_times.merge(&interval.put_times);
            added.get_times.merge(&interval.get_times);
            last = now;
        }
        assert_eq!(added.figures(2), last.figures(2));
        assert_eq!(added, last);
    }
}
