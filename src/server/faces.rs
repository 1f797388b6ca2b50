//! What faces ask of the server besides the verbs.

use std::sync::Arc;

use podwright_api::{Object, Request, Status, User, Verb, request::Body, rpc::Session};
use tokio::sync::mpsc;

use super::{Server, audit, authorize::Attributes, limits, messages, resolved_request::ResolvedRequest};

impl Server {
    /// How many turns large requests have had so far.
    pub fn large_turns(&self) -> u64 {
        self.large.turns()
    }

    /// Refuses what its user may not do, before its body is read.
    pub(crate) async fn may_send(&self, request: &Request) -> Result<(), Status> {
        let call = ResolvedRequest::resolve(&self.kinds(), request.clone())?;
        let asked = call.attributes();
        let Err(why) = self.authorize(&asked).await else { return Ok(()) };
        if let Some(entry) = self.config.audit.as_ref().and_then(|audit| audit.begin(request, &self.kinds())) {
            entry.decided(false, audit::reason_of(&why, &asked));
            entry.end(&Err(why.clone()));
        }
        Err(why)
    }

    /// Whether a request is for an existing kind, and its user is authorized.
    pub(crate) async fn may(&self, request: &Request) -> Result<(), Status> {
        self.authorize(&ResolvedRequest::resolve(&self.kinds(), request.clone())?.attributes()).await
    }

    /// The same with another verb: requests to nodes use the HTTP method's.
    pub(crate) async fn may_by(&self, request: &Request, verb: &str) -> Result<(), Status> {
        let call = ResolvedRequest::resolve(&self.kinds(), request.clone())?;
        self.authorize(&Attributes { verb, ..call.attributes() }).await
    }

    /// The account of a user's WebSocket, with the maximum size of its messages.
    pub(crate) fn messages(&self, user: &User, most: usize) -> messages::Messages {
        messages::Messages::new(self.limiters.bodies.of(user), most, self.config.limits.body)
    }

    /// The account of another connection of a user, for data that is buffered until it is consumed.
    pub(crate) fn account(&self, user: &User) -> Arc<limits::Account> {
        limits::Account::new(self.limiters.bodies.of(user), self.config.limits.body)
    }

    /// Reads an object with the server's own rights, and looks into it on behalf of the request's user.
    pub(crate) async fn read_as_server<T>(
        &self,
        request: Request,
        look: impl FnOnce(Object) -> T,
    ) -> Result<T, Status> {
        let (user, of) = (User::system("system:apiserver"), request.user.clone());
        match self.handle(Request { verb: Verb::Get, user, origin: None, ..request }).await?.body {
            Body::Object { bytes, .. } => {
                let looked = |_| async { Object::from_slice(&bytes).map(look) };
                self.large.part(&of, bytes.len(), looked).await?
            }
            _ => Err(Status::internal("get answered with no object")),
        }
    }

    /// The same for all objects of a list.
    pub(crate) async fn list_as_server(&self, request: Request) -> Result<Vec<Object>, Status> {
        let (user, of) = (User::system("system:apiserver"), request.user.clone());
        match self.handle(Request { verb: Verb::List, user, origin: None, ..request }).await?.body {
            Body::List(list) => {
                let size = list.items.iter().map(|item| item.len()).sum();
                let looked = |_| async { list.items.iter().map(|item| Object::from_slice(item)).collect() };
                self.large.part(&of, size, looked).await?
            }
            _ => Err(Status::internal("list answered with no list")),
        }
    }

    /// A node's new sessions from now on, for its agent.
    pub fn sessions(&self, user: &User, node: &str) -> Result<mpsc::Receiver<Session>, Status> {
        self.may_serve(user, node)?;
        Ok(self.streams.subscribe(node, &user.name))
    }

    /// Whether a user may serve the sessions of a node. A subscription is long-running: this is checked again.
    pub fn may_serve(&self, user: &User, node: &str) -> Result<(), Status> {
        let request = Request {
            verb: Verb::Connect,
            resource: "nodes".into(),
            name: Some(node.to_owned()),
            user: user.clone(),
            ..Request::default()
        };
        self.authorizer.authorize(&ResolvedRequest::resolve(&self.kinds(), request)?.attributes())
    }
}
