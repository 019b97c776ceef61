//! The router and the join of a route.
//!
//! The router takes items from the queue before the route and puts each into the first queue of its path, through the gate of the path.
//! The join takes the items from the last queue of each path. In the order of the input, the router records the path of each
//! item as a turn, and puts a mark behind the item. The stages in the paths keep the order and pass marks on, so that a mark
//! arrives at the join when all results of its item have arrived, however many there are: the join reads the path of the first turn
//! until it takes a mark.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use penstock_types::policy::Order;
use penstock_types::routes::RouteSpan;
use penstock_types::run::FailureClass;
use penstock_types::stats::Tick;

use super::budget::ByteBudget;
use super::failures::FailedTask;
use super::queue::{Queue, Take};
use super::stage::{Kind, Stage};
use crate::item::Item;
use crate::ports::{Fault, Output};
use crate::route::Route;

/// Maximum number of items and marks that the router may be ahead of the join, in a route that keeps the order. Stages that drop all
/// samples would otherwise let it grow without a bound.
const MAX_TURNS: usize = 1024;

/// Maximum number of ends of epochs between the router and the join.
const MAX_EPOCH_ENDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Routes {
    list: Vec<Routing>,
    /// Node that reads each queue.
    readers: Vec<usize>,
    /// Nodes by node that come later in the list but wait for it; empty in pipelines without routes that keep the order.
    beside: Vec<Vec<RangeInclusive<usize>>>,
}

#[derive(Debug)]
pub(crate) struct Routing {
    route: Route,
    /// Queues that the join reads, one of each path.
    ends: Vec<usize>,
    /// Path whose gate holds an item that waits for room.
    held: Option<usize>,
    /// What the join passes on next, first to last; used for `Order::Input` only.
    turns: VecDeque<Turn>,
    /// Number of ends of epochs between the router and the join.
    epoch_ends: usize,
    /// Set while the router takes nothing because the join is too far behind.
    is_ahead: bool,
    is_closed: bool,
    /// Path from which the join takes first; used for `Order::Completion` only.
    next: usize,
    progress: Vec<Progress>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The results of one item, which come from this path.
    Path(usize),
    EpochEnd,
    /// A mark of the route around this one.
    Mark,
}

/// What the join has taken last from a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    /// The end of an epoch, at which the other paths have not arrived.
    AtEpochEnd,
    Ended,
}

pub(super) struct RouteStep<'a> {
    pub(super) now: Tick,
    pub(super) stages: &'a mut [Stage],
    pub(super) queues: &'a mut [Queue],
    pub(super) readers: &'a [usize],
    pub(super) budget: &'a mut ByteBudget,
    /// Nodes that may now have work.
    pub(super) touched: &'a mut Vec<usize>,
}

