//! Content of an object, in order, also of one that is compressed as a whole.

use bytes::{Buf, Bytes, BytesMut};
use penstock_engine::ports::SourceFault;
use penstock_storage::{Blocks, RangedObject, interrupted};
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use crate::compression::{Compression, Decoder, Unreadable};

/// Content of an object, in order: its bytes, or, if the first of them are those of gzip or zstd, what they are decompressed to. Positions are
/// those in the content.
pub struct Sequence {
    pub(crate) object: RangedObject,
    blocks: Blocks,
    form: Form,
    /// Content that follows the position, as far as it is read.
    rest: Bytes,
}

enum Form {
    /// Not read yet. The function returns true for first bytes that are no compressed content, although they may seem so.
    Unread(fn(&[u8]) -> bool),
    Plain,
    Compressed(Box<Inflated>),
}

/// Content of a compressed object, in blocks. The block after the current one is decompressed while the current one is in use.
struct Inflated {
    compression: Compression,
    /// Bytes of content in the blocks that were returned.
    returned: u64,
    /// Bytes of content behind these that are skipped.
    skipped: u64,
    /// Reason why no block follows.
    fault: Option<Unreadable>,
    /// A set of one task, if a block is being made: dropping the set cancels the task.
    next: JoinSet<Made>,
    /// Bytes of the object that are left, and memory that is in use, when the last task was started.
    left_bytes: u64,
    ahead_bytes: u64,
}

/// A block, or the end, and the state for the block behind it.
type Made = Result<(Box<Inflating>, Option<Bytes>), InflateFault>;

struct Inflating {
    blocks: Blocks,
    decoder: Decoder,
    /// Bytes of the object that are not decompressed yet.
    input: Bytes,
    /// Reason why nothing follows the block that is being filled.
    end: Option<Result<(), Unreadable>>,
}

enum InflateFault {
    Read(SourceFault),
    Unreadable(Unreadable),
}

impl Sequence {
    /// Starts at the beginning of the object, as [`Blocks::new`] does. `is_plain` returns true for first bytes that are no compressed content,
    /// although they may seem so; it is called for such bytes only.
    pub(crate) fn new(object: RangedObject, ahead_bytes: u64, is_plain: fn(&[u8]) -> bool) -> Self {
        let blocks = Blocks::new(object.clone(), ahead_bytes);
        Self { object, blocks, form: Form::Unread(is_plain), rest: Bytes::new() }
    }

    /// Begins to read, as [`Blocks::begin`] does.
    pub(crate) fn begin(&mut self) {
        self.blocks.begin();
    }

    /// Bytes of the object that follow those of the position.
    pub(crate) fn left_bytes(&self) -> u64 {
        match &self.form {
            Form::Compressed(inflated) => inflated.left_bytes,
            _ => self.blocks.left_bytes() + self.rest.len() as u64,
        }
    }

