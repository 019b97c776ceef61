use super::sums::sums;
use crate::ledger::StageBook;

sums! {
    /// Samples that passed one node of a run in an interval. The nodes are source, stages, sink and consumer, first to last.
    BookRow {
        /// Samples taken from the queue before the node.
        taken,
        /// Samples made by the source and by fan-out.
        made,
        /// Samples put into the queue behind the node.
        out,
        /// Samples left out on purpose.
        dropped,
        /// Samples that failed and were left out.
        skipped,
        /// Samples that failed and were kept as dead letters.
        dead_lettered,
        /// Samples of incomplete last batches; at the consumer, samples that it took and did not process.
        discarded,
    }
}

impl From<&StageBook> for BookRow {
    fn from(book: &StageBook) -> Self {
        let StageBook { taken, made, out, dropped, skipped, dead_lettered, discarded, .. } = *book;
        Self { taken, made, out, dropped, skipped, dead_lettered, discarded }
    }
}
