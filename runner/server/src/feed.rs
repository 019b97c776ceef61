//! Numbered live events, which are kept for a minute. A slow reader loses events and does not slow down other readers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_types::run::{RunId, RunSummary};
use penstock_types::series::LiveSample;
use penstock_types::stats::Tick;
use schemars::JsonSchema;
use serde::Serialize;
use strum::IntoStaticStr;
use tokio::sync::watch;

use crate::wire::LogEntry;

/// Time for which events are kept for readers that reconnect.
const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of events that are kept for each run, and for the list of runs.
const MAX_KEPT: usize = 4096;
/// Maximum number of events that one call returns to a reader, not counting gaps.
const MAX_AT_A_TIME: usize = 256;

/// Live event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema, IntoStaticStr)]
#[serde(untagged)]
#[strum(serialize_all = "lowercase")]
#[schemars(!untagged, rename = "RunEvent", tag = "event", content = "data", rename_all = "lowercase")]
pub enum Event {
    /// Figures of a watched run, four times a second.
    Sample(LiveSample),
    /// State change of a watched run.
    State(RunSummary),
    /// Submission or state change of any run.
    Runs(RunSummary),
    /// Log line of a module of a watched run.
    Log(RunLog),
    /// Loss of events of a run: a client must read the stored data of the run again.
    Gap(RunGap),
    /// End of a watched run, sent once the whole run is stored.
    End(RunSummary),
}

/// Line that a module of a run logged.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunLog {
    /// Id of the run.
    pub run: RunId,
    /// Line with its stage, level and time.
    pub entry: LogEntry,
}

/// Run of which events were lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunGap {
    /// Id of the run; empty if the lost events concern the list of runs.
    pub run: RunId,
}

/// Events of all runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    shared: Arc<Shared>,
    newest: Arc<watch::Sender<Newest>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    number: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Shared {
    clock: MonotonicClock,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    last: u64,
    lists: Ring,
    runs: BTreeMap<RunId, Ring>,
    /// Highest event number among the runs whose events were all dropped.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<(u64, Tick, Arc<Event>)>,
    /// Number of the last event that was dropped.
    lost: u64,
}

/// Reader of the feed, and its position.
#[derive(Debug)]
pub struct Events {
    feed: Feed,
    newest: watch::Receiver<Newest>,
    runs: Vec<RunId>,
    seen: u64,
    first: Vec<(u64, Arc<Event>)>,
}

/// Splits the id of an event into the epoch, which identifies one start of the server, and the number of the event in this epoch.
pub fn parse_event_id(id: &str) -> Option<(&str, u64)> {
    let (epoch, number) = id.rsplit_once('-')?;
    Some((epoch, number.parse().ok()?))
}

impl Event {
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

impl Feed {
    pub(crate) fn new() -> Self {
        let shared = Shared { clock: MonotonicClock::start(), rings: Mutex::default() };
        Self { shared: Arc::new(shared), newest: Arc::new(watch::Sender::default()) }
    }

    /// Number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.lock().last
    }

    pub(crate) fn tell_lists(&self, summary: RunSummary) {
        self.push(|rings| &mut rings.lists, Event::Runs(summary));
    }

    pub(crate) fn tell(&self, run: &RunId, event: Event) {
        self.push(|rings| rings.runs.entry(run.clone()).or_default(), event);
    }

    /// Drops all events of a run; called a minute after the end of the run.
    pub(crate) fn forget(&self, run: &RunId) {
        let mut rings = self.lock();
        if let Some(ring) = rings.runs.remove(run) {
            let last = ring.events.back().map_or(ring.lost, |(number, ..)| *number);
            rings.forgotten = rings.forgotten.max(last);
        }
    }

    pub(crate) fn close(&self) {
        self.newest.send_modify(|newest| newest.is_closed = true);
    }

