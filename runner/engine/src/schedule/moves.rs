//! Moves of all items that can move after an event.

use penstock_types::stats::Tick;

use super::Schedule;
use super::core::StageStep;
use super::room::NodesBehind;
use super::route::{RouteStep, Routing};
use super::stage::{Kind, Stage};

impl Schedule {
    /// Steps `node` and all nodes affected by its moves, until nothing can move.
    pub(super) fn settle(&mut self, node: usize, now: Tick) {
        if self.end.over || self.work.preparing > 0 {
            return;
        }
        self.agenda.mark(node);
        self.move_all(now);
        self.fail_if_stuck(now);
    }

    pub(super) fn move_all(&mut self, now: Tick) {
        // An op that has ended may leave room for a refused one, although it moves nothing: it may hold its samples.
        let mut moved = true;
        loop {
            while let Some(node) = self.agenda.next() {
                if self.end.is_dead(node) {
                    continue;
                }
                let (took, put) = self.step_node(node, now);
                if took && node > 0 && self.queues[node - 1].take_refusal() {
                    self.agenda.mark(node - 1);
                }
                let reader = self.routes.reader(node);
                if put && reader < self.queues.len() {
                    self.agenda.mark(reader);
                }
                moved |= took || put;
            }
            // A refused op may become startable when memory is freed, or when the op becomes the most downstream work.
            if !self.budget.take_freed() && (!self.budget.refused || !moved) {
                return;
            }
            moved = false;
            self.mark_all();
        }
    }

    /// Marks all nodes, starting with the one nearest to the consumer, and clears the record of refusals.
    pub(super) fn mark_all(&mut self) {
        self.budget.refused = false;
        (0..self.queues.len()).rev().for_each(|node| self.agenda.mark(node));
    }

    /// Lets one node do all work that is possible now. Returns two flags: the first is true if the node took an item, the second
    /// if it put an item. Gates and joins mark their neighbours themselves.
    fn step_node(&mut self, node: usize, now: Tick) -> (bool, bool) {
        let (before, behind) = self.queues.split_at_mut(node);
        let [output, queues @ ..] = behind else { return (false, false) };
        let Some(input) = before.last_mut() else {
            let failed = self.failures.samples;
            let put = self.source.step(output, &mut self.failures, &mut self.settled, now);
            if self.failures.samples > failed {
                self.end_source_if_exceeded();
            }
            self.end_after_lost_epoch();
            return (false, put);
        };
        let (budget, work) = (&mut self.budget, &mut self.work);
        let count = self.stages.len();
        let (own, stages) = self.stages.split_at_mut(node.min(count));
        let beside = self.routes.beside(node);
        let nodes =
            NodesBehind { stages, queues, sink_is_empty: self.sink.hand.is_none(), first: node + 1, beside };
        let behind = |is_clear| nodes.demand(is_clear);
        let behind = &behind;
        let (epochs, settled) = (&mut self.failures.epochs, &mut self.settled);
        let mut step =
            StageStep { now, input, output, budget, behind, work, epochs, settled, took: false, put: false };
        let moved = match own.get_mut(node - 1) {
            Some(Stage { kind: Kind::Gate(gate), .. }) => {
                let route = gate.route;
                (false, self.step_router(route, now))
            }
            Some(Stage { kind: Kind::Join(join), .. }) => {
                let route = join.route;
                self.step_route(route, now, Routing::join);
                (false, self.agenda.mark_touched())
            }
            stage => {
                match stage {
                    Some(stage) => stage.step(&mut step),
                    None => self.sink.step(&mut step),
                }
                (step.took, step.put)
            }
        };
        self.end_after_lost_epoch();
        moved
    }

    /// Steps the router of a route. Returns true if anything moved.
    fn step_router(&mut self, route: usize, now: Tick) -> bool {
        let mut moved = false;
        loop {
            let failed = self.step_route(route, now, Routing::send);
            moved |= self.agenda.mark_touched() || failed.is_some();
            let Some((task, epoch)) = failed else { return moved };
            let join = self.routes.join(route);
            self.settled.fail(&task, self.stages[join - 1].core.on_error);
            self.failures.add(epoch, task);
            if self.end.error.is_none()
                && let Some(message) = self.exceeded(join - 1, false)
            {
                self.cut(join - 1, message);
            }
        }
    }

    /// Closes the routers of all routes that contain `node`, so that the other paths end.
    pub(super) fn close_routers_around(&mut self, node: usize) {
        for route in 0..self.routes.count() {
            if self.routes.is_open_around(route, node) {
                self.step_route(route, self.latest, Routing::close);
                self.agenda.mark_touched();
            }
        }
    }

    fn step_route<T>(
        &mut self,
        route: usize,
        now: Tick,
        step: impl FnOnce(&mut Routing, &mut RouteStep<'_>) -> T,
    ) -> T {
        let Self { stages, queues, routes, budget, agenda, .. } = self;
        let (routing, readers) = routes.get(route);
        step(routing, &mut RouteStep { now, stages, queues, readers, budget, touched: &mut agenda.touched })
    }
}