impl Routes {
    /// Creates the routes of a pipeline with this number of nodes.
    pub(crate) fn new(routes: Vec<Route>, nodes: usize) -> Self {
        let spans: Vec<RouteSpan> = routes.iter().map(|route| route.span.clone()).collect();
        Self {
            readers: RouteSpan::readers(&spans, nodes),
            beside: beside(&routes, nodes),
            list: routes.into_iter().map(Routing::new).collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = &RouteSpan> {
        self.list.iter().map(|routing| &routing.route.span)
    }

    /// Node that reads the output queue of `node`.
    pub(crate) fn reader(&self, node: usize) -> usize {
        self.readers[node]
    }

    /// Nodes that come after `node` in the list of nodes, and wait for it instead of reading what it puts.
    pub(crate) fn beside(&self, node: usize) -> &[RangeInclusive<usize>] {
        self.beside.get(node).map_or(&[], Vec::as_slice)
    }

    /// Node that joins the paths of a route.
    pub(crate) fn join(&self, route: usize) -> usize {
        self.list[route].route.span.join
    }

    /// True if the route contains `node`, and its router still takes items.
    pub(crate) fn is_open_around(&self, route: usize, node: usize) -> bool {
        let Routing { route, is_closed, .. } = &self.list[route];
        route.span.contains(node) && !is_closed
    }

    /// State of a route, and the readers of all queues.
    pub(super) fn get(&mut self, route: usize) -> (&mut Routing, &[usize]) {
        (&mut self.list[route], &self.readers)
    }
}

impl Routing {
    fn new(route: Route) -> Self {
        let ends: Vec<usize> = route.span.ends().collect();
        let progress = vec![Progress::Open; ends.len()];
        Self {
            route,
            ends,
            held: None,
            turns: VecDeque::new(),
            epoch_ends: 0,
            is_ahead: false,
            is_closed: false,
            next: 0,
            progress,
        }
    }

    /// Sends items to their paths as long as there is room. Returns early with the failures of an item without a path, and its epoch.
    pub(super) fn send(&mut self, step: &mut RouteStep<'_>) -> Option<(FailedTask, u32)> {
        while !self.is_closed && self.put_held(step) {
            if self.turns.len() >= MAX_TURNS || self.epoch_ends >= MAX_EPOCH_ENDS {
                self.is_ahead = true;
                return None;
            }
            let input = self.route.span.input();
            match step.queues[input].take(step.now) {
                Take::Item(item, bytes) => {
                    step.touched.push(input);
                    let failed = self.choose(item, bytes, step);
                    if failed.is_some() {
                        return failed;
                    }
                }
                Take::EpochEnd => {
                    self.epoch_ends += 1;
                    self.add_turn(Turn::EpochEnd);
                    for gate in &self.route.span.gates {
                        step.queues[*gate].put_epoch_end();
                        step.touched.push(step.readers[*gate]);
                    }
                }
                Take::Mark => {
                    self.add_turn(Turn::Mark);
                    step.touched.push(self.route.span.join);
                }
                Take::Empty => return None,
                Take::Ended => self.close(step),
            }
        }
        None
    }

    /// Puts the item that waits for room into the queue of its path. Returns false while there is no room.
    fn put_held(&mut self, step: &mut RouteStep<'_>) -> bool {
        let Some(path) = self.held else { return true };
        let gate = self.route.span.gates[path];
        let queue = &mut step.queues[gate];
        let Stage { core, kind: Kind::Gate(passage) } = &mut step.stages[gate - 1] else { return false };
        if !core.put_into(&mut passage.hand, queue, step.now) {
            return false;
        }
        if self.route.order == Order::Input {
            queue.put_mark();
        }
        self.held = None;
        step.touched.push(step.readers[gate]);
        true
    }

    /// Hands an item to the gate of its path. Returns the failures if there is no path.
    fn choose(&mut self, item: Item, bytes: u64, step: &mut RouteStep<'_>) -> Option<(FailedTask, u32)> {
        let (samples, join) = (item.samples(), self.route.span.join);
        let chosen = match &item {
            Item::Sample(sample) => self.route.choice.of(sample),
            // The check of the plan excludes these inputs.
            Item::Batch(_) | Item::Collated(_) => {
                Err(Fault::new(FailureClass::Contract, "a route takes single samples, not batches"))
            }
        };
        let joined = &mut step.stages[join - 1].core;
        match chosen {
            Ok(path) => {
                joined.meter.on_task(None, 0);
                let Stage { core, kind } = &mut step.stages[self.route.span.gates[path] - 1];
                core.book.taken += samples;
                core.meter.on_task(None, 0);
                if let Kind::Gate(passage) = kind {
                    passage.hand = Some((item, None));
                }
                self.held = Some(path);
                self.add_turn(Turn::Path(path));
                None
            }
            Err(fault) => {
                let epoch = item.first().map_or(0, |(_, origin)| origin.epoch);
                let failed = Output::all_failed(item.into_samples(), &fault).failed;
                joined.book.taken += samples;
                joined.meter.on_task(None, samples);
                let task = FailedTask::new(&joined.id, joined.on_error, failed, None);
                joined.fail(&task);
                step.budget.release(bytes);
                Some((task, epoch))
            }
        }
    }

    fn add_turn(&mut self, turn: Turn) {
        if self.route.order == Order::Input {
            self.turns.push_back(turn);
        }
    }

    /// Closes the first queue of each path; an item that waits for room stays in its gate.
    pub(super) fn close(&mut self, step: &mut RouteStep<'_>) {
        self.is_closed = true;
        for gate in &self.route.span.gates {
            let core = &mut step.stages[gate - 1].core;
            core.closed = true;
            core.meter.on_closed(step.now);
            step.queues[*gate].close(step.now);
            step.touched.push(step.readers[*gate]);
        }
    }

    /// Passes on what the paths deliver, as long as there is room.
    pub(super) fn join(&mut self, step: &mut RouteStep<'_>) {
        let join = self.route.span.join;
        loop {
            let Stage { core, kind: Kind::Join(passage) } = &mut step.stages[join - 1] else { return };
            if core.closed {
                return;
            }
            let had = passage.hand.is_some();
            if !core.put_into(&mut passage.hand, &mut step.queues[join], step.now) {
                // The join waits for room now, and for no path.
                self.ends.iter().for_each(|end| step.queues[*end].pause_waiting(step.now));
                return;
            }
            if had {
                step.touched.push(step.readers[join]);
            }
            let taken = self.take(step.queues, step.touched, step.now);
            let Stage { core, kind: Kind::Join(passage) } = &mut step.stages[join - 1] else { return };
            let output = &mut step.queues[join];
            match taken {
                Take::Item(item, _) => {
                    core.book.taken += item.samples();
                    passage.hand = Some((item, None));
                    continue;
                }
                Take::EpochEnd => output.put_epoch_end(),
                Take::Mark => output.put_mark(),
                Take::Empty => return,
                Take::Ended => {
                    core.closed = true;
                    core.meter.on_closed(step.now);
                    output.close(step.now);
                }
            }
            step.touched.push(step.readers[join]);
        }
    }

    /// Takes what the join passes on next.
    fn take(&mut self, queues: &mut [Queue], touched: &mut Vec<usize>, now: Tick) -> Take {
        let taken = match self.route.order {
            Order::Completion => self.take_any(queues, touched, now),
            Order::Input => self.take_turn(queues, touched, now),
        };
        if self.is_ahead && self.turns.len() < MAX_TURNS && self.epoch_ends < MAX_EPOCH_ENDS {
            self.is_ahead = false;
            touched.extend(self.route.span.gates.first());
        }
        taken
    }

    /// Takes an item from any path; the end of an epoch or of the data once all paths have arrived there.
    fn take_any(&mut self, queues: &mut [Queue], touched: &mut Vec<usize>, now: Tick) -> Take {
        let paths = self.ends.len();
        for path in (self.next..paths).chain(0..self.next) {
            while self.progress[path] == Progress::Open {
                match queues[self.ends[path]].take(now) {
                    item @ Take::Item(..) => {
                        self.next = (path + 1) % paths;
                        touched.push(self.ends[path]);
                        return item;
                    }
                    Take::EpochEnd => self.progress[path] = Progress::AtEpochEnd,
                    Take::Ended => self.progress[path] = Progress::Ended,
                    Take::Mark => {}
                    Take::Empty => break,
                }
            }
        }
        if self.progress.contains(&Progress::Open) {
            return Take::Empty;
        }
        if !self.progress.contains(&Progress::AtEpochEnd) {
            return Take::Ended;
        }
        let at_end = self.progress.iter_mut().filter(|progress| **progress == Progress::AtEpochEnd);
        at_end.for_each(|progress| *progress = Progress::Open);
        self.epoch_ends = self.epoch_ends.saturating_sub(1);
        Take::EpochEnd
    }

    /// Takes the next part of the first turn. A path that has ended has no more results for its turns.
    fn take_turn(&mut self, queues: &mut [Queue], touched: &mut Vec<usize>, now: Tick) -> Take {
        while let Some(turn) = self.turns.front().copied() {
            match turn {
                Turn::Mark => {
                    self.turns.pop_front();
                    return Take::Mark;
                }
                Turn::EpochEnd => match self.take_any(queues, touched, now) {
                    end @ (Take::EpochEnd | Take::Ended) => {
                        self.turns.pop_front();
                        if matches!(end, Take::EpochEnd) {
                            return end;
                        }
                    }
                    other => return other,
                },
                Turn::Path(path) if self.progress[path] != Progress::Open => {
                    self.turns.pop_front();
                }
                Turn::Path(path) => match queues[self.ends[path]].take(now) {
                    item @ Take::Item(..) => {
                        touched.push(self.ends[path]);
                        return item;
                    }
                    Take::Mark => {
                        self.turns.pop_front();
                    }
                    Take::Empty => {
                        // The join waits for this path only.
                        let others = self.ends.iter().enumerate().filter(|(other, _)| *other != path);
                        others.for_each(|(_, end)| queues[*end].pause_waiting(now));
                        return Take::Empty;
                    }
                    Take::EpochEnd => self.progress[path] = Progress::AtEpochEnd,
                    Take::Ended => self.progress[path] = Progress::Ended,
                },
            }
        }
        self.take_any(queues, touched, now)
    }
}

/// Later paths of the routes around each node, of the routes that keep the order: their items wait for the node's.
fn beside(routes: &[Route], nodes: usize) -> Vec<Vec<RangeInclusive<usize>>> {
    let in_order = || routes.iter().filter(|route| route.order == Order::Input).map(|route| &route.span);
    if in_order().next().is_none() {
        return Vec::new();
    }
    let later = |node: usize| {
        let around = in_order().filter(move |span| span.contains(node));
        around.flat_map(|span| span.paths()).filter(move |path| *path.start() > node).collect()
    };
    (0..nodes).map(later).collect()
}
