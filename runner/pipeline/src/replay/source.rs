use std::io;
use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use penstock_engine::item::Sample;
use penstock_engine::ports::{Produced, Source, SourceFault};
use tokio::task::spawn_blocking;

use super::StageLetters;
use super::lines::LetterLines;
use super::survey::letter;

const CHUNK: usize = 64;

/// Maximum size of the values in a chunk, in bytes, not counting the last sample of the chunk.
const CHUNK_BYTES: u64 = 4 << 20;

/// Produces the samples of one stage's dead letters as they came into the stage, in the order of their failures. The file is
/// streamed. Lines that are not dead letters are skipped, since the survey has reported them.
#[derive(Debug)]
pub(super) struct LetterSource {
    path: PathBuf,
    letters: StageLetters,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Open(LetterLines),
    Ended,
}

impl LetterSource {
    pub(super) fn new(path: PathBuf, letters: &StageLetters) -> Self {
        Self { path, letters: letters.clone(), state: State::New }
    }

    async fn next_chunk(&mut self) -> io::Result<Option<Produced>> {
        let (path, letters) = (self.path.clone(), self.letters.clone());
        let state = std::mem::replace(&mut self.state, State::Ended);
        let read = spawn_blocking(move || -> io::Result<Option<(LetterLines, Vec<Sample>)>> {
            let mut lines = match state {
                State::New => LetterLines::open(&path)?,
                State::Open(lines) => lines,
                State::Ended => return Ok(None),
            };
            let samples = read_chunk(&mut lines, &letters)?;
            Ok((!samples.is_empty()).then_some((lines, samples)))
        });
        let Some((lines, samples)) = read.await.map_err(io::Error::other)?? else { return Ok(None) };
        self.state = State::Open(lines);
        Ok(Some(Produced::Samples(samples.into())))
    }
}

fn read_chunk(lines: &mut LetterLines, letters: &StageLetters) -> io::Result<Vec<Sample>> {
    let stage = letters.id.to_string();
    let mut samples = Vec::new();
    let mut bytes = 0;
    while samples.len() < CHUNK && bytes < CHUNK_BYTES {
        let Some(line) = lines.next()? else { break };
        let of_stage = letter(&line)
            .ok()
            .flatten()
            .filter(|letter| letter.stage == stage && letter.seeded_as == letters.seeded_as);
        if let Some(sample) = of_stage.and_then(|letter| letter.into_sample().ok()) {
            bytes += sample.bytes();
            samples.push(sample);
        }
    }
    Ok(samples)
}

impl Source for LetterSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Produced>, SourceFault>> {
        async {
            let path = self.path.clone();
            self.next_chunk().await.map_err(|error| {
                SourceFault::new(format!("cannot read `{}`", path.display()), Some(error.into()))
            })
        }
        .boxed()
    }

    fn total(&self) -> Option<u64> {
        Some(self.letters.count)
    }
}
