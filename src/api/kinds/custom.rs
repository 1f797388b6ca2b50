//! The rows of CustomResourceDefinitions in the table of kinds, which are like the others, but created at run time (`definition`).
//!
//! A row is static, as all code on kinds requires: it is leaked, and recreated only when a fixed part of it changes (group,
//! plural, singular and kind, scope, the set of subresources, selectable fields). A definition with the same fixed parts, even
//! recreated, gets the same row, and the number of rows is limited (`registry`). What changes more often, or is large (the schema,
//! columns, short names), is not part of it: a row refers to the newest [`Version`] of its definition, and after deletion to none.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use serde_json::Value;

use super::scale::Scale;
use crate::columns::Column;
use crate::schema::{self, Struct};
use crate::structural::{Schema, compile, costs};

/// The part of a row that may change with its definition.
pub struct Custom {
    version: RwLock<Arc<Version>>,
    /// `com.example.v1.Widget`: its name in OpenAPI documents.
    name: String,
    /// Whether it is the preferred version of its group.
    pub preferred: bool,
    /// The selectable fields of all versions.
    pub indexed: &'static [&'static str],
}

/// One version of a custom resource in its current form.
pub struct Version {
    /// The original `openAPIV3Schema`.
    pub json: Value,
    pub schema: Schema,
    /// The same for patches, server-side apply and selectors.
    pub tree: Arc<Struct>,
    /// The warning for users of a deprecated version.
    pub warning: Option<String>,
    /// How its objects are converted to another version.
    pub conversion: Conversion,
    /// Whether the definition is terminating: nothing new is created then.
    pub terminating: bool,
    /// The kind of its lists; empty: its kind with `List`.
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
    /// The maximum cost of its rules for one object, in steps of an evaluation: about a tenth of a microsecond each.
    pub fn rules_work(&self) -> u64 {
        if self.has_rules { *self.rules_work.get_or_init(|| costs::most_work(&self.schema)) } else { 0 }
    }

    /// The version of a deleted definition. Nothing is created any more, and updates in progress lose no fields.
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

/// The conversion between versions.
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
