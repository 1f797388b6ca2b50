//! The connect verb: sessions that need a node. The object is checked here, then its node is asked to dial back.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use podwright_api::request::Body;
use podwright_api::rpc::{
    ExecOptions, ImageOptions, InspectOptions, LOG_STREAMS, LogOptions, LogStream, PodRef, PortForwardOptions, Task,
};
use podwright_api::validation::Errors;
use podwright_api::{Object, Request, Response, Status};

use super::Server;
use super::admission::{self, operation::Operation};
use super::resolved_request::ResolvedRequest;
use super::sessions::With;

/// The longest options of a session: they are kept until the caller dials. In REST, where they are part of the path, the limit is
/// lower.
const MAX_OPTIONS: usize = 128 << 10;

impl Server {
    pub(super) async fn connect(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        // Options would also deserialize from a list, whose fields admission would not see.
        if call.body.as_ref().is_some_and(|body| !body.is_object() && !body.is_null()) {
            return Err(Status::bad_request("the options of a session are an object"));
        }
        self.cache.fresh().await?;
        let item = self.cache.resource(call.kind).get(&call.key()).ok_or_else(|| call.not_found())?;
        self.admit_connection(call).await?;
        let mut warnings = Vec::new();
        let (node, task) = match (call.kind.built_in(), call.subresource.as_deref().unwrap_or("")) {
            ("Pod", sub) => {
                let mut task = self.look(&call.user, &item, |pod| pod_task(call, sub, pod, &mut warnings)).await??;
                self.complete(call, &mut task).await?;
                let node = Some(item.field(call.kind, "spec.nodeName")).filter(|node| !node.is_empty());
                let why = || Status::bad_request(format!("pod {} does not have a host assigned", item.name()));
                (node.ok_or_else(why)?.to_owned(), task)
            }
            ("Node", sub) => {
                let mut task = node_task(call, sub)?;
                self.complete(call, &mut task).await?;
                (item.name().to_owned(), task)
            }
            _ => return Err(call.not_allowed("connect")),
        };
        if call.body.as_ref().is_some_and(|body| body.to_string().len() > MAX_OPTIONS) {
            return Err(Status::failure(
                413,
                "RequestEntityTooLarge",
                format!("options of a session may have {MAX_OPTIONS} bytes"),
            ));
        }
        let of_node = format!("nodes/{node}");
        let object = if task.pod().is_some() { item.uid() } else { &of_node };
        let counted = self.sessions.enter(&call.user, With { namespace: call.within(), object, shared: false })?;
        let withdrawn = self.withdrawn(vec![call.attributes().keep()]);
        let id = self.streams.open(&self.env, &node, &call.user.name, task, counted, withdrawn)?;
        Ok(Response { warnings, ..Body::Stream { id }.into() })
    }
}

impl Server {
    /// Adds what the server knows to a task.
    async fn complete(&self, call: &ResolvedRequest, task: &mut Task) -> Result<(), Status> {
        if let Task::Inspect { options, .. } = task
            && let Some(packet) = options.packet.take()
        {
            options.packet = Some(self.may_follow(call, packet).await?);
        }
        Ok(())
    }

    /// Runs admission on the options of a session in a Pod.
    async fn admit_connection(&self, call: &ResolvedRequest) -> Result<(), Status> {
        let kind = match (call.kind.built_in(), call.subresource.as_deref()) {
            ("Pod", Some("exec")) => "PodExecOptions",
            ("Pod", Some("attach")) => "PodAttachOptions",
            ("Pod", Some("portforward")) => "PodPortForwardOptions",
            _ => return Ok(()),
        };
        self.admit_options(call, kind, call.body.as_ref()).await
    }

    /// Runs admission on a proxied request, as upstream does.
    pub(crate) async fn admit_proxy(&self, request: &Request, path: &str) -> Result<(), Status> {
        let call = ResolvedRequest::resolve(&self.kinds(), request.clone())?;
        let kind = match call.kind.built_in() {
            "Pod" => "PodProxyOptions",
            "Service" => "ServiceProxyOptions",
            _ => "NodeProxyOptions",
        };
        self.admit_options(&call, kind, Some(&json!({"path": path}))).await
    }

