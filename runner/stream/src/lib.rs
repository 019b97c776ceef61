//! The consumer `stream`: every collated batch goes to a training loop in another process of the same machine.
//!
//! Arrays lie in shared memory from the moment at which `collate` writes them: regions that this process alone can write to.
//! Beside the run a thread of its own keeps the door: a Unix socket that only this user reaches, and that opens to who
//! knows the run's secret, which the server gives to those who know its token. One consumer at a time is handed batches,
//! in order, and says which of them it is done with. What it has not acknowledged when it goes, however it goes, is handed to
//! the next one, first of all and marked as `redelivered`; what it has acknowledged never is.
//!
//! [`protocol`] says what goes over the socket, [`client`] is the other side of it.

pub mod client;
mod consumer;
mod door;
mod frame;
mod mapping;
mod outbox;
mod parcel;
mod place;
pub mod protocol;
mod region;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::memory::{BatchMemory, Pool};
use penstock_types::run::RunId;
use penstock_types::text::printable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

pub use self::consumer::StreamConsumer;

use self::door::Door;
use self::place::SocketPath;
use self::protocol::{PROTOCOL, Welcome};
use self::region::SharedMemory;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Bytes of a pipeline's name that consumers are told.
const SHOWN_NAME: usize = 256;

/// Where the batches of a run are to be had, and what opens that door.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamAddress {
    /// Path of the Unix socket on the machine of the server.
    pub socket: String,
    /// What to say there; a secret of this run.
    pub secret: String,
    /// Version of what is spoken there.
    pub protocol: u32,
}

/// A stream whose door is open.
pub struct OpenedStream {
    /// Consumer for the run.
    pub consumer: StreamConsumer,
    /// Memory of arrays that are handed over without a copy.
    pub memory: Arc<dyn BatchMemory>,
    /// Address for clients.
    pub address: StreamAddress,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenStreamError {
    #[error("the machine gives no random numbers for a secret")]
    Secret(#[source] io::Error),
    #[error("cannot make `{}`, in which the run's socket would lie", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("cannot listen on the socket `{}`", .socket.display())]
    Socket { socket: PathBuf, source: io::Error },
    #[error("cannot start what hands out batches")]
    Door(#[source] io::Error),
}

#[derive(Clone)]
struct Secret(String);

/// Opens the door of a run: in `folder`, if a socket's path may be that long. `ahead` batches may be out and not acknowledged, and
/// none waits longer than `wait` while nobody is there.
pub fn open(
    folder: &Path,
    run: &RunId,
    name: &str,
    ahead: usize,
    wait: Duration,
) -> Result<OpenedStream, OpenStreamError> {
    let secret = Secret(random_hex::<SECRET_BYTES>()?);
    let (place, listener) = SocketPath::listen(folder, run)?;
    let welcome = Welcome { protocol: PROTOCOL, run: run.clone(), name: printable(name, SHOWN_NAME), ahead };
    let socket = place.shown().to_owned();
    let address = StreamAddress { socket, secret: secret.0.clone(), protocol: PROTOCOL };
    let door = Door::new(place, listener, secret, welcome).map_err(OpenStreamError::Door)?;
    let consumer = StreamConsumer::new(door, run, Pool::new(SharedMemory::default()), wait)?;
    Ok(OpenedStream { memory: consumer.memory(), consumer, address })
}

fn random_hex<const BYTES: usize>() -> Result<String, OpenStreamError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| OpenStreamError::Secret(io::Error::other(error.to_string())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Secret {
    /// Takes the same time for every secret of that length.
    fn is(&self, offered: &str) -> bool {
        self.0.as_bytes().ct_eq(offered.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Without the secret.
impl fmt::Debug for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamAddress")
            .field("socket", &self.socket)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_another_one_every_time_and_shown_nowhere() {
        let secret = random_hex::<SECRET_BYTES>().unwrap();
        assert_eq!(secret.len(), 64);
        assert_ne!(secret, random_hex::<SECRET_BYTES>().unwrap());
        let known = Secret(secret.clone());
        assert!(known.is(&secret) && !known.is("") && !known.is(&secret[1..]));
        let address = StreamAddress { socket: "/s".to_owned(), secret: secret.clone(), protocol: 1 };
        assert!(!format!("{known:?} {address:?}").contains(&secret));
    }
}
