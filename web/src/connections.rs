//! Connections of the server: the listener, limits of their number and pace, and TLS.

mod client_stream;
mod linger;
mod places;
mod server;
mod tls;

pub(crate) use self::places::network;
pub use self::server::Server;
pub use self::tls::{TlsError, TlsFiles};