    /// Creates a reader of events of lists and of `runs`, which begins after the event `since`. The reader returns the events in
    /// `first` before all other events. The events in `first` have the number of the last event before the reader's start, so
    /// that a client that disconnects after reading them resumes there.
    pub(crate) fn reader(&self, runs: Vec<RunId>, since: Option<u64>, first: Vec<Event>) -> Events {
        let last = self.last();
        // A number that was never issued is treated like `None`.
        let seen = since.filter(|since| *since <= last).unwrap_or(last);
        let first = first.into_iter().map(|event| (seen, Arc::new(event))).collect();
        Events { feed: self.clone(), newest: self.newest.subscribe(), runs, seen, first }
    }

    fn push(&self, ring: impl FnOnce(&mut Rings) -> &mut Ring, event: Event) {
        let now = self.shared.clock.now();
        let mut rings = self.lock();
        rings.last += 1;
        let number = rings.last;
        ring(&mut rings).push(number, now, event);
        drop(rings);
        self.newest.send_modify(|newest| newest.number = newest.number.max(number));
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.shared.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn push(&mut self, number: u64, now: Tick, event: Event) {
        let is_old = |at: Tick| now - at > KEPT.as_nanos() as u64;
        while self.events.len() >= MAX_KEPT || self.events.front().is_some_and(|(_, at, _)| is_old(*at)) {
            if let Some((number, ..)) = self.events.pop_front() {
                self.lost = number;
            }
        }
        self.events.push_back((number, now, Arc::new(event)));
    }

    /// Returns the first events after the number `seen`, one more than a call returns, and true if some of the events after it are lost.
    fn since(&self, seen: u64) -> (bool, impl Iterator<Item = (u64, Arc<Event>)>) {
        let start = self.events.partition_point(|(number, ..)| *number <= seen);
        let later = self.events.range(start..).take(MAX_AT_A_TIME + 1);
        let events = later.map(|(number, _, event)| (*number, event.clone()));
        (self.lost > seen, events)
    }
}

impl Events {
    /// Waits for events and returns at least one, oldest first. `None` if the server shuts down.
    pub async fn next(&mut self) -> Option<Vec<(u64, Arc<Event>)>> {
        if !self.first.is_empty() {
            return Some(std::mem::take(&mut self.first));
        }
        loop {
            let newest = *self.newest.borrow_and_update();
            if newest.number > self.seen {
                let events = self.take();
                if !events.is_empty() {
                    return Some(events);
                }
            }
            if newest.is_closed {
                return None;
            }
            self.newest.changed().await.ok()?;
        }
    }

