//! Requests and responses of the server, in addition to the types of `penstock_types`.

mod benchmarks;
mod figures;
mod modules;
mod pages;
mod runs;
mod system;

pub use self::benchmarks::*;
pub use self::figures::*;
pub use self::modules::*;
pub use self::pages::*;
pub use self::runs::*;
pub use self::system::*;
