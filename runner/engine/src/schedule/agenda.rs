use std::collections::VecDeque;

/// Nodes that may have work; used only while items move.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// Marked nodes, each at most once, in the order in which they were marked.
    marked: VecDeque<usize>,
    /// By node: set while it is in `marked`.
    is_marked: Vec<bool>,
    /// Nodes that a step of a route touched; used only within the step.
    pub(super) touched: Vec<usize>,
}

impl Agenda {
    /// No node of `count`.
    pub(crate) fn none_of(count: usize) -> Self {
        Self { marked: VecDeque::with_capacity(count), is_marked: vec![false; count], touched: Vec::new() }
    }

    pub(crate) fn mark(&mut self, node: usize) {
        if !std::mem::replace(&mut self.is_marked[node], true) {
            self.marked.push_back(node);
        }
    }

    /// Marks the nodes that the last step of a route touched. Returns true if there are any.
    pub(crate) fn mark_touched(&mut self) -> bool {
        let mut touched = std::mem::take(&mut self.touched);
        let moved = !touched.is_empty();
        touched.drain(..).for_each(|node| self.mark(node));
        self.touched = touched;
        moved
    }

    /// Takes the node that was marked first.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let node = self.marked.pop_front()?;
        self.is_marked[node] = false;
        Some(node)
    }
}
