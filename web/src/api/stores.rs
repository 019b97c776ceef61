use axum::Json;
use penstock_server::{KeyQuery, StoreKeys, StoreSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::extract::{InPath, InQuery};
use crate::openapi::ApiRouter;
use crate::problem::ApiResult;

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
    api.route("GET /stores", "List stores, with the kind of each", list_stores);
    api.route("GET /stores/{store}/keys", "List some keys of a store", list_keys);
}

async fn list_stores(app: App) -> Json<StoreList> {
    Json(StoreList { items: app.runs.stores() })
}

async fn list_keys(
    app: App,
    InPath(path): InPath<StorePath>,
    InQuery(query): InQuery<KeyQuery>,
) -> ApiResult<Json<StoreKeys>> {
    Ok(Json(app.runs.store_keys(&path.store, &query.prefix, query.limit).await?))
}
