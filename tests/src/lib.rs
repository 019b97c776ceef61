//! Support for the tests: the real binary, real modules and real files, and access to their output.

mod call;
mod files;
mod programs;
mod random;
mod served;
mod shown;

pub use call::{Call, Finished};
pub use files::{Folder, lines, photos};
pub use programs::{
    dependency_features, make_data, module, penstock, repository, target, trouble, workspace_metadata,
};
pub use random::{Chance, RandomPipeline};
pub use served::{Answer, Served, Serving};
pub use shown::{shown, without_figures};
