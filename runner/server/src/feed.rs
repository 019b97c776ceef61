//! Numbered live events, which are kept for a minute, in bounded memory. Each event is serialized once, for all readers. A slow reader
//! loses events and does not slow down other readers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::lock::locked;
use penstock_types::run::{RunId, RunSummary};
use penstock_types::series::LiveSample;
use penstock_types::stats::Tick;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;
use tokio::sync::watch;

use crate::wire::LogEntry;

/// Time for which events are kept for readers that reconnect.
const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of events that are kept for each run, and for the list of runs.
const MAX_KEPT: usize = 4096;
/// Maximum memory of all kept events together, in bytes; a further event replaces the oldest of the run with most bytes.
pub const MAX_EVENT_BYTES: usize = 32 << 20;
/// Memory of an event in addition to its data, in bytes.
const EVENT_BYTES: usize = 128;
/// Maximum number of events that one call returns to a reader, not counting gaps.
const MAX_AT_A_TIME: usize = 256;
/// Size of the data beyond which a call returns no further event to a reader, in bytes.
const MAX_BYTES_AT_A_TIME: usize = 64 << 10;

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

/// Event in the form in which readers get it.
#[derive(Debug, PartialEq, Eq)]
pub struct SerializedEvent {
    pub name: &'static str,
    pub data: String,
}

/// Line that a module of a run logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunLog {
    /// Id of the run.
    pub run: RunId,
    /// Line with its stage, level and time.
    pub entry: LogEntry,
}

/// Run of which events were lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunGap {
    /// Id of the run; empty if the lost events concern the list of runs.
    pub run: RunId,
}

/// Events of all runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Feed(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: MonotonicClock,
    rings: Mutex<Rings>,
    newest: watch::Sender<Newest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    number: u64,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Rings {
    last: u64,
    lists: Ring,
    runs: BTreeMap<RunId, Ring>,
    bytes: usize,
    /// Highest event number among the runs whose events were all dropped.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<(u64, Tick, Arc<SerializedEvent>)>,
    bytes: usize,
    /// Number of the last event that was dropped.
    lost: u64,
}

/// Reader of the feed, and its position.
#[derive(Debug)]
pub struct Events {
    feed: Feed,
    newest: watch::Receiver<Newest>,
    /// Runs to watch, after an empty id for the lists, each with the number up to which a loss of its events was reported.
    watched: Vec<(RunId, u64)>,
    seen: u64,
    first: Vec<(u64, Arc<SerializedEvent>)>,
}

/// Splits the id of an event into the epoch, which identifies one start of the server, and the number of the event in this epoch.
pub fn parse_event_id(id: &str) -> Option<(&str, u64)> {
    let (epoch, number) = id.rsplit_once('-')?;
    Some((epoch, number.parse().ok()?))
}

impl From<&Event> for SerializedEvent {
    fn from(event: &Event) -> Self {
        let data = serde_json::to_string(event).expect("names, texts and numbers are JSON");
        Self { name: event.into(), data }
    }
}

impl SerializedEvent {
    fn bytes(&self) -> usize {
        self.data.len() + EVENT_BYTES
    }
}

impl Feed {
    pub(crate) fn new() -> Self {
        let (clock, rings) = (MonotonicClock::start(), Mutex::default());
        Self(Arc::new(Shared { clock, rings, newest: watch::Sender::default() }))
    }

    pub(crate) fn last(&self) -> u64 {
        locked(&self.0.rings).last
    }

    /// Adds an event of a run. Readers of lists get `Runs`, and those that watch the run get all other events.
    pub(crate) fn tell(&self, run: &RunId, event: Event) {
        let run = if matches!(event, Event::Runs(_)) { None } else { Some(run) };
        let (now, event) = (self.0.clock.now(), Arc::new(SerializedEvent::from(&event)));
        let number = locked(&self.0.rings).push(run, now, event);
        self.0.newest.send_modify(|newest| newest.number = newest.number.max(number));
    }

    /// Drops all events of a run; called a minute after the end of the run.
    pub(crate) fn forget(&self, run: &RunId) {
        let mut rings = locked(&self.0.rings);
        if let Some(ring) = rings.runs.remove(run) {
            let last = ring.events.back().map_or(ring.lost, |(number, ..)| *number);
            rings.bytes -= ring.bytes;
            rings.forgotten = rings.forgotten.max(last);
        }
    }