    /// Memory of what is read ahead, and of the decompression.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let blocks = match &self.form {
            Form::Compressed(inflated) => inflated.ahead_bytes,
            _ => self.blocks.ahead_bytes(),
        };
        blocks + self.rest.len() as u64
    }

    /// Name of the compression, once the first bytes are read.
    pub(crate) fn compression(&self) -> Option<&'static str> {
        match &self.form {
            Form::Compressed(inflated) => Some(inflated.compression.name()),
            _ => None,
        }
    }

    pub(crate) fn position(&self) -> u64 {
        let read = match &self.form {
            Form::Compressed(inflated) => inflated.returned + inflated.skipped,
            _ => self.blocks.position(),
        };
        read - self.rest.len() as u64
    }

    /// Size of the content; `None` for compressed content, whose end is known once it is reached.
    pub(crate) fn size(&self) -> Option<u64> {
        self.compression().is_none().then(|| self.object.size())
    }

    /// The next `length` bytes; `None` if fewer are left.
    pub(crate) async fn take(&mut self, length: u64) -> Result<Option<Bytes>, SourceFault> {
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        if self.rest.len() >= length {
            return Ok(Some(self.rest.split_to(length)));
        }
        let mut taken = BytesMut::from(&*std::mem::take(&mut self.rest));
        while taken.len() < length {
            let Some(mut block) = self.next_block().await? else { return Ok(None) };
            taken.extend_from_slice(&block.split_to(block.len().min(length - taken.len())));
            self.rest = block;
        }
        Ok(Some(taken.freeze()))
    }

    /// The next bytes, at most 1 MiB; `None` at the end. Blocks of compressed content end where those of the same content without compression
    /// end.
    pub(crate) async fn block(&mut self) -> Result<Option<Bytes>, SourceFault> {
        match self.rest.is_empty() {
            true => self.next_block().await,
            false => Ok(Some(std::mem::take(&mut self.rest))),
        }
    }

    /// Continues at a position that is not before the current one. The first bytes must have been read.
    pub(crate) fn seek(&mut self, position: u64) {
        let distance = position - self.position();
        match usize::try_from(distance) {
            Ok(length) if length <= self.rest.len() => drop(self.rest.split_to(length)),
            _ => {
                let rest = std::mem::take(&mut self.rest).len() as u64;
                match &mut self.form {
                    Form::Compressed(inflated) => inflated.skipped += distance - rest,
                    _ => self.blocks.seek(position),
                }
            }
        }
    }

    /// The end of the content, if the position has reached it, or lies behind it.
    pub(crate) async fn end(&mut self) -> Result<Option<u64>, SourceFault> {
        if !matches!(self.form, Form::Plain) && self.rest.is_empty() {
            self.rest = self.next_block().await?.unwrap_or_default();
        }
        Ok(match &self.form {
            Form::Compressed(inflated) => self.rest.is_empty().then_some(inflated.returned),
            _ => Some(self.object.size()).filter(|size| *size <= self.position()),
        })
    }

    /// True if the content does not end before the position.
    pub(crate) async fn is_within(&mut self) -> Result<bool, SourceFault> {
        match &self.form {
            Form::Compressed(inflated) if inflated.skipped > 0 => {
                let position = self.position();
                Ok(self.end().await?.is_none_or(|end| end == position))
            }
            _ => Ok(true),
        }
    }

    /// Bytes behind those that were read; `None` at the end.
    async fn next_block(&mut self) -> Result<Option<Bytes>, SourceFault> {
        match &mut self.form {
            Form::Plain => self.blocks.next().await,
            _ => Box::pin(self.other_block()).await,
        }
    }

    async fn other_block(&mut self) -> Result<Option<Bytes>, SourceFault> {
        if let Form::Unread(is_plain) = &self.form {
            let Some(first) = self.blocks.next().await? else { return Ok(None) };
            let compression = match Compression::of(&first) {
                Ok(None) => None,
                _ if is_plain(&first) => None,
                found => found.map_err(|unreadable| self.fault(0, unreadable))?,
            };
            let Some(compression) = compression else {
                self.form = Form::Plain;
                return Ok(Some(first));
            };
            let decoder = Decoder::new(compression).map_err(|unreadable| self.fault(0, unreadable))?;
            let blocks = std::mem::replace(&mut self.blocks, Blocks::new(self.object.clone(), 0));
            self.form = Form::Compressed(Box::new(Inflated::new(compression, blocks, decoder, first)));
        }
        let Form::Compressed(inflated) = &mut self.form else { return Ok(None) };
        let next = inflated.next().await;
        let returned = inflated.returned;
        next.map_err(|fault| match fault {
            InflateFault::Read(fault) => fault,
            InflateFault::Unreadable(unreadable) => self.fault(returned, unreadable),
        })
    }

    /// Fault of compressed content for a reader that needs places.
    pub(crate) fn fault_without_places(&self) -> Option<SourceFault> {
        let reason = format!(
            "is compressed with {} as a whole, so that its samples have no places: decompress it, or read it in order, without an index, \
             `shuffle`, a mixture, a join of labels, or several ranks with `skip`",
            self.compression()?
        );
        Some(self.fault(0, Unreadable { reason, is_damage: false }))
    }

    /// Damage at a position of the content of an object, which is a `kind`.
    pub(crate) fn fault_at(&self, kind: &str, at: u64, reason: &str) -> SourceFault {
        let of = if self.compression().is_some() { " of its content" } else { "" };
        SourceFault::damage(format!("{kind} {}, at byte {at}{of}, {reason}", self.object.named()))
    }

    fn fault(&self, at: u64, unreadable: Unreadable) -> SourceFault {
        let place = if at > 0 { format!(", behind byte {at} of its content,") } else { String::new() };
        let message = format!("the object {}{place} {}", self.object.named(), unreadable.reason);
        SourceFault { is_damage: unreadable.is_damage, ..SourceFault::damage(message) }
    }
}

