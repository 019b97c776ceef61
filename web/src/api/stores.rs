use axum::Json;
use penstock_server::{KeyQuery, StoreKeys, StoreSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::extract::{InPath, InQuery};
use crate::openapi::ApiRouter;
use crate::problem::JsonResult;

/// Stores that pipelines may use.
#[derive(Serialize, JsonSchema)]
struct StoreList {
    /// Stores, sorted by name; their locations and access rights are not shown.
    items: Vec<StoreSummary>,
}

#[derive(Deserialize, JsonSchema)]
struct StorePath {
    /// Name of the store.
    store: String,
}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("stores");
    api.route("GET /stores", list_stores).summary("List stores, with the kind of each");
    api.route("GET /stores/{store}/keys", list_keys).summary("List some keys of a store");
}

async fn list_stores(app: App) -> Json<StoreList> {
    Json(StoreList { items: app.runs.stores() })
}

async fn list_keys(app: App, path: InPath<StorePath>, query: InQuery<KeyQuery>) -> JsonResult<StoreKeys> {
    Ok(Json(app.runs.store_keys(&path.store, &query.0.prefix, query.0.limit).await?))
}