    fn take(&mut self) -> Vec<(u64, Arc<Event>)> {
        let rings = self.feed.lock();
        let mut events = Vec::new();
        let mut gaps = Vec::new();
        let mut gather = |run: RunId, ring: &Ring| {
            let (lost, later) = ring.since(self.seen);
            if lost {
                // A gap has the number of the last seen event, so that a client that disconnects after the gap resumes before the
                // missed events.
                gaps.push((self.seen, Arc::new(Event::Gap(RunGap { run }))));
            }
            events.extend(later);
        };
        gather("".into(), &rings.lists);
        let forgotten = Ring { lost: rings.forgotten, ..Ring::default() };
        for run in &self.runs {
            gather(run.clone(), rings.runs.get(run).unwrap_or(&forgotten));
        }
        let last = rings.last;
        drop(rings);
        events.sort_by_key(|(number, _)| *number);
        // Events beyond the limit are returned by the next call.
        self.seen = if events.len() > MAX_AT_A_TIME {
            events.truncate(MAX_AT_A_TIME);
            events.last().map_or(last, |(number, _)| *number)
        } else {
            last
        };
        gaps.into_iter().chain(events).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn log(number: u64) -> Event {
        let entry = LogEntry {
            number,
            stage: "1:a".to_owned(),
            level: penstock_wasm::LogLevel::Info,
            message: String::new(),
            at_s: 0.0,
        };
        Event::Log(RunLog { run: "r".into(), entry })
    }

    fn numbers(events: &[(u64, Arc<Event>)]) -> Vec<(u64, &'static str)> {
        events.iter().map(|(number, event)| (*number, event.name())).collect()
    }

    #[test]
    fn a_reader_gets_events_of_watched_runs_after_its_position() {
        let feed = Feed::new();
        feed.tell(&"r".into(), log(1));
        feed.tell(&"other".into(), log(1));
        let mut late = feed.reader(vec!["r".into()], Some(0), Vec::new());
        let mut new = feed.reader(vec!["r".into()], None, Vec::new());
        feed.tell(&"r".into(), log(2));
        assert_eq!(numbers(&late.next().now_or_never().unwrap().unwrap()), [(1, "log"), (3, "log")]);
        assert_eq!(numbers(&new.next().now_or_never().unwrap().unwrap()), [(3, "log")]);
        assert!(new.next().now_or_never().is_none());
        feed.close();
        assert_eq!(new.next().now_or_never(), Some(None));
    }

    #[test]
    fn a_reader_ends_at_shutdown_even_after_events_of_other_runs() {
        let feed = Feed::new();
        let mut reader = feed.reader(vec!["r".into()], None, Vec::new());
        feed.tell(&"other".into(), log(1));
        feed.close();
        assert_eq!(reader.next().now_or_never(), Some(None));
    }

    #[test]
    fn a_slow_reader_gets_one_gap_for_lost_events_and_none_for_quiet_runs() {
        let feed = Feed::new();
        let runs = || vec!["r".into(), "quiet".into()];
        let mut slow = feed.reader(runs(), None, Vec::new());
        feed.tell(&"quiet".into(), log(0));
        for number in 0..2 * MAX_KEPT as u64 {
            feed.tell(&"r".into(), log(number));
        }
        let first = slow.next().now_or_never().unwrap().unwrap();
        assert_eq!(numbers(&first)[..2], [(0, "gap"), (1, "log")]);
        assert!(first.is_sorted_by_key(|(number, _)| *number));
        let mut seen = first.len();
        while let Some(Some(events)) = slow.next().now_or_never() {
            assert!(events.iter().all(|(_, event)| event.name() == "log"), "a gap is reported once");
            seen += events.len();
        }
        assert_eq!(seen, 2 + MAX_KEPT);
    }

    #[test]
    fn a_forgotten_run_is_a_gap_for_readers_that_were_behind() {
        let feed = Feed::new();
        feed.tell(&"r".into(), log(1));
        let mut behind = feed.reader(vec!["r".into()], Some(0), Vec::new());
        feed.forget(&"r".into());
        assert_eq!(numbers(&behind.next().now_or_never().unwrap().unwrap()), [(0, "gap")]);
        assert!(behind.next().now_or_never().is_none());
    }

    #[test]
    fn first_events_have_the_number_of_the_last_seen_event() {
        let feed = Feed::new();
        (1..=3).for_each(|number| feed.tell(&"r".into(), log(number)));
        let mut reader = feed.reader(vec!["r".into()], Some(1), vec![log(0)]);
        let mut seen = numbers(&reader.next().now_or_never().unwrap().unwrap());
        // A client that disconnects here resumes after the first event.
        assert_eq!(seen, [(1, "log")]);
        seen.extend(numbers(&reader.next().now_or_never().unwrap().unwrap()));
        assert_eq!(seen, [(1, "log"), (2, "log"), (3, "log")]);
    }

    #[test]
    fn events_have_their_form_on_the_wire() {
        let data = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(
            data(&log(7)),
            r#"{"run":"r","entry":{"number":7,"stage":"1:a","level":"info","message":"","at_s":0.0}}"#
        );
        let gap = Event::Gap(RunGap { run: "r".into() });
        assert_eq!(data(&gap), r#"{"run":"r"}"#);
        assert_eq!((log(7).name(), gap.name()), ("log", "gap"));
    }
}
