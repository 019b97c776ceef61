use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Json;
use axum::extract::State;
use penstock_server::{PredictRequest, Predicted};

use super::runs::RunPath;
use crate::problem::ApiResult;
use crate::router::App;
use crate::take::{InPath, Sent, small};

small!(PredictRequest);

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/runs/{id}/predict",
        post_with(predict, |op| {
            op.id("predict_run").tag("data").summary("What a run would do with some settings changed").description(
                "Predicted from the times that the run took so far, by the same rules as it runs by. With `sweep`, changes \
                 that would make it faster, too.",
            )
        }),
    )
}

async fn predict(
    State(app): State<App>,
    InPath(path): InPath<RunPath>,
    Sent(request, _): Sent<PredictRequest>,
) -> ApiResult<Json<Predicted>> {
    Ok(Json(app.runs.predict(&path.id, request).await?))
}