    pub(crate) fn close(&self) {
        self.0.newest.send_modify(|newest| newest.is_closed = true);
    }

    /// Creates a reader of events of lists and of `runs`, which begins after the event `since`. The reader returns the events in
    /// `first` before all other events. The events in `first` have the number of the last event before the reader's start, so
    /// that a client that disconnects after reading them resumes there.
    pub(crate) fn reader(&self, runs: Vec<RunId>, since: Option<u64>, first: Vec<Event>) -> Events {
        let last = self.last();
        // A number that was never issued is treated like `None`.
        let seen = since.filter(|since| *since <= last).unwrap_or(last);
        let first = first.iter().map(|event| (seen, Arc::new(SerializedEvent::from(event)))).collect();
        let watched = std::iter::once("".into()).chain(runs).map(|run| (run, 0)).collect();
        Events { feed: self.clone(), newest: self.0.newest.subscribe(), watched, seen, first }
    }
}

impl Rings {
    fn push(&mut self, run: Option<&RunId>, now: Tick, event: Arc<SerializedEvent>) -> u64 {
        self.last += 1;
        let ring = match run {
            Some(run) => self.runs.entry(run.clone()).or_default(),
            None => &mut self.lists,
        };
        self.bytes -= ring.bytes;
        ring.push(self.last, now, event);
        self.bytes += ring.bytes;
        while self.bytes > MAX_EVENT_BYTES {
            let rings = self.runs.values_mut().chain([&mut self.lists]);
            let largest = rings.max_by_key(|ring| ring.bytes).expect("the lists have a ring");
            self.bytes -= largest.drop_oldest();
        }
        self.last
    }
}

impl Ring {
    fn push(&mut self, number: u64, now: Tick, event: Arc<SerializedEvent>) {
        let is_old = |at: Tick| now - at > KEPT.as_nanos() as u64;
        while self.events.len() >= MAX_KEPT || self.events.front().is_some_and(|(_, at, _)| is_old(*at)) {
            self.drop_oldest();
        }
        self.bytes += event.bytes();
        self.events.push_back((number, now, event));
    }

    /// Returns the memory of the dropped event, in bytes; 0 if there is none.
    fn drop_oldest(&mut self) -> usize {
        let Some((number, _, event)) = self.events.pop_front() else { return 0 };
        self.lost = number;
        self.bytes -= event.bytes();
        event.bytes()
    }

    /// Events after the number `seen`.
    fn since(&self, seen: u64) -> impl Iterator<Item = &(u64, Tick, Arc<SerializedEvent>)> {
        self.events.range(self.events.partition_point(|(number, ..)| *number <= seen)..)
    }
}