    async fn admit_options(&self, call: &ResolvedRequest, kind: &str, given: Option<&Value>) -> Result<(), Status> {
        // Their type is not for the client to choose.
        let mut options =
            serde_json::Map::from_iter([("kind".to_owned(), kind.into()), ("apiVersion".to_owned(), "v1".into())]);
        let given = given.and_then(Value::as_object).into_iter().flatten();
        options.extend(
            given
                .filter(|(field, _)| !matches!(field.as_str(), "kind" | "apiVersion"))
                .map(|(k, v)| (k.clone(), v.clone())),
        );
        admission::admit(self, call, Operation::Connect, &mut Object(Value::Object(options))).await
    }
}

fn pod_task(call: &ResolvedRequest, sub: &str, object: &Object, warnings: &mut Vec<String>) -> Result<Task, Status> {
    // As the API knows it: the node knows which of its Pods a mirror represents, whatever the object says.
    let pod = PodRef {
        namespace: object.namespace().unwrap_or("").to_owned(),
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
    };
    Ok(match sub {
        "log" => {
            let mut log = log_options(call)?;
            log.container = container(object, &log.container, warnings)?;
            may_log(object, &log)?;
            Task::Log { pod, log }
        }
        "exec" | "attach" => {
            let mut exec: ExecOptions = options(call)?;
            exec.container = container(object, &exec.container, warnings)?;
            if let Some(phase @ ("Succeeded" | "Failed")) = object.0["status"]["phase"].as_str() {
                let why = format!("cannot {sub} into a container in a completed pod; current phase is {phase}");
                return Err(Status::bad_request(why));
            }
            if sub == "attach" {
                return Ok(Task::Attach { pod, exec });
            }
            if exec.command.is_empty() {
                return Err(Status::bad_request("you must specify at least 1 command for the container"));
            }
            Task::Exec { pod, exec }
        }
        "portforward" => {
            let PortForwardOptions { port } = options(call)?;
            if port == 0 {
                return Err(Status::bad_request("you must specify at least 1 port"));
            }
            Task::PortForward { pod, port }
        }
        "inspect" => Task::Inspect { pod, options: options(call)? },
        "trace" => Task::Trace { pod },
        _ => return Err(call.not_allowed("connect")),
    })
}

fn node_task(call: &ResolvedRequest, sub: &str) -> Result<Task, Status> {
    Ok(match sub {
        "image" => {
            Task::Image(options::<Option<ImageOptions>>(call)?.ok_or_else(|| {
                Status::bad_request("an image operation is needed: import, load, pull, list or remove")
            })?)
        }
        "dial" => {
            let address = call.body.as_ref().and_then(|body| body["address"].as_str());
            let address = address.ok_or_else(|| Status::bad_request("an address to dial is needed: host:port"))?;
            Task::Dial { address: address.to_owned(), pod: None }
        }
        "inspect" => {
            let options: InspectOptions = options(call)?;
            if options.packet.is_none() {
                return Err(Status::bad_request("of a node only the way of a packet can be asked for"));
            }
            Task::Inspect { pod: PodRef::default(), options }
        }
        _ => return Err(call.not_allowed("connect")),
    })
}

