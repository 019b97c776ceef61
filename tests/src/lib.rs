//! Support for the tests: the real binary, real modules and real files, and access to their output.

mod call;
mod contradictions;
mod files;
mod programs;
mod random;
mod served;
mod shown;

pub use call::{Call, Finished, contradictions};
pub use contradictions::Figures;
pub use files::{Folder, lines, photos};
pub use programs::{
    dependency_features, make_data, module, penstock, repository, target, trouble, workspace_metadata,
};
pub use random::{Chance, RandomPipeline};
pub use served::{Answer, Served, Serving};
pub use shown::{shown, without_figures};

/// Compiles the Rust code in the manuals, with the crates that this package uses in its tests.
#[cfg(doctest)]
mod manuals {
    #[doc = include_str!("../../README.md")]
    struct Readme;

    #[doc = include_str!("../../guest-sdk/README.md")]
    struct Stages;
}
