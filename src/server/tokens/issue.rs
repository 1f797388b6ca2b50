//! The `token` subresource of ServiceAccounts: TokenRequests.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::ISSUER;
use crate::admission::{self, operation::Operation};
use crate::cache::item::Item;
use crate::resolved_request::{ResolvedRequest, bad_value};
use crate::timestamp::timestamp;
use crate::{Server, get};
use podwright_api::{Response, Status, kinds};

const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST_SECONDS: i64 = 600;
const LONGEST_SECONDS: i64 = 1 << 32;

impl Server {
    /// Answers a TokenRequest for a ServiceAccount.
    pub(crate) async fn issue_token(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let (mut request, warnings) = call.take_order()?;
        admission::admit(self, &call, Operation::Create, &mut request).await?;
        let mut request = request.0;
        self.cache.fresh().await?;
        let item = self.cache.resource(call.kind).get(&call.key()).ok_or_else(|| call.not_found())?;
        let account = &*item;

        let seconds = match &request["spec"]["expirationSeconds"] {
            Value::Null => DEFAULT_SECONDS,
            value => value.as_i64().unwrap_or(0),
        };
        let asked = &request["spec"]["expirationSeconds"];
        let refuse = |why: &str| {
            let cause = bad_value("spec.expirationSeconds", asked, why);
            Err(Status::invalid("TokenRequest", "authentication.k8s.io", account.name(), vec![cause]))
        };
        if seconds < SHORTEST_SECONDS {
            return refuse("may not specify a duration less than 10 minutes");
        }
        if seconds > LONGEST_SECONDS {
            return refuse("may not specify a duration larger than 2^32 seconds");
        }
        let audiences = match request["spec"]["audiences"].as_array().filter(|list| !list.is_empty()) {
            Some(list) => list.clone(),
            None => vec![ISSUER.into()],
        };

        let now = self.env.now();
        let (issued, expires) = (now.as_second(), now.as_second() + seconds);
        let namespace = call.within();
        let mut bound = Map::new();
        bound.insert("namespace".into(), namespace.into());
        bound.insert("serviceaccount".into(), json!({"name": account.name(), "uid": account.uid()}));
        if let Some(reference) = request["spec"].get("boundObjectRef").filter(|r| !r.is_null()) {
            self.bind_token(&call, account, reference, &mut bound)?;
        }
        let claims = json!({
            "aud": audiences, "exp": expires, "iat": issued, "nbf": issued, "iss": ISSUER, "jti": self.env.uid(),
            "sub": format!("system:serviceaccount:{namespace}:{}", account.name()),
            "kubernetes.io": bound,
        });
        let token = jsonwebtoken::encode(&self.signer.header, &claims, &self.signer.encoding)
            .map_err(|e| Status::internal(format!("a token cannot be signed: {e}")))?;

        let expiration = jiff::Timestamp::from_second(expires).map(timestamp);
        request["metadata"]["name"] = account.name().into();
        request["metadata"]["namespace"] = namespace.into();
        request["spec"]["audiences"] = audiences.into();
        request["spec"]["expirationSeconds"] = seconds.into();
        request["status"] = json!({"token": token, "expirationTimestamp": expiration.unwrap_or_default()});
        Ok(Response { warnings, ..get::object(request.to_string().into(), true) })
    }

    /// Binds a token to an object, whose deletion invalidates it.
    fn bind_token(
        &self,
        call: &ResolvedRequest,
        account: &Item,
        reference: &Value,
        bound: &mut Map<String, Value>,
    ) -> Result<(), Status> {
        let (kind, version) = (reference["kind"].as_str().unwrap_or(""), reference["apiVersion"].as_str());
        let (plural, claim) = match kind {
            "Pod" => ("pods", "pod"),
            "Node" => ("nodes", "node"),
            "Secret" => ("secrets", "secret"),
            _ => {
                let group_version = version.unwrap_or("");
                return Err(Status::bad_request(format!(
                    "cannot bind token to object of type {group_version}, Kind={kind}"
                )));
            }
        };
        if version.is_some_and(|version| version != "v1") {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {}, Kind={kind}",
                version.unwrap_or("")
            )));
        }
        let object = self.referred(call, plural, reference)?;
        if kind == "Pod" {
            let kind = kinds::lookup("pods").ok_or_else(|| Status::internal("no kind Pod"))?;
            if object.field(kind, "spec.serviceAccountName") != account.name() {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    account.name()
                )));
            }
            if let Some(node) = Some(object.field(kind, "spec.nodeName")).filter(|node| !node.is_empty()) {
                bound.insert("node".into(), self.node_claim(node)?);
            }
        }
        bound.insert(claim.into(), json!({"name": object.name(), "uid": object.uid()}));
        Ok(())
    }

    /// The object to bind a token to.
    fn referred(&self, call: &ResolvedRequest, plural: &str, reference: &Value) -> Result<Arc<Item>, Status> {
        let kind = kinds::lookup(plural).ok_or_else(|| Status::internal(format!("no kind {plural}")))?;
        let name = reference["name"].as_str().unwrap_or("");
        let item = self.cache.resource(kind).get(&kind.key(Some(call.within()), name));
        let object = item.ok_or_else(|| Status::not_found(plural, "", name))?;
        let uid = reference["uid"].as_str().unwrap_or("");
        if !uid.is_empty() && uid != object.uid() {
            return Err(call.conflict(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            )));
        }
        Ok(object)
    }

    /// The Pod's node as a claim; with the uid if the Node exists.
    fn node_claim(&self, name: &str) -> Result<Value, Status> {
        let kind = kinds::lookup("nodes").ok_or_else(|| Status::internal("no kind Node"))?;
        Ok(match self.cache.resource(kind).get(&kind.key(None, name)) {
            Some(item) => json!({"name": name, "uid": item.uid()}),
            None => json!({"name": name}),
        })
    }
}
