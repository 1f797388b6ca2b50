//! placeholder
pub mod image;