impl Events {
    /// Waits for events and returns at least one, oldest first, and further ones up to a bounded size. `None` if the server shuts down.
    pub async fn next(&mut self) -> Option<Vec<(u64, Arc<SerializedEvent>)>> {
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

    fn take(&mut self) -> Vec<(u64, Arc<SerializedEvent>)> {
        let rings = locked(&self.feed.0.rings);
        let forgotten = Ring { lost: rings.forgotten, ..Ring::default() };
        let (mut taken, mut later) = (Vec::new(), Vec::with_capacity(self.watched.len()));
        for (run, reported) in &mut self.watched {
            let ring = if run.is_empty() { &rings.lists } else { rings.runs.get(run).unwrap_or(&forgotten) };
            if ring.lost > self.seen.max(*reported) {
                *reported = ring.lost;
                // A gap has the number of the last seen event, so that a client that disconnects after the gap resumes before the
                // missed events.
                let gap = Event::Gap(RunGap { run: run.clone() });
                taken.push((self.seen, Arc::new(SerializedEvent::from(&gap))));
            }
            later.push(ring.since(self.seen).peekable());
        }
        // Events beyond the limits are returned by the next call.
        let (most, mut bytes) = (taken.len() + MAX_AT_A_TIME, 0);
        self.seen = loop {
            let next = later.iter_mut().filter_map(|events| Some((events.peek()?.0, events)));
            let Some((_, events)) = next.min_by_key(|(number, _)| *number) else { break rings.last };
            let Some((number, _, event)) = events.next() else { break rings.last };
            bytes += event.bytes();
            taken.push((*number, event.clone()));
            if taken.len() == most || bytes >= MAX_BYTES_AT_A_TIME {
                break *number;
            }
        };
        taken
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

    fn numbers(events: &[(u64, Arc<SerializedEvent>)]) -> Vec<(u64, &'static str)> {
        events.iter().map(|(number, event)| (*number, event.name)).collect()
    }

    /// A log line of this many bytes.
    fn long(bytes: usize) -> Event {
        let Event::Log(mut long) = log(0) else { unreachable!("it is a log line") };
        long.entry.message = "x".repeat(bytes);
        Event::Log(long)
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
            assert!(events.iter().all(|(_, event)| event.name == "log"), "a gap is reported once");
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
    fn the_events_of_all_runs_together_take_bounded_memory_and_the_largest_run_loses_its_own() {
        let feed = Feed::new();
        feed.tell(&"small".into(), log(1));
        let mut small = feed.reader(vec!["small".into()], Some(0), Vec::new());
        let mut large = feed.reader(vec!["large".into()], Some(0), Vec::new());
        for _ in 0..100 {
            feed.tell(&"large".into(), long(1 << 20));
            let rings = locked(&feed.0.rings);
            let sum: usize =
                rings.runs.values().flat_map(|ring| &ring.events).map(|(.., event)| event.bytes()).sum();
            assert!(rings.bytes == sum && sum <= MAX_EVENT_BYTES);
        }
        assert_eq!(numbers(&small.next().now_or_never().unwrap().unwrap()), [(1, "log")]);
        let mut seen = numbers(&large.next().now_or_never().unwrap().unwrap());
        assert_eq!(seen[0], (0, "gap"));
        while let Some(Some(more)) = large.next().now_or_never() {
            seen.extend(numbers(&more));
        }
        assert_eq!((seen.len(), seen.last()), (1 + 31, Some(&(101, "log"))));
        feed.forget(&"large".into());
        feed.forget(&"small".into());
        assert_eq!(locked(&feed.0.rings).bytes, 0);
    }

    #[test]
    fn a_reader_gets_few_bytes_at_a_time_and_each_event_in_order() {
        let feed = Feed::new();
        let mut reader = feed.reader(vec!["a".into(), "b".into()], Some(0), Vec::new());
        for _ in 0..20 {
            feed.tell(&"a".into(), long(30 << 10));
            feed.tell(&"b".into(), long(90 << 10));
        }
        let mut seen = Vec::new();
        while let Some(Some(events)) = reader.next().now_or_never() {
            let but_last = &events[..events.len() - 1];
            assert!(but_last.iter().map(|(_, event)| event.bytes()).sum::<usize>() < MAX_BYTES_AT_A_TIME);
            seen.extend(events.iter().map(|(number, _)| *number));
        }
        assert_eq!(seen, Vec::from_iter(1..=40));
    }

    #[test]
    fn readers_share_the_text_of_an_event() {
        let feed = Feed::new();
        let mut readers: Vec<Events> =
            (0..3).map(|_| feed.reader(vec!["r".into()], None, Vec::new())).collect();
        feed.tell(&"r".into(), long(1 << 10));
        let texts =
            readers.iter_mut().map(|reader| reader.next().now_or_never().unwrap().unwrap().remove(0).1);
        let texts: Vec<Arc<SerializedEvent>> = texts.collect();
        assert!(texts.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1])));
    }

    #[test]
    fn events_have_their_form_on_the_wire() {
        let data = |event: &Event| SerializedEvent::from(event).data;
        assert_eq!(
            data(&log(7)),
            r#"{"run":"r","entry":{"number":7,"stage":"1:a","level":"info","message":"","at_s":0.0}}"#
        );
        let gap = Event::Gap(RunGap { run: "r".into() });
        assert_eq!(data(&gap), r#"{"run":"r"}"#);
        assert_eq!((SerializedEvent::from(&log(7)).name, SerializedEvent::from(&gap).name), ("log", "gap"));
    }
}
