//! What a row of the table has of a CustomResourceDefinition. Such rows are like the others, and made while we run (`definition`).
//!
//! A row is static, as everything that handles kinds wants it: it is kept for good, and made anew only when something that
//! is fixed in it changes (group, plural, singular and kind, scope, which subresources there are, selectable fields). A
//! definition whose fixed parts are as they were, or become so again, gets the same row, and there are so many rows at most
//! (`registry`). What changes more often, and all that has weight (the schema, columns, short names), is no part of it: a row
//! holds the newest [`Version`] of its definition, and rows of a definition that is gone hold none.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use serde_json::Value;

use super::scale::Scale;
use crate::columns::Column;
use crate::schema::{self, Struct};
use crate::structural::{Schema, compile, costs};

/// The part of a row that a definition may change.
pub struct Custom {
    version: RwLock<Arc<Version>>,
    /// `com.example.v1.Widget`: its name in OpenAPI documents.
    name: String,
    /// Whether it is the version that its group prefers.
    pub preferred: bool,
    /// The fields that selectors of any version may name.
    pub indexed: &'static [&'static str],
}

/// One version of a custom resource as its definition has it now.
pub struct Version {
    /// `openAPIV3Schema` as it was written.
    pub json: Value,
    pub schema: Schema,
    /// The same for patches, server-side apply and selectors.
    pub tree: Arc<Struct>,
    /// What users of a deprecated version are told.
    pub warning: Option<String>,
    /// How its objects become those of another version.
    pub conversion: Conversion,
    /// Whether the definition is being deleted: nothing new is created then.
    pub terminating: bool,
    /// What a list of them is called; empty: as its kind, and `List`.
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub columns: Arc<[Column]>,
    pub scale: Option<Scale<Cow<'static, str>>>,
    pub(super) has_rules: bool,
    pub(super) rules_work: OnceLock<u64>,
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Version").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Version {
    /// What its rules may take for one object at most, in steps of an evaluation: about a tenth of a microsecond each.
    pub fn rules_work(&self) -> u64 {
        if self.has_rules { *self.rules_work.get_or_init(|| costs::most_work(&self.schema)) } else { 0 }
    }

    /// The version of a definition that is gone. Nothing is created any more, and who has begun to change an object of it loses
    /// nothing of that.
    pub fn gone() -> Version {
        let schema = Schema { preserves_unknown: true, ..Schema::default() };
        Version {
            tree: compile::object("", &schema, schema::metadata()),
            json: Value::Null,
            schema,
            warning: None,
            conversion: Conversion::None,
            terminating: true,
            list_kind: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            columns: [].into(),
            scale: None,
            has_rules: false,
            rules_work: OnceLock::new(),
        }
    }
}

/// How objects of one version become those of another.
#[derive(Clone, Debug, PartialEq)]
pub enum Conversion {
    /// Only `apiVersion` changes.
    None,
    /// By a webhook: `spec.conversion.webhook`.
    Webhook(Value),
}

impl std::fmt::Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Custom {
    pub(super) fn new(
        name: String,
        version: Arc<Version>,
        preferred: bool,
        indexed: &'static [&'static str],
    ) -> Custom {
        Custom { version: RwLock::new(version), name, preferred, indexed }
    }
    pub fn version(&self) -> Arc<Version> {
        self.version.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub fn set(&self, version: Arc<Version>) {
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = version;
    }
    pub fn definition_name(&self) -> String {
        self.name.clone()
    }
}
