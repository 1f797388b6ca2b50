//! Common to all commands that write: dry runs, and reporting results.

use serde_json::Value;

use super::{
    Session,
    error::Failure,
    print::{self, Format},
    target,
};
use podwright_api::{FieldValidation, Kind, Object, Options, Verb, request::PatchType};

/// Flags of every command that writes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Writing {
    /// Output format: json, yaml, name, jsonpath=TEMPLATE
    #[arg(long, short = 'o', value_name = "FORMAT", global = true)]
    pub output: Option<Format>,
    /// Must be "none", "client" (only print the object that would be sent) or "server" (submit it without persisting
    /// it)
    #[arg(long, default_value = "none", value_parser = ["none", "client", "server"], num_args = 0..=1, default_missing_value = "client", require_equals = true, global = true)]
    dry_run: String,
}

impl Writing {
    /// Nothing is sent at all.
    pub fn is_client_side(&self) -> bool {
        self.dry_run == "client"
    }

    /// Nothing is stored.
    pub fn is_dry(&self) -> bool {
        // What no argv has said is no dry run either.
        !matches!(self.dry_run.as_str(), "none" | "")
    }

    fn options(&self) -> Options {
        Options { dry_run: self.dry_run == "server", ..Options::default() }
    }

    /// `pod/x created (dry run)`, or the object in the requested format.
    pub fn tell(&self, kind: &Kind, object: &Object, done: &str) -> Result<(), Failure> {
        let note = match self.dry_run.as_str() {
            "client" => " (dry run)",
            "server" => " (server dry run)",
            _ => "",
        };
        match &self.output {
            None => outln!("{} {done}{note}", target::display(kind, object.name())),
            Some(format) => raw!("{}", print::object(format, object)?),
        }
        Ok(())
    }

    /// Creates an object, unless it is a client-side dry run.
    pub async fn create(
        &self,
        session: &Session,
        kind: &Kind,
        object: &Object,
        validation: FieldValidation,
    ) -> Result<Object, Failure> {
        if self.is_client_side() {
            return Ok(object.clone());
        }
        let mut request = session.request(Verb::Create, kind, object.namespace(), None);
        request.body = Some(object.0.clone());
        request.options = Options { field_validation: Some(validation), ..self.options() };
        Ok(session.object(request).await?)
    }

    /// Patches an object; in a client-side dry run a merge patch is applied locally.
    pub async fn patch(
        &self,
        session: &Session,
        kind: &Kind,
        object: &Object,
        patch_type: PatchType,
        patch: Value,
    ) -> Result<Object, Failure> {
        if self.is_client_side() {
            return Ok(Object(podwright_api::patch::patch(kind, patch_type, object, &patch)?));
        }
        let mut request = session.request(Verb::Patch, kind, object.namespace(), Some(object.name()));
        request.body = Some(patch);
        request.options = Options { patch_type: Some(patch_type), ..self.options() };
        Ok(session.object(request).await?)
    }

    /// Replaces an object.
    pub async fn update(&self, session: &Session, kind: &Kind, object: &Object) -> Result<Object, Failure> {
        if self.is_client_side() {
            return Ok(object.clone());
        }
        let mut request = session.request(Verb::Update, kind, object.namespace(), Some(object.name()));
        request.body = Some(object.0.clone());
        request.options = self.options();
        Ok(session.object(request).await?)
    }
}
