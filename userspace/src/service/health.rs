//! Probes by gRPC: the service `grpc.health.v1.Health`, as Kubernetes and load balancers ask it.

use std::sync::Arc;

use switchml_control::aggregator_server::{Aggregator, SERVICE_NAME};
use tokio_stream::Empty;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::web;

/// The name of the service whose health says that the daemon lives, as `/healthz` does.
const LIVENESS: &str = "liveness";

/// The service that answers for this one.
pub fn probes<A: Aggregator>(service: Arc<A>) -> HealthServer<Probes<A>> {
    HealthServer::new(Probes(service))
}

pub struct Probes<A>(Arc<A>);

#[tonic::async_trait]
impl<A: Aggregator> Health for Probes<A> {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let serves = match request.into_inner().service.as_str() {
            LIVENESS => true,
            // The answer of `/readyz`.
            "" | SERVICE_NAME => web::is_ready(&*self.0).await,
            other => {
                return Err(Status::not_found(format!(
                    "no service {other:?}; {SERVICE_NAME:?}, \"\" and {LIVENESS:?} are known"
                )));
            }
        };
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("call Check repeatedly instead"))
    }
}
