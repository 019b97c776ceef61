//! Routes beneath `/api/v1`. Handlers only parse the request, call one function and convert its result.

mod benchmarks;
mod data;
mod events;
mod modules;
mod runs;
mod stores;
mod system;

use axum::Router;
use serde_json::Value;

use crate::app::App;
use crate::openapi::ApiRouter;

/// Returns the routes of the API without middleware, and the OpenAPI document that describes the routes.
pub(crate) fn routes() -> (Router<App>, Value) {
    let mut api = ApiRouter::new();
    system::routes(&mut api);
    modules::routes(&mut api);
    stores::routes(&mut api);
    runs::routes(&mut api);
    data::routes(&mut api);
    events::routes(&mut api);
    benchmarks::routes(&mut api);
    api.finish()
}