impl Inflated {
    fn new(compression: Compression, blocks: Blocks, decoder: Decoder, input: Bytes) -> Self {
        let (returned, skipped, left_bytes, ahead_bytes) = (0, 0, 0, 0);
        let next = JoinSet::new();
        let mut inflated =
            Self { compression, returned, skipped, fault: None, next, left_bytes, ahead_bytes };
        inflated.start(Box::new(Inflating { blocks, decoder, input, end: None }));
        inflated
    }

    /// Starts to make the next block.
    fn start(&mut self, inflating: Box<Inflating>) {
        let input = inflating.input.len() as u64;
        self.left_bytes = inflating.blocks.left_bytes() + input;
        self.ahead_bytes = inflating.blocks.ahead_bytes() + input + inflating.decoder.memory_bytes();
        self.next.spawn(inflating.next());
    }

    /// The next block behind what is skipped.
    async fn next(&mut self) -> Result<Option<Bytes>, InflateFault> {
        if let Some(fault) = &self.fault {
            return Err(InflateFault::Unreadable(fault.clone()));
        }
        while let Some(made) = self.next.join_next().await {
            let (inflating, mut block) = match made {
                Ok(Ok((inflating, Some(block)))) => (inflating, block),
                Ok(Ok((_, None))) => return Ok(None),
                Ok(Err(fault)) => return Err(self.fail(fault)),
                Err(error) => return Err(self.fail(cancelled(error))),
            };
            self.start(inflating);
            self.returned += block.len() as u64;
            let skipped = self.skipped.min(block.len() as u64);
            self.skipped -= skipped;
            block.advance(skipped as usize);
            if !block.is_empty() {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Keeps a fault, so that what follows it never passes for the end.
    fn fail(&mut self, fault: InflateFault) -> InflateFault {
        self.fault = Some(match &fault {
            InflateFault::Unreadable(unreadable) => unreadable.clone(),
            InflateFault::Read(_) => {
                Unreadable { reason: "was not read to its end".to_owned(), is_damage: false }
            }
        });
        fault
    }
}

impl Inflating {
    /// Makes the next block; `None` at the end. What precedes a damaged part is returned before the fault.
    async fn next(mut self: Box<Self>) -> Made {
        loop {
            if let Some(block) = self.decoder.take(self.end.is_some()) {
                return Ok((self, Some(block)));
            }
            match &self.end {
                Some(Ok(())) => return Ok((self, None)),
                Some(Err(unreadable)) => return Err(InflateFault::Unreadable(unreadable.clone())),
                None => {}
            }
            let mut is_read = false;
            if self.input.is_empty() {
                match self.blocks.next().await.map_err(InflateFault::Read)? {
                    Some(block) => self.input = block,
                    None => is_read = true,
                }
            }
            let decoding = spawn_blocking(move || {
                let decoded = match is_read {
                    true => self.decoder.end(),
                    false => self.decoder.decode(&mut self.input).map(|()| false),
                };
                self.end = match decoded {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(())),
                    Err(unreadable) => Some(Err(unreadable)),
                };
                self
            });
            self = decoding.await.map_err(cancelled)?;
        }
    }
}

fn cancelled(error: JoinError) -> InflateFault {
    InflateFault::Read(interrupted("decompressing an object", error))
}
