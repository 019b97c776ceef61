//! Places of routes among the nodes of a pipeline.
//!
//! The nodes of a pipeline are numbered: 0 is the source, then come the stages in order, then the sink. Each node puts into the queue
//! with its own number, and reads the queue before it, with two exceptions. The stages of a route's paths follow each other in the
//! list, each path after its *gate*, which puts samples into the first queue of the path; all gates of a route read the
//! queue before the first of them. The *join* of a route comes after its paths, and reads the last queue of each.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Numbers of the nodes of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSpan {
    /// Gates of the paths, first to last; never empty.
    pub gates: Vec<usize>,
    /// Join behind the paths.
    pub join: usize,
}

/// Part of a route that a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePart {
    /// Gate of a path of the route with this number, from 0.
    Gate(usize),
    /// Join of the route with this number, from 0.
    Join(usize),
}

impl RouteSpan {
    /// Spans of all routes, by number; `parts` has an entry for each stage, first to last, which is `None` for stages that are no part
    /// of a route.
    pub fn all(parts: impl IntoIterator<Item = Option<RoutePart>>) -> Vec<Self> {
        let mut spans: Vec<Self> = Vec::new();
        for (stage, part) in parts.into_iter().enumerate() {
            let Some(part) = part else { continue };
            let (RoutePart::Gate(number) | RoutePart::Join(number)) = part;
            if spans.len() <= number {
                spans.resize(number + 1, Self::default());
            }
            match part {
                RoutePart::Gate(_) => spans[number].gates.push(stage + 1),
                RoutePart::Join(_) => spans[number].join = stage + 1,
            }
        }
        spans
    }

    /// Queue that the gates read.
    pub fn input(&self) -> usize {
        self.gates.first().map_or(0, |first| first - 1)
    }

    /// Nodes of each path, from its gate to its last stage.
    pub fn paths(&self) -> impl Iterator<Item = RangeInclusive<usize>> {
        let after = self.gates.iter().skip(1).chain([&self.join]);
        self.gates.iter().zip(after).map(|(gate, after)| *gate..=after - 1)
    }

    /// Queues that the join reads, one of each path.
    pub fn ends(&self) -> impl Iterator<Item = usize> {
        self.paths().map(|path| *path.end())
    }

    /// True if the node is in one of the paths.
    pub fn contains(&self, node: usize) -> bool {
        self.gates.first().is_some_and(|first| *first <= node) && node < self.join
    }

    /// Nodes that put into the queues which `node` reads, for a pipeline with these routes.
    pub fn before(spans: &[Self], node: usize) -> Vec<usize> {
        if let Some(span) = spans.iter().find(|span| span.join == node) {
            return span.ends().collect();
        }
        let gate = spans.iter().find(|span| span.gates.contains(&node));
        gate.map(Self::input).or_else(|| node.checked_sub(1)).into_iter().collect()
    }

    /// Node that reads each queue, of a pipeline with `nodes` nodes; for the queue before a route, its first gate. The last entry, for
    /// the queue of the sink, is `nodes`.
    pub fn readers(spans: &[Self], nodes: usize) -> Vec<usize> {
        let mut readers: Vec<usize> = (1..=nodes).collect();
        for span in spans {
            span.ends().for_each(|end| readers[end] = span.join);
        }
        readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_nested_routes_follow_from_the_parts() {
        use RoutePart::{Gate, Join};
        // A stage; a route with an empty path and one with a nested route between two stages; a stage.
        let parts = [
            None,
            Some(Gate(0)),
            Some(Gate(0)),
            None,
            Some(Gate(1)),
            None,
            Some(Gate(1)),
            Some(Join(1)),
            None,
            Some(Join(0)),
            None,
        ];
        let spans = RouteSpan::all(parts);
        assert_eq!(spans[0], RouteSpan { gates: vec![2, 3], join: 10 });
        assert_eq!(spans[1], RouteSpan { gates: vec![5, 7], join: 8 });
        assert_eq!(spans[0].ends().collect::<Vec<_>>(), [2, 9]);
        assert_eq!(spans[1].paths().collect::<Vec<_>>(), [5..=6, 7..=7]);
        let before: Vec<Vec<usize>> = (0..=12).map(|node| RouteSpan::before(&spans, node)).collect();
        let expected: [&[usize]; 13] =
            [&[], &[0], &[1], &[1], &[3], &[4], &[5], &[4], &[6, 7], &[8], &[2, 9], &[10], &[11]];
        assert_eq!(before, expected);
        let readers = RouteSpan::readers(&spans, 13);
        assert_eq!(readers, [1, 2, 10, 4, 5, 6, 8, 8, 9, 10, 11, 12, 13]);
        assert!(
            spans[0].contains(7) && spans[1].contains(5) && !spans[1].contains(8) && !spans[0].contains(10)
        );
    }
}
