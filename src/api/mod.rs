//! The objects of the API: kinds, schemas, defaults, validation, selectors, quantities, patches. Pure: no I/O.
//!
//! `Object` is an object as the server and the store hold it, an untyped JSON tree; the `k8s_openapi` types are
//! views of it for controllers, scheduler and agent. `kinds::KINDS` is the table that everything generic reads.

pub mod env;
pub mod kinds;
pub mod object;
pub mod request;
pub mod rpc;
pub mod selector;
pub mod status;
pub mod stream;

pub use env::Env;
pub use kinds::Kind;
pub use object::Object;
pub use request::{Options, Request, Response, User, Verb, WatchEvent};
pub use status::{Cause, Status};
