//! The memory budget of a run: the bytes held between ops, and the rule that admits ops.

/// Bytes that all nodes hold between the end of one op and the start of the next, and bytes that ops have reserved. The sum
/// changes when an op starts or ends and when an item is delivered, but not when an item moves from node to node.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    pub(super) limit: u64,
    pub(super) held: u64,
    /// Set when a start was refused and no memory has been freed since.
    pub(super) refused: bool,
    /// Set when memory was freed after a refusal, until [`Self::take_freed`].
    freed: bool,
}

/// Memory demand of the nodes downstream of a node that is about to start an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Maximum number of bytes by which the results of ops that may start in free slots exceed their inputs.
    pub(crate) growth: u64,
    /// Expected bytes of the samples that are missing from incomplete batches.
    pub(crate) promised: u64,
    /// Set if samples downstream are collected for a batch, or held in an op, until further samples arrive.
    pub(crate) collects: bool,
    /// Set if there is no task, result or item downstream, apart from collected and held samples.
    pub(crate) is_idle: bool,
}

/// Divisor of the budget: below this fraction of the budget, every start is admitted without checking downstream demand.
const FREE_START_DIVISOR: u64 = 16;

impl ByteBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, held: 0, refused: false, freed: false }
    }

    /// False for an unlimited budget, for which the sizes of results do not matter.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// True if an op may start that takes `input` bytes, which are already counted as held, and reserves `result` bytes. `behind`
    /// is called only if a substantial part of the budget is in use.
    ///
    /// An op that reserves no more than its input may always start, and so may an op whose growth and the demand of the
    /// downstream nodes fit into the budget together. Any other op has to be the most downstream work: if only the consumer
    /// follows, its result leaves the run; if an incomplete batch follows, the result stays in memory, and the held bytes without
    /// this result must be within the budget.
    pub(crate) fn admits(&mut self, input: u64, result: u64, behind: impl FnOnce() -> Behind) -> bool {
        let more = result.saturating_sub(input);
        let wanted = self.held.saturating_add(more);
        if more == 0 || wanted <= self.limit / FREE_START_DIVISOR {
            return true;
        }
        let behind = behind();
        // Waiting would not help a batch that exceeds the budget: without the wait, the run fails sooner.
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

    /// Counts `after` bytes as held in place of `before` bytes.
    pub(crate) fn replace(&mut self, before: u64, after: u64) {
        match after.checked_sub(before) {
            Some(more) => self.hold(more),
            None => self.release(before - after),
        }
    }

    /// Raises the limit by bytes that will never move again.
    pub(crate) fn write_off(&mut self, bytes: u64) {
        self.limit = self.limit.saturating_add(bytes);
        self.refused = false;
    }

    /// True if memory was freed after a refused start; resets the flag.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }
}

/// Sizes of a stage's results. The largest of the last 1024 to 2048 results counts, so that an outlier does not count forever.
#[derive(Debug, Default)]
pub(crate) struct ResultSizes {
    now: Largest,
    before: Largest,
    /// Number of results in `now`.
    count: u32,
    is_known: bool,
    /// Set if results take no more memory than their inputs.
    pub(super) are_kept: bool,
}

/// Divisor of the budget for a task's reservation while the size of no result of the stage is known.
const UNKNOWN_SHARE: u64 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    bytes: u64,
    /// Maximum number of bytes by which a result exceeded its input.
    growth: u64,
}

impl ResultSizes {
    const SPAN: u32 = 1024;

    pub(crate) fn of(are_kept: bool) -> Self {
        Self { are_kept, ..Self::default() }
    }

    /// Bytes that a task with an input of this size reserves in the budget until its op is done.
    pub(crate) fn reserve(&self, input: u64, budget: &ByteBudget) -> u64 {
        if self.are_kept || !budget.is_limited() {
            return input;
        }
        self.largest().unwrap_or(budget.limit / UNKNOWN_SHARE).max(input)
    }

    pub(crate) fn note(&mut self, input: u64, result: u64) {
        if self.count == Self::SPAN {
            (self.before, self.now, self.count) = (self.now, Largest::default(), 0);
        }
        self.count += 1;
        self.is_known = true;
        self.now.bytes = self.now.bytes.max(result);
        self.now.growth = self.now.growth.max(result.saturating_sub(input));
    }

    /// Size of the largest result in bytes; `None` before the first.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.is_known.then(|| self.now.bytes.max(self.before.bytes))
    }

    pub(crate) fn growth(&self) -> u64 {
        self.now.growth.max(self.before.growth)
    }
}