/// `PodLogOptions`, with upstream's validation.
fn log_options(call: &ResolvedRequest) -> Result<LogOptions, Status> {
    let mut given = call.body.clone().unwrap_or(Value::Null);
    let stream = given.as_object_mut().and_then(|given| given.remove("stream")).filter(|stream| !stream.is_null());
    let mut log: LogOptions = read(&given)?;
    let mut errors = Errors::default();
    let at_least = |errors: &mut Errors, path: &str, number: Option<i64>, least: i64, why: &str| {
        if let Some(number) = number.filter(|number| *number < least) {
            errors.invalid(path, number, why);
        }
    };
    at_least(&mut errors, "tailLines", log.tail_lines, 0, "must be greater than or equal to 0");
    at_least(&mut errors, "limitBytes", log.limit_bytes, 1, "must be greater than 0");
    match (log.since_seconds, &log.since_time) {
        (Some(_), Some(_)) => errors.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"),
        (since, _) => at_least(&mut errors, "sinceSeconds", since, 1, "must be greater than 0"),
    }
    if let Some(stream) = stream {
        let stream = stream.as_str().ok_or_else(|| Status::bad_request("options: stream is a string"))?;
        match LogStream::named(stream) {
            Some(stream) => log.stream = stream,
            None => errors.not_supported("stream", stream, &LOG_STREAMS),
        }
        if stream != "All" && log.tail_lines.is_some() {
            errors.forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now");
        }
    }
    let name = call.name.as_deref().unwrap_or("");
    if errors.0.is_empty() { Ok(log) } else { Err(Status::invalid("PodLogOptions", "", name, errors.0)) }
}

/// The options object in the body, or the defaults.
fn options<T: DeserializeOwned + Default>(call: &ResolvedRequest) -> Result<T, Status> {
    read(call.body.as_ref().unwrap_or(&Value::Null))
}

fn read<T: DeserializeOwned + Default>(body: &Value) -> Result<T, Status> {
    match body {
        Value::Null => Ok(T::default()),
        body => T::deserialize(body).map_err(|e| Status::bad_request(format!("options: {e}"))),
    }
}

fn names(pod: &Object, list: &str) -> Vec<String> {
    let all = pod.0["spec"][list].as_array().into_iter().flatten();
    all.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
}

/// The container to use: the named one, or the Pod's default, or the first.
fn container(pod: &Object, asked: &str, warnings: &mut Vec<String>) -> Result<String, Status> {
    let (plain, init, ephemeral) =
        (names(pod, "containers"), names(pod, "initContainers"), names(pod, "ephemeralContainers"));
    let known = |name: &str| plain.iter().chain(&init).chain(&ephemeral).any(|n| n == name);
    if !asked.is_empty() {
        if known(asked) {
            return Ok(asked.to_owned());
        }
        return Err(Status::bad_request(format!("container {asked} is not valid for pod {}", pod.name())));
    }
    if let Some(default) = pod.annotation("kubectl.kubernetes.io/default-container").filter(|name| known(name)) {
        return Ok(default.to_owned());
    }
    let Some(first) = plain.first() else {
        return Err(Status::bad_request(format!("pod {} has no containers", pod.name())));
    };
    if plain.len() + init.len() + ephemeral.len() > 1 {
        let marked = |names: &[String], mark: &str| names.iter().map(|n| format!("{n}{mark}")).collect::<Vec<_>>();
        let all = [marked(&plain, ""), marked(&ephemeral, " (ephem)"), marked(&init, " (init)")].concat();
        warnings.push(format!("Defaulted container \"{first}\" out of: {}", all.join(", ")));
    }
    Ok(first.clone())
}

/// Refuses if there can be no log yet; upstream's `validateContainerLogStatus`.
fn may_log(pod: &Object, log: &LogOptions) -> Result<(), Status> {
    let (name, container) = (pod.name(), log.container.as_str());
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| pod.0["status"][list].as_array()).flatten();
    let status = all.find(|status| status["name"] == container).unwrap_or(&Value::Null);
    let ended_before = status["lastState"]["terminated"].is_object();
    if log.previous {
        if ended_before {
            return Ok(());
        }
        let why = format!("previous terminated container \"{container}\" in pod \"{name}\" not found");
        return Err(Status::bad_request(why));
    }
    let state = &status["state"];
    if state["running"].is_object() || state["terminated"].is_object() || ended_before {
        return Ok(());
    }
    let waits = match state["waiting"]["reason"].as_str().unwrap_or("ContainerCreating") {
        "ErrImagePull" => "image can't be pulled".to_owned(),
        "ImagePullBackOff" => "trying and failing to pull image".to_owned(),
        reason => reason.to_owned(),
    };
    Err(Status::bad_request(format!("container \"{container}\" in pod \"{name}\" is waiting to start: {waits}")))
}
