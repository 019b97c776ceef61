//! The memory budget of a run: the bytes that it holds between ops, and the rule by which ops start.

/// Bytes that a run holds between the end of one op and the start of the next, in all nodes together, and those that ops
/// have reserved. Only a result, a delivery and a start change it: what moves from node to node is held as before.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit: u64,
    held: u64,
    /// Set when a start was refused since room was made the last time.
    refused: bool,
    /// Set when room was made for a start that had been refused.
    freed: bool,
}

/// Demand of the nodes behind one that wants to start an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Bytes by which the ops of free slots may grow what they take.
    pub(crate) growth: u64,
    /// Bytes that begun batches still lack.
    pub(crate) promised: u64,
    /// Set when samples are collected, or held in an op, until others come.
    pub(crate) collects: bool,
    /// Set when nothing but such samples is there: no task, no result and no item.
    pub(crate) is_idle: bool,
}

/// Divisor of the budget below which no start is looked at closely.
const ROOMY: u64 = 16;

impl ByteBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, held: 0, refused: false, freed: false }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether there is a limit: without one the sizes of results do not matter.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Whether an op may start that takes `input` bytes, which are held already, and reserves `result`. `behind` is asked for
    /// when the budget is not nearly empty.
    ///
    /// An op that reserves no more than it takes may always start, and so may one for whose growth there is room beside what
    /// the nodes behind it need. Any other has to be the most downstream work: with nothing before it but the consumer, its
    /// result leaves the run; with a begun batch before it, the result stays, and then the budget must hold without it.
    pub(crate) fn admits(&mut self, input: u64, result: u64, behind: impl FnOnce() -> Behind) -> bool {
        let more = result.saturating_sub(input);
        let wanted = self.held.saturating_add(more);
        if more == 0 || wanted <= self.limit / ROOMY {
            return true;
        }
        let behind = behind();
        // A batch that the budget cannot hold is no reason to wait: the run fails sooner.
        let promised = if behind.promised > self.limit { 0 } else { behind.promised };
        let kept = behind.growth.min(self.limit / 2).saturating_add(promised);
        let is_admitted = wanted.saturating_add(kept) <= self.limit
            || behind.is_idle && (!behind.collects || self.held - input <= self.limit);
        self.refused |= !is_admitted;
        is_admitted
    }

    pub(crate) fn hold(&mut self, bytes: u64) {
        self.held += bytes;
    }

    pub(crate) fn release(&mut self, bytes: u64) {
        self.held -= bytes;
        if self.refused && bytes > 0 {
            self.refused = false;
            self.freed = true;
        }
    }

    /// Holds `after` bytes where there were `before`.
    pub(crate) fn replace(&mut self, before: u64, after: u64) {
        match after.checked_sub(before) {
            Some(more) => self.hold(more),
            None => self.release(before - after),
        }
    }

    /// Makes room for bytes that will never move again.
    pub(crate) fn write_off(&mut self, bytes: u64) {
        self.limit = self.limit.saturating_add(bytes);
        self.refused = false;
    }

    /// Whether a start was refused, and no room was made since.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused
    }

    pub(crate) fn forget_refusals(&mut self) {
        self.refused = false;
    }

    /// Whether room was made, since the last question, for starts that had been refused.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }
}

/// Sizes of a stage's results, of which the largest of the last thousand or two count: an outlier is forgotten some day.
#[derive(Debug, Default)]
pub(crate) struct ResultSizes {
    now: Largest,
    before: Largest,
    /// Results in `now`.
    count: u32,
    is_known: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    bytes: u64,
    /// Bytes by which a result was larger than what it was made of.
    growth: u64,
}

impl ResultSizes {
    const SPAN: u32 = 1024;

    pub(crate) fn note(&mut self, input: u64, result: u64) {
        if self.count == Self::SPAN {
            (self.before, self.now, self.count) = (self.now, Largest::default(), 0);
        }
        self.count += 1;
        self.is_known = true;
        self.now.bytes = self.now.bytes.max(result);
        self.now.growth = self.now.growth.max(result.saturating_sub(input));
    }

    /// Bytes of the largest result; `None` before the first.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.is_known.then(|| self.now.bytes.max(self.before.bytes))
    }

    pub(crate) fn growth(&self) -> u64 {
        self.now.growth.max(self.before.growth)
    }
}
