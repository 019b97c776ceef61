//! `/api/v1`: a handler parses, calls one function, and converts.

mod benchmarks;
mod data;
mod events;
mod modules;
mod predict;
mod runs;
mod stores;
mod streams;
mod system;

use aide::axum::ApiRouter;

use crate::router::App;

/// All routes of the API, without what stands in front of them.
pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .merge(system::routes())
        .merge(modules::routes())
        .merge(stores::routes())
        .merge(runs::routes())
        .merge(data::routes())
        .merge(predict::routes())
        .merge(events::routes())
        .merge(streams::routes())
        .merge(benchmarks::routes())
}
