//! The course of a request: it is resolved and authorized, then its verb runs it, and the audit log records what came of it.

use podwright_api::{Request, Response, Status, Verb, kinds::Storage, spans::Span};

use super::{
    Server, Watch, audit, authorize, authorize::Attributes, custom, resolved_request::ResolvedRequest, traced,
};

impl Server {
    /// All verbs but watch.
    pub async fn handle(&self, request: Request) -> Result<Response, Status> {
        match traced::begin(&request) {
            None => self.handle_audited(request).await,
            Some(span) => {
                // On the heap: untraced callers keep a small stack.
                let outcome = Box::pin(span.around(self.handle_audited(request))).await;
                traced::end(&span, &outcome);
                outcome
            }
        }
    }

    /// On the heap: callers keep a small stack.
    async fn handle_audited(&self, request: Request) -> Result<Response, Status> {
        let Some(entry) = self.config.audit.as_ref().and_then(|audit| audit.begin(&request, &self.kinds())) else {
            return Box::pin(self.dispatch(request, None)).await;
        };
        let (connects, origin) = (request.verb == Verb::Connect, request.origin.clone());
        let outcome = Box::pin(self.dispatch(request, Some(&entry))).await;
        match &outcome {
            Ok(_) if connects => entry.goes_on(101, origin.as_deref()),
            outcome => entry.end(outcome),
        }
        outcome
    }

    async fn dispatch(&self, request: Request, entry: Option<&audit::Entry>) -> Result<Response, Status> {
        let span = Span::current();
        let kinds = self.kinds();
        if let Some(to) = self.elsewhere(&request.resource, kinds.lookup(&request.resource)) {
            // On the heap: requests served here keep a small stack.
            return Box::pin(self.pass_on(to, request, entry)).await;
        }
        let call = ResolvedRequest::resolve(&kinds, request)?;
        span.part("Authorize", self.allow(&call.attributes(), entry)).await?;
        authorize::guard(self, &call).await?;
        let defines = matches!(call.kind.built_in(), "CustomResourceDefinition" | "APIService")
            && !matches!(call.verb, Verb::Get | Verb::List);
        let notes = call.notes.clone();
        let answer = match (call.version, custom::webhook_of(&call)) {
            // Boxed to save stack: it is moved into the measurement.
            (None, _) => span.part(traced::name(call.verb), Box::pin(self.run(call))).await,
            (Some(_), webhook) => {
                let asked = call.again();
                let answer = match webhook {
                    Some(webhook) => Box::pin(self.run_converted(call, &webhook)).await,
                    None => match self.run(call).await {
                        Ok(response) => Box::pin(self.answered(&asked, response)).await,
                        Err(why) => Err(why),
                    },
                };
                answer.map(|mut response| {
                    response.warnings.extend(custom::warning(&asked));
                    response
                })
            }
        };
        if defines {
            // Clients that changed what is served see the change in their next request.
            self.cache.fresh().await?;
        }
        if let Some(entry) = entry {
            entry.annotate(notes.annotations());
        }
        match answer {
            Ok(mut response) => {
                response.warnings.extend(notes.warnings());
                Ok(response)
            }
            Err(status) => Err(Status { warnings: notes.warnings(), ..status }),
        }
    }

    pub(crate) async fn run(&self, call: ResolvedRequest) -> Result<Response, Status> {
        if matches!(call.verb, Verb::Create | Verb::Update) {
            call.check_manager()?;
        }
        match (call.verb, call.subresource.as_deref()) {
            (Verb::Connect, _) => self.connect(&call).await,
            (_, Some(_)) => self.subresource(call).await,
            (Verb::Get | Verb::List, None) if call.kind.built_in() == "ComponentStatus" => {
                self.read_components(&call).await
            }
            (Verb::Get | Verb::List, None) if matches!(call.kind.storage, Storage::Nowhere) => {
                self.read_usage(&call).await
            }
            (Verb::Get, None) => self.get(&call).await,
            (Verb::List, None) => self.list(&call).await,
            (Verb::Create, None) => self.create(call).await,
            (Verb::Update, None) => self.update(call).await,
            (Verb::Patch, None) => self.patch(call).await,
            (Verb::Delete, None) => self.delete(&call).await,
            (Verb::DeleteCollection, None) => self.delete_collection(&call).await,
            (Verb::Watch, None) => Err(Status::bad_request("watch is a subscription")),
        }
    }

    /// Watches the objects that the request selects; see `api::Options` for where it starts.
    pub async fn watch(&self, request: Request) -> Result<Watch, Status> {
        let request = Request { verb: Verb::Watch, ..request };
        let entry = self.config.audit.as_ref().and_then(|audit| audit.begin(&request, &self.kinds()));
        let origin = request.origin.clone();
        let watch = Box::pin(self.dispatch_watch(request, entry.as_ref())).await;
        match (entry, &watch) {
            (Some(entry), Ok(_)) => entry.goes_on(200, origin.as_deref()),
            (Some(entry), Err(why)) => entry.end(&Err(why.clone())),
            (None, _) => {}
        }
        watch
    }

    async fn dispatch_watch(&self, request: Request, entry: Option<&audit::Entry>) -> Result<Watch, Status> {
        let kinds = self.kinds();
        if let Some(to) = self.elsewhere(&request.resource, kinds.lookup(&request.resource)) {
            return Box::pin(self.watch_elsewhere(to, request, entry)).await;
        }
        let mut call = ResolvedRequest::resolve(&kinds, request)?;
        self.allow(&call.attributes(), entry).await?;
        let fields = custom::own_fields(&mut call)?;
        let watch = self.open_watch(&call).await?;
        Ok(match custom::webhook_of(&call) {
            Some(webhook) => self.told_converted(call, webhook, fields, watch),
            None => self.told(call, watch),
        })
    }

    /// Authorizes, and records the decision for the audit log.
    pub(crate) async fn allow(&self, asked: &Attributes<'_>, entry: Option<&audit::Entry>) -> Result<(), Status> {
        let decided = self.authorize(asked).await;
        if let Some(entry) = entry {
            match &decided {
                Ok(()) => entry.decided(true, &self.authorizer.reason(asked)),
                Err(why) => entry.decided(false, audit::reason_of(why, asked)),
            }
        }
        decided
    }
}
