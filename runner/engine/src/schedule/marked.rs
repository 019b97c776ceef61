use std::collections::VecDeque;

/// Nodes that may have work, each at most once, in the order in which they were marked.
#[derive(Debug)]
pub(crate) struct Marked {
    nodes: VecDeque<usize>,
    /// By node: set while it is in `nodes`.
    is_marked: Vec<bool>,
}

impl Marked {
    /// No node of `count`.
    pub(crate) fn none_of(count: usize) -> Self {
        Self { nodes: VecDeque::with_capacity(count), is_marked: vec![false; count] }
    }

    pub(crate) fn mark(&mut self, node: usize) {
        if !std::mem::replace(&mut self.is_marked[node], true) {
            self.nodes.push_back(node);
        }
    }

    /// Takes the node that was marked first.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let node = self.nodes.pop_front()?;
        self.is_marked[node] = false;
        Some(node)
    }
}
