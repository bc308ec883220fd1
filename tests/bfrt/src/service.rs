//! The gRPC service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::proto::bf_runtime_server::BfRuntime;
use crate::proto::data_field::Value;
use crate::proto::entity::Entity;
use crate::proto::set_forwarding_pipeline_config_request::Action;
use crate::proto::{self, DataField, TableData, stream_message_request, stream_message_response};
use crate::schema::Schema;
use crate::state::{Refusal, State};

/// The number of the only device.
const DEVICE: u32 = 0;

/// The state that clients share.
pub struct Core {
    /// The program that the switch runs.
    pub program: Option<Program>,
    /// The switch's tables.
    pub state: State,
    own: Schema,
    clients: BTreeMap<u32, Client>,
}

/// A P4 program.
pub struct Program {
    /// The program's name.
    pub name: String,
    schema: Schema,
    text: Vec<u8>,
}

struct Client {
    stream: mpsc::UnboundedSender<Result<proto::StreamMessageResponse, Status>>,
    is_bound: bool,
}

/// The service over the shared state.
#[derive(Clone)]
pub struct Service(Arc<Mutex<Core>>);

impl Core {
    pub fn new(program: Option<(&str, &str)>) -> Self {
        let own: Schema = serde_json::from_str(include_str!("own.json")).expect("JSON");
        let program =
            program.map(|(name, text)| Program::new(name, text.as_bytes()).expect("a bf-rt.json"));
        let mut core = Self { program, state: State::default(), own, clients: BTreeMap::new() };
        core.reset();
        core
    }

    /// Empties all tables.
    fn reset(&mut self) {
        let none = Schema::default();
        self.state =
            State::new(self.program.as_ref().map_or(&none, |program| &program.schema), &self.own);
    }

    pub fn bound(&self) -> Vec<u32> {
        self.clients.iter().filter(|(_, client)| client.is_bound).map(|(id, _)| *id).collect()
    }

    pub fn learn(&self, digest: &str, fields: &[(&str, u64)]) {
        let filters = self.program.iter().flat_map(|program| &program.schema.learn_filters);
        let filter = filters
            .into_iter()
            .find(|filter| filter.name == digest)
            .expect("a digest of the program");
        let field = |(name, value): &(&str, u64)| {
            let field = filter
                .fields
                .iter()
                .find(|field| field.name == *name)
                .expect("a field of the digest");
            let bytes = field.kind.bits().expect("a number").div_ceil(8);
            DataField {
                field_id: field.id,
                value: Some(Value::Stream(value.to_be_bytes()[8 - bytes..].to_vec())),
            }
        };
        let data = TableData { action_id: 0, fields: fields.iter().map(field).collect() };
        let list = proto::DigestList { digest_id: filter.id, data: vec![data] };
        let update = stream_message_response::Update::Digest(list);
        for client in self.clients.values().filter(|client| client.is_bound) {
            let _ = client
                .stream
                .send(Ok(proto::StreamMessageResponse { update: Some(update.clone()) }));
        }
    }

    fn check(&self, device: Option<u32>, client: u32, program: &str) -> Result<(), Status> {
        if device != Some(DEVICE) || self.program.as_ref().is_none_or(|known| known.name != program)
        {
            return Err(Status::not_found("Error getting BfRtInfo"));
        }
        if !self.clients.contains_key(&client) {
            return Err(Status::unavailable(format!("Unknown client. Client_id:{client}")));
        }
        Ok(())
    }

    fn bind(&mut self, client: u32, name: &str) -> Result<(), Status> {
        if let Some(owner) = self.bound().iter().find(|owner| **owner != client) {
            let why = format!(
                "Client ID {client} trying to bind but Client ID {owner} already owns this P4"
            );
            return Err(Status::already_exists(why));
        }
        if self.program.as_ref().is_none_or(|program| program.name != name) {
            return Err(Status::not_found(format!("Failed to find BfRtInfo for program {name}")));
        }
        let unknown = || Status::unavailable(format!("Unknown client. Client_id:{client}"));
        self.clients.get_mut(&client).ok_or_else(unknown)?.is_bound = true;
        Ok(())
    }

    /// Takes a program in place of another one, whose clients lose it.
    fn deploy(&mut self, config: &proto::ForwardingPipelineConfig) -> Result<(), Status> {
        let profiles = &config.profiles;
        if profiles.is_empty()
            || profiles
                .iter()
                .any(|profile| profile.binary.is_empty() || profile.context.is_empty())
        {
            return Err(Status::invalid_argument("Invalid device config sent"));
        }
        let program = Program::new(&config.p4_name, &config.bfruntime_info);
        self.program =
            Some(program.map_err(|error| {
                Status::invalid_argument(format!("Verify config failed: {error}"))
            })?);
        self.clients.clear();
        self.reset();
        Ok(())
    }
}

impl Program {
    fn new(name: &str, text: &[u8]) -> Result<Self, serde_json::Error> {
        Ok(Self {
            name: name.to_owned(),
            schema: serde_json::from_slice(text)?,
            text: text.to_vec(),
        })
    }
}

impl Service {
    pub fn new(core: Arc<Mutex<Core>>) -> Self {
        Self(core)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status of a batch: only its details tell what failed.
fn batch_status(what: &str, refusals: &[Option<Refusal>]) -> Result<(), Status> {
    if refusals.iter().all(Option::is_none) {
        return Ok(());
    }
    let details = refusals.iter().map(|refusal| {
        let (canonical_code, message) =
            refusal.as_ref().map_or((0, String::new()), |(code, why)| (*code as i32, why.clone()));
        let value = proto::Error { canonical_code, message }.encode_to_vec();
        proto::Any { type_url: "type.googleapis.com/bfrt_proto.Error".to_owned(), value }
    });
    let status = proto::Status {
        code: Code::Unknown as i32,
        message: what.to_owned(),
        details: details.collect(),
    };
    Err(Status::with_details(Code::Unknown, what, status.encode_to_vec().into()))
}

#[tonic::async_trait]
impl BfRuntime for Service {
    type ReadStream = ReceiverStream<Result<proto::ReadResponse, Status>>;
    type StreamChannelStream =
        UnboundedReceiverStream<Result<proto::StreamMessageResponse, Status>>;

    async fn write(
        &self,
        request: Request<proto::WriteRequest>,
    ) -> Result<Response<proto::WriteResponse>, Status> {
        let request = request.into_inner();
        let mut core = self.core();
        core.check(
            request.target.map(|target| target.device_id),
            request.client_id,
            &request.p4_name,
        )?;
        let mut refusals = Vec::new();
        for update in &request.updates {
            // Each update is tried, even if earlier ones failed.
            let done = match update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) {
                Some(Entity::TableEntry(entry)) => core.state.write(update.r#type(), entry),
                Some(Entity::TableOperation(operation)) => {
                    core.state.sync(operation.table_id, &operation.table_operations_type)
                }
                None => Err((Code::InvalidArgument, "Invalid Write entity received".to_owned())),
            };
            refusals.push(done.err());
        }
        batch_status("Write Error Status", &refusals)?;
        Ok(Response::new(proto::WriteResponse {}))
    }

    async fn read(
        &self,
        request: Request<proto::ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let (mut entities, mut refusals) = (Vec::new(), Vec::new());
        {
            let core = self.core();
            core.check(
                request.target.map(|target| target.device_id),
                request.client_id,
                &request.p4_name,
            )?;
            for entity in &request.entities {
                let read = match &entity.entity {
                    Some(Entity::TableEntry(entry)) => core.state.read(entry),
                    _ => Err((Code::InvalidArgument, "Invalid Read entity received".to_owned())),
                };
                match read {
                    Ok(entries) => entities.extend(entries),
                    Err(refusal) => refusals.push(Some(refusal)),
                }
            }
        }
        let entities = entities
            .into_iter()
            .map(|entry| proto::Entity { entity: Some(Entity::TableEntry(entry)) });
        let (sender, stream) = mpsc::channel(2);
        // The entries that were found come first, then the errors: there is room for both.
        let _ = sender.try_send(Ok(proto::ReadResponse { entities: entities.collect() }));
        if let Err(status) = batch_status("Read Error Status", &refusals) {
            let _ = sender.try_send(Err(status));
        }
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<proto::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<proto::SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        let [config] = &request.config[..] else {
            return Err(Status::invalid_argument("Exactly one config message required."));
        };
        if request.device_id != DEVICE {
            return Err(Status::invalid_argument(format!("no device {}", request.device_id)));
        }
        match request.action() {
            Action::Bind => self.core().bind(request.client_id, &config.p4_name)?,
            Action::VerifyAndWarmInitBeginAndEnd => self.core().deploy(config)?,
            other => return Err(Status::unimplemented(format!("{other:?}"))),
        }
        Ok(Response::new(proto::SetForwardingPipelineConfigResponse {}))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<proto::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<proto::GetForwardingPipelineConfigResponse>, Status> {
        if request.get_ref().device_id != DEVICE {
            return Err(Status::invalid_argument(format!(
                "no device {}",
                request.get_ref().device_id
            )));
        }
        let core = self.core();
        let config = core.program.iter().map(|program| proto::ForwardingPipelineConfig {
            p4_name: program.name.clone(),
            bfruntime_info: program.text.clone(),
            profiles: Vec::new(),
        });
        let own = proto::NonP4Config { bfruntime_info: include_bytes!("own.json").to_vec() };
        Ok(Response::new(proto::GetForwardingPipelineConfigResponse {
            config: config.collect(),
            non_p4_config: Some(own),
        }))
    }

    /// The stream is the client's sign of life: when it ends, the client's binding is released.
    async fn stream_channel(
        &self,
        request: Request<Streaming<proto::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let (service, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            let mut subscribed = None;
            while let Ok(Some(request)) = requests.message().await {
                let Some(stream_message_request::Update::Subscribe(_)) = request.update else {
                    continue;
                };
                if subscribed.is_some() {
                    continue;
                }
                let mut core = service.core();
                if core.clients.contains_key(&request.client_id) {
                    let _ = sender.send(Err(Status::invalid_argument(
                        "Can't have two clients with the same client id",
                    )));
                    return;
                }
                core.clients
                    .insert(request.client_id, Client { stream: sender.clone(), is_bound: false });
                subscribed = Some(request.client_id);
                let status = Some(proto::Status::default());
                let update = stream_message_response::Update::Subscribe(proto::Subscribe {
                    device_id: DEVICE,
                    status,
                });
                let _ = sender.send(Ok(proto::StreamMessageResponse { update: Some(update) }));
            }
            if let Some(client) = subscribed {
                service.core().clients.remove(&client);
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}
